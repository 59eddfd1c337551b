"""RGCN, RGAT and HGT written in loops, against their papers' formulas edge by edge, on graphs of every kind."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweave
from graphweave import loops
from graphweave.loops import concat, dot_prd, exp, leakyrelu, linear, maximum, relu, sigmoid
from tests.programs.compare import assert_all_close
from tests.programs.graphs import zoo

ZOO = {e.name: e for e in zoo() if e.square}
RELATIONS, KINDS, HEADS, DIM = 4, 3, 2, 3
WIDTH = HEADS * DIM


def edge_softmax(g: Any) -> None:
    for e in g.edges():
        e["att"] = exp(e["att"])
    for n in g.dst_nodes():
        n["att_sum"] = 0.0
        for e in n.incoming_edges():
            n["att_sum"] += e["att"]
    for e in g.edges():
        e["att"] /= e.dst["att_sum"]


@loops.compile
def rgat(g: Any, W: Tensor, w_s: Tensor, w_t: Tensor) -> Tensor:
    for e in g.edges():
        hs = e.src.feature * W[e.etype]
        atts = dot_prd(hs, w_s[e.etype])
        ht = e.dst.feature * W[e.etype]
        attt = dot_prd(ht, w_t[e.etype])
        e["att"] = leakyrelu(atts + attt)
    edge_softmax(g)
    for n in g.dst_nodes():
        n["h"] = 0.0
        for e in n.incoming_edges():
            n["h"] += e["att"] * (e.src.feature * W[e.etype])
    return g.dstdata["h"]


def rgat_by_edges(x: Tensor, src: Tensor, dst: Tensor, etype: Tensor, W: Tensor, w_s: Tensor, w_t: Tensor) -> Tensor:
    rows = []
    for v in range(x.shape[0]):
        ks = [k for k in range(src.numel()) if dst[k] == v]
        total = x.new_zeros(W.shape[2])
        if ks:
            hs = torch.stack([x[src[k]] @ W[etype[k]] for k in ks])
            score = [h @ w_s[etype[k]] + (x[v] @ W[etype[k]]) @ w_t[etype[k]] for h, k in zip(hs, ks, strict=True)]
            total = torch.softmax(nn.functional.leaky_relu(torch.stack(score)), 0) @ hs
        rows.append(total)
    return torch.stack(rows) if rows else x.new_zeros(0, W.shape[2])


class RGCN(nn.Module):
    """Schlichtkrull et al.: the mean over each relation's messages, plus the node's own term."""

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.randn(RELATIONS, WIDTH, 5, dtype=torch.float64))
        self.own = nn.Linear(WIDTH, 5, dtype=torch.float64)
        self.register_buffer("one_of", torch.eye(RELATIONS, dtype=torch.float64))

    @loops.compile
    def forward(self, g: Any) -> Tensor:
        for n in g.dst_nodes():
            n["of_type"] = 0.0
            for e in n.incoming_edges():
                n["of_type"] += self.one_of[e.etype]
        for n in g.dst_nodes():
            n["h"] = self.own(n.feature)
            for e in n.incoming_edges():
                n["h"] += e.src.feature * self.W[e.etype] / dot_prd(n["of_type"], self.one_of[e.etype])
            n["h"] = relu(n["h"])
        return g.dstdata["h"]

    def by_edges(self, x: Tensor, src: Tensor, dst: Tensor, etype: Tensor) -> Tensor:
        rows = []
        for v in range(x.shape[0]):
            h = self.own(x[v])
            for r in range(RELATIONS):
                found = [x[src[k]] @ self.W[r] for k in range(src.numel()) if dst[k] == v and etype[k] == r]
                h = h + torch.stack(found).mean(0) if found else h
            rows.append(h.relu())
        return torch.stack(rows) if rows else x.new_zeros(0, 5)


class HGT(nn.Module):
    """Hu et al.: keys, queries, values and outputs by node type; attention and messages by relation; several heads."""

    def __init__(self) -> None:
        super().__init__()

        def leaf(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, dtype=torch.float64) / math.sqrt(shape[-2]))

        self.K, self.Q, self.V = (leaf(KINDS, HEADS, WIDTH, DIM) for _ in range(3))
        self.A, self.skip = leaf(KINDS, WIDTH, WIDTH), nn.Parameter(torch.randn(KINDS, dtype=torch.float64))
        self.att, self.msg = leaf(RELATIONS, HEADS, DIM, DIM), leaf(RELATIONS, HEADS, DIM, DIM)
        self.prior = nn.Parameter(torch.rand(RELATIONS, HEADS, dtype=torch.float64) + 0.5)

    @loops.compile
    def forward(self, g: Any) -> Tensor:
        for n in g.nodes():
            n["k"] = linear(n.feature, self.K[n.ntype])
            n["q"] = linear(n.feature, self.Q[n.ntype])
            n["v"] = linear(n.feature, self.V[n.ntype])
        for e in g.edges():
            key = linear(e.src.k, self.att[e.etype])
            e["att"] = dot_prd(key, e.dst.q) * self.prior[e.etype] / math.sqrt(DIM)
        for n in g.dst_nodes():
            n["most"] = float("-inf")
            for e in n.incoming_edges():
                n["most"] = maximum(n["most"], e["att"])
        for n in g.dst_nodes():
            n["sum"] = 0.0
            n["agg"] = torch.zeros(HEADS, DIM, dtype=torch.float64)
            for e in n.incoming_edges():
                e["weight"] = exp(e["att"] - n["most"])
                n["sum"] += e["weight"]
                n["agg"] += e["weight"].unsqueeze(-1) * linear(e.src.v, self.msg[e.etype])
            n["agg"] = n["agg"] / (n["sum"].unsqueeze(-1) + 1e-16)
        for n in g.nodes():
            keep = sigmoid(self.skip[n.ntype])
            n["h"] = keep * linear(n["agg"].flatten(), self.A[n.ntype]) + (1 - keep) * n.feature
        return g.ndata["h"]

    def by_edges(self, x: Tensor, src: Tensor, dst: Tensor, etype: Tensor, ntype: Tensor) -> Tensor:
        def of(W: Tensor, v: int) -> Tensor:
            return torch.stack([x[v] @ W[ntype[v], h] for h in range(HEADS)])

        rows = []
        for v in range(x.shape[0]):
            ks = [k for k in range(src.numel()) if dst[k] == v]
            out = x.new_zeros(HEADS, DIM)
            if ks:
                keys = [torch.einsum("hk,hkm->hm", of(self.K, int(src[k])), self.att[etype[k]]) for k in ks]
                query = of(self.Q, v)
                scores = [(key * query).sum(-1) * self.prior[etype[k]] for key, k in zip(keys, ks, strict=True)]
                values = [torch.einsum("hk,hkm->hm", of(self.V, int(src[k])), self.msg[etype[k]]) for k in ks]
                weights = torch.softmax(torch.stack(scores) / math.sqrt(DIM), 0)
                out = (weights.unsqueeze(-1) * torch.stack(values)).sum(0)
            keep = torch.sigmoid(self.skip[ntype[v]])
            rows.append(keep * (out.flatten() @ self.A[ntype[v]]) + (1 - keep) * x[v])
        return torch.stack(rows) if rows else x.new_zeros(0, WIDTH)


class Case:
    def __init__(self, name: str) -> None:
        generator = torch.Generator().manual_seed(3)
        edges = ZOO[name]
        self.src, self.dst = edges.src, edges.dst
        self.x = torch.randn(edges.num_src, WIDTH, generator=generator, dtype=torch.float64).requires_grad_()
        # one relation has no edges, and one node type no nodes
        self.etype = torch.randint(RELATIONS - 1, (edges.src.numel(),), generator=generator)
        self.ntype = torch.randint(KINDS - 1, (edges.num_src,), generator=generator)

    def graph(self) -> graphweave.Graph:
        g = graphweave.graph((self.src, self.dst), num_nodes=self.x.shape[0])
        g.ndata["feature"], g.edata[graphweave.ETYPE], g.ndata[graphweave.NTYPE] = self.x, self.etype, self.ntype
        return g


def same(got: Tensor, want: Tensor, leaves: list[Tensor]) -> None:
    weight = torch.randn(want.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    # without nodes, the reference's result depends on no input
    grads = [
        torch.autograd.grad((out * weight).sum(), leaves, allow_unused=True)
        if out.requires_grad
        else [None] * len(leaves)
        for out in (got, want)
    ]
    zeros = [[torch.zeros_like(x) if d is None else d for x, d in zip(leaves, g, strict=True)] for g in grads]
    assert_all_close([got, *zeros[0]], [want, *zeros[1]], 64, floor=1.0)


SOME = ("hub_dst", "power_law")
MORE = [pytest.param(tuple(ZOO), marks=pytest.mark.slow, id="zoo")]


def clean() -> None:
    counts = graphweave.counters()
    assert counts["kernel_launches"] > 0
    assert counts["graph_breaks"] == counts["eager_fallbacks"] == 0


@pytest.mark.parametrize("names", [pytest.param(SOME, id="two"), *MORE])
def test_rgat_of_listing_1(names: tuple[str, ...], fresh_compiler: None) -> None:
    generator = torch.Generator().manual_seed(4)
    shapes = ((RELATIONS, WIDTH, 4), (RELATIONS, 4), (RELATIONS, 4))
    weights = [torch.randn(*s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]
    for name in names:
        case = Case(name)
        g = case.graph()
        out = rgat(g, *weights)
        want = rgat_by_edges(case.x, case.src, case.dst, case.etype, *weights)
        same(out, want, [case.x, *weights])
        assert g.edata["att"].shape == case.src.shape  # fields that the loops set are fields of the graph afterwards
    clean()


@pytest.mark.parametrize("names", [pytest.param(SOME, id="two"), *MORE])
def test_rgcn(names: tuple[str, ...], fresh_compiler: None) -> None:
    torch.manual_seed(1)
    model = RGCN()
    for name in names:
        case = Case(name)
        same(model(case.graph()), model.by_edges(case.x, case.src, case.dst, case.etype), [case.x, *model.parameters()])
    clean()


@pytest.mark.slow
@pytest.mark.parametrize("names", [pytest.param(SOME, id="two"), *MORE])
def test_hgt(names: tuple[str, ...], fresh_compiler: None) -> None:
    torch.manual_seed(2)
    model = HGT()
    for name in names:
        case = Case(name)
        want = model.by_edges(case.x, case.src, case.dst, case.etype, case.ntype)
        same(model(case.graph()), want, [case.x, *model.parameters()])
    clean()


def test_inside_a_compiled_model(fresh_compiler: None) -> None:
    """The loops are traced with the model: two layers become one program."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.read = RGCN(), nn.Linear(5, 2, dtype=torch.float64)

        def forward(self, g: graphweave.Graph) -> Tensor:
            return self.read(self.first(g))

    torch.manual_seed(1)
    model = Two()
    run = graphweave.compile(model)
    compilations = []
    for name in SOME:
        case = Case(name)
        want = model.read(model.first.by_edges(case.x, case.src, case.dst, case.etype))
        same(run(case.graph()), want, [case.x, *model.parameters()])
        compilations.append(graphweave.counters()["compilations"])
    assert compilations[0] == compilations[1]
    clean()


