"""The message-passing methods of a graph against loops over edges: values, gradients, kept fields, wrong use."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweave
import graphweave.function as fn
from graphweave.core.errors import DataError, IndexRangeError
from graphweave.core.settings import override
from tests.programs.compare import assert_close
from tests.programs.graphs import EdgeList, zoo

ZOO = zoo()


@pytest.fixture(autouse=True)
def plain() -> Iterator[None]:
    """Turns kernels off, because the meaning of the methods does not depend on them; tests of kernels say so."""
    with override(eager_kernels=False):
        yield


def graph_of(edges: EdgeList, index: torch.dtype = torch.int64) -> graphweave.Graph:
    if edges.square:
        return graphweave.graph((edges.src.to(index), edges.dst.to(index)), num_nodes=edges.num_src)
    relation = ("a", "to", "b")
    counts = {"a": edges.num_src, "b": edges.num_dst}
    return graphweave.heterograph({relation: (edges.src.to(index), edges.dst.to(index))}, counts)


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def reduced(messages: Tensor, dst: Tensor, num: int, op: str) -> Tensor:
    rows = []
    for v in range(num):
        mine = messages[dst == v]
        if not len(mine):
            rows.append(messages.new_zeros(messages.shape[1:]))
        else:
            rows.append({"sum": mine.sum, "mean": mine.mean, "max": mine.amax, "min": mine.amin}[op](0))
    return torch.stack(rows) if rows else messages.new_zeros((0, *messages.shape[1:]))


@pytest.mark.parametrize("index", [torch.int64, torch.int32], ids=["int64", "int32"])
@pytest.mark.parametrize("edges", ZOO, ids=lambda e: e.name)
def test_update_all_of_every_reduction(edges: EdgeList, index: torch.dtype) -> None:
    for op, width in itertools.product(("sum", "mean", "max", "min"), (1, 31)):
        g, h, w = graph_of(edges, index), random(edges.num_src, width), random(edges.src.numel(), 1, seed=1)
        g.srcdata["h"], g.edata["w"] = h, w
        g.update_all(fn.u_mul_e("h", "w", "m"), getattr(fn, op)("m", "o"))
        expected = reduced(h[edges.src] * w, edges.dst, edges.num_dst, op)
        assert_close(g.dstdata["o"], expected)
        if not edges.src.numel():
            continue
        weight = random(edges.num_dst, width, seed=2).detach()
        ours = torch.autograd.grad((g.dstdata["o"] * weight).sum(), [h, w])
        theirs = torch.autograd.grad((expected * weight).sum(), [h, w], allow_unused=True, materialize_grads=True)
        for a, b in zip(ours, theirs, strict=True):
            assert_close(a, b)


def test_functions_of_the_user_and_apply() -> None:
    g = graphweave.graph(([0, 1, 2, 2], [1, 1, 0, 2]), num_nodes=4)
    g.ndata["h"] = h = random(4, 3)

    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": edges.src["h"] - edges.dst["h"]}

    def reduce(nodes: Any) -> dict[str, Tensor]:
        return {"o": nodes.mailbox["m"].relu().sum(1) + nodes.data["h"]}

    g.update_all(message, reduce, lambda nodes: {"p": nodes.data["o"] * 2})
    expected = reduced((h[[0, 1, 2, 2]] - h[[1, 1, 0, 2]]).relu(), torch.tensor([1, 1, 0, 2]), 4, "sum") + h
    expected = torch.where(torch.tensor([[True], [True], [True], [False]]), expected, torch.zeros_like(expected))
    assert_close(g.ndata["o"], expected)
    assert_close(g.ndata["p"], expected * 2)


def test_some_edges_change_their_destinations_only() -> None:
    g = graphweave.graph(([0, 1, 2, 2], [1, 1, 0, 2]), num_nodes=4)
    g.ndata["h"] = h = torch.arange(4.0).unsqueeze(1)
    g.ndata["o"] = torch.full((4, 1), -1.0)
    g.send_and_recv([1, 2], fn.copy_u("h", "m"), fn.sum("m", "o"))
    assert g.ndata["o"].tolist() == [[2.0], [1.0], [-1.0], [-1.0]]
    g.send_and_recv((torch.tensor([2]), torch.tensor([2])), fn.copy_u("h", "m"), fn.sum("m", "new"))
    assert g.ndata["new"].tolist() == [[0.0], [0.0], [2.0], [0.0]]
    g.pull([1, 3], fn.copy_u("h", "m"), fn.sum("m", "o"))
    assert g.ndata["o"].tolist() == [[2.0], [1.0], [-1.0], [0.0]]
    g.push(2, fn.copy_u("h", "m"), fn.sum("m", "o"))
    assert g.ndata["o"].tolist() == [[2.0], [1.0], [2.0], [0.0]]
    assert g.ndata["h"] is h


def test_apply_edges_and_nodes() -> None:
    g = graphweave.graph(([0, 1, 2], [1, 2, 0]))
    g.ndata["h"] = torch.tensor([1.0, 2.0, 4.0])
    g.apply_edges(fn.v_sub_u("h", "h", "d"))
    assert g.edata["d"].tolist() == [1.0, 2.0, -3.0]
    g.apply_edges(lambda edges: {"d": edges.src["h"] * 10}, edges=[2])
    assert g.edata["d"].tolist() == [1.0, 2.0, 40.0]
    g.apply_edges(lambda edges: {"new": edges.dst["h"]}, edges=torch.tensor([False, True, False]))
    assert g.edata["new"].tolist() == [0.0, 4.0, 0.0]
    g.apply_nodes(lambda nodes: {"h": nodes.data["h"] + 1})
    g.apply_nodes(lambda nodes: {"h": -nodes.data["h"]}, v=[1])
    assert g.ndata["h"].tolist() == [2.0, -3.0, 5.0]
    g.apply_edges(lambda edges: {"i": torch.stack(edges.edges(), 1)}, edges=[1])
    assert g.edata["i"].tolist() == [[0, 0, 0], [1, 2, 1], [0, 0, 0]]


@pytest.mark.parametrize("reducer", ["sum", "mean", "max", "min", "stack", "own"])
def test_several_relations_meet_at_a_type(reducer: str) -> None:
    g = graphweave.heterograph(
        {("u", "f", "u"): ([0, 1], [1, 2]), ("g", "p", "u"): ([0, 1, 1], [1, 1, 0])}, {"u": 3, "g": 2}
    )
    g.nodes["u"].data["h"], g.nodes["g"].data["h"] = random(3, 2), random(2, 2, seed=1)
    cross: Any = (lambda xs: xs[0] - xs[1]) if reducer == "own" else reducer
    functions = (fn.copy_u("h", "m"), fn.sum("m", "o"))
    g.multi_update_all({"f": functions, "p": functions}, cross, lambda nodes: {"twice": nodes.data["o"] * 2})
    f = reduced(g.nodes["u"].data["h"][[0, 1]], torch.tensor([1, 2]), 3, "sum")
    p = reduced(g.nodes["g"].data["h"][[0, 1, 1]], torch.tensor([1, 1, 0]), 3, "sum")
    both = torch.stack([f, p])
    expected = {
        "sum": both.sum(0), "mean": both.mean(0), "max": both.amax(0), "min": both.amin(0),
        "stack": both.transpose(0, 1), "own": f - p,
    }[reducer]  # fmt: skip
    assert_close(g.nodes["u"].data["o"], expected)
    assert_close(g.nodes["u"].data["twice"], expected * 2)
    assert "o" not in g.nodes["g"].data


def _two_relations() -> graphweave.Graph:
    """Nodes 0..4 have type u. Relation f reaches 1 and 2, relation p reaches 0 and 1; 3 and 4 receive nothing."""
    g = graphweave.heterograph(
        {("u", "f", "u"): ([0, 1, 3], [1, 2, 1]), ("g", "p", "u"): ([0, 1, 1], [1, 1, 0])}, {"u": 5, "g": 2}
    )
    g.nodes["u"].data["h"], g.nodes["g"].data["h"] = random(5, 2), random(2, 2, seed=1)
    return g


@pytest.mark.parametrize("sign", [1, -1], ids=["above", "below"])
@pytest.mark.parametrize("cross", ["max", "min"])
@pytest.mark.parametrize("inner", ["max", "min"])
def test_what_arrived_decides_among_relations(inner: str, cross: str, sign: int) -> None:
    """A relation that sent a node nothing does not count there; a node that received nothing at all gets 0."""
    g = _two_relations()
    h, k = sign * (g.nodes["u"].data["h"].abs() + 1), sign * (g.nodes["g"].data["h"].abs() + 1)
    g.nodes["u"].data["h"], g.nodes["g"].data["h"] = h.requires_grad_(), k.requires_grad_()
    functions = (fn.copy_u("h", "m"), getattr(fn, inner)("m", "o"))
    g.multi_update_all({"f": functions, "p": functions}, cross)
    got = g.nodes["u"].data["o"]
    fold = {"max": torch.amax, "min": torch.amin}
    both = fold[cross](torch.stack([fold[inner](h[[0, 3]], 0), fold[inner](k[[0, 1]], 0)]), 0)
    expected = torch.stack([k[1], both, h[1], torch.zeros(2), torch.zeros(2)])
    assert_close(got, expected)
    factor = random(5, 2, seed=3)
    for mine, theirs in zip(
        torch.autograd.grad((got * factor).sum(), (h, k)),
        torch.autograd.grad((expected * factor).sum(), (h, k)),
        strict=True,
    ):
        assert_close(mine, theirs)


def test_a_sum_of_nothing_takes_part_among_relations() -> None:
    g = _two_relations()
    g.nodes["u"].data["h"], g.nodes["g"].data["h"] = -torch.ones(5, 1), -torch.ones(2, 1)
    functions = (fn.copy_u("h", "m"), fn.sum("m", "o"))
    g.multi_update_all({"f": functions, "p": functions}, "max")
    assert g.nodes["u"].data["o"].flatten().tolist() == [0, -2, 0, 0, 0]
    g.multi_update_all({"f": (fn.copy_u("h", "m"), fn.max("m", "o")), "p": functions}, "max")
    assert g.nodes["u"].data["o"].flatten().tolist() == [-1, -1, 0, 0, 0]


def test_whole_numbers_among_relations() -> None:
    g = _two_relations()
    g.nodes["u"].data["h"], g.nodes["g"].data["h"] = torch.tensor([-5, -4, -3, -2, -1]), torch.tensor([-7, -6])
    functions = (fn.copy_u("h", "m"), fn.max("m", "o"))
    g.multi_update_all({"f": functions, "p": functions}, "max")
    assert g.nodes["u"].data["o"].tolist() == [-6, -2, -4, 0, 0]


def test_what_arrived_decides_in_a_compiled_model(fresh_compiler: None) -> None:
    g = _two_relations()
    functions = (fn.copy_u("h", "m"), fn.max("m", "o"))

    def model(graph: graphweave.Graph, h: Tensor, k: Tensor) -> Tensor:
        with graph.local_scope():
            graph.nodes["u"].data["h"], graph.nodes["g"].data["h"] = h, k
            graph.multi_update_all({"f": functions, "p": functions}, "max")
            return graph.nodes["u"].data["o"]

    h, k = -torch.rand(5, 2, dtype=torch.float64) - 1, -torch.rand(2, 2, dtype=torch.float64) - 1
    expected = torch.stack([k[1], torch.stack([h[0], h[3], k[0], k[1]]).amax(0), h[1], h[0] * 0, h[0] * 0])
    assert_close(graphweave.compile(model)(g, h, k), expected)
    assert graphweave.counters()["eager_fallbacks"] == 0


def test_data_of_types() -> None:
    g = graphweave.heterograph({("u", "f", "u"): ([0, 1], [1, 2]), ("g", "p", "u"): ([0, 1, 1], [1, 1, 0])})
    one = graphweave.to_homogeneous(g)
    weights, scores = random(2, 3), random(2)
    one.ntype_data["w"], one.etype_data["s"] = weights, scores

    def message(edges: Any) -> dict[str, Tensor]:
        return {"m": edges.srctype["w"] * edges.type["s"].unsqueeze(1) + edges.dsttype["w"]}

    one.update_all(message, fn.sum("m", "o"), lambda nodes: {"o": nodes.data["o"] * nodes.type["w"]})
    types, (src, dst) = one.ndata["_TYPE"], one.edges()
    m = weights[types[src]] * scores[one.edata["_TYPE"]].unsqueeze(1) + weights[types[dst]]
    assert_close(one.ndata["o"], reduced(m, dst, one.num_nodes(), "sum") * weights[types])


@pytest.mark.parametrize("norm_by", ["dst", "src"])
@pytest.mark.parametrize("edges", ZOO, ids=lambda e: e.name)
def test_edge_softmax(edges: EdgeList, norm_by: str) -> None:
    g, logits = graph_of(edges), random(edges.src.numel(), 2, 1)
    at = edges.dst if norm_by == "dst" else edges.src
    ours = graphweave.edge_softmax(g, logits, norm_by=norm_by)
    expected = logits.exp() / torch.stack([logits.exp()[at == v].sum(0) for v in at]) if at.numel() else logits
    assert_close(ours, expected)
    weight = random(edges.src.numel(), 2, 1, seed=3).detach()
    if at.numel():
        pair = [torch.autograd.grad((x * weight).sum(), logits)[0] for x in (ours, expected)]
        assert_close(*pair, floor=1.0)


def test_edge_softmax_over_relations_and_of_some_edges() -> None:
    g = graphweave.heterograph({("u", "f", "u"): ([0, 1], [1, 2]), ("g", "p", "u"): ([0, 1, 1], [1, 1, 0])})
    logits = {"f": torch.tensor([1.0, 2.0]), "p": torch.tensor([3.0, 4.0, 5.0])}
    out = graphweave.edge_softmax(g, logits)
    at_1 = torch.softmax(torch.tensor([1.0, 3.0, 4.0]), 0)
    assert_close(out["f"], torch.stack([at_1[0], torch.tensor(1.0)]))
    assert_close(out["p"], torch.stack([at_1[1], at_1[2], torch.tensor(1.0)]))
    some = graphweave.edge_softmax(g["p"], torch.tensor([3.0, 5.0]), eids=torch.tensor([0, 2]))
    assert some.tolist() == [1.0, 1.0]
    with pytest.raises(DataError, match="logits has 2 rows"):
        graphweave.edge_softmax(g["p"], torch.tensor([3.0, 5.0]))
    with pytest.raises(DataError, match="norm_by"):
        graphweave.edge_softmax(g["p"], torch.zeros(3), norm_by="both")


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 7), nn.Linear(7, 3)

    def forward(self, g: graphweave.Graph, x: Tensor) -> Tensor:
        with g.local_scope():
            g.ndata["h"] = self.first(x)
            g.update_all(fn.copy_u("h", "m"), fn.mean("m", "h"))
            g.ndata["h"] = self.second(g.ndata["h"].relu())
            g.apply_edges(fn.u_dot_v("h", "h", "e"))
            g.edata["a"] = graphweave.edge_softmax(g, g.edata["e"])
            g.update_all(fn.u_mul_e("h", "a", "m"), fn.sum("m", "o"))
            return g.ndata["o"]


def test_a_compiled_model_is_whole_and_serves_graphs_of_all_sizes() -> None:
    torch.manual_seed(0)
    model = TwoLayers()
    compiled = graphweave.compile(model)
    graphweave.reset_counters()
    for edges in (e for e in ZOO if e.square and e.num_src > 1):
        g, x = graph_of(edges), torch.randn(edges.num_src, 5, requires_grad=True)
        out, expected = compiled(g, x), model(g, x)
        assert_close(out, expected)
        weight = torch.randn_like(out)
        leaves = [x, *model.parameters()]
        for a, b in zip(*(torch.autograd.grad((y * weight).sum(), leaves) for y in (out, expected)), strict=True):
            assert_close(a, b)
        assert not dict(g.ndata) and not dict(g.edata)
    counts = graphweave.counters()
    assert (counts["graph_breaks"], counts["eager_fallbacks"], counts["compilations"]) == (0, 0, 1)


def test_eager_calls_use_kernels_compiled_once() -> None:
    with override(eager_kernels=True):
        graphweave.reset_counters()
        for edges in (e for e in ZOO if e.square and e.num_src > 1):
            g, h = graph_of(edges), random(edges.num_src, 4)
            g.ndata["h"] = h
            g.update_all(fn.copy_u("h", "m"), fn.mean("m", "o"))
            assert_close(g.ndata["o"], reduced(h[edges.src], edges.dst, edges.num_dst, "mean"))
        assert graphweave.counters()["compilations"] == 1
        assert graphweave.counters()["kernel_launches"] > 0


def test_wrong_use_is_refused_with_names_and_sizes() -> None:
    g = graphweave.graph(([0, 1], [1, 2]))
    g.ndata["h"] = torch.randn(3, 2)
    with pytest.raises(KeyError, match="'x'"):
        g.update_all(fn.copy_u("x", "m"), fn.sum("m", "o"))
    with pytest.raises(KeyError, match="'w'"):
        g.update_all(fn.copy_u("h", "m"), fn.sum("w", "o"))
    with pytest.raises(DataError, match=r"'m' of shape \(3, 2\), but there are 2 edges"):
        g.update_all(lambda edges: {"m": g.ndata["h"]}, fn.sum("m", "o"))
    with pytest.raises(DataError, match="for each message"):
        g.update_all(fn.copy_u("h", "m"), lambda nodes: {"o": nodes.mailbox["m"]})
    with pytest.raises(IndexRangeError):
        g.send_and_recv([2], fn.copy_u("h", "m"), fn.sum("m", "o"))
    with pytest.raises(DataError, match="cross_reducer"):
        g.multi_update_all({"_E": (fn.copy_u("h", "m"), fn.sum("m", "o"))}, "median")
    two = graphweave.heterograph({("u", "f", "u"): ([0], [1]), ("g", "p", "u"): ([0], [1])})
    with pytest.raises(DataError, match="relations"):
        two.update_all(fn.copy_u("h", "m"), fn.sum("m", "o"))
