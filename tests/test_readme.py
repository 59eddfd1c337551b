"""What README names exists: targets of make, files, variables, counters, benchmarks (its code: test_doc_blocks.py)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")

MADE = sorted(set(re.findall(r"(?:`|^)make ([a-z][a-z-]*)", README, re.MULTILINE)))
"""Targets of make in blocks and in the text."""


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("target", MADE)
def test_a_target_of_make_exists(target: str) -> None:
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


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
