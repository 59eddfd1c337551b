"""What README and the first pages name exists: targets of make, files, variables, counters, benchmarks.

Their code is tested by test_doc_blocks.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIRST_PAGES = (
    "README.md", "docs/command_line.md", "docs/features.md", "docs/first_steps.md", "docs/limits.md",
    "docs/looking_inside.md", "docs/pyg.md", "docs/recipes.md", "examples/README.md",
)  # fmt: skip
TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in FIRST_PAGES}
README, ALL = TEXTS["README.md"], "\n".join(TEXTS.values())

MADE = sorted(set(re.findall(r"(?:`|^)make ([a-z][a-z-]*)", ALL, re.MULTILINE)))
"""Targets of make in blocks and in the text."""
FIRST_SNIPPET = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)[0]


def test_without_pyg_the_first_snippet_says_what_to_install(tmp_path: Path) -> None:
    """Python's traceback shows the line of the import."""
    (tmp_path / "train.py").write_text(FIRST_SNIPPET)
    (tmp_path / "torch_geometric.py").write_text(f"raise ModuleNotFoundError({'No module named torch_geometric'!r})")
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    shown = next(line for line in done.stderr.splitlines() if "from torch_geometric" in line)
    assert shown.endswith("# pip install torch_geometric")


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("target", MADE)
def test_a_target_of_make_exists(target: str) -> None:
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_readme_is_a_front_page() -> None:
    assert len(README.splitlines()) <= 120


@pytest.mark.parametrize("page", FIRST_PAGES)
def test_links_to_files_hold(page: str) -> None:
    for path in re.findall(r"(?:\]\((?!http)|src(?:set)?=\")([^)#\"]+)", TEXTS[page]):
        assert ((ROOT / page).parent / path).exists(), path


def test_every_variable_and_counter_is_real() -> None:
    from graphweave.core.counters import COUNTERS
    from graphweave.core.settings import origins

    variables = {name for name, _ in origins({}).values()} | {"CXX"}
    assert set(re.findall(r"`(GRAPHWEAVE_[A-Z_]+)`", ALL)) <= variables
    looking_inside = TEXTS["docs/looking_inside.md"]
    counted = looking_inside[looking_inside.index("`graphweave.counters()` gives") :].split("\n- ", 1)[0]
    names = set(re.findall(r"`([a-z_]+)`", counted)) - {"graphweave"}
    assert names <= set(COUNTERS) and set(COUNTERS) <= names


def test_benchmarks_it_names_exist() -> None:
    for module in re.findall(r"python -m (bench\.\w+)", ALL):
        assert (ROOT / f"{module.replace('.', os.sep)}.py").exists()
