"""Nodes in an order of their own: same values, gradients, random numbers and errors in the user's order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweave
from graphweave.core.choices import Choices
from graphweave.core.errors import IndexRangeError, SettingsError
from graphweave.core.locality import RowOrder, inverse, places_of
from graphweave.core.types import DType
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import Inverse, Places, Pull
from graphweave.ir.message.parse import parse
from graphweave.ir.message.show import show
from graphweave.ir.message.verify import verify
from graphweave.passes.pass_facts import PassFacts
from graphweave.passes.relabel import Relabel
from tests.programs.compare import assert_close
from tests.programs.graphs import zoo
from tests.programs.random_programs import inputs, random_program
from tests.support import SEVERAL, assert_matches, features

ORDERS: tuple[RowOrder, ...] = ("degree", "locality")

SUM = """
space V = s0
space E = s1
%0: E[] i64 = input src
%1: E[] i64 = input dst
%2: E -> V = map %0 to V wrap
%3: E -> V = map %1 to V
%4: V[3] f64 = input x
%5: E[3] f64 = pull %4, %2
%6: V[3] f64 = push.sum %5, %3
return %6
"""


def assert_alike(got: Sequence[Any], want: Sequence[Any]) -> None:
    for one, other in zip(got, want, strict=True):
        if other is None:
            assert one is None
        else:
            assert_close(one, other, DType.f64, reduction_length=1000)


@pytest.mark.parametrize("order", ORDERS)
def test_places_are_a_permutation(order: RowOrder) -> None:
    for graph in zoo():
        rows = max(graph.num_src, graph.num_dst)
        place = places_of(graph.src, graph.dst, rows, order)
        assert torch.equal(place.sort().values, torch.arange(rows)), graph.name
        assert torch.equal(inverse(place)[place], torch.arange(rows)), graph.name
        turned = places_of(graph.src - rows, graph.dst.int(), rows, order)  # indices that count from the end
        assert torch.equal(turned, place), graph.name


def test_hubs_come_first_by_degree_and_neighbours_are_close_by_locality() -> None:
    star = torch.tensor([[5, 5, 5, 1], [0, 1, 2, 3]])
    assert places_of(star[0], star[1], 6, "degree").tolist() == [2, 1, 3, 4, 5, 0]
    shuffled = torch.randperm(500, generator=torch.Generator().manual_seed(1))
    path = shuffled[torch.stack([torch.arange(499), torch.arange(1, 500)])]
    place = places_of(path[0], path[1], 500, "locality")
    assert (place[path[0]] - place[path[1]]).abs().max() == 1


def test_edges_out_of_range_count_for_nothing() -> None:
    edges = torch.tensor([[0, 9, 1], [1, 0, -9]])
    assert torch.equal(places_of(edges[0], edges[1], 3, "degree"), places_of(edges[0, :1], edges[1, :1], 3, "degree"))


def test_what_lies_between_arguments_and_results_is_relabelled() -> None:
    program = parse(SUM)
    after = Relabel()(program, PassFacts(choices=Choices(relabel="degree")))
    verify(after.program)
    assert parse(show(after.program)) == after.program
    kinds = [type(n) for n in after.program.nodes]
    assert kinds.count(Places) == kinds.count(Inverse) == 1
    assert kinds.count(Pull) == 5  # x, both ends, the edges, the result
    assert Relabel()(program).program is program
    graph = torch.tensor([[-1, 0, 2, 2, -3], [1, 1, 0, 2, 3]])
    given = {"src": graph[0], "dst": graph[1], "x": features(4, 3).double()}
    assert_alike(interp(after.program, given), interp(program, given))


@pytest.mark.parametrize("order", ORDERS)
def test_random_programs_keep_their_values(order: RowOrder) -> None:
    changed = 0
    for seed in range(40):
        program = random_program(seed, DType.f64)
        done = Relabel()(program, PassFacts(choices=Choices(relabel=order)))
        changed += done.program is not program
        verify(done.program)
        for graph in zoo()[seed % 3 :: 3]:
            given = inputs(program, graph, seed)
            assert_alike(interp(done.program, given), interp(program, given))
    assert changed > 10


class Layers(nn.Module):
    """Attention over edges, dropout on nodes, a readout along a map from nodes, and a total over nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        src, dst = edge_index
        h = torch.dropout(self.a(x), 0.3, self.training)
        score = torch.exp(torch.tanh(self.b(h[src] + h[dst])))
        total = score.new_zeros(x.shape[0], 1).index_add(0, dst, score)
        out = torch.zeros_like(h).index_add(0, dst, h[src] * score / total[dst])
        graphs = out.new_zeros(3, 16).index_add(0, batch, out.relu())
        return (out + graphs[batch]) * out.sum(0)


@pytest.mark.parametrize("order", [pytest.param("degree", marks=pytest.mark.slow), "locality"])
@pytest.mark.parametrize("door", ["compile", pytest.param("plain", marks=pytest.mark.slow)])
def test_models_keep_values_gradients_and_random_numbers(order: RowOrder, door: str) -> None:
    torch.manual_seed(1)
    model = Layers()
    options = {"relabel": order}
    plain = door == "plain"
    compiled = (
        torch.compile(model, backend="graphweave", dynamic=True, options=options)
        if plain
        else graphweave.compile(model, options=options)
    )
    for graph in SEVERAL:
        x, batch = features(graph.num_nodes, 8), torch.arange(graph.num_nodes) % 3
        assert_matches(compiled, model, x, graph.edge_index, batch, module=model, label=graph.name)


def gathered(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, dst, x[src] * 2)


def test_the_order_is_made_once_a_graph_and_errors_name_the_user_s_index() -> None:
    compiled = graphweave.compile(gathered, options={"relabel": "degree"})
    x, edges = features(6, 4), torch.tensor([[0, 5, 2, 2], [1, 1, 3, 0]])
    torch.testing.assert_close(compiled(x, *edges), gathered(x, *edges))
    before = graphweave.counters()["hoist_builds"]
    for _ in range(3):
        compiled(torch.randn(6, 4), *edges)
    assert graphweave.counters()["hoist_builds"] == before
    edges[0, 1] = 4
    torch.testing.assert_close(compiled(x, *edges), gathered(x, *edges))
    with pytest.raises(IndexRangeError, match=r"src: index 6 at position 2 is out of range for 6 rows"):
        compiled(x, torch.tensor([0, 1, 6]), torch.tensor([0, 1, 2]))


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(SettingsError, match="option 'relabel' must be False, 'degree', 'locality' or 'auto'"):
        graphweave.compile(gathered, options={"relabel": "hilbert"})
