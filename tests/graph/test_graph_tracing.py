"""Graphs inside compiled functions: captured whole, one compilation for graphs of all sizes."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor, nn

import graphweave
from graphweave.core.errors import DataError
from graphweave.graph.graph import Graph
from tests.graph.graph_support import typed
from tests.support import assert_matches, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

SIZES = [(7, 20), (9, 31), (30, 12), (5, 5), (2, 40)]


class Layer(nn.Module):
    """Uses all that a layer asks of a graph: fields, sizes, edges, degrees, ids."""

    def forward(self, g: Graph, x: Tensor) -> Tensor:
        with g.local_scope():
            g.ndata["h"] = x
            src, dst = g.edges()
            g.edata["m"] = (g.ndata["h"] * 2).tanh()[src]
            total = torch.zeros((g.num_nodes(), x.shape[1]), dtype=x.dtype).index_add(0, dst, g.edata.pop("m"))
            assert "m" not in g.edata
            mean = total / g.in_degrees().clamp(min=1).unsqueeze(1)
            return mean * g.out_degrees().unsqueeze(1) + g.ndata["h"]


class Typed(nn.Module):
    def forward(self, g: Graph) -> Tensor:
        with g.local_scope():
            for ntype in g.ntypes:
                g.nodes[ntype].data["h"] = g.nodes[ntype].data["x"] + 1
            total = g.nodes["item"].data["h"]
            src, dst = g.edges(etype=("user", "rates", "item"))
            total = total.index_add(0, dst, g.nodes["user"].data["h"][src])
            follows = g["follows"]
            h = follows.ndata["h"]
            back = torch.zeros_like(h).index_add(0, follows.edges()[1], h[follows.edges()[0]])
            return total.sum() + (back * follows.in_degrees().unsqueeze(1)).sum() + len(g.ndata["h"])


def made(nodes: int, edges: int) -> Graph:
    return graphweave.graph(random_graph(nodes, nodes, edges), num_nodes=nodes)


def test_one_capture_for_all_sizes() -> None:
    counter = torch._dynamo.testing.CompileCounter()
    model = Layer()
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    for nodes, edges in SIZES:
        g, x = made(nodes, edges), features(nodes, 4)
        torch.testing.assert_close(compiled(g, x), model(g, x))
        assert not g.ndata and not g.edata
    assert counter.frame_count == 1


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_compiled_by_graphweave(dtype: torch.dtype) -> None:
    model = Layer()
    compiled = graphweave.compile(model)
    for nodes, edges in [*SIZES, (6, 0), (6, 1)]:
        g = made(nodes, edges)
        g = g.int() if dtype == torch.int32 else g
        assert_matches(lambda x, g=g: compiled(g, x), lambda x, g=g: model(g, x), features(nodes, 4))
        assert not g.ndata
    counts = graphweave.counters()
    # Two, because Dynamo compiles the offset of the second row of an edge_index apart if it is 0 or 1
    assert counts["compilations"] <= 2 and counts["kernel_launches"] > 0
    assert counts["graph_breaks"] == counts["eager_fallbacks"] == 0


def test_one_node() -> None:
    model = Layer()
    compiled = graphweave.compile(model)
    for nodes, edges in [(1, 0), (1, 1), (1, 9), (8, 20), (0, 0)]:
        g, x = made(nodes, edges), features(nodes, 4)
        torch.testing.assert_close(compiled(g, x), model(g, x))
    assert graphweave.counters()["compilations"] <= 3


def test_several_types() -> None:
    counter = torch._dynamo.testing.CompileCounter()
    model = Typed()
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    for g in (typed(), graphweave.batch([typed()] * 3)):
        torch.testing.assert_close(compiled(g), model(g))
        assert all("h" not in g.nodes[t].data for t in g.ntypes)
    assert counter.frame_count <= 2  # a batch is another kind of graph


def test_fields_set_outside_are_inputs() -> None:
    def fn(g: Graph) -> Tensor:
        return torch.zeros_like(g.ndata["x"]).index_add(0, g.edges()[1], g.ndata["x"][g.edges()[0]] * g.edata["w"])

    compiled = graphweave.compile(fn)
    for nodes, edges in SIZES:
        g = made(nodes, edges)
        g.ndata["x"], g.edata["w"] = features(nodes, 3), features(edges, 1)
        torch.testing.assert_close(compiled(g), fn(g))
    assert graphweave.counters()["compilations"] == 1


def test_a_field_set_inside_stays() -> None:
    def fn(g: Graph, x: Tensor) -> None:
        g.ndata["y"] = x * 2

    g, x = made(7, 20), features(7, 3)
    torch.compile(fn, backend="eager", fullgraph=True, dynamic=True)(g, x)
    assert g.ndata["y"].equal(x * 2)


def test_questions_are_traced() -> None:
    """Degrees of given nodes and pairs are traced without data-dependent sizes."""

    def fn(g: Graph, v: Tensor) -> tuple[Tensor, ...]:
        return (
            g.in_degrees(v),
            g.out_degrees(v),
            g.has_edges_between(v, v),
            g.find_edges(v)[0],
            g.edges("eid", "srcdst"),
        )

    compiled = torch.compile(fn, backend="eager", fullgraph=True, dynamic=True)
    for nodes, edges in ((7, 20), (12, 30)):
        g, v = made(nodes, edges), torch.tensor([3, 0, 6])
        for got, want in zip(compiled(g, v), fn(g, v), strict=True):
            assert got.equal(want)


def test_a_field_that_does_not_fit_is_the_users_error() -> None:
    """The error costs no later call its kernels."""
    model = Layer()
    compiled = graphweave.compile(model)
    with pytest.raises(DataError, match="has 5 rows, but the graph has 7 nodes"):
        compiled(made(7, 20), features(5, 4))
    g, x = made(7, 20), features(7, 4)
    torch.testing.assert_close(compiled(g, x), model(g, x))
    assert graphweave.counters()["kernel_launches"] > 0 and graphweave.counters()["eager_fallbacks"] == 0


def test_a_graph_built_inside_of_edges_known_only_at_run_time() -> None:
    def fn(x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index[:, edge_index[0] != edge_index[1]]
        g = graphweave.graph((src, dst), num_nodes=x.shape[0])
        g.edata["m"] = x[src]
        return torch.zeros_like(x).index_add(0, g.edges()[1], g.edata["m"])

    compiled = graphweave.compile(fn)
    for nodes, edges in SIZES:
        assert_matches(compiled, fn, features(nodes, 4), random_graph(nodes, nodes, edges))
    assert graphweave.counters()["eager_fallbacks"] == 0