@loops.compile
def by_type(g: Any, W: Tensor, U: Tensor) -> Tensor:
    for n in g.nodes():
        n["h"] = n.feature * U[n.ntype]
        n["s"] = 0.0
    for e in g.edges():
        e["m"] = concat([e.src.h * W[e.etype], e["w"]])
        e.dst["s"] += e["m"]
    return g.ndata["s"]


@pytest.mark.parametrize("inside", [False, True], ids=["eager", "inside a model"])
def test_a_heterogeneous_graph(inside: bool, fresh_compiler: None) -> None:
    """Types are positions in the graph's lists of nodes and relations; one relation has no edges."""
    relations = {
        ("a", "likes", "b"): ([0, 1, 1], [2, 0, 2]),
        ("b", "next", "b"): ([0, 2], [1, 2]),
        ("b", "of", "a"): ([], []),
    }
    ends = {key: tuple(torch.tensor(i, dtype=torch.int64) for i in pair) for key, pair in relations.items()}
    g = graphweave.heterograph(ends, {"a": 2, "b": 3})
    generator = torch.Generator().manual_seed(8)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    x = {"a": leaf(2, 4), "b": leaf(3, 4)}
    w = {key: leaf(pair[0].numel(), 2) for key, pair in ends.items()}
    W, U = leaf(3, 3, 3), leaf(2, 4, 3)
    g.ndata["feature"], g.edata["w"] = x, w
    run = graphweave.compile(lambda g, W, U: by_type(g, W, U)) if inside else by_type
    out = run(g, W, U)
    rows = {"a": torch.zeros(2, 5, dtype=torch.float64), "b": torch.zeros(3, 5, dtype=torch.float64)}
    for r, ((s, _, d), (us, vs)) in enumerate(ends.items()):
        for k in range(us.numel()):
            h = x[s][us[k]] @ U[g.ntypes.index(s)]
            m = torch.cat([h @ W[r], w[(s, _, d)][k]])
            rows[d] = rows[d].index_add(0, vs[k : k + 1], m.unsqueeze(0))
    leaves = [W, U, *x.values(), *w.values()]
    same(out, torch.cat([rows["a"], rows["b"]]), leaves)
    assert_all_close([g.ndata["s"]["a"], g.ndata["s"]["b"]], [rows["a"], rows["b"]])
    assert g.edata["m"][("b", "of", "a")].shape == (0, 5)
    clean()


