"""C++ programs under sanitizers test the headers that kernels include."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from graphweave.ir import philox
from graphweave.runtime import sources
from tests.sanitizer_support import ENVIRONMENT, NATIVE, build_sanitized

HERE = Path(__file__).parents[1] / "native"
PROGRAMS = sorted(HERE.glob("test_*.cpp"))

WRITTEN_FOR_EACH_PROCESSOR = {"test_elementary", "test_half_products", "test_lanes", "test_memory", "test_products"}
"""Programs of what differs by instruction set: they run as for a processor without vectors of AVX, too."""


NOT_OPTIMISED = {"test_half_products", "test_lanes", "test_products", "test_typed"}
"""Programs that instantiate templates for many widths, which optimised take up to 20 s to compile."""


def ran(name: str, folder: Path, *flags: str, stdin: str = "") -> str:
    """Runs the program, which must succeed, and gives its output."""
    source = folder / f"{name}.cpp"
    shutil.copy(HERE / source.name, source)
    optimised = ("-O0",) if name in NOT_OPTIMISED else ()
    program = build_sanitized(source, "-ffp-contract=off", f"-I{HERE}", *flags, *optimised)
    done = subprocess.run([str(program)], input=stdin, capture_output=True, env=ENVIRONMENT, check=False, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.sanitize
@pytest.mark.parametrize("name", [path.stem for path in PROGRAMS if path.stem != "test_random"])
def test_native(name: str, tmp_path: Path) -> None:
    ran(name, tmp_path, "-march=native")


@pytest.mark.sanitize
@pytest.mark.parametrize("name", sorted(WRITTEN_FOR_EACH_PROCESSOR))
def test_native_on_any_processor(name: str, tmp_path: Path) -> None:
    ran(name, tmp_path)


@pytest.mark.sanitize
def test_random_numbers_are_those_of_the_interpreter(tmp_path: Path) -> None:
    """The first three are those that the authors of Philox publish (Random123, kat_vectors)."""
    given = [(0, 0), (2**32 - 1, -1), (0x13198A2E, 0x85A308D3_243F6A88 - 2**64)]
    given += [(seed, position) for seed in (1, -(2**40) - 7, 2**62 + 5) for position in (0, 1, 2**32 + 3, 2**45)]
    lines = ran("test_random", tmp_path, stdin="\n".join(f"{seed} {position}" for seed, position in given))
    got = [line.split() for line in lines.splitlines()]
    known = ["ff1dae59 6cd10df2", "2c3f628b ab4fd7ad", "dd7ce038 f62a4c12"]
    assert [f"{int(a):08x} {int(b):08x}" for a, b, *_ in got[:3]] == known
    seeds, positions = (torch.tensor(numbers) for numbers in zip(*given, strict=True))
    for column, dtype in ((2, torch.float32), (3, torch.float64)):
        want = philox.uniform(seeds, positions, dtype)
        assert torch.equal(torch.tensor([float(row[column]) for row in got], dtype=dtype), want)


def test_every_header_has_a_test() -> None:
    reached = {name for path in PROGRAMS for name in sources.included(path.read_text())}
    assert reached == {path.name for path in NATIVE.rglob("*.h")}
