"""Layers with edge features, gates and towers, each beside its formula written edge by edge, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import graphweave as gw
from graphweave import nn as gnn
from graphweave.core.errors import DataError
from graphweave.core.settings import override
from tests.programs.graphs import EdgeList, zoo
from tests.support import assert_matches, by_default

pytestmark = pytest.mark.usefixtures("fresh_compiler")

F, OUT, HEADS, A = 5, 4, 2, 3
Reference = Callable[[Any, EdgeList, Tensor, Tensor], Tensor]


def total(edges: EdgeList, m: Tensor) -> Tensor:
    return m.new_zeros(edges.num_dst, *m.shape[1:]).index_add(0, edges.dst, m)


def incoming(edges: EdgeList, m: Tensor, i: int) -> Tensor:
    return m[edges.dst == i]


def of_rows(edges: EdgeList, m: Tensor, fold: Callable[[Tensor], Tensor]) -> Tensor:
    """`fold` of each node's messages, 0 without any."""
    rows = [incoming(edges, m, i) for i in range(edges.num_dst)]
    return torch.stack([fold(x) if len(x) else m.new_zeros(m.shape[1:]) for x in rows])


def softmax(edges: EdgeList, s: Tensor) -> Tensor:
    out = torch.empty_like(s)
    for i in range(edges.num_dst):
        out[edges.dst == i] = s[edges.dst == i].softmax(0)
    return out


def heads(x: Tensor, width: int = OUT) -> Tensor:
    return x.view(len(x), HEADS, width)


def gine(layer: Any, g: EdgeList, x: Tensor, f: Tensor) -> Tensor:
    return layer.apply_func((1 + layer.eps) * x + total(g, torch.relu(x[g.src] + f @ f.new_ones(A, F))))


def nnconv(layer: Any, g: EdgeList, x: Tensor, f: Tensor) -> Tensor:
    matrices = layer.edge_func(f).view(-1, F, OUT)
    return (
        of_rows(g, torch.einsum("ei,eij->ej", x[g.src], matrices), lambda m: m.mean(0)) + layer.res_fc(x) + layer.bias
    )


def egat(layer: Any, g: EdgeList, x: Tensor, f: Tensor) -> Tensor:
    e = functional.leaky_relu(layer.fc_ni(x)[g.src] + layer.fc_nj(x)[g.dst] + layer.fc_fij(f) + layer.bias)
    e = heads(e, 3)
    a = softmax(g, (e * layer.attn).sum(-1, keepdim=True))
    return total(g, a * heads(layer.fc_node_src(x))[g.src])


def edge_gat(layer: Any, g: EdgeList, x: Tensor, f: Tensor) -> Tensor:
    z, e = heads(layer.fc(x)), heads(layer.fc_edge(f))
    s = (z * layer.attn_l).sum(-1)[g.src] + (z * layer.attn_r).sum(-1)[g.dst] + (e * layer.attn_edge).sum(-1)
    a = softmax(g, functional.leaky_relu(s, 0.2)).unsqueeze(-1)
    return total(g, a * (z[g.src] + e)) + heads(layer.res_fc(x)) + layer.bias.view(HEADS, OUT)


def dot_gat(layer: Any, g: EdgeList, x: Tensor, f: Tensor) -> Tensor:
    z = heads(layer.fc(x))
    a = softmax(g, (z[g.src] * z[g.dst]).sum(-1, keepdim=True) / OUT**0.5)
    return total(g, a * z[g.src])


def gcn2(layer: Any, g: EdgeList, x: Tensor, f: Tensor) -> Tensor:
    root = torch.bincount(g.dst, minlength=g.num_dst).clamp(min=1).double() ** -0.5
    h = 0.9 * root[:, None] * total(g, (root[:, None] * x)[g.src]) + 0.1 * x.sin()
    return (1 - layer.beta) * h + layer.beta * h @ layer.weight1 + layer.bias


def cf(layer: Any, g: EdgeList, x: Tensor, f: Tensor) -> Tensor:
    def shifted(y: Tensor) -> Tensor:
        return torch.log(0.5 * y.exp() + 0.5)

    psi = layer.project_edge
    weight = shifted(psi[2](shifted(psi[0](f))))
    return shifted(layer.project_out[0](total(g, layer.project_node(x)[g.src] * weight)))


