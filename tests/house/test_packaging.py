"""The package as others install it: its files, its extras, what happens without them, and its command line's words."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from graphweave.cli import missing
from graphweave.cli.main import main, parser
from graphweave.core import extras
from graphweave.core.versions import TESTED, numbers
from release import built, check, versions
from release.package import first_example
from tests import fresh_process

ROOT = Path(__file__).parents[2]
needs_git = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a clone")
PACKAGE = ROOT / "graphweave"
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
DISTRIBUTIONS = {"sklearn": "scikit-learn", "yaml": "pyyaml"}
"""Package as it is imported -> its name for pip, where they differ."""


# ---------------------------------------------------------------- files


@needs_git
def test_every_file_of_the_package_is_installed() -> None:
    """Files that are no modules need a pattern in pyproject.toml, and folders of modules an `__init__.py`."""
    data = re.search(r"^\[tool\.setuptools\.package-data\]\ngraphweave = \[(.*?)^\]", PROJECT, re.MULTILINE | re.DOTALL)
    assert data is not None
    patterns = re.findall(r'"([^"]+)"', data[1])
    installed = {path for pattern in ("**/*.py", *patterns) for path in PACKAGE.glob(pattern)}
    package = {ROOT / name for name in built.tracked_files("graphweave")}
    assert package - installed == set(), "add a pattern to package-data in pyproject.toml"
    assert [
        folder for folder in {p.parent for p in package if p.suffix == ".py"} if not (folder / "__init__.py").exists()
    ] == []


def test_the_source_archive_leaves_out_other_folders() -> None:
    assert "prune tests" in (ROOT / "MANIFEST.in").read_text(encoding="utf-8")
    assert 'include = ["graphweave*"]' in PROJECT


# ---------------------------------------------------------------- extras


def extra(name: str) -> list[str]:
    """What the extra installs."""
    listed = re.search(rf"^{name} = \[(.*?)\]$", PROJECT, re.MULTILINE | re.DOTALL)
    assert listed is not None, name
    return [re.split(r"[\[>=<;]", part)[0] for part in re.findall(r'"([^"]+)"', listed[1])]


def test_extras_are_what_the_project_declares() -> None:
    declared = set(
        re.findall(
            r"^([a-z]+) = \[",
            PROJECT.partition("[project.optional-dependencies]")[2].partition("[project.scripts]")[0],
            re.MULTILINE,
        )
    )
    assert declared == {*extras.USES, "site", "test"} and {*extras.EXTRA_OF.values()} == {*extras.USES}
    for package, name in extras.EXTRA_OF.items():
        assert DISTRIBUTIONS.get(package, package) in extra(name), package
        if package != "ziglang":  # a whole compiler, for which a stand-in does in the tests that run by default
            assert DISTRIBUTIONS.get(package, package) in extra("test"), f"tests need {package}"


def test_the_package_itself_needs_few_others() -> None:
    listed = re.search(r"^dependencies = \[(.*?)^\]", PROJECT, re.MULTILINE | re.DOTALL)
    assert listed is not None
    assert re.findall(r'"([a-z_]+)', listed[1]) == ["torch", "numpy", "scipy", "platformdirs", "filelock"]


WITHOUT = f"""
import sys
for package in {sorted(extras.EXTRA_OF)}:
    sys.modules[package] = None  # as if it were not installed
import io, torch, graphweave
from graphweave.cli.main import main
from graphweave.data import digits, from_tables

def total(x, edge_index):
    return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]]).sum()

sys.stdout.isatty = lambda: True
print("explained", graphweave.explain(total, torch.rand(9, 3), torch.randint(9, (2, 20))))
for command in ("train", "bench", "partition", "completion"):
    print(command, main([command]))
for load in (digits, lambda: from_tables("folder", "orders.returned")):
    try:
        load()
    except graphweave.core.errors.DataError as error:
        print(error)
