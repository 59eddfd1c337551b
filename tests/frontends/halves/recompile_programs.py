"""The programs of `tests.frontends.halves.recompiles`, and their arguments at every set of sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn

WIDTH = 8
RELATIONS = 3


@dataclass(frozen=True, slots=True)
class Sizes:
    """Row counts of one call. With `strided`, indices and features are not contiguous."""

    name: str
    nodes: int
    edges: int
    graphs: int
    others: int
    """Nodes of the other side of a bipartite graph."""
    strided: bool = False


SIZES = (
    Sizes("usual", nodes=20, edges=60, graphs=3, others=14),
    Sizes("odd, not contiguous", nodes=33, edges=101, graphs=5, others=7, strided=True),
    Sizes("all equal", nodes=24, edges=24, graphs=24, others=24),
    Sizes("no edges", nodes=5, edges=0, graphs=2, others=3),
    Sizes("one of each", nodes=1, edges=1, graphs=1, others=1),
)

Arguments = Callable[[Sizes], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class RecompileCase:
    """A module or function that is made once, and its arguments at each set of sizes."""

    make: Callable[[], Callable[..., Any]]
    arguments: Arguments


# ---------------------------------------------------------------- arguments


def rows(n: int, *widths: int, strided: bool = False) -> Tensor:
    """Signed values [n, *widths]; with `strided`, every other column of a tensor twice as wide."""
    if strided and widths:
        return torch.randn(n, *widths[:-1], 2 * widths[-1])[..., ::2]
    return torch.randn(n, *widths)


def edge_index(s: Sizes, sources: int, targets: int, edges: int | None = None) -> Tensor:
    """[2, edges]. It is the transpose of a list of pairs if it is not to be contiguous."""
    count = s.edges if edges is None else edges
    index = torch.stack([torch.randint(sources, (count,)), torch.randint(targets, (count,))])
    return index.t().contiguous().t() if s.strided else index


def x(s: Sizes) -> Tensor:
    return rows(s.nodes, WIDTH, strided=s.strided)


def ei(s: Sizes) -> Tensor:
    return edge_index(s, s.nodes, s.nodes)


def graph(s: Sizes) -> tuple[Any, ...]:
    return x(s), ei(s)


def weighted(s: Sizes) -> tuple[Any, ...]:
    return *graph(s), torch.rand(s.edges) + 0.1


def attributed(s: Sizes) -> tuple[Any, ...]:
    return *graph(s), rows(s.edges, 4, strided=s.strided)


def typed(s: Sizes) -> tuple[Any, ...]:
    return *graph(s), torch.randint(RELATIONS, (s.edges,))


def bipartite(s: Sizes) -> tuple[Any, ...]:
    return (x(s), rows(s.others, WIDTH, strided=s.strided)), edge_index(s, s.nodes, s.others)


def batch_of(s: Sizes) -> Tensor:
    return torch.sort(torch.arange(s.nodes) % s.graphs)[0]


def batched(s: Sizes) -> tuple[Any, ...]:
    return *graph(s), batch_of(s)


def pooled(s: Sizes) -> tuple[Any, ...]:
    return x(s), batch_of(s)


def labelled(s: Sizes) -> tuple[Any, ...]:
    return *graph(s), torch.randint(WIDTH, (s.nodes,))


def masked(s: Sizes) -> tuple[Any, ...]:
    return *labelled(s), torch.arange(s.nodes) % 2 == 0


def linked(s: Sizes) -> tuple[Any, ...]:
    return *graph(s), edge_index(s, s.nodes, s.nodes, 2 * s.edges + 1)


def layered(s: Sizes) -> tuple[Any, ...]:
    return ([rows(s.nodes, WIDTH) for _ in range(3)],)


def kinds(s: Sizes) -> tuple[Any, ...]:
    features = {"paper": x(s), "author": rows(s.others, WIDTH)}
    count = {"paper": s.nodes, "author": s.others}
    return features, {k: edge_index(s, count[k[0]], count[k[2]]) for k in METADATA[1]}


METADATA = (
    ["paper", "author"],
    [("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "by", "author")],
)

# ---------------------------------------------------------------- plain functions


def sums(x: Tensor, ei: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, ei[1], x[ei[0]].tanh())


def means(x: Tensor, ei: Tensor) -> Tensor:
    degree = torch.zeros(x.size(0)).index_add(0, ei[1], torch.ones(ei.size(1))).clamp(min=1)
    return torch.zeros_like(x).scatter_add(0, ei[1][:, None].expand(-1, x.size(1)), x[ei[0]]) / degree[:, None]


def maxima(x: Tensor, ei: Tensor) -> Tensor:
    index = ei[1].unsqueeze(-1).expand(-1, x.size(1))
    return torch.zeros_like(x).scatter_reduce(0, index, x[ei[0]] * 2, "amax", include_self=False)


def attention(x: Tensor, ei: Tensor) -> Tensor:
    src, dst = ei
    score = F.leaky_relu((x[src] * x[dst]).sum(-1), 0.2)
    top = torch.full((x.size(0),), -torch.inf).scatter_reduce(0, dst, score, "amax")
    e = (score - top[dst]).exp()
    total = torch.zeros(x.size(0)).index_add(0, dst, e)
    return torch.zeros_like(x).index_add(0, dst, x[src] * (e / (total[dst] + 1e-16))[:, None])


def symmetric_norm(x: Tensor, ei: Tensor) -> Tensor:
    loops = torch.arange(x.size(0))
    src, dst = torch.cat([ei[0], loops]), torch.cat([ei[1], loops])
    degree = torch.zeros(x.size(0)).scatter_add(0, dst, torch.ones(dst.numel()))
    norm = degree.pow(-0.5)
    return torch.zeros_like(x).index_add(0, dst, x[src] * (norm[src] * norm[dst])[:, None])


def without_loops(x: Tensor, ei: Tensor) -> Tensor:
    kept = ei[:, ei[0] != ei[1]]
    return torch.zeros_like(x).index_add(0, kept[1], x[kept[0]].sigmoid())


def several_heads(x: Tensor, ei: Tensor) -> Tensor:
    h = x.view(-1, 2, WIDTH // 2)
    score = (h[ei[0]] * h[ei[1]]).sum(-1, keepdim=True).sigmoid()
    return torch.zeros_like(h).index_add(0, ei[1], h[ei[0]] * score).flatten(1)


def two_sides(xs: tuple[Tensor, Tensor], ei: Tensor) -> Tensor:
    return xs[1] + torch.zeros_like(xs[1]).index_add(0, ei[1], xs[0][ei[0]])


def differences(x: Tensor, ei: Tensor, ea: Tensor) -> Tensor:
    d = (x[ei[1]] - x[ei[0]]).pow(2).sum(-1, keepdim=True)
    return torch.zeros(x.size(0), 5).index_add(0, ei[1], torch.cat([d, ea], 1).tanh())


def edge_features(x: Tensor, ei: Tensor, ea: Tensor) -> Tensor:
    return torch.cat([x[ei[0]], x[ei[1]], ea], dim=-1).relu()


def graph_means(x: Tensor, batch: Tensor) -> Tensor:
    graphs = int(batch.max()) + 1
    total = torch.zeros(graphs, x.size(1)).index_add(0, batch, x)
    return total / torch.bincount(batch, minlength=graphs).clamp(min=1)[:, None]


def class_loss(x: Tensor, ei: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(sums(x, ei), y)


def masked_loss(x: Tensor, ei: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    return F.cross_entropy(sums(x, ei)[mask], y[mask], reduction="sum")


def link_loss(x: Tensor, ei: Tensor, pairs: Tensor) -> Tensor:
    z = sums(x, ei)
    score = (z[pairs[0]] * z[pairs[1]]).sum(-1)
    return F.binary_cross_entropy_with_logits(score, torch.ones_like(score))


def by_relation(x: Tensor, ei: Tensor, kind: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for r in range(RELATIONS):
        own = ei[:, kind == r]
        out = out + torch.zeros_like(x).index_add(0, own[1], x[own[0]] * (r + 1))
    return out


def written_in_place(x: Tensor, ei: Tensor) -> Tensor:
    out = x * 2
    out[:, :2] = 0.0
    out.index_add_(0, ei[1], x[ei[0]])
    return out


def first_rows(x: Tensor, ei: Tensor) -> Tensor:
    return sums(x, ei)[: x.size(0) // 2].cos()


def two_hops(x: Tensor, ei: Tensor) -> Tensor:
    return sums(sums(x, ei), ei.flip(0))


def normalised(x: Tensor, ei: Tensor) -> Tensor:
    h = sums(x, ei)
    return (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt()


def matrix_product(x: Tensor, ei: Tensor, w: Tensor) -> Tensor:
    values = torch.zeros(x.size(0), x.size(0)).index_put((ei[1], ei[0]), w, accumulate=True)
    return values @ x


def distances(x: Tensor, ei: Tensor) -> Tensor:
    return (x[ei[0]] - x[ei[1]]).norm(dim=-1)


def lengths(x: Tensor, ei: Tensor) -> Tensor:
    return sums(x, ei) / (1 + ei.size(1)) * x.size(0)


def triplets(x: Tensor, ei: Tensor, pairs: Tensor) -> Tensor:
    message = x[ei[0]] * x[ei[1]]
    total = torch.zeros_like(x).index_add(0, ei[1], message)
    return total[pairs[0]] - total[pairs[1]]


# ---------------------------------------------------------------- modules


class Stack(nn.Module):
    """Layers in sequence with ReLU between them, each called with all further arguments."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, *rest: Any) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x.relu() if i else x, *rest)
        return x