def egnn(layer: Any, g: EdgeList, x: Tensor, f: Tensor) -> Tensor:
    coords = x[:, :3]
    diff = coords[g.src] - coords[g.dst]
    square = diff.square().sum(1, keepdim=True)
    m = layer.edge_mlp(torch.cat([x[g.src], x[g.dst], square, f], 1))
    moved = coords + of_rows(g, layer.coord_mlp(m) * diff / (square.sqrt() + 1e-30), lambda u: u.mean(0))
    return torch.cat([layer.node_mlp(torch.cat([x, total(g, m)], 1)), moved], 1)


def gated(layer: Any, g: EdgeList, x: Tensor, f: Tensor) -> Tensor:
    h, kind = functional.pad(x, (0, 1)), (f[:, 0] > 0).long()
    for _ in range(2):
        m = torch.where(kind[:, None] == 0, layer.linears[0](h)[g.src], layer.linears[1](h)[g.src])
        h = layer.gru(total(g, m), h)
    return h


def pna(layer: Any, g: EdgeList, x: Tensor, f: Tensor) -> Tensor:
    degree = torch.bincount(g.dst, minlength=g.num_dst).double()
    log = torch.log(degree + 1)[:, None]
    found = []
    for tower, part in zip(layer.towers, x[:, :4].split(2, 1), strict=True):
        m = tower.M(torch.cat([part[g.src], part[g.dst], f], 1))

        def spread(y: Tensor) -> Tensor:
            return (torch.relu(y.square().mean(0) - y.mean(0).square()) + 1e-30).sqrt()

        agg = torch.cat(
            [of_rows(g, m, lambda y: y.mean(0)), of_rows(g, m, spread), of_rows(g, m, lambda y: y.amax(0))], 1
        )
        down = torch.where(log > 0, 2.5 / log.clamp(min=1e-30), torch.zeros_like(log))
        mixed = tower.U(torch.cat([part, agg, agg * log / 2.5, agg * down], 1)) / g.num_dst**0.5
        found.append(tower.batchnorm(mixed))
    return layer.mixing_layer(torch.cat(found, 1)) + x[:, :4]


def dgn(layer: Any, g: EdgeList, x: Tensor, f: Tensor) -> Tensor:
    h, eig = x[:, :4], x[:, 3:].sin()
    (tower,) = layer.towers
    m = tower.M(torch.cat([h[g.src], h[g.dst], f], 1))

    def weights(k: int) -> Tensor:
        field = eig[g.src, k] - eig[g.dst, k]
        return field / (total(g, field.abs())[g.dst] + 1e-30)

    first, second = weights(0)[:, None], weights(1)[:, None]
    agg = torch.cat([total(g, first.abs() * m), (total(g, second * m) - total(g, second) * h).abs()], 1)
    return layer.mixing_layer(tower.batchnorm(tower.U(torch.cat([h, agg], 1)) / g.num_dst**0.5)) + h


def gated_gcn(layer: Any, g: EdgeList, x: Tensor, f: Tensor) -> Tensor:
    edge = layer.D(x)[g.src] + layer.E(x)[g.dst] + layer.C(f)
    s = edge.sigmoid()
    node = layer.A(x) + total(g, s * layer.B(x)[g.src]) / (total(g, s) + 1e-6)
    node, edge = torch.relu(layer.bn_node(node)), torch.relu(layer.bn_edge(edge))
    return torch.cat([node, total(g, edge)], 1)


def gated_gcn_both(layer: Any, graph: Any, x: Tensor, f: Tensor) -> Tensor:
    node, edge = layer(graph, x, f)
    return torch.cat([node, total(EdgeList("", *graph.edges(), len(x), len(x)), edge)], 1)


def atomic(layer: Any, g: EdgeList, x: Tensor, f: Tensor) -> Tensor:
    d, radial, parts = f[:, :1].abs(), layer.radial_pooling, []
    filters = (radial.interaction_cutoffs, radial.rbf_kernel_means, radial.rbf_kernel_scaling)
    for cut, mean, scale in zip(*(values.flatten() for values in filters), strict=True):
        wave = torch.where(d <= cut, (torch.cos(torch.pi * d / cut) + 1) / 2, torch.zeros_like(d))
        parts.append(total(g, x[g.src] * torch.exp(-scale * (d - mean) ** 2) * wave))
    return torch.stack(parts, -1).flatten(1)


