"""The benchmark of compilers: its measure and its table."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from bench import compilers
from graphweave.runtime import toolchain


def test_the_seconds_are_those_of_other_processes() -> None:
    work = "sum(range(3_000_000))"
    assert compilers.compiler_seconds(lambda: eval(work)) == 0
    assert compilers.compiler_seconds(lambda: subprocess.run([sys.executable, "-c", work], check=True)) > 0.01


@pytest.mark.skipif(toolchain.available() is None, reason="no C++ compiler")
def test_a_level_is_in_force_for_all_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_REQUIRED", toolchain._REQUIRED)
    compilers.set_level(2)
    try:
        assert "-O2" in toolchain.toolchain().flags and "-O3" not in toolchain.toolchain().flags
    finally:
        toolchain._find.cache_clear()


def answer(library: float, step: float) -> dict[str, Any]:
    return {"status": "ok", "library": library, "header": 0.0, "kernels": 2 * library, "steps": {"gcn": step}}


def test_the_table_has_the_least_numbers_and_their_ratio_to_the_first_compiler() -> None:
    least = compilers.fastest([answer(2.0, 0.2), answer(1.0, 0.4)])
    results: dict[str, Any] = {"g++ -O3": least, "clang++ -O3": answer(3.0, 0.1)}
    assert compilers.rows(results, ["gcn"]) == [
        ["g++ -O3", "1.000 (1.00)", "0.000", "2.000 (1.00)", "0.200 (1.00)"],
        ["clang++ -O3", "3.000 (3.00)", "0.000", "6.000 (3.00)", "0.100 (0.50)"],
    ]
    results["clang++ -O3"] = compilers.fastest([answer(3.0, 0.1), {"status": "exit 1: no"}])
    assert compilers.rows(results, ["gcn"])[1] == ["clang++ -O3", "exit 1: no"]
