"""Equivariant convolution over coordinates (EGNN)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphweave.graph.graph import Graph
from graphweave.udf.arguments import EdgeBatch, NodeBatch


class EGNNConv(nn.Module):
    """m_e = phi_e(h_j, h_i, |x_j - x_i|^2, a_e), x'_i = x_i + mean over e of u_e phi_x(m_e), h'_i = phi_h(h_i, sum of
    m_e).

    For edges e = j -> i, with u_e = (x_j - x_i) / (|x_j - x_i| + 1e-30). phi are networks of two layers with SiLU.
    Nodes without incoming edges keep x, and h'_i = phi_h(h_i, 0). Source: Satorras, Hoogeboom and Welling, "E(n)
    Equivariant Graph Neural Networks", ICML 2021, section 3.

    >>> graph = gw.graph(([0, 1, 2], [1, 2, 2]))
    >>> h, x = EGNNConv(5, 8, 4)(graph, torch.randn(3, 5), torch.randn(3, 3))
    >>> h.shape, x.shape
    (torch.Size([3, 4]), torch.Size([3, 3]))
    """

    def __init__(self, in_size: int, hidden_size: int, out_size: int, edge_feat_size: int = 0) -> None:
        super().__init__()
        self.edge_feat_size = edge_feat_size
        self.edge_mlp = nn.Sequential(
            nn.Linear(2 * in_size + edge_feat_size + 1, hidden_size), nn.SiLU(), nn.Linear(hidden_size, hidden_size),
            nn.SiLU(),
        )  # fmt: skip
        self.node_mlp = nn.Sequential(
            nn.Linear(in_size + hidden_size, hidden_size), nn.SiLU(), nn.Linear(hidden_size, out_size)
        )
        self.coord_mlp = nn.Sequential(
            nn.Linear(hidden_size, hidden_size), nn.SiLU(), nn.Linear(hidden_size, 1, bias=False)
        )

    def forward(
        self, graph: Graph, node_feat: Tensor, coord_feat: Tensor, edge_feat: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """[N, in], coordinates [N, 3], [E, edge_feat_size] -> ([N, out], [N, 3])."""
        with graph.local_scope():
            graph.ndata["h"], graph.ndata["x"] = node_feat, coord_feat
            if edge_feat is not None and self.edge_feat_size:
                graph.edata["a"] = edge_feat
            graph.update_all(self._message, _reduce)
            out = self.node_mlp(torch.cat([node_feat, graph.ndata["h_neigh"]], dim=-1))
            return out, coord_feat + graph.ndata["x_neigh"]

    def _message(self, edges: EdgeBatch) -> dict[str, Tensor]:
        diff = edges.src["x"] - edges.dst["x"]
        square = diff.square().sum(-1, keepdim=True)
        inputs = [edges.src["h"], edges.dst["h"], square]
        if self.edge_feat_size and "a" in edges.data:
            inputs.append(edges.data["a"])
        m = self.edge_mlp(torch.cat(inputs, dim=-1))
        return {"m": m, "u": self.coord_mlp(m) * diff / (square.sqrt() + 1e-30)}


def _reduce(nodes: NodeBatch) -> dict[str, Tensor]:
    return {"h_neigh": nodes.mailbox["m"].sum(1), "x_neigh": nodes.mailbox["u"].mean(1)}