def twirls(layer: Any, g: EdgeList, x: Tensor, f: Tensor) -> Tensor:
    keep, loops = g.src != g.dst, torch.arange(g.num_dst)
    g = EdgeList("", torch.cat([g.src[keep], loops]), torch.cat([g.dst[keep], loops]), g.num_src, g.num_dst)
    x0 = y = layer.mlp_bef.layers[0](x)
    w, degree = torch.ones(len(g.src), 1).double(), torch.bincount(g.dst).double()[:, None]
    for step in range(1, 5):
        scale = 0.6 * degree + 0.4
        near = scale**-0.5 * total(g, w * (scale**-0.5 * y)[g.src])
        y = (1 - 0.3) * y + 0.3 * 0.6 * near + 0.3 * x0 / scale
        if step == 2:
            apart = (y[g.src] - y[g.dst]).square().sum(1, keepdim=True)
            v = ((apart + 1e-7) ** 0.5).clamp(min=0.2)
            w = torch.where(v > 1.0, torch.zeros_like(v), 1 / v) + 1e-9
            degree = total(g, w)
    return layer.mlp_aft.layers[0](torch.relu(y))


PNA_NAMES = ["mean", "std", "max"], ["identity", "amplification", "attenuation"]
LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Any], Reference]] = {
    "gine": (lambda: gnn.GINEConv(nn.Linear(F, OUT), 0.3, True),
             lambda layer, g, x, f: layer(g, x, f @ f.new_ones(A, F)), gine),
    "nnconv": (lambda: gnn.NNConv(F, OUT, nn.Linear(A, F * OUT), "mean", True), lambda layer, *a: layer(*a), nnconv),
    "egat": (lambda: gnn.EGATConv(F, A, OUT, 3, HEADS), lambda layer, *a: layer(*a)[0], egat),
    "edge_gat": (lambda: gnn.EdgeGATConv(F, A, OUT, HEADS), lambda layer, *a: layer(*a), edge_gat),
    "dot_gat": (lambda: gnn.DotGatConv(F, OUT, HEADS), lambda layer, g, x, f: layer(g, x), dot_gat),
    "gcn2": (lambda: gnn.GCN2Conv(F, 1), lambda layer, g, x, f: layer(g, x, x.sin()), gcn2),
    "cf": (lambda: gnn.CFConv(F, A, 6, OUT), lambda layer, *a: layer(*a), cf),
    "egnn": (lambda: gnn.EGNNConv(F, 6, OUT, A),
             lambda layer, g, x, f: torch.cat(layer(g, x, x[:, :3], f), 1), egnn),
    "gated": (lambda: gnn.GatedGraphConv(F, F + 1, 2, 2),
              lambda layer, g, x, f: layer(g, x, (f[:, 0] > 0).long()), gated),
    "dgn": (lambda: gnn.DGNConv(4, 4, ["dir1-av", "dir2-dx"], ["identity"], 2.5, 0.0, 1, A),
            lambda layer, g, x, f: layer(g, x[:, :4], f, x[:, 3:].sin()), dgn),
    "gated_gcn": (lambda: gnn.GatedGCNConv(F, A, OUT), gated_gcn_both, gated_gcn),
    "atomic": (lambda: gnn.AtomicConv(*torch.tensor([[1.5, 0.7], [0.4, 1.0], [1.0, 0.5]])),
               lambda layer, g, x, f: layer(g, x, f[:, :1].abs()), atomic),
    "twirls": (lambda: gnn.TWIRLSConv(F, OUT, 6, 4, alp=0.3, lam=0.6, attention=True, T=1.0),
               lambda layer, g, x, f: layer(g, x), twirls),
    "pna": (lambda: gnn.PNAConv(4, 4, *PNA_NAMES, 2.5, 0.0, 2, A),
            lambda layer, g, x, f: layer(g, x[:, :4], f), pna),
}  # fmt: skip
GRAPHS = [g for g in zoo() if g.square and g.num_src > 1 and len(g.src) > 1]


def drawn(g: EdgeList) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(g.num_src, F, generator=generator, dtype=torch.float64)
    # equal points of different nodes have no direction, and loops none either
    return x.requires_grad_(), torch.randn(len(g.src), A, generator=generator, dtype=torch.float64).requires_grad_()


def case(name: str) -> tuple[nn.Module, Callable[..., Any], Reference]:
    torch.manual_seed(0)
    make, call, reference = LAYERS[name]
    return make().double(), call, reference


