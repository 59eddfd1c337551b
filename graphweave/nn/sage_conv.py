"""GraphSAGE."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import graphweave.function as fn
from graphweave.core.errors import DataError
from graphweave.graph.graph import Graph
from graphweave.nn.ends import Feat, Width, both_ends, both_widths, inverse_power, on_rows, one_of
from graphweave.udf.arguments import NodeBatch

AGGREGATORS = ("mean", "gcn", "pool", "lstm")


class SAGEConv(nn.Module):
    """GraphSAGE: Hamilton, Ying and Leskovec, "Inductive Representation Learning on Large Graphs", NIPS 2017
    (https://arxiv.org/abs/1706.02216).

    h'_i = activation(norm(W_self h_i + W_neigh a_i + b)), where a_i, over the edges j -> i, is
    "mean": the mean of h_j; "pool": the maximum of relu(W_pool h_j + b_pool);
    "lstm": the last state of an LSTM that reads h_j in the order of edges.
    "gcn": h'_i = activation(norm(W_neigh (h_i + sum of h_j) / (in_degree(i) + 1) + b)).

    `in_feats`: a number, or a pair (of sources, of destinations). `aggregator_type`: one of the four. `feat_drop`: rate
    of the dropout of features. `bias`: False leaves b out. `norm`, `activation`: functions of the result.

    Nodes without incoming edges have a_i = 0. No self-loops are needed: the node itself is in the formula. PyTorch runs
    the LSTM, once for each in-degree that occurs; the other aggregators run in kernels.

    >>> graph = gw.graph(([0, 1, 2], [1, 2, 2]))
    >>> SAGEConv(5, 4, "mean")(graph, torch.randn(3, 5)).shape
    torch.Size([3, 4])
    """

    def __init__(
        self, in_feats: Width, out_feats: int, aggregator_type: str, feat_drop: float = 0.0, bias: bool = True,
        norm: Callable[[Tensor], Tensor] | None = None, activation: Callable[[Tensor], Tensor] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.in_src, self.in_dst = both_widths(in_feats)
        self.out_feats, self.aggregator_type = out_feats, one_of("aggregator_type", aggregator_type, AGGREGATORS)
        self.feat_drop, self.norm, self.activation = nn.Dropout(feat_drop), norm, activation
        if aggregator_type == "pool":
            self.fc_pool = nn.Linear(self.in_src, self.in_src)
        if aggregator_type == "lstm":
            self.lstm = nn.LSTM(self.in_src, self.in_src, batch_first=True)
        self.fc_neigh = nn.Linear(self.in_src, out_feats, bias=False)
        if aggregator_type == "gcn":
            if self.in_src != self.in_dst:
                raise DataError(
                    f"aggregator_type 'gcn' needs equal features at both ends (got {in_feats})."
                    " Pass one number, or another aggregator_type."
                )
            self.bias = nn.Parameter(torch.empty(out_feats)) if bias else None
        else:
            self.fc_self = nn.Linear(self.in_dst, out_feats, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights are drawn from Glorot's uniform distribution with the gain of a ReLU. Those of the LSTM have
        PyTorch's own distribution. b is 0."""
        gain = nn.init.calculate_gain("relu")
        for name, child in self.named_children():
            if isinstance(child, nn.Linear):
                nn.init.xavier_uniform_(child.weight, gain=gain)
                if child.bias is not None and name == "fc_self":
                    nn.init.zeros_(child.bias)
            elif isinstance(child, nn.LSTM):
                child.reset_parameters()
        if self.aggregator_type == "gcn" and self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, graph: Graph, feat: Feat, edge_weight: Tensor | None = None) -> Tensor:
        """[N, in], or a pair ([N_src, in_src], [N_dst, in_dst]) -> [N_dst, out].

        `edge_weight` [E] or [E, 1] multiplies the messages.
        """
        src, dst = both_ends(feat, graph)
        src = self.feat_drop(src)
        dst = self.feat_drop(dst) if isinstance(feat, tuple) else both_ends(src, graph)[1]
        # W_neigh and these sums are linear, so the product may come first. It does if that makes messages narrower.
        narrows = self.in_src > self.out_feats and self.aggregator_type in ("mean", "gcn")
        with graph.local_scope():
            if edge_weight is not None:
                graph.edata["w"] = edge_weight
            x = functional.relu(self.fc_pool(src)) if self.aggregator_type == "pool" else src
            graph.srcdata["h"] = self.fc_neigh(x) if narrows else x
            message: Any = fn.copy_u("h", "m") if edge_weight is None else fn.u_mul_e("h", "w", "m")
            graph.update_all(message, self._reducer())
            x = graph.dstdata["neigh"]
            if self.aggregator_type == "gcn":
                x = x + (self.fc_neigh(dst) if narrows else dst)
                x = x * on_rows(inverse_power(graph.in_degrees() + 1, 1.0, x.dtype), x)
        x = x if narrows else self.fc_neigh(x)
        if self.aggregator_type != "gcn":
            x = self.fc_self(dst) + x
        elif self.bias is not None:
            x = x + self.bias
        x = x if self.activation is None else self.activation(x)
        return x if self.norm is None else self.norm(x)

    def _reducer(self) -> Callable[[Any], dict[str, Tensor]]:
        match self.aggregator_type:
            case "lstm":
                return self._read
            case "pool":
                return fn.max("m", "neigh")
            case "mean":
                return fn.mean("m", "neigh")
        return fn.sum("m", "neigh")

    def _read(self, nodes: NodeBatch) -> dict[str, Tensor]:
        _, (last, _) = self.lstm(nodes.mailbox["m"])
        return {"neigh": last.squeeze(0)}

    def extra_repr(self) -> str:
        return f"{self.in_src}, {self.out_feats}, {self.aggregator_type!r}"
