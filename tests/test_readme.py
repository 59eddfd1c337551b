"""README's snippets run and print what it says they print, and its commands exist."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from graphweave.cli.main import parser

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")

BLOCKS = [(m[1], m[2]) for m in re.finditer(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)]
"""(language, text) of each block of code."""

SNIPPETS = [i for i, (language, _) in enumerate(BLOCKS) if language == "python"]
COMMANDS = [
    *(line for lang, text in BLOCKS if not lang for line in re.sub(r"\s*\n {8,}", " ", text).splitlines() if line),
    *re.findall(r"`(make train [^`]*)`", README),
]
"""Commands in blocks without a language and in the text. Lines with a deep indentation continue the line before."""

MADE = sorted(set(re.findall(r"(?:`|^)make ([a-z][a-z-]*)", README, re.MULTILINE)))
"""Targets of make in blocks and in the text."""


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("block", SNIPPETS)
def test_a_snippet_runs(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each snippet runs as its own file. A text block behind it is its output, except for numbers."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(BLOCKS[block][1])
    runpy.run_path(str(tmp_path / "train.py"), run_name="__main__")
    if block + 1 < len(BLOCKS) and BLOCKS[block + 1][0] == "text":
        assert _plain(capsys.readouterr().out) == _plain(BLOCKS[block + 1][1])


def test_without_pyg_the_first_snippet_says_what_to_install(tmp_path: Path) -> None:
    """Python's traceback shows the line of the import."""
    (tmp_path / "train.py").write_text(BLOCKS[SNIPPETS[0]][1])
    (tmp_path / "torch_geometric.py").write_text(f"raise ModuleNotFoundError({'No module named torch_geometric'!r})")
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    shown = next(line for line in done.stderr.splitlines() if "from torch_geometric" in line)
    assert shown.endswith("# pip install torch_geometric")


def _plain(text: str) -> list[str]:
    """The lines without column widths and without numbers of edges and bytes, which are random."""
    lines = (re.sub(r" {2,}", "  ", line) for line in text.strip().splitlines())
    return [re.sub(r"(?<![\w:\[])\d[\d,.]*( [kMG]?B)?", "#", line) for line in lines]


def test_there_are_snippets_and_commands() -> None:
    assert len(SNIPPETS) >= 4 and len(MADE) >= 8 and len(COMMANDS) >= 5


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("target", MADE)
def test_a_target_of_make_exists(target: str) -> None:
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_understood(command: str) -> None:
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        assert words[1] in MADE
        words = _of_make(words[2:])
    if words and "{" not in command:
        parser(words[1]).parse_args(words[1:])
        return
    known = parser("train")._subparsers._group_actions[0].choices["train"].format_help()  # type: ignore[union-attr, index]
    for option in re.findall(r"--[a-z][a-z-]*", command):
        assert option in known, option


def _of_make(variables: list[str]) -> list[str]:
    """The arguments of `graphweave train` that `make train` builds from its variables."""
    given = dict(v.split("=", 1) for v in variables if "=" in v)
    words = [f"--{name.lower()}={given[name]}" for name in ("MODEL", "DATA", "EPOCHS") if name in given]
    return ["graphweave", "train", *words, *shlex.split(given.get("ARGS", ""))] if words else []


def test_links_to_files_hold() -> None:
    for path in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (ROOT / path).exists(), path


def test_every_variable_and_counter_is_real() -> None:
    from graphweave.core.counters import COUNTERS
    from graphweave.core.settings import origins

    variables = {name for name, _ in origins({}).values()} | {"CXX"}
    assert set(re.findall(r"`(GRAPHWEAVE_[A-Z_]+)`", README)) <= variables
    counted = README[README.index("`graphweave.counters()` gives") :].split("\n- ", 1)[0]
    names = set(re.findall(r"`([a-z_]+)`", counted)) - {"graphweave"}
    assert names <= set(COUNTERS) and set(COUNTERS) <= names


def test_benchmarks_it_names_exist() -> None:
    for module in re.findall(r"python -m (bench\.\w+)", README):
        assert (ROOT / f"{module.replace('.', os.sep)}.py").exists()
