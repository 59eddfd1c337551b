"""Graph isomorphism network with edge features (GINE)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import graphweave.function as fn
from graphweave.graph.graph import Graph
from graphweave.nn.ends import Feat, both_ends
from graphweave.udf.arguments import EdgeBatch


class GINEConv(nn.Module):
    """h'_i = f((1 + eps) h_i + sum over edges e = j -> i of relu(h_j + x_e)).

    `apply_func`: f, any module or function; None for none. `init_eps`: eps, a parameter if `learn_eps`, else a buffer.
    For nodes without incoming edges the sum is 0. Source: Hu et al., "Strategies for Pre-training Graph Neural
    Networks", ICLR 2020, appendix A.

    >>> graph = gw.graph(([0, 1, 2], [1, 2, 2]))
    >>> GINEConv(nn.Linear(5, 4))(graph, torch.randn(3, 5), torch.randn(3, 5)).shape
    torch.Size([3, 4])
    """

    def __init__(
        self, apply_func: Callable[[Tensor], Tensor] | None = None, init_eps: float = 0, learn_eps: bool = False
    ) -> None:
        super().__init__()
        self.apply_func = apply_func
        eps = torch.tensor([float(init_eps)])
        if learn_eps:
            self.eps: Tensor = nn.Parameter(eps)
        else:
            self.register_buffer("eps", eps)

    def forward(self, graph: Graph, node_feat: Feat, edge_feat: Tensor) -> Tensor:
        """[N, F], or a pair ([N_src, F], [N_dst, F]), and [E, F] -> f of [N_dst, F]."""
        src, dst = both_ends(node_feat, graph)
        with graph.local_scope():
            graph.srcdata["h"], graph.edata["e"] = src, edge_feat
            graph.update_all(_message, fn.sum("m", "neigh"))
            out = (1 + self.eps) * dst + graph.dstdata["neigh"]
        return out if self.apply_func is None else self.apply_func(out)


def _message(edges: EdgeBatch) -> dict[str, Tensor]:
    return {"m": torch.relu(edges.src["h"] + edges.data["e"])}
