"""Layers beside PyG's, run on the same parameters: what ours are to equal, forward and backward.

A reference gets our layer and calls PyG's functionally with tensors made of our parameters, so that gradients of both
end up at the same leaves. Where conventions differ the arguments are converted here: degrees of 0 count as 1 in ours
(PyG lets such nodes send nothing), heads are joined in PyG's, self-loops are the graph's own business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.func import functional_call

from graphweave import nn as gnn
from tests.programs.graphs import EdgeList, zoo

W, OUT, HEADS = 5, 4, 2


@dataclass(frozen=True)
class Case:
    """`make` gives our layer; `reference(layer, feat, edges, **kwargs)` the expected result, [N_dst, ...].

    `widths`: of node features, two for a pair. `edge`: name of an argument on edges -> its shape behind E, drawn signed
    unless `positive`. `graphs`: which of the zoo.
    """

    make: Callable[[], nn.Module]
    reference: Callable[..., Any]
    widths: tuple[int, ...] = (W,)
    edge: dict[str, tuple[int, ...]] | None = None
    graphs: str = "square"
    positive: bool = False


def symmetric(edges: EdgeList) -> EdgeList:
    """Both directions of each edge, no self-loops: where PyG's Laplacian and norms mean what ours do."""
    kept = edges.src != edges.dst
    src, dst = edges.src[kept], edges.dst[kept]
    return EdgeList(edges.name, torch.cat([src, dst]), torch.cat([dst, src]), edges.num_src, edges.num_dst)


def graphs_of(case: Case) -> list[EdgeList]:
    match case.graphs:
        case "all":
            return zoo()
        case "symmetric":
            return [symmetric(edges) for edges in zoo() if edges.square]
    return [edges for edges in zoo() if edges.square]


