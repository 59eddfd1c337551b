"""Whether loops over lanes are vectors in the machine code, for every kernel of the zoo and of the benchmarks.

    python -m tests.codegen.vectorised [--only NAME ...] [--texts DIR] [--out FILE]

It prints the loops over 16 lanes or more that compute with one floating-point number at a time, and their number. The
exit code is 1 unless there are none. `--texts` checks the kernels of a folder (`*.cpp`, as a kernel cache has them)
instead of compiling models.

A loop over lanes is recognised in the kernel's text: an innermost loop whose extent is a number. The kernel is compiled
as usual, with line tables (`-g1`), which give the line of each instruction, also of inlined functions. A loop offends
if scalar floating-point arithmetic of its lines stands in a loop of the machine code whose jump back belongs to these
lines, too, or if it occurs at least as often as the loop has lanes, because the compiler unrolled the loop. Arithmetic
that is the same for all lanes is computed once, before the loop, and does not count.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

import graphweave
from bench.check import step
from bench.common import save
from bench.graphs import FEATURES, HIDDEN, Workload, knn_clouds, pseudo_coordinates
from bench.options import options_from
from bench.workloads import MODELS, training_step
from graphweave.compiler.report import collect
from graphweave.data import rmat
from graphweave.runtime import headers
from graphweave.runtime.toolchain import compile_shared, toolchain
from tests.codegen.machine_code import Instruction, functions_of, loops_of
from tests.pyg.zoo_cases import CASES, build

MIN_VECTOR_LANES = 16
"""A loop over at least this many lanes has to be vectorised."""

_LOOP = re.compile(r"for \(int64_t (\w+) = (\w+); \1 (?:\+ \w+ <=|<) (?:\w+ \+ )?(\d+); ")
_OVER = re.compile(r"gw_over<(\d+), ")


@dataclass(frozen=True, slots=True)
class LaneLoop:
    """A loop over `lanes`, which is lines first .. last of a text, counted from 1."""

    first: int
    last: int
    lanes: int


@dataclass(frozen=True, slots=True)
class Offence:
    """A loop over lanes that is not vectorised: its first line, and its scalar instructions."""

    kernel: str
    lanes: int
    line: str
    instructions: tuple[str, ...]


def lane_loops(text: str) -> list[LaneLoop]:
    """The innermost loops over lanes of a kernel's text."""
    found: list[LaneLoop] = []
    opened: list[tuple[int, int, int]] = []  # line, indentation, lanes
    inner = False  # whether a loop has ended inside the innermost open one
    for number, row in enumerate(text.splitlines(), 1):
        indent = len(row) - len(row.lstrip())
        match = _LOOP.search(row) or _OVER.search(row)
        if match and row.rstrip().endswith(("{", "GW_BODY {")):
            block = re.search(r"= (\w+_block); ", row)  # a block of the lanes of the loop around it
            lanes = opened[-1][2] if block and opened else int(match[match.lastindex or 1])
            opened.append((number, indent, lanes))
            inner = False
        elif match and ";" in row:
            found.append(LaneLoop(number, number, int(match[match.lastindex or 1])))
        elif row.lstrip().startswith("}") and opened and indent == opened[-1][1]:
            first, _, lanes = opened.pop()
            if not inner:
                found.append(LaneLoop(first, number, lanes))
            inner = True
    return found


def offences(text: str, kernel: str, folder: Path) -> list[Offence]:
    """The offending loops of a kernel, which is compiled in `folder`."""
    long = [loop for loop in lane_loops(text) if loop.lanes >= MIN_VECTOR_LANES]
    if not long:
        return []
    source, library = folder / "kernel.cpp", folder / "kernel.so"
    source.write_text(text)
    compile_shared(source, library, (*headers.flags_for(text, toolchain(), folder), "-g1"))
    functions = functions_of(library, source)
    rows = text.splitlines()
    found = []
    for loop in long:
        scalars = [name for function in functions for name in _scalars(function, loop)]
        if scalars:
            found.append(Offence(kernel, loop.lanes, rows[loop.first - 1].strip(), tuple(scalars)))
    return found


def _scalars(function: Sequence[Instruction], loop: LaneLoop) -> list[str]:
    """The names of scalar instructions that compute lanes of `loop`."""

    def belongs(instruction: Instruction) -> bool:
        return instruction.line is not None and loop.first <= instruction.line <= loop.last

    mine = [i for i in function if i.is_scalar_arithmetic and belongs(i)]
    repeated = {i.address for body in loops_of(function) if belongs(body[-1]) for i in body}
    written_out = Counter((i.line, i.name) for i in mine)
    return [i.name for i in mine if i.address in repeated or written_out[i.line, i.name] >= loop.lanes]


# ---------------------------------------------------------------- kernels


def texts_of_zoo(only: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Names and texts of the kernels of every zoo case and model of the benchmarks."""
    cases = [(name, lambda name=name: _zoo_step(name)) for name in CASES]
    cases += [(f"bench {name}", lambda name=name: _bench_step(name)) for name in MODELS]
    for name, run in track([(n, r) for n, r in cases if not only or n in only], "compiling models"):
        torch._dynamo.reset()
        with collect() as report:
            run()
        for graph in report.graphs:
            yield from ((f"{name}: {kernel.name}", kernel.text) for kernel in graph.kernels)


def _zoo_step(name: str) -> None:
    built = build(name)
    step(graphweave.compile(built.module), built.args, built.kwargs, module=built.module)


def _bench_step(name: str) -> None:
    """One training step with the model's own widths, on few nodes."""
    model = MODELS[name]
    if model.points:
        x, index = knn_clouds(4, 64, 20, torch.Generator())
    else:
        x, index = torch.randn(1000, FEATURES), rmat(1000, 6000)
    pseudo = pseudo_coordinates(index, x.size(0)) if model.pseudo else None
    work = Workload(x, index, torch.randint(HIDDEN, (x.size(0),)), pseudo)
    training_step("graphweave", model.make(x.size(1)), compile_loss=True)(work)


def main(argv: Sequence[str] | None = None) -> int:
    options = options_from(argv, __doc__, only=(), texts=Path)
    if options.texts is None:
        kernels = {text: name for name, text in texts_of_zoo(options.only)}
    else:
        kernels = {path.read_text(): path.stem for path in sorted(options.texts.glob("*.cpp"))}
    found: list[Offence] = []
    loops = 0
    with tempfile.TemporaryDirectory() as folder:
        for text, name in track(kernels.items(), "reading machine code"):
            loops += sum(loop.lanes >= MIN_VECTOR_LANES for loop in lane_loops(text))
            found += offences(text, name, Path(folder))
    console = Console()
    for offence in found:
        console.print(f"{offence.kernel}: {offence.lanes} lanes, {len(offence.instructions)} scalar: {offence.line}")
    console.print(
        f"{len(kernels)} kernels, {loops} loops over {MIN_VECTOR_LANES} lanes or more, {len(found)} number by number"
    )
    record: dict[str, Any] = {"kernels": len(kernels), "loops": loops, "offences": [asdict(o) for o in found]}
    save(options.out, {"benchmark": "vectorised", **record})
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
