"""Graph convolution with gates on edges (GatedGCN)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

import graphweave.function as fn
from graphweave.graph.graph import Graph
from graphweave.udf.arguments import EdgeBatch

_EPSILON = 1e-6


class GatedGCNConv(nn.Module):
    """f'_e = D h_j + E h_i + C f_e for edges e = j -> i, h'_i = A h_i + sum of s_e B h_j / (sum of s_e + 1e-6), s_e =
    sigmoid(f'_e).

    Both then pass a batch norm (`batch_norm`), `activation`, the addition of h and f (`residual`, where all widths are
    equal), and dropout. Nodes without incoming edges have h'_i = A h_i before these. Source: Bresson and Laurent,
    "Residual Gated Graph ConvNets", 2017, as in Dwivedi et al., "Benchmarking Graph Neural Networks", 2020, appendix B.

    >>> graph = gw.graph(([0, 1, 2], [1, 2, 2]))
    >>> h, f = GatedGCNConv(5, 3, 4)(graph, torch.randn(3, 5), torch.randn(3, 3))
    >>> h.shape, f.shape
    (torch.Size([3, 4]), torch.Size([3, 4]))
    """

    def __init__(
        self, input_feats: int, edge_feats: int, output_feats: int, dropout: float = 0.0, batch_norm: bool = True,
        residual: bool = True, activation: Callable[[Tensor], Tensor] | None = functional.relu,
    ) -> None:  # fmt: skip
        super().__init__()
        self.batch_norm, self.activation = batch_norm, activation
        self.residual = residual and input_feats == output_feats == edge_feats
        self.A, self.B, self.D, self.E = (nn.Linear(input_feats, output_feats) for _ in range(4))
        self.C = nn.Linear(edge_feats, output_feats)
        self.bn_node, self.bn_edge = nn.BatchNorm1d(output_feats), nn.BatchNorm1d(output_feats)
        self.dropout = nn.Dropout(dropout)

    def forward(self, graph: Graph, feat: Tensor, edge_feat: Tensor) -> tuple[Tensor, Tensor]:
        """[N, input_feats], [E, edge_feats] -> ([N, output_feats], [E, output_feats])."""
        with graph.local_scope():
            graph.ndata["b"], graph.ndata["d"], graph.ndata["e"] = self.B(feat), self.D(feat), self.E(feat)
            graph.edata["c"] = self.C(edge_feat)
            graph.apply_edges(_gate)
            graph.update_all(fn.u_mul_e("b", "s", "m"), fn.sum("m", "total"))
            graph.update_all(fn.copy_e("s", "m"), fn.sum("m", "norm"))
            nodes = self.A(feat) + graph.ndata["total"] / (graph.ndata["norm"] + _EPSILON)
            edges = graph.edata["f"]
        return self._after(nodes, feat, self.bn_node), self._after(edges, edge_feat, self.bn_edge)

    def _after(self, x: Tensor, before: Tensor, norm: nn.Module) -> Tensor:
        x = norm(x) if self.batch_norm else x
        x = x if self.activation is None else self.activation(x)
        out: Tensor = self.dropout(before + x if self.residual else x)
        return out


def _gate(edges: EdgeBatch) -> dict[str, Tensor]:
    f = edges.src["d"] + edges.dst["e"] + edges.data["c"]
    return {"f": f, "s": torch.sigmoid(f)}
