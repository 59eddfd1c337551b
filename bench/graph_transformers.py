"""Graph transformers, whose attention stays within each graph of a batch, for `product_models.py`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GINEConv, GPSConv, LightGCN, SGFormer
from torch_geometric.utils import scatter, softmax


class Gps(nn.Module):
    """GPS (Rampasek et al. 2022): in each layer a GINE convolution and attention over all nodes of a graph."""

    def __init__(self, width: int, layers: int, **options: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            GPSConv(
                width,
                GINEConv(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))),
                heads=4,
                norm="layer_norm",
                **options,
            )
            for _ in range(layers)
        )

    def forward(self, x: Tensor, e: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, edges, batch, edge_attr=e)
        return x


class Grit(nn.Module):
    """Layers of attention over all pairs of a graph, whose features take part and change (Ma et al., "Graph Inductive
    Biases in Transformers without Message Passing", ICML 2023, equations 3 to 5)."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GritLayer(width, heads) for _ in range(layers))

    def forward(self, x: Tensor, e: Tensor, pairs: Tensor) -> Tensor:
        for layer in self.layers:
            x, e = layer(x, e, pairs)
        return x


class GritLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.shape, channels = (heads, width // heads), width // heads
        self.rows = nn.Linear(width, 3 * width)
        self.scale, self.shift, self.last = (nn.Linear(width, width) for _ in range(3))
        self.score = nn.Parameter(torch.randn(heads, channels))
        self.value = nn.Parameter(torch.randn(heads, channels, channels) / channels**0.5)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, self.shape)

    def forward(self, x: Tensor, e: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = map(self.heads, self.rows(x).chunk(3, -1))
        src, dst = pairs
        hat = (q[dst] + k[src]) * self.heads(self.scale(e))
        hat = torch.sqrt(torch.relu(hat) + 1e-6) - torch.sqrt(torch.relu(-hat) + 1e-6)
        hat = torch.relu(hat + self.heads(self.shift(e)))
        weights = softmax((hat * self.score).sum(-1), dst, num_nodes=x.size(0)).unsqueeze(-1)
        out = scatter(weights * v[src], dst, dim_size=x.size(0))
        out = out + torch.einsum("nhd,hdc->nhc", scatter(weights * hat, dst, dim_size=x.size(0)), self.value)
        return self.norms[0](x + out.flatten(1)), self.norms[1](e + self.last(hat.flatten(1)))


class Exphormer(nn.Module):
    """Layers of attention over the edges of a sparse graph (Shirzad et al., "Exphormer: Sparse Transformers for
    Graphs", ICML 2023, section 3.1): scores are products of queries, keys and edges, and clamped."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.shape = (heads, width // heads)
        self.rows = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.of_edges = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))

    def forward(self, x: Tensor, e: Tensor, pairs: Tensor) -> Tensor:
        src, dst = pairs
        for rows, of_edges, norm in zip(self.rows, self.of_edges, self.norms, strict=True):
            q, k, v = (t.unflatten(-1, self.shape) for t in rows(x).chunk(3, -1))
            products = k[src] * q[dst] / self.shape[1] ** 0.5 * of_edges(e).unflatten(-1, self.shape)
            weights = products.sum(-1, keepdim=True).clamp(-5, 5).exp()
            total = scatter(weights, dst, dim_size=x.size(0))
            x = norm(x + (scatter(v[src] * weights, dst, dim_size=x.size(0)) / (total + 1e-6)).flatten(1))
        return x


class Recommender(nn.Module):
    """LightGCN (He et al. 2020) with its loss: pairs of interactions, of which the first should rank higher.

    `edges` is an `edge_index`, or the same as a sparse matrix, which is faster in eager mode.
    """

    def __init__(self, nodes: int, width: int, layers: int) -> None:
        super().__init__()
        self.model = LightGCN(nodes, width, layers)

    def forward(self, edges: Tensor, better: Tensor, worse: Tensor) -> Tensor:
        rows = self.model.get_embedding(edges)
        ranks = [(rows[a] * rows[b]).sum(-1) for a, b in (better, worse)]
        return -nn.functional.logsigmoid(ranks[0] - ranks[1]).mean()


def sgformer(width_in: int, width: int) -> nn.Module:
    """SGFormer (Wu et al. 2023): one layer of linear attention over all nodes next to graph convolutions."""
    return SGFormer(width_in, width, 40, trans_num_heads=1, trans_dropout=0.0, gnn_num_layers=3, gnn_dropout=0.0)


def of_molecules(graphs: int, nodes: int, width: int, *, pairs: bool = False) -> list[Tensor]:
    """Rows and edges with features, which are those of all pairs of a graph with `pairs`, and the graph of each row."""
    sizes = torch.randint(nodes // 2, nodes + nodes // 2, (graphs,))
    batch = torch.arange(graphs).repeat_interleave(sizes)
    if pairs:
        edges = (batch[:, None] == batch).nonzero().T.contiguous()
    else:
        first = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)[:-1]])[batch].repeat(2)
        src = torch.arange(len(batch)).repeat(2)
        dst = first + (torch.rand(len(src)) * sizes[batch].repeat(2)).long()
        edges = torch.stack([torch.cat([src, dst]), torch.cat([dst, src])])
    return [torch.randn(len(batch), width), torch.randn(edges.size(1), width), edges, batch]


def of_one_graph(nodes: int, edges: int, width: int) -> list[Tensor]:
    return [torch.randn(nodes, width), torch.randint(nodes, (2, edges)), torch.zeros(nodes, dtype=torch.long)]


def of_interactions(users: int, items: int, interactions: int, pairs: int) -> list[Tensor]:
    user, item = torch.randint(users, (interactions,)), users + torch.randint(items, (interactions,))
    user, item = torch.stack([user, item]).unique(dim=1)
    edges = torch.stack([torch.cat([user, item]), torch.cat([item, user])])
    ends = [torch.stack([torch.randint(users, (pairs,)), users + torch.randint(items, (pairs,))]) for _ in range(2)]
    return [edges, *ends]