@pytest.mark.parametrize("name", LAYERS)
def test_equals_its_formula(name: str) -> None:
    layer, call, reference = case(name)
    for g in GRAPHS:
        if name == "egnn" and bool((g.src == g.dst).any()):
            continue  # the root of 0 has no derivative, in either
        graph = gw.graph((g.src, g.dst), num_nodes=g.num_src)
        x, f = drawn(g)
        with override(eager_kernels=False):
            assert_matches(
                lambda x, f, graph=graph: call(layer, graph, x, f),
                lambda x, f, g=g: reference(layer, g, x, f),
                x, f, module=layer, label=g.name,
            )  # fmt: skip


@pytest.mark.parametrize("name", by_default(LAYERS, "gine", "edge_gat", "gated"))
def test_compiled_equals_its_formula(name: str) -> None:
    layer, call, reference = case(name)
    compiled = gw.compile(lambda graph, x, f: call(layer, graph, x, f))
    for g in GRAPHS[-2:]:
        if name == "egnn" and bool((g.src == g.dst).any()):
            continue
        graph = gw.graph((g.src, g.dst), num_nodes=g.num_src)
        x, f = drawn(g)
        assert_matches(
            lambda x, f, graph=graph: compiled(graph, x, f),
            lambda x, f, g=g: reference(layer, g, x, f),
            x, f, module=layer, label=g.name,
        )  # fmt: skip


def test_weights_by_both_sums() -> None:
    graph, w = gw.graph(([0, 0, 1, 2], [1, 2, 2, 0])), torch.tensor([1.0, 3.0, 1.0, 5.0])
    both = gnn.EdgeWeightNorm("both")(graph, w)
    torch.testing.assert_close(both, w / torch.tensor([4.0 * 1, 4 * 4, 1 * 4, 5 * 5]).sqrt())
    with pytest.raises(DataError, match="above 0"):
        gnn.EdgeWeightNorm("both")(graph, -w)


@pytest.mark.parametrize("aggregate", ["sum", "mean", "max", "min", "stack"])
def test_relations_are_aggregated(aggregate: str) -> None:
    graph = gw.heterograph(
        {("a", "r", "b"): ([0, 1, 1], [1, 1, 0]), ("b", "s", "b"): ([0, 2], [1, 1]), ("b", "t", "a"): ([0], [0])}
    )
    x = {"a": torch.randn(2, F), "b": torch.randn(3, F)}
    r, s = gnn.SAGEConv(F, OUT, "mean"), gnn.SAGEConv(F, OUT, "mean")
    out = gnn.HeteroGraphConv({"r": r, ("b", "s", "b"): s}, aggregate)(graph, x)
    assert list(out) == ["b"], "no layer is for t"
    results = torch.stack([r(graph["r"], (x["a"], x["b"])), s(graph["s"], (x["b"], x["b"]))], 1)
    fold = {"sum": Tensor.sum, "mean": Tensor.mean, "max": Tensor.amax, "min": Tensor.amin}
    torch.testing.assert_close(out["b"], results if aggregate == "stack" else fold[aggregate](results, 1))


def test_labels_spread_to_neighbours() -> None:
    graph, labels = gw.graph(([0, 1, 2, 1], [1, 0, 1, 2])), torch.tensor([0, 1, 1])
    y = gnn.LabelPropagation(1, 0.5, "row")(graph, labels, torch.tensor([True, False, True]))
    torch.testing.assert_close(y, torch.tensor([[0.5, 0.0], [0.25, 0.25], [0.0, 0.5]]))


def test_matrices_say_the_same_as_graphs() -> None:
    graph, x = gw.graph(([0, 1, 2, 0], [1, 2, 0, 2])), torch.randn(3, F)
    matrix = torch.zeros(3, 3).index_put((torch.tensor([1, 2, 0, 2]), torch.tensor([0, 1, 2, 0])), torch.ones(4))
    for norm in ("none", "right"):
        sparse, dense = gnn.GraphConv(F, OUT, norm=norm), gnn.DenseGraphConv(F, OUT, norm=norm)
        dense.load_state_dict(sparse.state_dict())
        torch.testing.assert_close(dense(matrix, x), sparse(graph, x))
    sage, dense_sage = gnn.SAGEConv(F, OUT, "gcn"), gnn.DenseSAGEConv(F, OUT)
    dense_sage.load_state_dict({"fc.weight": sage.fc_neigh.weight, "fc.bias": sage.bias})
    torch.testing.assert_close(dense_sage(matrix, x), sage(graph, x))
