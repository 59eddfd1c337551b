"""Structure of graphs: construction, sizes, types and questions, against brute force over the awkward zoo."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

import graphweave
from graphweave.core.errors import DataError, IndexRangeError
from graphweave.graph.graph import Graph
from graphweave.runtime import formats
from graphweave.runtime.index import Index
from graphweave.runtime.memo import memo
from tests.graph.graph_support import SQUARE, ZOO, bipartite, homogeneous, name_of, typed
from tests.programs.graphs import EdgeList

DTYPES = [torch.int64, torch.int32]


def pairs_of(edges: EdgeList) -> list[tuple[int, int]]:
    return list(zip(edges.src.tolist(), edges.dst.tolist(), strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("edges", ZOO, ids=name_of)
def test_edges_and_degrees(edges: EdgeList, dtype: torch.dtype) -> None:
    g = bipartite(edges, dtype)
    pairs = pairs_of(edges)
    src, dst, eid = g.edges(form="all")
    assert (src.dtype, dst.dtype, eid.dtype) == (dtype, dtype, dtype)
    assert list(zip(src.tolist(), dst.tolist(), strict=True)) == pairs
    assert eid.tolist() == g.edges(form="eid").tolist() == list(range(len(pairs)))
    assert (g.num_src_nodes(), g.num_dst_nodes(), g.num_edges()) == (edges.num_src, edges.num_dst, len(pairs))
    assert g.num_nodes() == edges.num_src + edges.num_dst
    by_source = sorted(range(len(pairs)), key=lambda e: (*pairs[e], e))
    u, v, order = g.edges("all", "srcdst")
    assert order.tolist() == by_source == g.edges("eid", "srcdst").tolist()
    assert list(zip(u.tolist(), v.tolist(), strict=True)) == [pairs[e] for e in by_source]
    into, out_of = g.in_degrees(), g.out_degrees()
    assert into.dtype == out_of.dtype == dtype
    assert into.tolist() == [sum(d == v for _, d in pairs) for v in range(edges.num_dst)]
    assert out_of.tolist() == [sum(s == u for s, _ in pairs) for u in range(edges.num_src)]
    some = [i % max(edges.num_dst, 1) for i in (2, 0, 2)][: 3 * (edges.num_dst > 0)]
    assert g.in_degrees(some).tolist() == [into[v].item() for v in some]


@pytest.mark.parametrize("edges", SQUARE, ids=name_of)
def test_neighbours(edges: EdgeList) -> None:
    g = homogeneous(edges)
    pairs = pairs_of(edges)
    for v in range(edges.num_src):
        into = [e for e, (_, d) in enumerate(pairs) if d == v]
        out_of = [e for e, (s, _) in enumerate(pairs) if s == v]
        assert g.in_edges(v, "eid").tolist() == into
        assert g.out_edges(v, "eid").tolist() == out_of
        assert g.predecessors(v).tolist() == [pairs[e][0] for e in into]
        assert g.successors(v).tolist() == [pairs[e][1] for e in out_of]
        assert g.in_degrees(v) == len(into) and isinstance(g.in_degrees(v), int)
        assert g.out_degrees(v) == len(out_of)
    several = list(range(edges.num_src))[::-2] + list(range(edges.num_src))[:2]
    want = [e for v in several for e, (_, d) in enumerate(pairs) if d == v]
    src, dst, eid = g.in_edges(torch.tensor(several, dtype=torch.int64), "all")
    assert eid.tolist() == want
    assert list(zip(src.tolist(), dst.tolist(), strict=True)) == [pairs[e] for e in want]
    src, dst = g.out_edges(several)
    assert src.tolist() == [v for v in several for s, _ in pairs if s == v]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("edges", ZOO, ids=name_of)
def test_pairs(edges: EdgeList, dtype: torch.dtype) -> None:
    g = bipartite(edges, dtype)
    pairs = pairs_of(edges)
    u = [s for s in range(edges.num_src) for _ in range(edges.num_dst)]
    v = list(range(edges.num_dst)) * edges.num_src
    assert g.has_edges_between(u, v).tolist() == [pair in pairs for pair in zip(u, v, strict=True)]
    if not pairs:
        return
    mixed = pairs[::-3] + pairs[:2]
    u, v = ([pair[i] for pair in mixed] for i in (0, 1))
    assert g.edge_ids(u, v).tolist() == [pairs.index(pair) for pair in mixed]
    src, dst, eid = g.edge_ids(u, v, return_uv=True)
    want = [e for pair in mixed for e, other in enumerate(pairs) if other == pair]
    assert eid.tolist() == want
    assert list(zip(src.tolist(), dst.tolist(), strict=True)) == [pairs[e] for e in want]
    assert g.has_edges_between(*pairs[0]) is True
    assert g.edge_ids(*pairs[0]) == pairs.index(pairs[0])
    one = [pair for pair in pairs if pair[0] == pairs[0][0]]
    assert g.has_edges_between(pairs[0][0], [d for _, d in one]).all()
    ends = g.find_edges([len(pairs) - 1, 0])
    assert list(zip(*(e.tolist() for e in ends), strict=True)) == [pairs[-1], pairs[0]]
    assert g.find_edges(0)[0].shape == (1,)


def test_a_pair_without_an_edge_is_named() -> None:
    g = graphweave.graph(([0, 1], [1, 2]))
    with pytest.raises(DataError, match="no edge 1 -> 0"):
        g.edge_ids([0, 1], [1, 0])


def test_nodes() -> None:
    g = graphweave.graph(([0, 1], [1, 2]), num_nodes=5, idtype=torch.int32)
    assert g.nodes().tolist() == [0, 1, 2, 3, 4] and g.nodes().dtype == torch.int32
    assert g.has_nodes([0, 4, 5]).tolist() == [True, True, False]
    assert g.has_nodes(4) is True and g.has_nodes(5) is False
    with pytest.raises(IndexRangeError):
        g.has_nodes(-1)


@pytest.mark.parametrize("call", ["in_degrees", "out_degrees", "successors", "predecessors", "in_edges", "out_edges"])
@pytest.mark.parametrize("wrong", [3, -1, [0, 3]])
def test_nodes_out_of_range(call: str, wrong: object) -> None:
    g = graphweave.graph(([0, 1], [1, 2]))
    with pytest.raises(IndexRangeError, match="is out of range for 3 nodes"):
        getattr(g, call)(wrong)


@pytest.mark.parametrize("wrong", [0.5, [0.5], "x", [[0]], True, torch.tensor([True, False, False])])
def test_ids_of_the_wrong_kind(wrong: object) -> None:
    with pytest.raises(DataError):
        graphweave.graph(([0, 1], [1, 2])).in_degrees(wrong)


@pytest.mark.parametrize(
    "data",
    [
        ([0, 1, 3], [1, 2, 0]),
        (np.array([0, 1, 3]), np.array([1, 2, 0])),
        (torch.tensor([0, 1, 3]), [1, 2, 0]),
        torch.tensor([[0, 1, 3], [1, 2, 0]]),
        np.array([[0, 1, 3], [1, 2, 0]]),
        torch.tensor([[0, 1], [1, 2], [3, 0]]).t(),
        [(0, 1), (1, 2), (3, 0)],
    ],
    ids=["lists", "arrays", "mixed", "edge_index", "array", "strided", "pairs"],
)
def test_ways_to_give_edges(data: object) -> None:
    g = graphweave.graph(data)
    src, dst = g.edges()
    assert (src.tolist(), dst.tolist(), g.num_nodes()) == ([0, 1, 3], [1, 2, 0], 4)
    assert src.is_contiguous() and dst.is_contiguous() and g.idtype == torch.int64
    assert graphweave.graph(data, num_nodes=9, idtype=torch.int32).idtype == torch.int32


def test_no_edges() -> None:
    for data in (([], []), [], torch.empty((2, 0), dtype=torch.int64)):
        assert (graphweave.graph(data).num_nodes(), graphweave.graph(data, 3).num_nodes()) == (0, 3)


def test_tensors_are_kept_and_not_sorted() -> None:
    index = torch.tensor([[4, 1, 3], [0, 2, 0]])
    g = graphweave.graph(index)
    assert g.edges()[0].data_ptr() == index.data_ptr()
    assert g.edge_index().equal(index)


@pytest.mark.parametrize(
    ("error", "match", "data", "options"),
    [
        (
            IndexRangeError,
            "src: index 4 at position 1 is out of range",
            ([0, 4], [1, 2]),
            {"num_nodes": 4},
        ),
        (IndexRangeError, "graph, dst: index -1 at position 0 is out of range", ([0, 1], [-1, 2]), {}),
        (DataError, "must agree in length", ([0, 1], [1]), {}),
        (DataError, "must be int32 or int64", ([0.5], [1.5]), {}),
        (DataError, "int16", (torch.zeros(1, dtype=torch.int16),) * 2, {}),
        (DataError, "must be int32 or int64", (torch.tensor([True]),) * 2, {"idtype": torch.int64}),
        (DataError, r"shape \[2, num_edges\]", torch.zeros(3, 2, dtype=torch.int64), {}),
        (DataError, r"shape \[num_edges\]", (torch.zeros(1, 1, dtype=torch.int64),) * 2, {}),
        (DataError, "dtype", (torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int32)), {}),
        (DataError, "number of nodes", ([0], [0]), {"num_nodes": -1}),
        (DataError, "idtype", ([0], [0]), {"idtype": torch.float32}),
        (IndexRangeError, "does not fit", ([1 << 40], [0]), {"idtype": torch.int32}),
        (DataError, "edge_index", "abc", {}),
        (DataError, "list, array or tensor", (["a"], ["b"]), {}),
    ],
)
def test_wrong_edges(error: type[Exception], match: str, data: object, options: dict[str, object]) -> None:
    with pytest.raises(error, match=match):
        graphweave.graph(data, **options)


def test_types() -> None:
    g = typed()
    assert g.ntypes == ["item", "shop", "user"]
    assert g.canonical_etypes == sorted(g.canonical_etypes) and len(g.canonical_etypes) == 4
    assert g.etypes == ["rates", "sells", "follows", "rates"]
    assert g.srctypes == g.dsttypes == g.ntypes
    assert not g.is_homogeneous and homogeneous(SQUARE[0]).is_homogeneous
    assert g.num_nodes() == 10 and g.num_nodes("user") == 5 and g.num_edges() == 9 and g.num_edges("follows") == 4
    assert g.to_canonical_etype("sells") == ("shop", "sells", "item")
    assert g.in_degrees(etype=("user", "rates", "item")).tolist() == [1, 2, 0]
    assert g.in_degrees(etype="sells").tolist() == [0, 0, 0]
    assert g.nodes("shop").tolist() == [0, 1]
    assert g.edges(etype=("item", "rates", "user"))[0].tolist() == [1, 0]


def test_bipartite_sides() -> None:
    g = bipartite(ZOO[-3])
    assert (g.srctypes, g.dsttypes, g.ntypes) == (["user"], ["item"], ["item", "user"])
    more = graphweave.heterograph(
        {("a", "r", "b"): ([0], [1]), ("c", "s", "b"): ([0], [1])}, {"a": 1, "b": 2, "c": 1, "d": 1}
    )
    assert (more.srctypes, more.dsttypes) == (["a", "c", "d"], ["b"])
    assert g.srcnodes().shape[0] == g.num_src_nodes() and g.dstnodes("item").shape[0] == g.num_dst_nodes("item")


@pytest.mark.parametrize(
    ("match", "call"),
    [
        ("ambiguous", lambda g: g.num_edges("rates")),
        ("no relation 'eats'", lambda g: g.num_edges("eats")),
        ("no node type 'x'", lambda g: g.num_nodes("x")),
        ("4 relations", lambda g: g.in_degrees()),
        ("3 node types", lambda g: g.nodes()),
        ("4 relations", lambda g: g.edges()),
        ("form", lambda g: g["follows"].edges("ue")),
        ("order", lambda g: g["follows"].edges(order="up")),
        ("form", lambda g: g["follows"].in_edges(0, "ue")),
        ("names 2 relations", lambda g: g[:, "rates", :]),
        ("equally many", lambda g: g["follows"].has_edges_between([0, 1], [0, 1, 2])),
    ],
)
def test_wrong_questions(match: str, call: object) -> None:
    with pytest.raises(DataError, match=match):
        call(typed())


def test_a_slice_shares_fields() -> None:
    g = typed()
    for part in (g["user", "rates", "item"], g["user", :, "item"]):
        assert (part.ntypes, part.num_edges()) == (["user", "item"], 3)
        part.edata["new"] = torch.ones(3)
        assert "new" in g.edges["user", "rates", "item"].data
    assert g["follows"].is_homogeneous


@pytest.mark.parametrize(
    ("match", "data", "nodes"),
    [
        ("one relation at least", {}, None),
        ("source type", {"follows": ([0], [1])}, None),
        ("no number for node types i", {("u", "r", "i"): ([0], [1])}, {"u": 3}),
        (
            "dst: index 1 at position 0 is out of range for 1 nodes of type 'i'",
            {("u", "r", "i"): ([0], [1])},
            {"u": 3, "i": 1},
        ),
        (
            "one dtype",
            {("u", "r", "i"): ([0], [1]), ("u", "s", "i"): (torch.zeros(1, dtype=torch.int32),) * 2},
            None,
        ),
    ],
)
def test_wrong_heterographs(match: str, data: dict[object, object], nodes: dict[str, int] | None) -> None:
    with pytest.raises((DataError, IndexRangeError), match=match):
        graphweave.heterograph(data, nodes)


def test_numbers_of_nodes_are_inferred_over_relations() -> None:
    g = graphweave.heterograph({("u", "a", "v"): ([0, 6], [1, 2]), ("v", "b", "u"): ([4], [1])})
    assert (g.num_nodes("u"), g.num_nodes("v")) == (7, 5)
    assert graphweave.heterograph({("u", "a", "v"): ([0], [0])}, {"u": 1, "v": 1, "w": 4}).num_nodes("w") == 4


def test_idtype_and_device() -> None:
    g = typed()
    short = g.int()
    assert short.idtype == torch.int32 and short.long().idtype == torch.int64 and g.long() is g and g.cpu() is g
    assert short.edges(etype="follows")[0].dtype == torch.int32
    assert short.nodes["user"].data["x"] is g.nodes["user"].data["x"]
    meta = g.to("meta")
    assert meta.device.type == "meta" and meta.nodes["user"].data["x"].device.type == "meta"
    assert meta.num_nodes("user") == 5


@pytest.mark.parametrize("remake", [copy.deepcopy, copy.copy, lambda g: pickle.loads(pickle.dumps(g))])
def test_pickle_and_copy(remake: object) -> None:
    g = graphweave.batch([typed(), typed()])
    again: Graph = remake(g)
    assert again.ntypes == g.ntypes and again.canonical_etypes == g.canonical_etypes
    for etype in g.canonical_etypes:
        assert all(a.equal(b) for a, b in zip(again.edges(etype=etype), g.edges(etype=etype), strict=True))
        assert again.edges[etype].data["w"].equal(g.edges[etype].data["w"])
    assert again.batch_num_nodes("user").tolist() == [5, 5]
    assert again.in_degrees(etype="follows").equal(g.in_degrees(etype="follows"))


def test_repr_is_short() -> None:
    g = graphweave.graph(([0, 1], [1, 2]))
    g.ndata["x"] = torch.ones(3, 4)
    assert repr(g) == "Graph(num_nodes=3, num_edges=2, ndata={x: float32[4]}, edata={})"
    assert len(repr(typed())) < 250


def test_formats_are_the_compilers() -> None:
    formats.clear()
    memo.clear()
    graphweave.reset_counters()
    g = homogeneous(SQUARE[-1])
    assert graphweave.counters()["format_builds"] == 0
    formats.csr(Index(g.edges()[1], g.num_nodes()))
    g.in_degrees(), g.in_degrees(0)
    assert graphweave.counters()["format_builds"] == 1
    g.in_edges(0), g.predecessors(1)
    assert graphweave.counters()["format_builds"] == 2  # the edge at each position of the same grouping
    g.has_edges_between(0, 1), g.edge_ids(*(end[:1] for end in g.edges()))
    assert graphweave.counters()["hoist_builds"] == 1


def test_an_edit_in_place_is_noticed() -> None:
    g = graphweave.graph(torch.tensor([[0, 1], [1, 2]]))
    assert g.in_degrees().tolist() == [0, 1, 1] and g.has_edges_between(0, 1)
    g.edges()[1].zero_()
    assert g.in_degrees().tolist() == [2, 0, 0] and not g.has_edges_between(0, 1)
