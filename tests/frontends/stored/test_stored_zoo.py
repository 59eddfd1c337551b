"""The small zoo once more in a second process, which restores what the first one has stored."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SMALL = ["-m", "zoo or not zoo", "-k", "test_small and compile", "tests/pyg/test_zoo.py"]


@pytest.mark.slow
def test_the_small_zoo_from_disk(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    own = {"GRAPHWEAVE_STORE_COMPILATIONS": "1", "GRAPHWEAVE_CACHE_DIR": str(tmp_path)}
    runs = []
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SMALL],
            cwd=root, env={**os.environ, **own}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert run.returncode == 0, run.stdout[-4000:]
        found = re.search(r"(\d+) passed", run.stdout)
        files = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "compilations").glob("*.bin")}
        runs.append((found and int(found[1]), files))
    (passed, stored), (again, used) = runs
    assert passed == again
    assert stored.keys() == used.keys()  # nothing was compiled anew
    assert all(used[name] > stored[name] for name in stored)  # all was read again
