"""The code of every document runs as it stands, and its commands are understood (`tests/doc_blocks.py` says how)."""

from __future__ import annotations

import linecache
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from docs import made
from graphweave import extend
from graphweave.cli.main import main, parser
from tests.doc_blocks import PAGES, blocks, commands, is_one_program, marked, programs, skip_without_compiler
from tests.ranks_support import begin, ended

IN_TEXT = [
    (page.relative_to(made.ROOT).as_posix(), command)
    for page in PAGES
    for command in re.findall(r"`(make train [^`]*)`", page.read_text(encoding="utf-8"))
]
"""Pages, and commands that stand in their sentences."""
COMMANDS = [*commands(), *IN_TEXT]


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """What a program changes for its whole process is undone: declared operators, stand-ins of modules, the folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    with ExitStack() as declared:
        for name in ("rowwise", "pointwise", "pull", "push", "rule"):
            declare = getattr(extend, name)

            def entered(*args: Any, declare: Any = declare, **more: Any) -> Any:
                return declared.enter_context(declare(*args, **more))

            monkeypatch.setattr(extend, name, entered)
        yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "dgl"]:
        del sys.modules[name]
    if "graphweave.pyg" in sys.modules:
        sys.modules["graphweave.pyg.lending"].take_back()


@pytest.mark.usefixtures("fresh_compiler", "apart")
@pytest.mark.parametrize("name", programs())
def test_a_program_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each program runs as its own file, and prints what the page says it prints."""
    program = programs()[name]
    if any("graphweave.jax" in block.text for block in program):
        pytest.importorskip("jax")
    if any("graphweave.md" in block.text for block in program):
        pytest.importorskip("ase")
    if any('"CXX"' in block.text for block in program):
        skip_without_compiler()
    torch.manual_seed(0)
    module = ModuleType(f"program {name}")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # the tracer looks up globals there
    for number, block in enumerate(program):
        path = tmp_path / (f"train_{number}.py" if number else "train.py")
        path.write_text(block.text)
        linecache.checkcache(str(path))
        exec(compile(block.text, str(path), "exec"), vars(module))
        printed = capsys.readouterr().out
        if block.printed is not None:
            plain = _without_numbers if "explain(" in block.text else str.splitlines
            assert plain(printed) == plain(block.printed), block.name


def _without_numbers(text: str) -> list[str]:
    """The lines without column widths and without numbers of edges and bytes, which are random."""
    lines = (re.sub(r" {2,}", "  ", line) for line in text.strip().splitlines())
    return [re.sub(r"(?<![\w:\[])\d[\d,.]*( [kMG]?B)?", "#", line) for line in lines]


@pytest.mark.parametrize("name", marked("Runs on several ranks"))
@pytest.mark.slow
def test_a_program_of_several_ranks_runs(name: str, tmp_path: Path) -> None:
    """Two ranks run it in a folder that has a graph in two parts in `DIR`."""
    generator = np.random.default_rng(0)
    src, dst = generator.integers(0, 60, (2, 300))
    feat, label = generator.normal(size=(60, 8)).astype(np.float32), generator.integers(0, 7, 60)
    np.savez(tmp_path / "graph.npz", src=src, dst=dst, num_nodes=60, feat=feat, y=label, num_classes=7)
    assert main(["partition", str(tmp_path / "graph.npz"), "--parts", "2", "--out", str(tmp_path / "DIR")]) == 0
    (tmp_path / "train.py").write_text(marked("Runs on several ranks")[name].text)
    for status, _, error in ended(begin(2, [sys.executable, "train.py"], folder=tmp_path)):
        assert status == 0, error


def test_names_are_defined() -> None:
    """Programs that no default test runs are at least free of undefined names."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "--stdin-filename", "a.py", "-"]
    for name, program in (programs() | {n: (b,) for n, b in marked("Runs on several ranks").items()}).items():
        text = "\n".join(block.text for block in program)
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"


def test_every_block_says_what_it_is() -> None:
    for page in PAGES:
        found = blocks(page)
        assert 2 * len(found) == len(re.findall(r"^ *```", page.read_text(encoding="utf-8"), re.MULTILINE)), page
        for block in found:
            assert block.language in ("", "python", "text", "cpp"), block.name
    assert all(block.page.name == "CONTRIBUTING.md" for block in marked("Not run").values())
    assert len(programs()) >= 16 and sum(map(len, programs().values())) >= 35


def test_marks_are_read(tmp_path: Path) -> None:
    """A mark is read from the paragraph above, indented blocks lose their margin, outputs go to their program."""
    page = tmp_path / "page.md"
    page.write_text(
        "Words.\n\n*Not run: needs a GPU.*\n\n```python\na\n```\n\n1. Item:\n\n   *Runs on several ranks: `x`.*\n"
        "   ```python\n   if a:\n       b\n   ```\n\n```python\nprint(1)\n```\n\nThis prints:\n\n```text\n1\n```\n"
    )
    first, second, third, fourth = blocks(page)
    assert first.mark == ("Not run", "needs a GPU") and first.number == 1
    assert second.mark == ("Runs on several ranks", "`x`") and second.text == "if a:\n    b\n"
    assert third.mark is None and third.printed == fourth.text == "1\n"
    assert not is_one_program(page)


@pytest.mark.parametrize(("where", "command"), COMMANDS, ids=[where for where, _ in COMMANDS])
def test_a_command_is_understood(where: str, command: str) -> None:
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        assert words[1] in _targets(), where
        words = _of_make(words[2:])
    if words[:1] == ["torchrun"]:
        words = words[words.index("-m") + 1 :]
    if words[:2] == ["python", "-m"]:
        assert made.ROOT.joinpath(*words[2].split(".")).with_suffix(".py").exists(), where
        return
    if not words:
        return
    assert words[0].endswith("graphweave"), where
    if "{" in command or "..." in command:
        known = _options(words[1])
        assert not [o for o in re.findall(r"--[a-z][a-z-]*", command.partition("graphweave")[2]) if o not in known], (
            where
        )
    else:
        parser(words[1]).parse_args(words[1:])


def _options(command: str) -> str:
    """The help of a command of graphweave, in which its options stand."""
    choices = parser(command)._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    return str(choices[command].format_help())  # type: ignore[index]


def _targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z0-9-]*):", (made.ROOT / "Makefile").read_text(), re.MULTILINE))


def _of_make(variables: list[str]) -> list[str]:
    """The arguments of `graphweave train` that `make train` builds from its variables."""
    given = dict(v.split("=", 1) for v in variables if "=" in v)
    words = [f"--{name.lower()}={given[name]}" for name in ("MODEL", "DATA", "EPOCHS") if name in given]
    return ["graphweave", "train", *words, *shlex.split(given.get("ARGS", ""))] if words else []