"""


def test_without_any_extra() -> None:
    """Compiling and explaining work; commands say which extra they need."""
    done = subprocess.run([sys.executable, "-c", WITHOUT], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "explained" in done.stdout and "sum over edges of edge_index" in done.stdout
    for command in ("train", "bench", "partition", "completion"):
        assert f"{command} 2" in done.stdout
        assert re.search(
            rf"^graphweave {command}: error: needs \w+, which is not installed\. Run: pip install",
            done.stderr,
            re.MULTILINE,
        )
    assert "from_tables needs the extra 'tables'" in done.stdout and "'graphweave[tables]'" in done.stdout
    assert "digits: the images come with scikit-learn" in done.stdout and "'graphweave[train]'" in done.stdout


MAIN_JOB = """
import sys
for package in {blocked}:
    sys.modules[package] = None  # as if it were not installed
import torch
import graphweave as gw
{program}
"""

COMPILED = """
from graphweave import data, sampling
from graphweave.examples.typed_nodes import TypedNodeTraining
from graphweave.examples.training import TrainingJob
from graphweave.nn import GATConv

g, layer = gw.graph(data.rmat(16, 60)), GATConv(4, 3, 2)
layer_loss = gw.compile(lambda g, x: layer(g, x).square().sum())
layer_loss(g, torch.randn(16, 4)).backward()
y, some = torch.arange(16) % 2, torch.arange(16) < 8
graph = data.TypedNodeData(
    (16,), (torch.randn(16, 4),), data.rmat(16, 60), torch.zeros(60, dtype=torch.int64), 1, y, some, ~some,
    ~some, 2, "made",
)
training = TypedNodeTraining("eager", TrainingJob("rgcn", hidden=4), graph)
training.epoch()
(batch,) = sampling.DataLoader(g, torch.arange(16), sampling.BlockSampler(g, [2, 2]), batch_size=16)
print("trained", training.test())
"""


def test_the_main_job_needs_torch_and_numpy_alone() -> None:
    """Layers, compilation, data, trainings and batches, without any extra and without SciPy."""
    said = fresh_process.checked(MAIN_JOB.format(blocked=[*extras.EXTRA_OF, "scipy"], program=COMPILED))
    assert said.startswith("trained")


def test_the_first_example_of_the_readme_needs_pyg_alone() -> None:
    program = first_example((ROOT / "README.md").read_text(encoding="utf-8"))
    blocked = [*(extras.EXTRA_OF.keys() - {"torch_geometric"}), "scipy"]
    assert "kernels" in fresh_process.checked(MAIN_JOB.format(blocked=blocked, program=program))


def test_an_import_that_fails_for_another_reason_is_no_missing_package() -> None:
    assert extras.missing_package(ImportError("cannot import name", name="numpy")) is None
    assert extras.missing_package(ImportError("cannot import name", name="graphweave.core")) is None


# ---------------------------------------------------------------- what doctor says


def test_missing_packages_are_told_with_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = {"pandas", "matplotlib"}
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name in gone else object())
    assert [(part["what"], part["install"]) for part in missing.missing(compiler=True)] == [
        ("matplotlib", "pip install 'graphweave[plot]'"), ("pandas", "pip install 'graphweave[tables]'")
    ]  # fmt: skip
    assert missing.missing(compiler=False)[0]["what"] == "a C++ compiler"


@pytest.mark.parametrize(
    ("release", "command"),
    [({"ID": "debian"}, "apt-get install g++"), ({"ID": "mint", "ID_LIKE": "ubuntu debian"}, "apt-get install g++"),
     ({"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, "dnf install gcc-c++"), ({"ID": "nixos"}, "conda install")],
)  # fmt: skip
def test_the_command_for_a_compiler(release: dict[str, str], command: str) -> None:
    assert missing.compiler_command(release).startswith(command)


# ---------------------------------------------------------------- completion in a shell

needs_shtab = pytest.mark.skipif(find_spec("shtab") is None, reason="needs shtab")


@needs_shtab
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_knows_commands_and_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for name, sub in parser()._subparsers._group_actions[0].choices.items():  # type: ignore[union-attr]
        assert name in script and sub.prog in ("", f"graphweave {name}")
    for option in ("model", "epochs", "parts", "json"):
        assert option in script


BASH = """
complete -p graphweave >/dev/null && echo "function"
COMP_WORDS=({words}) COMP_CWORD={last}
_shtab_graphweave && echo "${{COMPREPLY[@]}}"
"""


@needs_shtab
@pytest.mark.parametrize(
    ("line", "expected"),
    [("tr", {"train"}), ("train --mod", {"--model"}), ("train --model gat", {"gat", "gatv2"}), ("cache lo", {"load"})],
)
def test_bash_completes(line: str, expected: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "graphweave.bash"
    words = ["graphweave", *line.split()]
    script.write_text(capsys.readouterr().out + BASH.format(words=" ".join(words), last=len(words) - 1))
    done = subprocess.run(["bash", str(script)], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"function", *expected}, done.stderr


# ---------------------------------------------------------------- releases


@needs_git
def test_this_version_could_be_released_next() -> None:
    assert check.problems(next_release=True) == []


@pytest.mark.parametrize(
    ("heading", "tags", "problem"),
    [("0.1.0 - 2026-12-01", ["v0.0.9"], None), ("0.2.0 - 2026-12-01", [], "begins with 0.2.0"),
     ("0.1.0", [], "Write: 0.1.0 - YEAR"), ("0.1.0 (not released yet)", [], "not released"),
     ("0.1.0 - 2026-12-01", ["v0.1.0"], "tag v0.1.0"), ("0.1.0 - 2026-12-01\n\n### Neu", [], "the kind Neu")],
)  # fmt: skip
def test_what_stands_in_the_way_of_a_release(heading: str, tags: list[str], problem: str | None) -> None:
    found = check.version_problems("0.1.0", f"# Changelog\n\n## {heading}\n\n- A change.\n", tags)
    assert (problem in " ".join(found)) if problem else found == []


def test_a_changelog_without_changes_is_not_released() -> None:
    assert check.version_problems("0.1.0", "# Changelog\n\n## 0.1.0\n\n## 0.0.9\n\n- A change.\n", []) != []


def test_every_release_of_torch_since_the_oldest_is_among_those_to_try() -> None:
    series = sorted({numbers(c.torch)[:2] for c in versions.COMBINATIONS})
    assert series == [(2, minor) for minor in range(series[0][1], series[-1][1] + 1)]
    assert numbers(TESTED["torch"].oldest) in series and numbers(TESTED["torch"].checked) in series
    accepted = [c for c in versions.COMBINATIONS if numbers(c.torch) >= numbers(TESTED["torch"].oldest)]
    assert {c.python for c in accepted} == {"3.10", "3.11", "3.12", "3.13"}
    assert {c.torch_geometric.rpartition(".")[0] for c in accepted} == {TESTED["torch_geometric"].oldest, "2.7", "2.8"}


def test_what_pip_accepts_has_worked_where_it_was_tried() -> None:
    found = versions.read()
    assert found and {result.combination for result in found} <= set(versions.COMBINATIONS)
    for result in found:
        accepted = numbers(result.combination.torch) >= numbers(TESTED["torch"].oldest)
        assert result.smoke == accepted, f"{versions.described(result.combination)}: {result.why}"


def test_the_reason_of_a_failure_is_the_last_line_without_paths() -> None:
    output = "Traceback:\n  File\nImportError: cannot import name 'a' from 'b' (/tmp/graphweave-1/venv/b.py)\n"
    assert versions.last_words(output) == "ImportError: cannot import name 'a' from 'b'"
    assert versions.last_words("") == "nothing was printed"