def test_a_bipartite_graph(fresh_compiler: None) -> None:
    u, v = torch.tensor([0, 3, 3, 1]), torch.tensor([1, 1, 0, 0])
    g = graphweave.heterograph({("user", "rates", "item"): (u, v)}, {"user": 4, "item": 2})
    x = torch.randn(4, 3, dtype=torch.float64)
    g.nodes["user"].data["x"] = x

    @loops.compile
    def average(g: Any) -> None:
        for n in g.dst_nodes():
            n["mean"] = 0.0
            n["deg"] = 0.0
            for e in n.incoming_edges():
                n["mean"] += e.src.x
                n["deg"] += 1
            n["mean"] = n["mean"] / n["deg"]

    average(g)
    assert_all_close([g.nodes["item"].data["mean"]], [torch.stack([(x[3] + x[1]) / 2, (x[0] + x[3]) / 2])])


def test_options_and_fields_between_calls(fresh_compiler: None) -> None:
    """`options` reach the compiler; a field set by one call is read by the next; `local_scope` forgets it."""

    @loops.compile(options={"verify": True})
    def step(g: Any) -> None:
        for n in g.nodes():
            n["next"] = 0.0
            for e in n.incoming_edges():
                n["next"] += e.src.feature
        g.ndata["feature"] = g.ndata["next"] / 2

    case = Case("duplicates")
    g = case.graph()
    want = case.x
    with g.local_scope():
        for _ in range(2):
            step(g)
            want = torch.zeros_like(want).index_add(0, case.dst, want[case.src]) / 2
        assert_all_close([g.ndata["feature"]], [want], 64)
    assert g.ndata["feature"] is case.x and "next" not in g.ndata
    clean()


def test_what_the_compiler_sees(fresh_compiler: None) -> None:
    """Products by type copy no weights; fields and the graph's nodes are one space; nothing is left to PyTorch."""
    case = Case("power_law")
    g = case.graph()
    g.ndata["feature"] = torch.randn(case.x.shape[0], 96, requires_grad=True)
    weights = [torch.randn(*s).requires_grad_() for s in ((RELATIONS, 96, 64), (RELATIONS, 64), (RELATIONS, 64))]
    before = graphweave.explain(lambda g, *weights: rgat(g, *weights), g, *weights).rewrites[0].before
    spaces = [line for line in before.splitlines() if line.startswith("space ")]
    assert len(spaces) == 5, spaces  # edges, nodes, and the types of three weights
    assert "= matmul" in before and "96, 64] f32 = pull" not in before
    clean()