def call(module: nn.Module, parameters: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    return functional_call(module.double(), parameters, args, kwargs)


def index(edges: EdgeList) -> Tensor:
    return torch.stack([edges.src, edges.dst])


def inverse_power(at: Tensor, count: int, power: float) -> Tensor:
    return torch.bincount(at, minlength=count).clamp(min=1).double() ** -power


def symmetric_weights(edges: EdgeList, of_sources: str = "in") -> Tensor:
    """1 / sqrt(degree(src) in_degree(dst)) of every edge, [E]; `of_sources`: which degree of sources."""
    counted = edges.dst if of_sources == "in" else edges.src
    at_src, at_dst = inverse_power(counted, edges.num_src, 0.5), inverse_power(edges.dst, edges.num_dst, 0.5)
    return at_src[edges.src] * at_dst[edges.dst]


# ---------------------------------------------------------------- references


def gcn(layer: Any, feat: Any, edges: EdgeList, edge_weight: Tensor | None = None) -> Tensor:
    match layer.norm:
        case "both":
            weight = symmetric_weights(edges, "out")
        case "right":
            weight = inverse_power(edges.dst, edges.num_dst, 1.0)[edges.dst]
        case "left":
            weight = inverse_power(edges.src, edges.num_src, 1.0)[edges.src]
        case _:
            weight = torch.ones(edges.src.shape[0], dtype=torch.float64)
    weight = weight if edge_weight is None else weight * edge_weight
    theirs = pyg.GCNConv(layer.in_feats, layer.out_feats, normalize=False)
    return call(theirs, {"lin.weight": layer.weight.t(), "bias": layer.bias}, feat, index(edges), weight)


def gcn_normalized(layer: Any, feat: Any, edges: EdgeList) -> Tensor:
    theirs = pyg.GCNConv(layer.in_feats, layer.out_feats, add_self_loops=False)
    return call(theirs, {"lin.weight": layer.weight.t(), "bias": layer.bias}, feat, index(edges))


def sage(layer: Any, feat: Any, edges: EdgeList) -> Tensor:
    widths = (layer.in_src, layer.in_dst)
    theirs = pyg.SAGEConv(
        widths if isinstance(feat, tuple) else W, OUT, aggr="mean" if layer.aggregator_type == "mean" else "max",
        project=layer.aggregator_type == "pool",
    )  # fmt: skip
    parameters = {"lin_l.weight": layer.fc_neigh.weight, "lin_l.bias": layer.fc_self.bias}
    parameters["lin_r.weight"] = layer.fc_self.weight
    if layer.aggregator_type == "pool":
        parameters |= {"lin.weight": layer.fc_pool.weight, "lin.bias": layer.fc_pool.bias}
    return call(theirs, parameters, feat, index(edges), size=(edges.num_src, edges.num_dst))


def sage_gcn(layer: Any, feat: Tensor, edges: EdgeList, edge_weight: Tensor) -> Tensor:
    sums = feat.index_add(0, edges.dst, feat[edges.src] * edge_weight[:, None])
    degrees = torch.bincount(edges.dst, minlength=edges.num_dst) + 1
    return (sums / degrees[:, None]) @ layer.fc_neigh.weight.t() + layer.bias


def sage_lstm(layer: Any, feat: Any, edges: EdgeList) -> Tensor:
    """Node by node: the last state of the LSTM over what it received, in the order of edges."""
    src, dst = feat if isinstance(feat, tuple) else (feat, feat)
    rows = []
    for node in range(edges.num_dst):
        received = src[edges.src[edges.dst == node]]
        rows.append(layer.lstm(received)[1][0][0] if received.shape[0] else src.new_zeros(src.shape[1]))
    states = torch.stack(rows) if rows else src.new_zeros(0, src.shape[1])
    return layer.fc_neigh(states) + layer.fc_self(dst)


def gat(layer: Any, feat: Any, edges: EdgeList) -> Tensor:
    widths = (layer.in_src, layer.in_dst) if isinstance(feat, tuple) else layer.in_src
    theirs = pyg.GATConv(widths, OUT, heads=HEADS, add_self_loops=False)
    parameters = {"att_src": layer.attn_l, "att_dst": layer.attn_r, "bias": layer.bias}
    if isinstance(feat, tuple):
        parameters |= {"lin_src.weight": layer.fc_src.weight, "lin_dst.weight": layer.fc_dst.weight}
    else:
        parameters["lin.weight"] = layer.fc.weight
    out = call(theirs, parameters, feat, index(edges), size=(edges.num_src, edges.num_dst))
    return out.view(-1, HEADS, OUT)


def gat_parts(layer: Any, feat: Tensor, edges: EdgeList, edge_weight: Tensor) -> tuple[Tensor, Tensor]:
    """Residual, edge weights and attention, which PyG's layer has not (or not so): PyTorch by hand."""
    z = layer.fc(feat).view(-1, HEADS, OUT)
    left, right = (z * layer.attn_l).sum(-1), (z * layer.attn_r).sum(-1)
    scores = nn.functional.leaky_relu(left[edges.src] + right[edges.dst], 0.2)
    e = scores.exp()
    a = e / torch.zeros_like(left).index_add(0, edges.dst, e)[edges.dst] * edge_weight[:, None]
    out = torch.zeros_like(z).index_add(0, edges.dst, a.unsqueeze(-1) * z[edges.src])
    return out + layer.res_fc(feat).view(-1, HEADS, OUT), a.unsqueeze(-1)


def gatv2(layer: Any, feat: Any, edges: EdgeList) -> Tensor:
    widths = (layer.in_src, layer.in_dst) if isinstance(feat, tuple) else layer.in_src
    share = layer.fc_src is layer.fc_dst
    theirs = pyg.GATv2Conv(widths, OUT, heads=HEADS, add_self_loops=False, share_weights=share)
    parameters = {"att": layer.attn, "bias": torch.zeros(HEADS * OUT, dtype=torch.float64)}
    for name, linear in (("lin_l", layer.fc_src), ("lin_r", layer.fc_dst)):
        if not (share and name == "lin_r"):
            parameters |= {f"{name}.weight": linear.weight, f"{name}.bias": linear.bias}
    return call(theirs, parameters, feat, index(edges)).view(-1, HEADS, OUT)


def gin(layer: Any, feat: Any, edges: EdgeList) -> Tensor:
    theirs = pyg.GINConv(layer.apply_func, train_eps=True, aggr=layer.aggregator_type)
    return call(theirs, {"eps": layer.eps}, feat, index(edges), size=(edges.num_src, edges.num_dst))


def sg(layer: Any, feat: Tensor, edges: EdgeList) -> Tensor:
    theirs = pyg.SGConv(W, OUT, K=layer.k, add_self_loops=False)
    return call(theirs, {"lin.weight": layer.fc.weight, "lin.bias": layer.fc.bias}, feat, index(edges))


def edge_linear(layer: Any, feat: Any, edges: EdgeList) -> Tensor:
    """theta (x_j - x_i) + phi x_i is one linear map of [x_i, x_j - x_i]."""
    parameters = {
        "nn.weight": torch.cat([layer.phi.weight, layer.theta.weight], 1), "nn.bias": layer.phi.bias + layer.theta.bias,
    }  # fmt: skip
    return call(pyg.EdgeConv(nn.Linear(2 * W, OUT)), parameters, feat, index(edges))


def edge_mlp(layer: Any, feat: Any, edges: EdgeList) -> Tensor:
    out: Tensor = pyg.EdgeConv(layer.mlp, aggr=layer.aggregator_type)(feat, index(edges))
    return out


def gmm(layer: Any, feat: Tensor, edges: EdgeList, pseudo: Tensor) -> Tensor:
    aggr = "add" if layer.aggregator_type == "sum" else "mean"
    theirs = pyg.GMMConv(W, OUT, dim=layer.dim, kernel_size=layer.n_kernels, aggr=aggr, root_weight=False)
    parameters = {
        "g": layer.fc.weight.t(), "mu": layer.mu, "sigma": 1 / layer.inv_sigma, "bias": layer.bias
    }  # fmt: skip
    return call(theirs, parameters, (feat, None), index(edges), pseudo, size=(edges.num_src, edges.num_dst))


def gmm_max(layer: Any, feat: Any, edges: EdgeList, pseudo: Tensor) -> Tensor:
    """The maximum over edges for each kernel, then the sum of kernels, and the residual."""
    src, dst = feat
    gap = (pseudo[:, None] - layer.mu) * layer.inv_sigma
    m = layer.fc(src).view(-1, layer.n_kernels, OUT)[edges.src] * (-0.5 * gap.pow(2).sum(-1)).exp()[..., None]
    at = edges.dst[:, None, None].expand_as(m)
    top = m.new_zeros(edges.num_dst, *m.shape[1:]).scatter_reduce(0, at, m, "amax", include_self=False)
    return top.sum(1) + layer.res_fc(dst) + layer.bias


def tag(layer: Any, feat: Tensor, edges: EdgeList) -> Tensor:
    theirs = pyg.TAGConv(W, OUT, K=layer.k, normalize=False)
    parts = layer.lin.weight.chunk(layer.k + 1, 1)
    parameters = {f"lins.{i}.weight": part for i, part in enumerate(parts)} | {"bias": layer.lin.bias}
    return call(theirs, parameters, feat, index(edges), symmetric_weights(edges))


def tag_weighted(layer: Any, feat: Tensor, edges: EdgeList, edge_weight: Tensor) -> Tensor:
    def inverse_root(at: Tensor) -> Tensor:
        sums = edge_weight.new_zeros(edges.num_src).index_add(0, at, edge_weight)
        return torch.where(sums > 0, sums, 1.0).rsqrt()[at]

    theirs = pyg.TAGConv(W, OUT, K=layer.k, normalize=False)
    parts = layer.lin.weight.chunk(layer.k + 1, 1)
    parameters = {f"lins.{i}.weight": part for i, part in enumerate(parts)} | {"bias": layer.lin.bias}
    weight = edge_weight * inverse_root(edges.src) * inverse_root(edges.dst)
    return call(theirs, parameters, feat, index(edges), weight)


def cheb(layer: Any, feat: Tensor, edges: EdgeList, lambda_max: float = 2.0) -> Tensor:
    """PyG is given the eigenvalue: it would look for a maximum over edges, which does not exist without edges."""
    theirs = pyg.ChebConv(W, OUT, K=layer.k)
    parts = layer.linear.weight.chunk(layer.k, 1)
    parameters = {f"lins.{i}.weight": part for i, part in enumerate(parts)} | {"bias": layer.linear.bias}
    largest = torch.tensor(lambda_max, dtype=torch.float64)
    return call(theirs, parameters, feat, index(edges), lambda_max=largest)


def agnn(layer: Any, feat: Tensor, edges: EdgeList) -> Tensor:
    return call(pyg.AGNNConv(add_self_loops=False), {"beta": layer.beta}, feat, index(edges))


def appnp(layer: Any, feat: Tensor, edges: EdgeList) -> Tensor:
    theirs = pyg.APPNP(layer.k, layer.alpha, normalize=False)
    return call(theirs, {}, feat, index(edges), symmetric_weights(edges, "out"))


# ---------------------------------------------------------------- cases


def mlp(inputs: int = W) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 6), nn.ReLU(), nn.Linear(6, OUT))


