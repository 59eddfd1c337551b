"""Numbers of rows that `unique` tells apart: one native sort, whose parts are indices of the program."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import graphweave
from graphweave.compiler.plan import Plan
from graphweave.core import orders
from graphweave.ir.message.nodes import Aten, Distinct
from graphweave.runtime.orders import distinct_rows
from tests.frontends.spellings.test_sorted_rows import F64, nodes_of, numbers, plans
from tests.support import assert_matches, by_default, features, random_graph, threads

__all__ = ["plans"]  # a fixture of the tests of sorted rows


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
@pytest.mark.parametrize("keys", [1, 2, 3])
def test_native_code_tells_rows_apart_as_pytorch_does(keys: int, dtype: torch.dtype) -> None:
    for rows in (0, 1, 2, 700, 40_000):
        given = [numbers(dtype, rows, seed) for seed in range(keys)]
        want = orders.distinct_rows(given)
        for count in (1, 3):
            with threads(count):
                found = distinct_rows(given)
            assert torch.equal(found.rows, want.rows), (rows, count)
            assert all(map(torch.equal, found.columns, want.columns)), (rows, count)


def test_distinct_rows_are_those_of_pytorch_s_unique() -> None:
    one, other = numbers(torch.int64, 900, 0), numbers(torch.int64, 900, 1)
    columns, rows = torch.unique(torch.stack([one, other]), dim=1, return_inverse=True)
    found = distinct_rows((one, other))
    assert torch.equal(found.rows, rows) and torch.equal(torch.stack(found.columns), columns)


def summed_by_target(x: Tensor, edges: Tensor) -> Tensor:
    seen, row = torch.unique(edges[1], return_inverse=True)
    return torch.zeros(len(seen), x.size(1), dtype=x.dtype).index_add(0, row, x[edges[0]]) * x[seen]


def means_by_target(x: Tensor, edges: Tensor) -> Tensor:
    seen, row, count = edges[1].unique(return_inverse=True, return_counts=True)
    sums = torch.zeros(len(seen), x.size(1), dtype=x.dtype).index_add(0, row, x[edges[0]])
    return sums / count[:, None] + seen[:, None]


def rows_seen(x: Tensor, edges: Tensor) -> Tensor:
    return x[torch.unique(edges[0])] * 2.0


def of_few_bits(x: Tensor, edges: Tensor) -> Tensor:
    seen, row = torch.unique(edges[1].to(torch.int32) - 3, return_inverse=True)
    return x[row % len(x)] * seen[row][:, None]


def of_what_is_computed(x: Tensor, edges: Tensor) -> Tensor:
    seen, row = torch.unique((x.sum(1) * 2).long(), return_inverse=True)
    return torch.zeros(len(seen), x.size(1), dtype=x.dtype).index_add(0, row, x.sigmoid())


def of_different_edges(x: Tensor, edges: Tensor) -> Tensor:
    found, edge, count = edges.unique(dim=1, return_inverse=True, return_counts=True)
    sums = torch.zeros_like(x).index_add(0, found[1], x[found[0]] / count[:, None])
    return sums.index_add(0, edges[1], x[found[1, edge]])


def of_rows_of_three(x: Tensor, edges: Tensor) -> Tensor:
    rows, row = torch.unique(torch.stack([edges[1], edges[0] - 3, edges[1] % 2], 1), dim=0, return_inverse=True)
    return torch.zeros(len(rows), x.size(1), dtype=x.dtype).index_add(0, row, x[edges[0]]) * rows.sum(1, keepdim=True)


PROGRAMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    f.__name__: f
    for f in (
        summed_by_target, means_by_target, rows_seen, of_few_bits, of_what_is_computed, of_different_edges,
        of_rows_of_three,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", by_default(PROGRAMS, "means_by_target", "of_what_is_computed", "of_different_edges"))
def test_programs_with_distinct_rows_are_one_graph_for_all_sizes(name: str, plans: list[Plan]) -> None:
    f = PROGRAMS[name]
    compiled = graphweave.compile(f, options={"verify": True})
    for nodes, edges in ((9, 40), (14, 30), (5, 1), (3, 90)):
        x, graph = features(nodes, 4, F64), random_graph(nodes, nodes, edges)
        assert_matches(compiled, f, x, graph, label=f"{name} {nodes} {edges}")
    assert (graphweave.counters()["graph_breaks"], graphweave.counters()["compilations"]) == (0, 1)
    assert nodes_of(plans, Distinct) or any(plan.prelude for plan in plans)
    assert not [n for n in nodes_of(plans, Aten) if "unique" in n.target]


def test_distinct_rows_of_the_graph_are_found_once(plans: list[Plan]) -> None:
    compiled, graph = graphweave.compile(means_by_target), random_graph(9, 9, 40)
    for _ in range(2):
        x = features(9, 4, F64).requires_grad_()
        torch.testing.assert_close(compiled(x, graph), means_by_target(x, graph))
    assert any(isinstance(n, Distinct) for plan in plans if plan.prelude for n in plan.prelude.program.nodes)
    counted = graphweave.counters()
    assert (counted["hoist_builds"], counted["fallback_calls"]) == (1, 0)


def of_runs(x: Tensor, edges: Tensor) -> Tensor:
    first, run, count = edges[1].sort()[0].unique_consecutive(return_inverse=True, return_counts=True)
    sums = torch.zeros(len(first), x.size(1), dtype=x.dtype).index_add(0, run, x[edges[0]])
    return sums * x[first] / count[:, None] + x[first[torch.unique_consecutive(run)]]


def test_runs_of_equal_numbers_are_chosen_rows(plans: list[Plan]) -> None:
    compiled = graphweave.compile(of_runs, options={"verify": True})
    for nodes, edges in ((9, 40), (14, 30), (5, 1), (5, 0), (3, 90)):
        assert_matches(compiled, of_runs, features(nodes, 4, F64), random_graph(nodes, nodes, edges), label=f"{edges}")
    assert (graphweave.counters()["graph_breaks"], graphweave.counters()["compilations"]) == (0, 1)
    assert not [n for n in nodes_of(plans, Aten) if "unique" in n.target]


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_distinct_slices_of_floats_and_of_more_dims_are_those_of_pytorch(dim: int, plans: list[Plan]) -> None:
    def f(x: Tensor, edges: Tensor) -> Tensor:
        rows = x[edges[0]].round().view(-1, 2, 2)
        found, place, count = rows.unique(dim=dim, return_inverse=True, return_counts=True)
        return found.sum() + place * x[edges[0], 0].sum() + count.sum()

    x = features(9, 4, F64).detach()
    torch.testing.assert_close(graphweave.compile(f)(x, random_graph(9, 9, 40)), f(x, random_graph(9, 9, 40)))


def by_values(x: Tensor, edges: Tensor) -> Tensor:
    return x * torch.unique(edges[1])[:, None] + x[edges[0]].sum()


def by_pairs(x: Tensor, edges: Tensor) -> Tensor:
    return x * torch.unique(edges, dim=1)[1][:, None] + x[edges[0]].sum()


def by_runs(x: Tensor, edges: Tensor) -> Tensor:
    return x * edges[1].unique_consecutive(return_counts=True)[1][:, None] + x[edges[0]].sum()


@pytest.mark.parametrize("f", [by_values, by_pairs, by_runs])
def test_another_number_of_rows_than_the_first_call_found_is_an_error(
    f: Callable[[Tensor, Tensor], Tensor], fresh_compiler: None
) -> None:
    compiled, x = graphweave.compile(f), features(4, 3, F64)
    for other in ([0, 1, 2, 3], [0, 0, 1, 2, 3]):
        edges = torch.tensor(other).expand(2, -1)
        torch.testing.assert_close(compiled(x, edges), f(x, edges))
    with pytest.raises(RuntimeError, match="found another number of rows"):
        compiled(x, torch.tensor([0, 1, 2, 2]).expand(2, -1))
