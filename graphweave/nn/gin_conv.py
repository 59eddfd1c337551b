"""Graph isomorphism network (GIN)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import graphweave.function as fn
from graphweave.graph.graph import Graph
from graphweave.nn.ends import Feat, both_ends, one_of

REDUCERS: dict[str, Callable[[str, str], Any]] = {"sum": fn.sum, "mean": fn.mean, "max": fn.max}


class GINConv(nn.Module):
    """Graph isomorphism network: Xu, Hu, Leskovec and Jegelka, "How Powerful are Graph Neural Networks?", ICLR 2019
    (https://arxiv.org/abs/1810.00826).

    h'_i = activation(f((1 + eps) h_i + aggregate over edges j -> i of w_ji h_j)), w_ji = 1 without edge weights.

    `apply_func`: f, any module or function; None for none. `aggregator_type`: "sum" (the paper's), "mean" or "max".
    `init_eps`: eps, a parameter if `learn_eps`, else a buffer. `activation`: function of the result.

    For nodes without incoming edges the aggregate is 0. No self-loops are needed: the node itself is in the formula.

    >>> graph = gw.graph(([0, 1, 2], [1, 2, 2]))
    >>> GINConv(nn.Linear(5, 4), "max")(graph, torch.randn(3, 5)).shape
    torch.Size([3, 4])
    """

    def __init__(
        self, apply_func: Callable[[Tensor], Tensor] | None = None, aggregator_type: str = "sum", init_eps: float = 0,
        learn_eps: bool = False, activation: Callable[[Tensor], Tensor] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.apply_func, self.activation = apply_func, activation
        self.aggregator_type = one_of("aggregator_type", aggregator_type, tuple(REDUCERS))
        eps = torch.tensor([float(init_eps)])
        if learn_eps:
            self.eps: Tensor = nn.Parameter(eps)
        else:
            self.register_buffer("eps", eps)

    def forward(self, graph: Graph, feat: Feat, edge_weight: Tensor | None = None) -> Tensor:
        """[N, F], or a pair ([N_src, F], [N_dst, F]) -> f of [N_dst, F].

        `edge_weight` [E] or [E, 1] multiplies the messages.
        """
        src, dst = both_ends(feat, graph)
        with graph.local_scope():
            graph.srcdata["h"] = src
            if edge_weight is not None:
                graph.edata["w"] = edge_weight
            message: Any = fn.copy_u("h", "m") if edge_weight is None else fn.u_mul_e("h", "w", "m")
            graph.update_all(message, REDUCERS[self.aggregator_type]("m", "neigh"))
            x = (1 + self.eps) * dst + graph.dstdata["neigh"]
        x = x if self.apply_func is None else self.apply_func(x)
        return x if self.activation is None else self.activation(x)

    def extra_repr(self) -> str:
        return f"aggregator_type={self.aggregator_type!r}"