class Classifier(nn.Module):
    """Graph classification: two convolutions, a readout over the batch, a linear layer."""

    def __init__(self, pool: Callable[..., Tensor]) -> None:
        super().__init__()
        self.conv, self.lin, self.pool = pyg.GraphConv(WIDTH, WIDTH), nn.Linear(WIDTH, 4), pool

    def forward(self, x: Tensor, ei: Tensor, batch: Tensor) -> Tensor:
        return self.lin(self.pool(self.conv(x, ei).relu(), batch))


class Pooled(nn.Module):
    """A convolution and a layer that keeps some of the nodes."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.conv, self.pool = pyg.GraphConv(WIDTH, WIDTH), pool

    def forward(self, x: Tensor, ei: Tensor, batch: Tensor) -> Tensor:
        h, ei, _, batch, *_ = self.pool(self.conv(x, ei).relu(), ei, None, batch)
        return self.conv(h, ei)


def function(f: Callable[..., Any], arguments: Arguments = graph) -> RecompileCase:
    return RecompileCase(lambda: f, arguments)


def module(make: Callable[[], nn.Module], arguments: Arguments = graph) -> RecompileCase:
    return RecompileCase(make, arguments)


def perceptron(inputs: int = WIDTH, outputs: int = WIDTH) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, outputs))


W = WIDTH
CASES: dict[str, RecompileCase] = {
    "f sums": function(sums),
    "f means": function(means),
    "f maxima": function(maxima),
    "f attention": function(attention),
    "f symmetric_norm": function(symmetric_norm),
    "f without_loops": function(without_loops),
    "f several_heads": function(several_heads),
    "f two_sides": function(two_sides, bipartite),
    "f differences": function(differences, attributed),
    "f edge_features": function(edge_features, attributed),
    "f graph_means": function(graph_means, pooled),
    "f class_loss": function(class_loss, labelled),
    "f masked_loss": function(masked_loss, masked),
    "f link_loss": function(link_loss, linked),
    "f by_relation": function(by_relation, typed),
    "f written_in_place": function(written_in_place),
    "f first_rows": function(first_rows),
    "f two_hops": function(two_hops),
    "f normalised": function(normalised),
    "f matrix_product": function(matrix_product, weighted),
    "f distances": function(distances),
    "f lengths": function(lengths),
    "f triplets": function(triplets, linked),
    "GCN, 2 layers": module(lambda: Stack(pyg.GCNConv(W, W), pyg.GCNConv(W, W))),
    "GCN, weights": module(lambda: Stack(pyg.GCNConv(W, W), pyg.GCNConv(W, W)), weighted),
    "SAGE": module(lambda: Stack(pyg.SAGEConv(W, W), pyg.SAGEConv(W, W))),
    "SAGE max": module(lambda: Stack(pyg.SAGEConv(W, W, aggr="max"))),
    "SAGE bipartite": module(lambda: pyg.SAGEConv((W, W), W), bipartite),
    "SAGE std": module(lambda: pyg.SAGEConv(W, W, aggr=["mean", "max", "std"])),
    "GAT, 2 layers": module(lambda: Stack(pyg.GATConv(W, 4, heads=2), pyg.GATConv(W, W))),
    "GAT edge": module(lambda: pyg.GATConv(W, 4, heads=2, edge_dim=4), attributed),
    "GATv2": module(lambda: pyg.GATv2Conv(W, 4, heads=2)),
    "GATv2 bipartite": module(lambda: pyg.GATv2Conv((W, W), 4, heads=2, add_self_loops=False), bipartite),
    "Transformer": module(lambda: pyg.TransformerConv(W, 4, heads=2, edge_dim=4), attributed),
    "GIN": module(lambda: pyg.GINConv(perceptron())),
    "GINE": module(lambda: pyg.GINEConv(perceptron(), edge_dim=4), attributed),
    "EdgeConv": module(lambda: pyg.EdgeConv(perceptron(2 * W), aggr="max")),
    "NNConv": module(lambda: pyg.NNConv(W, W, perceptron(4, W * W)), attributed),
    "RGCN": module(lambda: pyg.RGCNConv(W, W, RELATIONS), typed),
    "FastRGCN": module(lambda: pyg.FastRGCNConv(W, W, RELATIONS), typed),
    "PNA": module(lambda: pyg.PNAConv(W, W, ["mean", "max", "std"], ["identity", "amplification"], torch.ones(9))),
    "Cheb": module(lambda: pyg.ChebConv(W, W, K=3)),
    "TAG": module(lambda: pyg.TAGConv(W, W, K=2)),
    "APPNP": module(lambda: pyg.APPNP(3, 0.1)),
    "ARMA": module(lambda: pyg.ARMAConv(W, W)),
    "GraphConv": module(lambda: pyg.GraphConv(W, W), weighted),
    "Gated": module(lambda: pyg.GatedGraphConv(W, 2)),
    "ResGated": module(lambda: pyg.ResGatedGraphConv(W, W)),
    "GEN": module(lambda: pyg.GENConv(W, W)),
    "ClusterGCN": module(lambda: pyg.ClusterGCNConv(W, W)),
    "FiLM": module(lambda: pyg.FiLMConv(W, W)),
    "HeteroConv": module(
        lambda: pyg.HeteroConv({k: pyg.SAGEConv((W, W), W) for k in METADATA[1]}), kinds),
    "HGT": module(lambda: pyg.HGTConv(W, W, METADATA, heads=2), kinds),
    "HAN": module(lambda: pyg.HANConv(W, W, METADATA, heads=2), kinds),
    "graph classifier": module(lambda: Classifier(pyg.global_mean_pool), batched),
    "graph classifier, attention": module(
        lambda: Classifier(pyg.aggr.AttentionalAggregation(nn.Linear(W, 1))), batched),
    "GIN model": module(lambda: pyg.GIN(W, W, 2, W)),
    "TopKPooling": module(lambda: Pooled(pyg.TopKPooling(W)), batched),
    "SAGPooling": module(lambda: Pooled(pyg.SAGPooling(W)), batched),
    "SortAggregation": module(lambda: pyg.SortAggregation(4), pooled),
    "JumpingKnowledge lstm": module(lambda: pyg.JumpingKnowledge("lstm", W, 2), layered),
    "GraphUNet": module(lambda: pyg.GraphUNet(W, W, W, depth=2)),
    "lazy SAGE": module(lambda: Stack(pyg.SAGEConv(-1, W), pyg.SAGEConv(-1, W))),
    "GraphNorm": module(lambda: pyg.GraphNorm(W), pooled),
}  # fmt: skip
