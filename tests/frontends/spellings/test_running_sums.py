"""Running sums over rows: native code, forward and backward, the same for any number of threads."""

from __future__ import annotations

import pytest
import torch
import torch_geometric.utils as pyg
from torch import Tensor

import graphweave
from graphweave.compiler.plan import Plan
from graphweave.core import orders
from graphweave.core.types import DType, Space
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import Aten, Input, RunningSum, Type
from graphweave.ir.message.parse import parse
from graphweave.ir.message.show import show
from graphweave.ir.message.verify import verify
from graphweave.runtime.running_sums import running_sums
from tests.frontends.spellings.test_sorted_rows import F64, batched, nodes_of, plans
from tests.support import assert_matches, by_default, features, random_graph, threads

__all__ = ["plans"]  # a fixture of the tests of sorted rows

V = Space("V")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.int64])
@pytest.mark.parametrize("reverse", [False, True])
def test_native_sums_are_those_of_pytorch(dtype: torch.dtype, reverse: bool) -> None:
    for sizes in ((0,), (0, 3), (1, 2), (7, 0), (700,), (5000, 3), (1024, 1), (3000, 2, 2)):
        given = torch.randn(sizes, generator=torch.Generator().manual_seed(0), dtype=F64)
        x = (given * 9).to(dtype)
        found = running_sums(x, reverse)
        torch.testing.assert_close(found, orders.running_sums(x, reverse))
        for count in (2, 3):
            with threads(count):
                assert torch.equal(running_sums(x, reverse), found), (sizes, count)


def test_sums_overflow_as_pytorch_s_do_and_read_any_strides() -> None:
    x = torch.full((3000,), 2**62)
    assert torch.equal(running_sums(x, False), x.cumsum(0))
    wide = features(40, 6, F64)
    for view in (wide.t(), wide[::3], wide[:, 2], wide[:1].expand(5, 6)):
        torch.testing.assert_close(running_sums(view, True), orders.running_sums(view, True))


@pytest.mark.parametrize("reverse", [False, True])
def test_the_node_has_text_and_a_meaning(reverse: bool) -> None:
    b = Builder()
    program = b.program([b.add(RunningSum(b.add(Input("x", Type(V, (2,), DType.f64))), reverse))], [(V, None)])
    verify(program)
    assert parse(show(program)) == program
    x = features(6, 2, F64)
    (found,) = interp(program, {"x": x})
    torch.testing.assert_close(found, torch.stack([x[r:].sum(0) if reverse else x[: r + 1].sum(0) for r in range(6)]))


def of_rows(x: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
    sums = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
    return torch.cumsum(sums.tanh(), 0) / x.abs().cumsum(dim=-2)


def of_segments(x: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
    count = pyg.scatter(torch.ones_like(batch), batch, dim=0, dim_size=4, reduce="sum")
    first = pyg.cumsum(count)[:-1]
    along = (x * 2).cumsum(0)
    before = torch.cat([torch.zeros_like(along[:1]), along])[first]
    return along - before[batch] + x[edges[0]].sum()


def of_halves(x: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
    """Numbers that are added up in another dtype than they have."""
    return x.float().cumsum(0, dtype=torch.float64) * (x > 0).cumsum(0) + x[edges[0], :1].sum()


PROGRAMS = {f.__name__: f for f in (of_rows, of_segments, of_halves)}


@pytest.mark.parametrize("name", by_default(PROGRAMS, "of_rows", "of_segments"))
def test_programs_with_running_sums_leave_nothing_to_pytorch(name: str, plans: list[Plan]) -> None:
    f = PROGRAMS[name]
    compiled = graphweave.compile(f, options={"verify": True})
    for nodes, edges in ((9, 40), (14, 30), (2, 3), (5, 0)):
        assert_matches(compiled, f, *batched(nodes, edges, 4), label=f"{name} {nodes}")
    assert (graphweave.counters()["graph_breaks"], graphweave.counters()["compilations"]) == (0, 1)
    assert {node.reverse for node in nodes_of(plans, RunningSum)} == {False, True}
    assert not [n for n in nodes_of(plans, Aten) if "cumsum" in n.target or "flip" in n.target]
    assert_matches(compiled, f, *batched(1, 3, 4), label=f"{name} of one row")


def test_sums_along_features_and_flips_stay_what_they_are(plans: list[Plan]) -> None:
    def f(x: Tensor, edges: Tensor) -> Tensor:
        return x[edges[0]].cumsum(1).flip(0) + x[edges[1]].flip([0, 1]).cumsum(0).flip(1)

    x = features(6, 3, F64)
    assert_matches(graphweave.compile(f), f, x, random_graph(6, 6, 20), label="flips")
