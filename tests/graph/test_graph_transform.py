"""Graphs made of graphs: parts, reverse, self-loops, both directions, one type, batches; against brute force."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import graphweave
from graphweave.core.errors import DataError, IndexRangeError
from graphweave.graph.graph import Graph
from tests.graph.graph_support import SQUARE, ZOO, bipartite, homogeneous, name_of, typed
from tests.programs.graphs import EdgeList

SIZES = pytest.mark.parametrize("edges", SQUARE, ids=name_of)


def triples(g: Graph, etype: object = None) -> list[tuple[int, int]]:
    src, dst = g.edges(etype=etype)
    assert src.dtype == dst.dtype == g.idtype
    return list(zip(src.tolist(), dst.tolist(), strict=True))


def first_met(values: list[int]) -> list[int]:
    return list(dict.fromkeys(values))


def check_part(g: Graph, part: Graph, kept: list[int], nodes: list[int] | None) -> None:
    """`part` has the edges `kept` of g and `nodes` (all if None), with the fields of both."""
    pairs = triples(g)
    place = {v: i for i, v in enumerate(range(g.num_nodes()) if nodes is None else nodes)}
    assert triples(part) == [(place[u], place[v]) for u, v in (pairs[e] for e in kept)]
    assert part.edata["_ID"].tolist() == kept and part.edata["_ID"].dtype == g.idtype
    assert part.edata["w"].equal(g.edata["w"][kept])
    assert part.num_nodes() == len(place)
    rows = list(place)
    assert part.ndata["x"].equal(g.ndata["x"][rows]) and part.ndata["mark"].equal(g.ndata["mark"][rows])
    assert ("_ID" in part.ndata) == (nodes is not None)
    if nodes is not None:
        assert part.ndata["_ID"].tolist() == nodes


def choices(num: int) -> list[list[int]]:
    """None, all in order, all from behind, every other one from behind."""
    return [[], list(range(num)), list(range(num))[::-1], list(range(num))[::-2]]


@SIZES
def test_subgraph(edges: EdgeList) -> None:
    g = homogeneous(edges)
    pairs = triples(g)
    for nodes in choices(g.num_nodes()):
        kept = [e for n in nodes for e, (u, v) in enumerate(pairs) if u == n and v in nodes]
        check_part(g, g.subgraph(nodes), kept, nodes)
        check_part(g, graphweave.subgraph(g, nodes, relabel_nodes=False), kept, None)
        assert "_ID" not in g.subgraph(nodes, store_ids=False).edata
        mask = torch.zeros(g.num_nodes(), dtype=torch.bool)
        mask[nodes] = True
        check_part(g, g.subgraph(mask), [e for n in sorted(nodes) for e in kept if pairs[e][0] == n], sorted(nodes))


@SIZES
def test_edge_subgraph(edges: EdgeList) -> None:
    g = homogeneous(edges)
    pairs = triples(g)
    for kept in [*choices(g.num_edges()), [0, 0, g.num_edges() - 1] if pairs else []]:
        met = first_met([pairs[e][0] for e in kept] + [pairs[e][1] for e in kept])
        check_part(g, g.edge_subgraph(kept), kept, met)
        check_part(g, graphweave.edge_subgraph(g, kept, relabel_nodes=False), kept, None)
    mask = torch.arange(g.num_edges()) % 2 == 0
    check_part(g, g.edge_subgraph(mask, relabel_nodes=False), mask.nonzero().squeeze(1).tolist(), None)


@SIZES
@pytest.mark.parametrize("end", ["in", "out"])
def test_in_and_out_subgraph(edges: EdgeList, end: str) -> None:
    g = homogeneous(edges)
    pairs = triples(g)
    take: Callable[..., Graph] = {"in": graphweave.in_subgraph, "out": graphweave.out_subgraph}[end]
    for nodes in choices(g.num_nodes()):
        kept = [e for n in nodes for e, pair in enumerate(pairs) if pair[end == "in"] == n]
        check_part(g, take(g, nodes), kept, None)
        met = first_met([pairs[e][0] for e in kept] + [pairs[e][1] for e in kept])
        check_part(g, take(g, nodes, relabel_nodes=True), kept, met)


def test_parts_of_typed_graphs() -> None:
    g = typed()
    part = g.subgraph({"user": [1, 2], "item": torch.tensor([False, True, True])})
    assert (part.num_nodes("user"), part.num_nodes("item"), part.num_nodes("shop")) == (2, 2, 0)
    assert triples(part, "follows") == [(0, 1), (0, 1)]
    assert triples(part, ("user", "rates", "item")) == []
    assert triples(part, "sells") == []
    assert part.nodes["user"].data["age"].tolist() == [1, 2]
    part = g.in_subgraph({"item": [1]})
    assert triples(part, ("user", "rates", "item")) == [(0, 1), (4, 1)] and part.num_edges() == 2
    part = g.edge_subgraph({("user", "rates", "item"): [2, 0], "follows": [3]})
    assert part.nodes["user"].data["_ID"].tolist() == [3, 2, 0]
    assert part.nodes["item"].data["_ID"].tolist() == [0, 1]
    assert triples(part, ("user", "rates", "item")) == [(1, 0), (2, 1)]


@pytest.mark.parametrize(
    ("error", "match", "call"),
    [
        (IndexRangeError, "index 9 at position 0 is out of range for", lambda g: g.subgraph([9])),
        (DataError, "distinct nodes", lambda g: g.subgraph([0, 0])),
        (IndexRangeError, "edge: index 2 at position 0 is out of range", lambda g: g.edge_subgraph([2])),
        (DataError, r"mask of nodes must have shape \[3\]", lambda g: g.subgraph(torch.tensor([True]))),
        (DataError, "several node types", lambda g: typed().subgraph([0])),
        (DataError, "several relations", lambda g: typed().edge_subgraph([0])),
        (DataError, "joins two node types", lambda g: bipartite(ZOO[-3]).add_self_loop()),
        (DataError, "joins two node types", lambda g: bipartite(ZOO[-3]).remove_self_loop()),
        (DataError, "joins two node types", lambda g: bipartite(ZOO[-3]).to_bidirected()),
        (DataError, "4 relations", lambda g: typed().add_self_loop()),
        (DataError, "fill_data", lambda g: g.add_self_loop(fill_data="most")),
    ],
)
def test_wrong_use(error: type[Exception], match: str, call: Callable[[Graph], object]) -> None:
    g = graphweave.graph(([0, 1], [1, 2]))
    g.edata["w"] = torch.ones(2)
    with pytest.raises(error, match=match):
        call(g)


@pytest.mark.parametrize("edges", ZOO, ids=name_of)
def test_reverse(edges: EdgeList) -> None:
    g = bipartite(edges)
    back = g.reverse(copy_edata=True)
    assert back.canonical_etypes == [("item", "buys", "user")]
    assert triples(back) == [(v, u) for u, v in triples(g)]
    assert back.edata["w"].equal(g.edata["w"]) and back.srcdata["x"].equal(g.dstdata["x"])
    assert not g.reverse().edata and not g.reverse(copy_ndata=False).ndata
    assert back.in_degrees().equal(g.out_degrees())


@SIZES
def test_self_loops(edges: EdgeList) -> None:
    g = homogeneous(edges)
    loops = [(v, v) for v in range(g.num_nodes())]
    more = g.add_self_loop()
    assert triples(more) == triples(g) + loops
    assert more.edata["w"].equal(torch.cat([g.edata["w"], torch.ones(g.num_nodes())]))
    assert more.ndata["x"] is g.ndata["x"]
    assert not g.add_self_loop([]).edata
    less = more.remove_self_loop()
    keep = [e for e, (u, v) in enumerate(triples(g)) if u != v]
    assert triples(less) == [triples(g)[e] for e in keep] and less.edata["w"].equal(g.edata["w"][keep])
    for fill, fold in (("sum", torch.sum), ("mean", torch.mean), ("max", torch.amax), ("min", torch.amin)):
        filled = g.add_self_loop(fill_data=fill).edata["w"][g.num_edges() :]
        for v in range(g.num_nodes()):
            into: Tensor = g.edata["w"][g.in_edges(v, "eid")]
            torch.testing.assert_close(filled[v], fold(into) if into.numel() else torch.tensor(0.0))


@SIZES
def test_to_bidirected(edges: EdgeList) -> None:
    g = homogeneous(edges)
    both = g.to_bidirected()
    assert triples(both) == sorted({pair for u, v in triples(g) for pair in ((u, v), (v, u))})
    assert both.num_nodes() == g.num_nodes() and not both.ndata and not both.edata
    assert g.to_bidirected(copy_ndata=True).ndata["x"] is g.ndata["x"]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_one_type_and_back(dtype: torch.dtype) -> None:
    g = typed(dtype)
    one, nodes, edges = graphweave.to_homogeneous(g, ndata=["x"], edata=["w"], return_count=True)
    assert (nodes, edges) == ([3, 2, 5], [2, 0, 4, 3])
    assert one.is_homogeneous and one.idtype == dtype
    assert one.ndata["_TYPE"].tolist() == [0] * 3 + [1] * 2 + [2] * 5
    assert one.ndata["_ID"].tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 3, 4]
    assert one.edata["_TYPE"].tolist() == [0] * 2 + [2] * 4 + [3] * 3
    assert one.edata["_ID"].tolist() == [0, 1, 0, 1, 2, 3, 0, 1, 2]
    assert triples(one)[:3] == [(1, 5), (0, 7), (5, 6)]
    assert one.ndata["x"].equal(torch.cat([g.nodes[t].data["x"] for t in g.ntypes]))
    back = graphweave.to_heterogeneous(one, g.ntypes, g.etypes, g.canonical_etypes)
    assert back.canonical_etypes == g.canonical_etypes
    for etype in g.canonical_etypes:
        assert triples(back, etype) == triples(g, etype)
        assert back.edges[etype].data["w"].equal(g.edges[etype].data["w"])
    for ntype in g.ntypes:
        assert back.nodes[ntype].data["x"].equal(g.nodes[ntype].data["x"])
    found = graphweave.to_heterogeneous(one, g.ntypes, g.etypes)
    assert ("shop", "sells", "item") not in found.canonical_etypes and found.num_nodes("shop") == 2


def test_types_keep_the_order_of_nodes() -> None:
    g = graphweave.graph(([0, 1, 2, 3], [1, 2, 3, 0]))
    g.ndata["_TYPE"] = torch.tensor([1, 0, 1, 0])
    g.edata["_TYPE"] = torch.tensor([0, 1, 0, 1])
    typed_one = graphweave.to_heterogeneous(g, ["a", "b"], ["r", "s"])
    assert typed_one.canonical_etypes == [("a", "s", "b"), ("b", "r", "a")]
    assert triples(typed_one, "r") == [(0, 0), (1, 1)] and triples(typed_one, "s") == [(0, 1), (1, 0)]
    assert typed_one.nodes["b"].data["_ID"].tolist() == [0, 2]


@pytest.mark.parametrize(
    ("match", "types", "names"),
    [
        ("no such field", None, (["a"], ["r"])),
        ("in 0..1", [0, 1], (["a"], ["r"])),
        ("which is not in metagraph", [0, 1], (["a", "b"], ["r"], [("a", "r", "a")])),
    ],
)
def test_wrong_types(match: str, types: list[int] | None, names: tuple[list[str], ...]) -> None:
    g = graphweave.graph(([0], [1]))
    if types is not None:
        g.ndata["_TYPE"], g.edata["_TYPE"] = torch.tensor(types), torch.tensor([0])
    with pytest.raises(DataError, match=match):
        graphweave.to_heterogeneous(g, *names)


def test_fields_that_differ_from_type_to_type() -> None:
    g = typed()
    g.nodes["shop"].data["x"] = torch.ones(2, 3)
    with pytest.raises(DataError, match="'x' differs from type to type"):
        graphweave.to_homogeneous(g, ndata=["x"])
    with pytest.raises(DataError, match="no type has a field 'y'"):
        graphweave.to_homogeneous(g, ndata=["y"])


def test_types_without_rows_need_no_fields() -> None:
    """A type of no nodes, and a relation of no edges, decide nothing about a field."""
    g = graphweave.heterograph({("a", "r", "a"): ([0, 1], [1, 0]), ("a", "s", "b"): ([], [])}, {"a": 2, "b": 0})
    g.nodes["a"].data["x"], g.edges["r"].data["w"] = torch.tensor([[1.0], [2.0]]), torch.tensor([3.0, 4.0])
    one = graphweave.to_homogeneous(g, ndata=["x"], edata=["w"])
    assert one.ndata["x"].tolist() == [[1.0], [2.0]] and one.edata["w"].tolist() == [3.0, 4.0]
    g.nodes["b"].data["x"], g.edges["s"].data["w"] = torch.ones(0, 7), torch.ones(0, dtype=torch.int64)
    one = graphweave.to_homogeneous(g, ndata=["x"], edata=["w"])
    assert one.ndata["x"].tolist() == [[1.0], [2.0]] and one.edata["w"].dtype == torch.float32


def test_no_rows_of_any_type() -> None:
    g = graphweave.heterograph({("a", "r", "b"): ([], [])}, {"a": 0, "b": 0})
    g.nodes["b"].data["x"] = torch.ones(0, 3)
    assert graphweave.to_homogeneous(g, ndata=["x"]).ndata["x"].shape == (0, 3)
    with pytest.raises(DataError, match="no type has a field 'y'"):
        graphweave.to_homogeneous(g, ndata=["y"])


def test_a_type_that_lacks_a_field() -> None:
    g = typed()
    with pytest.raises(DataError, match=r"'age'.*lack"):
        graphweave.to_homogeneous(g, ndata=["age"])
    del g.edges[g.canonical_etypes[0]].data["w"]
    with pytest.raises(DataError, match=r"'w'.*lack"):
        graphweave.to_homogeneous(g, edata=["w"])


def test_graphs_without_rows_need_no_fields() -> None:
    """Graphs of a batch without edges, or nodes, decide nothing about a field."""
    some, none = graphweave.graph(([0], [1])), graphweave.graph(([], []), num_nodes=2)
    some.edata["w"] = torch.ones(1)
    some.ndata["x"], none.ndata["x"] = torch.ones(2), torch.zeros(2)
    for graphs in ([some, none], [none, some]):
        many = graphweave.batch(graphs)
        assert many.edata["w"].tolist() == [1.0] and many.batch_num_edges().tolist() == [g.num_edges() for g in graphs]
    assert graphweave.batch([none, some], edata=["w"]).edata["w"].tolist() == [1.0]
    assert not graphweave.batch([none, none]).edata
    with pytest.raises(DataError, match="same fields"):
        graphweave.batch([some, graphweave.graph(([0], [1]))])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_batch_and_unbatch(dtype: torch.dtype) -> None:
    graphs = [homogeneous(edges, dtype) for edges in SQUARE]
    many = graphweave.batch(graphs)
    assert many.batch_size == len(graphs) and many.idtype == dtype
    assert many.batch_num_nodes().tolist() == [g.num_nodes() for g in graphs]
    assert many.batch_num_edges().tolist() == [g.num_edges() for g in graphs]
    at, want = 0, []
    for g in graphs:
        want += [(u + at, v + at) for u, v in triples(g)]
        at += g.num_nodes()
    assert triples(many) == want
    for g, again in zip(graphs, graphweave.unbatch(many), strict=True):
        assert triples(again) == triples(g) and again.num_nodes() == g.num_nodes()
        assert again.ndata["x"].equal(g.ndata["x"]) and again.edata["w"].equal(g.edata["w"])
        assert again.batch_size == 1 and again.batch_num_nodes().tolist() == [g.num_nodes()]


def test_batches_of_batches_and_of_types() -> None:
    g = typed()
    many = graphweave.batch([graphweave.batch([g, g]), g])
    assert many.batch_size == 3 and many.batch_num_edges("follows").tolist() == [4, 4, 4]
    for again in graphweave.unbatch(many):
        for etype in g.canonical_etypes:
            assert triples(again, etype) == triples(g, etype)
    part = many["follows"]
    assert part.batch_num_nodes().tolist() == [5, 5, 5]


def test_what_stays_a_batch() -> None:
    g = graphweave.graph(([0, 1, 1], [0, 1, 0]))
    many = graphweave.batch([g, g, g])
    for same in (many.local_var(), many.int(), many.to("meta")):
        assert same.batch_size == 3
    assert many.remove_self_loop().batch_num_edges().tolist() == [1, 1, 1]
    for other in (many.reverse(), many.add_self_loop(), many.subgraph([0, 1]), many.to_bidirected()):
        assert other.batch_size == 1 and other.batch_num_nodes().tolist() == [other.num_nodes()]


def test_batching_chosen_fields() -> None:
    first, second = graphweave.graph(([0], [1])), graphweave.graph(([0], [1]))
    first.ndata["x"], first.ndata["y"], second.ndata["x"] = torch.ones(2), torch.ones(2), torch.ones(2)
    assert list(graphweave.batch([first, second], ndata=["x"]).ndata) == ["x"]
    assert not graphweave.batch([first, second], ndata=None).ndata
    with pytest.raises(DataError, match="same fields"):
        graphweave.batch([first, second])
    with pytest.raises(DataError, match="same fields"):
        graphweave.batch([first, second], ndata=["y"])


@pytest.mark.parametrize(
    ("match", "call"),
    [
        ("one graph at least", lambda g: graphweave.batch([])),
        ("agree in types", lambda g: graphweave.batch([g, typed()])),
        ("agree in types, idtype", lambda g: graphweave.batch([g, g.int()])),
        ("expected 2 graphs of 3|graphs of 3", lambda g: graphweave.unbatch(g, [1, 1], [1, 1])),
        ("node of another graph", lambda g: graphweave.unbatch(g, [1, 2], [1, 1])),
    ],
)
def test_wrong_batches(match: str, call: Callable[[Graph], object]) -> None:
    with pytest.raises(DataError, match=match):
        call(graphweave.graph(([0, 1], [1, 2])))
