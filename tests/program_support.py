"""Message programs compiled, and compared with the interpreter over the awkward zoo."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from graphweave.analysis.statistics import Statistics
from graphweave.compiler.compile import compile
from graphweave.compiler.request import Request
from graphweave.compiler.road import Road
from graphweave.core.choices import Choices
from graphweave.core.options import Options, Target, options_for
from graphweave.core.settings import settings
from graphweave.execute.build import build
from graphweave.execute.executable import Executable
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import Gram, Input, MatMul, Program, Ref
from graphweave.lower.mark_calls import MarkCalls
from graphweave.lower.schedule import TALL, TorchCall
from graphweave.passes.pass_facts import PassFacts
from tests.programs.compare import assert_all_close
from tests.programs.graphs import MAX_ROWS, EdgeList, zoo
from tests.programs.random_programs import inputs

InputsOf: TypeAlias = Callable[[Program, EdgeList, int], dict[str, Tensor]]

ZOO = tuple(zoo(5))
AS_IT_IS = Road(joint=(MarkCalls(),))
"""The road without rewrites of the joint program."""


def large(num_nodes: int = 3000, num_edges: int = 9000) -> EdgeList:
    """Enough rows and edges for many chunks; a hub, whose edges are most of one, and nodes without edges."""
    generator = torch.Generator().manual_seed(11)
    src, dst = (torch.randint(num_nodes - 100, (num_edges,), generator=generator) for _ in range(2))
    dst[::7] = 17
    return EdgeList("large", src, dst, num_nodes, num_nodes)


def compiled(program: Program, options: Options | None = None) -> Executable:
    """The program as one executable for graphs of many rows, all of whose regions became kernels."""
    target: Target = "triton" if settings().target == "triton" else "cpp"
    made = built(program, options or options_for(target), statistics=Statistics(default=TALL))
    assert not made.plan.refused
    return made


def built(
    program: Program, options: Options, *, statistics: Statistics | None = None, verify: bool = False
) -> Executable:
    """The program as one executable, in the form that it has."""
    facts = PassFacts(
        statistics=statistics or Statistics(), options=options, choices=Choices(verify=verify, fuse=options.fuse)
    )
    (made,) = build(compile(Request(program, facts, road=AS_IT_IS)))
    return made


def names_at(program: Program, *refs: Ref) -> frozenset[str]:
    """The names of the inputs at these places."""
    return frozenset(n.name for r in refs if isinstance(n := program.nodes[r], Input))


def in_order(program: Program, given: dict[str, Tensor]) -> list[Any]:
    """Values of the program's inputs, as executables take them."""
    return [given[n.name] for n in program.nodes if isinstance(n, Input)]


def assert_computes(
    made: Executable, program: Program, graphs: Iterable[EdgeList] = ZOO, inputs_of: InputsOf = inputs
) -> None:
    """`made` computes on every graph what the interpreter computes, with the same bits on 1 and 2 threads.

    Matrix products on nodes are PyTorch's, which may sum in another order on another number of threads.
    """
    called = [made.plan.program.nodes[s.ref] for s in made.plan.schedule.steps if isinstance(s, TorchCall)]
    ours = not any(isinstance(n, MatMul | Gram) for n in called)
    threads = torch.get_num_threads()
    try:
        for graph in graphs:
            given = inputs_of(program, graph, 1)
            args = in_order(made.plan.program, given)
            torch.set_num_threads(2)
            got = made([*args])
            longest = max(MAX_ROWS, graph.num_src, graph.num_dst, len(graph.src))
            try:
                assert_all_close(got, interp(program, given), reduction_length=longest, floor=1.0)
            except AssertionError as wrong:
                raise AssertionError(f"{graph.name}: {wrong}") from None
            torch.set_num_threads(1)
            if ours:
                same(made([*args]), got, f"{graph.name}: one thread and two")
    finally:
        torch.set_num_threads(threads)


def same(a: list[Any], b: list[Any], what: str) -> None:
    """Two lists of outputs, equal to the last bit; NaN is NaN."""
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        alike = (x is None and y is None) or torch.allclose(x, y, rtol=0, atol=0, equal_nan=True)
        assert alike, f"{what} differ in output {i}"
