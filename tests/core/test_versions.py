"""The table of tested versions: what it says of others, what an import says of a newer PyTorch, which warnings fail."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from graphweave.core import versions
from graphweave.core.versions import TESTED, Releases, is_release, newer_than_tested, numbers
from tests import warning_filters

ROOT = Path(__file__).parents[2]
CHECKED = {package: tested.checked for package, tested in TESTED.items()}


def test_the_table_is_what_the_project_asks_for_and_checks() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    asked = {name: set(re.findall(rf'"{name}(?:>=([\d.]+))?[";\s]', project)) for name in TESTED}
    assert {name: {tested.oldest} for name, tested in TESTED.items() if asked[name]} == {
        name: found for name, found in asked.items() if found
    }
    assert "torch" in asked and asked["torch"] == {TESTED["torch"].oldest}
    used = re.search(r"^TORCH \?= torch==(\S+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert used is not None and is_release(used[1], TESTED["torch"].checked)


def test_releases() -> None:
    assert numbers("2.13.0+cpu") == (2, 13, 0) and numbers("2.15.0.dev20261101") == (2, 15, 0) and numbers("git") == ()
    assert is_release("2.13.1+cpu", "2.13") and is_release("2.13", "2.13") and is_release("6.170.17", "6")
    assert not is_release("2.14.0", "2.13") and not is_release("2.1.3", "2.13") and not is_release("2.130", "2.13")


@pytest.mark.parametrize(
    ("tried", "version", "is_newer"),
    [("", "2.13.9", False), ("", "2.14.0", True), ("", "2.9.1", False), ("", "3.0", True), ("", "git", False),
     ("2.14", "2.14.1", False), ("2.14", "2.15.0.dev1+cpu", True)],
)  # fmt: skip
def test_newer_ones_are_told(tried: str, version: str, is_newer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TESTED, "torch", Releases("2.9", "2.13", tried))
    line = newer_than_tested("torch", version)
    assert (line is not None) == is_newer
    if line is not None:
        newest = tried or "2.13"
        assert line.startswith(f"graphweave was tested with torch up to {newest} (found {version}). If something fails")


def imported(folder: Path, *options: str, logs: str = "") -> tuple[int, str, str]:
    """`import graphweave` in a process that finds the PyTorch of `folder` first: its status, output and errors."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "GRAPHWEAVE_LOGS": logs}
    command = [sys.executable, *options, "-c", "import graphweave; print(graphweave.__version__)"]
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_the_import_with_a_newer_torch_says_so_in_one_line(tmp_path: Path) -> None:
    """It is a line of the log, so that nothing breaks where warnings are errors."""
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("raise SystemExit('PyTorch is not to be loaded')")
    (torch / "version.py").write_text("from typing import Optional\n__version__ = '99.1.0+cu200'\ncuda = None\n")
    line = newer_than_tested("torch", "99.1.0+cu200")
    assert imported(tmp_path, "-W", "error") == (0, "0.1.0\n", f"{line}\n")
    assert imported(tmp_path, logs="-core") == (0, "0.1.0\n", "")
    (torch / "version.py").write_text(f"__version__ = '{TESTED['torch'].checked}.0'\n")
    assert imported(tmp_path) == (0, "0.1.0\n", "")
    (torch / "version.py").unlink()
    assert imported(tmp_path) == (0, "0.1.0\n", "")


def test_the_version_of_a_loaded_torch_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    assert versions._torch_version() == torch.__version__
    monkeypatch.delitem(sys.modules, "torch")
    assert versions._torch_version() == torch.__version__, "as its file says"


def test_warnings_of_others_are_errors_only_where_everything_is_what_is_checked() -> None:
    assert warning_filters.not_checked(CHECKED) == []
    assert warning_filters.filters(CHECKED)[0] == "error"
    other = CHECKED | {"torch": "2.99.1"}
    assert warning_filters.not_checked(other) == [f"torch 2.99.1 (checked: {CHECKED['torch']})"]
    assert warning_filters.filters(other)[0] == "default"


TESTS = """
import warnings

def test_ours():
    warnings.warn("graphweave: f runs eagerly")

def test_others():
    warnings.warn("`torch.jit.script` is deprecated", FutureWarning)

def test_known():
    warnings.warn("Sparse CSR tensor support is in beta state", UserWarning)
"""
CONFTEST = """
from tests import warning_filters

def pytest_configure(config):
    warning_filters.installed = lambda: {versions}
    warning_filters.add(config)

def pytest_report_header():
    return warning_filters.header()
"""


@pytest.mark.parametrize("other", [False, True], ids=["checked", "another"])
def test_what_pytest_makes_of_it(other: bool, tmp_path: Path) -> None:
    installed = CHECKED | ({"torch": "2.99.1"} if other else {})
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(CONFTEST.replace("{versions}", repr(installed)))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-rf", str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    failed = set(re.findall(r"^FAILED test_it\.py::(\w+)", done.stdout, re.MULTILINE))
    assert failed == ({"test_ours"} if other else {"test_ours", "test_others"}), done.stdout
    said = "warnings of other packages are no errors, since .ci/run checks other releases: torch 2.99.1"
    assert (said in done.stdout) == other
