"""Constrained graph attention (C-GAT)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import graphweave.function as fn
from graphweave.core.errors import DataError
from graphweave.graph.graph import Graph
from graphweave.nn.ends import Attended, Feat, Width
from graphweave.nn.gat_conv import GATConv
from graphweave.udf.arguments import EdgeBatch, NodeBatch

_LOW = -1e30
"""Score of a missing rival. It is so low that the hinge is 0, and finite, so that its product with 0 is 0."""


class CGATConv(GATConv):
    """Constrained graph attention: Wang, Ying, Huang and Leskovec, "Improving Graph Attention Networks with Large
    Margin-based Constraints", 2019 (https://arxiv.org/abs/1910.11945).

    The result is `GATConv`'s. For training, the layer also returns constraints on the scores s_ji (before the softmax),
    to be added to the loss. Each is a sum of hinges, averaged over the heads:
    class boundary (`pairs`, the paper's): max(0, s_ki + class_margin - s_ji) over pairs of edges j -> i and k -> i,
    where j has the label of i and k has another. `edge_pairs` makes the pairs once for a graph and its labels;
    graph structure (`far`, the paper's): max(0, s_ki + graph_margin - s_ji) over edges j -> i and nodes k that are not
    neighbours of i. `far_nodes` draws these nodes;
    hardest rival (`labels`, not in the paper): max(0, max over k of s_ki + class_margin - s_ji) over edges j -> i.
    Among the pairs of an edge, only the one with the largest hinge counts. It needs no table of pairs.

    Arguments are `GATConv`'s, and the two margins. Nodes without incoming edges receive 0; add self-loops
    (`graphweave.add_self_loop`) so that nodes attend to themselves.

    >>> graph = gw.add_self_loop(gw.graph(([0, 1, 2, 0], [1, 2, 2, 2])))
    >>> labels = torch.tensor([0, 1, 0])
    >>> conv, pairs = CGATConv(5, 4, num_heads=2), edge_pairs(graph, labels)
    >>> out, loss = conv(graph, torch.randn(3, 5), pairs=pairs, far=far_nodes(graph))
    >>> out.shape, loss.shape
    (torch.Size([3, 2, 4]), torch.Size([]))
    """

    def __init__(
        self, in_feats: Width, out_feats: int, num_heads: int, feat_drop: float = 0.0, attn_drop: float = 0.0,
        negative_slope: float = 0.2, residual: bool = False, activation: Callable[[Tensor], Tensor] | None = None,
        allow_zero_in_degree: bool = False, bias: bool = True, *, class_margin: float = 0.1, graph_margin: float = 0.1,
    ) -> None:  # fmt: skip
        super().__init__(
            in_feats, out_feats, num_heads, feat_drop, attn_drop, negative_slope, residual, activation, bias=bias
        )
        self.class_margin, self.graph_margin = class_margin, graph_margin

    def forward(
        self, graph: Graph, feat: Feat, edge_weight: Tensor | None = None, get_attention: bool = False, *,
        pairs: Graph | None = None, far: Graph | None = None, labels: Tensor | None = None, mask: Tensor | None = None,
    ) -> Attended:  # fmt: skip
        """[N, in] -> [N, heads, out], as `GATConv`. With constraints, the result is a pair: this result and their sum,
        a scalar.

        `pairs`: the result of `edge_pairs`. `labels` [N], in place of `pairs`: integers, -1 for unknown; `mask` [N],
        bool: the labels that count. `far`: the result of `far_nodes`. With `get_attention` the result is (result,
        attention [E, heads, 1]), or (result, attention, constraints).
        """
        if pairs is not None and labels is not None:
            raise DataError("pairs and labels are two forms of one constraint. Leave out one of them.")
        z_src, z_dst, h_dst = self._projected(graph, feat)
        with graph.local_scope():
            graph.srcdata["z"] = z_src
            graph.srcdata["el"], graph.dstdata["er"] = self._halves(z_src, z_dst)
            if edge_weight is not None:
                graph.edata["w"] = edge_weight.reshape(-1, 1, 1)
            attention = self._attend(graph, edge_weight is not None, get_attention)
            out: tuple[Any, ...] = (self._finished(graph.dstdata["h"], h_dst),)
            if get_attention:
                out += (attention,)
            losses = self._losses(graph, pairs, far, labels, mask)
        if losses:
            out += (sum(losses[1:], losses[0]) / self.num_heads,)
        return out[0] if len(out) == 1 else out

    def _losses(
        self, graph: Graph, pairs: Graph | None, far: Graph | None, labels: Tensor | None, mask: Tensor | None
    ) -> list[Tensor]:
        """The requested constraints, each summed over the heads, computed from `el` and `er` in the data of `graph`."""
        losses = []
        if labels is not None:
            losses.append(self._hardest_rival(graph, labels, mask))
        if pairs is not None:
            graph.apply_edges(self._score)
            losses.append(self._class_boundary(pairs, graph.edata["e"]))
        if far is not None:
            graph.apply_edges(lambda edges: {**self._score(edges), "er": edges.dst["er"]})
            losses.append(self._graph_structure(far, graph.srcdata["el"], graph.edata["er"], graph.edata["e"]))
        return losses

    def _class_boundary(self, pairs: Graph, e: Tensor) -> Tensor:
        def hinge(edges: EdgeBatch) -> dict[str, Tensor]:
            m = functional.relu(edges.src["e"] + self.class_margin - edges.dst["e"])
            return {"m": m * edges.data["weight"].to(m.dtype).reshape(-1, 1, 1)} if weighted else {"m": m}

        with pairs.local_scope():
            weighted = "weight" in pairs.edata
            pairs.ndata["e"] = e
            pairs.update_all(hinge, fn.sum("m", "h"))
            total: Tensor = pairs.ndata["h"].sum()
        return total

    def _graph_structure(self, far: Graph, el: Tensor, er: Tensor, e: Tensor) -> Tensor:
        def hinge(edges: EdgeBatch) -> dict[str, Tensor]:
            distant = self._score(edges)["e"]
            return {"m": functional.relu(distant + self.graph_margin - edges.dst["e"])}

        with far.local_scope():
            far.srcdata["el"], far.dstdata["er"], far.dstdata["e"] = el, er, e
            far.update_all(hinge, fn.sum("m", "h"))
            total: Tensor = far.dstdata["h"].sum()
        return total

    def _hardest_rival(self, graph: Graph, labels: Tensor, mask: Tensor | None) -> Tensor:
        def message(edges: EdgeBatch) -> dict[str, Tensor]:
            a, b = edges.src["label"], edges.dst["label"]
            known = (a >= 0) & (b >= 0)
            shape = (-1, 1, 1)
            return {
                "same": (known & (a == b)).reshape(shape), "other": (known & (a != b)).reshape(shape),
                **self._score(edges),
            }  # fmt: skip

        def reduce(nodes: NodeBatch) -> dict[str, Tensor]:
            e, same, other = nodes.mailbox["e"], nodes.mailbox["same"], nodes.mailbox["other"]
            rival = torch.where(other, e, _LOW).amax(1, keepdim=True)
            hinge = functional.relu(rival + self.class_margin - e)
            return {"margin": torch.where(same, hinge, 0.0).sum(1)}

        graph.ndata["label"] = labels if mask is None else torch.where(mask, labels, torch.full_like(labels, -1))
        graph.update_all(message, reduce)
        total: Tensor = graph.ndata["margin"].sum()
        return total
