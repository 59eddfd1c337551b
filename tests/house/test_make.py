"""`make` installs for the main job what it needs, and everything for tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def planned(venv: Path, *arguments: str) -> str:
    """What `make` would run for a virtual environment in this folder."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "-n", *arguments, f"VENV={venv}"]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True).stdout


def extras(plan: str) -> set[str]:
    return {
        extra
        for names in re.findall(r'pip install (?:--no-compile )?-e "\.\[([^]]*)\]"', plan)
        for extra in names.split(",")
    }


def test_the_main_job_installs_what_it_needs(tmp_path: Path) -> None:
    plan = planned(tmp_path / "new", "train")
    assert extras(plan) == {"pyg", "train"}
    assert plan.index("-m venv") < plan.index(" torch==") < plan.index(" -e ") < plan.index("graphweave train")
    for output in ("--plot out.png", "--report out.html"):
        assert extras(planned(tmp_path / "new", "train", f"ARGS=--compare {output}")) == {"pyg", "train", "plot"}


@pytest.mark.parametrize("target", ["setup", "test", "lint", "fuzz", "test-triton", "bench"])
def test_other_targets_install_everything(target: str, tmp_path: Path) -> None:
    assert extras(planned(tmp_path / "new", target)) == {"pyg", "train", "plot", "test"}


def test_processes_of_tests_keep_bytecode(tmp_path: Path) -> None:
    """Also where the environment forbids it (PYTHONDONTWRITEBYTECODE)."""
    rules = tmp_path / "shows.mk"
    rules.write_text(f'include {ROOT / "Makefile"}\nshows: ; @echo "=$$PYTHONDONTWRITEBYTECODE="\n')
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    environ["PYTHONDONTWRITEBYTECODE"] = "1"
    command = ["make", "-s", "-f", str(rules), "shows"]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "==\n"


@pytest.mark.parametrize("target", ["site", "setup-site"])
def test_the_site_needs_its_own_packages(target: str, tmp_path: Path) -> None:
    assert extras(planned(tmp_path / "new", target)) == {"pyg", "train", "site"}


@pytest.mark.parametrize(
    ("stamps", "target", "wanted"),
    [
        ((".installed-train",), "train", set()),
        ((".installed-train",), "test", {"pyg", "train", "plot", "test"}),
        ((".installed-train", ".installed-plot", ".installed"), "test", set()),
        ((".installed-train", ".installed-plot", ".installed"), "train", set()),
    ],
)
def test_nothing_is_installed_twice(stamps: tuple[str, ...], target: str, wanted: set[str], tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").touch()
    for stamp in stamps:
        (tmp_path / stamp).touch()
    assert extras(planned(tmp_path, target)) == wanted
    assert extras(planned(tmp_path, target, "ARGS=--plot out.png")) == wanted | (
        {"plot"} if target == "train" and ".installed-plot" not in stamps else set()
    )


def test_what_everything_leaves_behind_serves_the_main_job(tmp_path: Path) -> None:
    touched = re.search(r"^touch (.*)$", planned(tmp_path / "new", "setup"), re.MULTILINE)
    assert touched is not None
    assert [Path(p).name for p in touched[1].split()] == [".installed-train", ".installed-plot", ".installed"]


def test_a_package_needs_python_alone(tmp_path: Path) -> None:
    plan = planned(tmp_path / "new", "package", "TORCH=torch==2.9.1 --index-url file:///wheels")
    assert extras(plan) == set() and '-m release.package --torch "torch==2.9.1 --index-url file:///wheels"' in plan


def test_a_release_is_checked_after_what_it_checks_is_built(tmp_path: Path) -> None:
    plan = planned(tmp_path / "new", "release-check")
    steps = ["-m mkdocs build", "-m release.package", "-m release.check", "tests/docs/test_examples.py"]
    assert [plan.index(step) for step in steps] == sorted(plan.index(step) for step in steps)
