"""Message programs compiled, and compared with the interpreter over the awkward zoo."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from graphweave.compiler.build import build_inference
from graphweave.compiler.executable import Executable
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import Input, Program
from graphweave.schedule.options import Options
from graphweave.testing.compare import assert_all_close
from graphweave.testing.graphs import MAX_ROWS, Edges, zoo
from graphweave.testing.programs import inputs

ZOO = tuple(zoo(5))


def compiled(program: Program, options: Options | None = None) -> Executable:
    """The program as one executable, all of whose regions became kernels."""
    made = build_inference(program, (), {}, options or Options(), {}, verify=False)
    assert not made.plan.refused
    return made


def in_order(program: Program, given: dict[str, Tensor]) -> list[Any]:
    """Values of the program's inputs, as executables take them."""
    return [given[n.name] for n in program.nodes if isinstance(n, Input)]


def assert_computes(made: Executable, program: Program, graphs: Iterable[Edges] = ZOO) -> None:
    """On every graph `made` gives what the interpreter makes of `program`, the same bits on 1 and 2 threads."""
    threads = torch.get_num_threads()
    try:
        for graph in graphs:
            given = inputs(program, graph, 1)
            args = in_order(made.plan.program, given)
            torch.set_num_threads(2)
            got = made(args)
            try:
                assert_all_close(got, interp(program, given), reduction_length=MAX_ROWS, floor=1.0)
            except AssertionError as wrong:
                raise AssertionError(f"{graph.name}: {wrong}") from None
            torch.set_num_threads(1)
            same(made(args), got, f"{graph.name}: one thread and two")
    finally:
        torch.set_num_threads(threads)


def same(a: list[Any], b: list[Any], what: str) -> None:
    """Two lists of outputs, equal to the last bit."""
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        assert (x is None and y is None) or torch.equal(x, y), f"{what} differ in output {i}"