ON_EDGES: dict[str, tuple[int, ...]] = {"edge_weight": ()}
PSEUDO: dict[str, tuple[int, ...]] = {"pseudo": (2,)}

CASES: dict[str, Case] = {
    "graph-both": Case(lambda: gnn.GraphConv(W, OUT), gcn),
    "graph-normalized": Case(lambda: gnn.GraphConv(W, OUT), gcn_normalized, graphs="symmetric"),
    "graph-right-widening": Case(lambda: gnn.GraphConv(W, 7, norm="right"), gcn),
    "graph-left": Case(lambda: gnn.GraphConv(W, OUT, norm="left"), gcn),
    "graph-none-weights": Case(lambda: gnn.GraphConv(W, 7, norm="none"), gcn, edge=ON_EDGES),
    "graph-both-weights": Case(lambda: gnn.GraphConv(W, OUT), gcn, edge=ON_EDGES),
    "sage-mean": Case(lambda: gnn.SAGEConv(W, OUT, "mean"), sage),
    "sage-mean-pair": Case(lambda: gnn.SAGEConv((W, 3), OUT, "mean"), sage, (W, 3), graphs="all"),
    "sage-pool": Case(lambda: gnn.SAGEConv(W, OUT, "pool"), sage),
    "sage-gcn-weights": Case(lambda: gnn.SAGEConv(W, OUT, "gcn"), sage_gcn, edge=ON_EDGES),
    "sage-lstm": Case(lambda: gnn.SAGEConv(W, OUT, "lstm"), sage_lstm),
    "sage-lstm-pair": Case(lambda: gnn.SAGEConv((W, 3), OUT, "lstm"), sage_lstm, (W, 3), graphs="all"),
    "gat": Case(lambda: gnn.GATConv(W, OUT, HEADS), gat),
    "gat-pair": Case(lambda: gnn.GATConv((W, 3), OUT, HEADS), gat, (W, 3), graphs="all"),
    "gat-parts": Case(lambda: Attending(gnn.GATConv(W, OUT, HEADS, residual=True)), gat_parts, edge=ON_EDGES),
    "gatv2": Case(lambda: gnn.GATv2Conv(W, OUT, HEADS), gatv2),
    "gatv2-shared": Case(lambda: gnn.GATv2Conv(W, OUT, HEADS, share_weights=True), gatv2),
    "gatv2-pair": Case(lambda: gnn.GATv2Conv((W, 3), OUT, HEADS), gatv2, (W, 3), graphs="all"),
    "cgat": Case(lambda: gnn.CGATConv(W, OUT, HEADS), gat),
    "gin-sum": Case(lambda: gnn.GINConv(mlp(), "sum", init_eps=0.3, learn_eps=True), gin),
    "gin-mean": Case(lambda: gnn.GINConv(mlp(), "mean", init_eps=-0.5), gin),
    "gin-max-pair": Case(lambda: gnn.GINConv(mlp(), "max"), gin, (W, W), graphs="all"),
    "sg": Case(lambda: gnn.SGConv(W, OUT, k=3), sg, graphs="symmetric"),
    "edge": Case(lambda: gnn.EdgeConv(W, OUT), edge_linear),
    "edge-pair": Case(lambda: gnn.EdgeConv(W, OUT), edge_linear, (W, W), graphs="all"),
    "edge-mlp": Case(lambda: gnn.EdgeMLPConv(mlp(2 * W)), edge_mlp),
    "edge-mlp-mean": Case(lambda: gnn.EdgeMLPConv(mlp(2 * W), "mean"), edge_mlp),
    "gmm-sum": Case(lambda: gnn.GMMConv(W, OUT, 2, 3), gmm, edge=PSEUDO),
    "gmm-mean": Case(lambda: gnn.GMMConv(W, OUT, 2, 3, "mean"), gmm, edge=PSEUDO),
    "gmm-max-pair": Case(
        lambda: gnn.GMMConv((W, 3), OUT, 2, 3, "max", residual=True), gmm_max, (W, 3), PSEUDO, graphs="all"
    ),
    "tag": Case(lambda: gnn.TAGConv(W, OUT, k=3), tag),
    "tag-weights": Case(lambda: gnn.TAGConv(W, OUT, k=2), tag_weighted, edge=ON_EDGES, positive=True),
    "cheb": Case(lambda: gnn.ChebConv(W, OUT, 4, activation=None), cheb, graphs="symmetric"),
    "cheb-lambda": Case(lambda: Rescaled(gnn.ChebConv(W, OUT, 3, None)), cheb, graphs="symmetric"),
    "agnn": Case(lambda: gnn.AGNNConv(init_beta=1.3), agnn),
    "appnp": Case(lambda: gnn.APPNPConv(k=4, alpha=0.15), appnp),
}


class Attending(nn.Module):
    """A GATConv that gives its attention too."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, graph: Any, feat: Tensor, edge_weight: Tensor) -> Any:
        return self.layer(graph, feat, edge_weight=edge_weight, get_attention=True)


class Rescaled(nn.Module):
    """A ChebConv that is told the largest eigenvalue."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, graph: Any, feat: Tensor) -> Any:
        return self.layer(graph, feat, lambda_max=1.4)


def inner(layer: nn.Module) -> Any:
    return layer.layer if isinstance(layer, (Attending, Rescaled)) else layer


def reference(case: Case, layer: nn.Module, feat: Any, edges: EdgeList, **kwargs: Any) -> Any:
    more = {"lambda_max": 1.4} if isinstance(layer, Rescaled) else {}
    return case.reference(inner(layer), feat, edges, **kwargs, **more)
