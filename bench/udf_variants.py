"""The layers of `bench.udf_layers` written in two other ways: with built-in functions, and as PyG's users write them.

All have the same parameters. Models written for PyG take an edge index, the others a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.utils import scatter, softmax

import graphweave
import graphweave.function as fn
from bench.udf_layers import (
    CHANNELS,
    HEADS,
    HIDDEN,
    SLOPE,
    ZETA,
    Attention,
    CGat,
    ConstrainedStack,
    Gat,
    Gcn,
    Gin,
    Sage,
    Stack,
    two,
)
from bench.workloads import mlp


class GcnBuiltin(Gcn):
    """GCN with the norms as two scalings of node rows, as in DGL's GraphConv."""

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        with graph.local_scope():
            norm = graph.ndata["norm"]
            graph.ndata["z"] = self.lin(x) * norm
            graph.update_all(fn.copy_u("z", "m"), fn.sum("m", "h"))
            return graph.ndata["h"] * norm + self.bias


class SageBuiltin(Sage):
    def forward(self, graph: Any, x: Tensor) -> Tensor:
        with graph.local_scope():
            graph.ndata["x"] = x
            graph.update_all(fn.copy_u("x", "m"), fn.mean("m", "h"))
            return self.lin_l(graph.ndata["h"]) + self.lin_r(x)


class GinBuiltin(Gin):
    def forward(self, graph: Any, x: Tensor) -> Tensor:
        with graph.local_scope():
            graph.ndata["x"] = x
            graph.update_all(fn.copy_u("x", "m"), fn.sum("m", "h"))
            return self.nn(x + graph.ndata["h"])


def attend(graph: Any) -> None:
    """Sets the edge field "alpha" [E, H] from the node fields "left" and "right"."""
    graph.apply_edges(fn.u_add_v("left", "right", "e"))
    graph.edata["alpha"] = graphweave.edge_softmax(graph, F.leaky_relu(graph.edata["e"], SLOPE))


def gather(graph: Any) -> Tensor:
    """[N, H * C]: sum of alpha_u z_u."""
    graph.edata["alpha1"] = graph.edata["alpha"].unsqueeze(-1)
    graph.update_all(fn.u_mul_e("z", "alpha1", "m"), fn.sum("m", "h"))
    out: Tensor = graph.ndata["h"].flatten(1)
    return out


class GatBuiltin(Gat):
    def forward(self, graph: Any, x: Tensor) -> Tensor:
        with graph.local_scope():
            self.project(graph, x)
            attend(graph)
            return gather(graph) + self.bias


class CGatBuiltin(CGat):
    def forward(self, graph: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with graph.local_scope():
            self.project(graph, x)
            graph.ndata["y"] = y
            attend(graph)
            graph.apply_edges(fn.u_sub_v("y", "y", "apart"))
            same = (graph.edata["apart"] == 0).unsqueeze(-1)
            alpha = graph.edata["alpha"]
            graph.edata["rival"] = torch.where(same, -1.0, alpha)
            graph.update_all(fn.copy_e("rival", "m"), fn.max("m", "rival"))
            graph.apply_edges(fn.v_sub_e("rival", "alpha", "gap"))
            graph.edata["hinge"] = torch.where(same, F.relu(ZETA + graph.edata["gap"]), 0.0)
            graph.update_all(fn.copy_e("hinge", "m"), fn.sum("m", "margin"))
            return gather(graph) + self.bias, graph.ndata["margin"]


class CGatPyg(pyg.MessagePassing):
    """C-GAT over an edge index that has its self-loops."""

    def __init__(self, inputs: int) -> None:
        super().__init__(aggr="add", node_dim=0)
        parameters = Attention(inputs)
        self.lin, self.bias = parameters.lin, parameters.bias
        self.att_src, self.att_dst = parameters.att_src, parameters.att_dst

    def forward(self, edge_index: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = self.lin(x).view(-1, HEADS, CHANNELS)
        scores = ((z * self.att_src).sum(-1), (z * self.att_dst).sum(-1))
        alpha = self.edge_updater(edge_index, alpha=scores, size=None)
        out = self.propagate(edge_index, x=z, alpha=alpha, size=None)
        return out.flatten(1) + self.bias, self.margins(edge_index, alpha, y)

    def edge_update(
        self, alpha_j: Tensor, alpha_i: Tensor, index: Tensor, ptr: Tensor | None, size_i: int | None
    ) -> Tensor:
        return softmax(F.leaky_relu(alpha_j + alpha_i, SLOPE), index, ptr, size_i)

    def message(self, x_j: Tensor, alpha: Tensor) -> Tensor:
        return alpha.unsqueeze(-1) * x_j

    def margins(self, edge_index: Tensor, alpha: Tensor, y: Tensor) -> Tensor:
        """The margins of C-GAT, [N, H]."""
        src, dst = edge_index
        nodes = y.size(0)
        same = (y[src] == y[dst]).unsqueeze(-1)
        rival = scatter(torch.where(same, -1.0, alpha), dst, 0, nodes, "max")
        hinge = torch.where(same, F.relu(ZETA + rival[dst] - alpha), 0.0)
        return scatter(hinge, dst, 0, nodes, "sum")


class OverIndex(nn.Module):
    """A layer of PyG, with the arguments in the order of the other layers."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, edge_index: Tensor, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x, edge_index)
        return out


BUILTIN: dict[str, Callable[[int], Stack]] = {
    "gcn": lambda inputs: two(lambda width: GcnBuiltin(width, HIDDEN), inputs),
    "gat": lambda inputs: two(GatBuiltin, inputs),
    "cgat": lambda inputs: two(CGatBuiltin, inputs, ConstrainedStack),
    "sage": lambda inputs: two(lambda width: SageBuiltin(width, HIDDEN), inputs),
    "gin": lambda inputs: two(lambda width: GinBuiltin(width, HIDDEN), inputs),
}
"""Name -> two layers of built-in functions."""

PYG: dict[str, Callable[[int], Stack]] = {
    "gcn": lambda inputs: two(lambda width: OverIndex(pyg.GCNConv(width, HIDDEN)), inputs),
    "gat": lambda inputs: two(lambda width: OverIndex(pyg.GATConv(width, CHANNELS, heads=HEADS)), inputs),
    "cgat": lambda inputs: two(CGatPyg, inputs, ConstrainedStack),
    "sage": lambda inputs: two(lambda width: OverIndex(pyg.SAGEConv(width, HIDDEN)), inputs),
    "gin": lambda inputs: two(lambda width: OverIndex(pyg.GINConv(mlp(width, HIDDEN))), inputs),
}
"""Name -> two layers of PyG, which insert self-loops and count degrees themselves where they need them."""


Value = TypeVar("Value", Tensor, Tensor | None)


def plain_names(state: Mapping[str, Value]) -> dict[str, Value]:
    """Parameters or gradients of a PyG model by the names of the other models."""
    return {name.replace(".layer.", "."): value for name, value in state.items()}
