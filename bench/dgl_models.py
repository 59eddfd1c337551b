"""The benchmarks' models of DGL's own layers, with DGL's best settings and the weights of their PyG twins.

This file runs in DGL's virtual environment and imports nothing of this project's dependencies. Work that a layer of DGL
would repeat at every step without need (inserting self-loops, counting degrees, checking for nodes without edges) is
done before. Where the definitions differ, the twin is built so that numbers are equal:

- GCN: GraphConv's norm="both" takes out-degrees on the source's side, PyG in-degrees on both, and counts degrees at
  every call. So degrees are counted once, and GraphConv runs with norm="none" between two scalings of node rows.
- GAT, GATv2: PyG inserts self-loops, which the graph has here already; its softmax adds 1e-16 to the denominator, DGL's
  nothing; GATv2Conv of DGL has no bias after the sum (PyG's is 0 at the start, and its gradient is not compared).
- MoNet: DGL keeps 1 / sigma, PyG sigma (whose gradient is not compared); DGL's residual for equal widths is the row
  itself, PyG's is a linear map of it, which is added outside.
- EdgeConv: theta works on x_v - x_u, so its weight is PyG's with the sign changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import ClassVar

import dgl
import dgl.nn as dglnn
import torch
import torch.nn.functional as F
from dgl import DGLGraph
from torch import Tensor, nn

from bench.specs import USER_DEFINED, Spec
from bench.udf_layers import LAYERS, SELF_LOOPS, Stack

Weights = Mapping[str, Tensor]
"""state_dict of the PyG model: names begin with `layers.<i>.`."""


class Twin(nn.Module):
    """One layer. `names` maps the name of a parameter of PyG's layer to the name of its counterpart."""

    names: ClassVar[Mapping[str, str]] = {}

    def pyg_grads(self) -> dict[str, Tensor]:
        """The gradients that can be compared, by PyG's names."""
        own = dict(self.named_parameters())
        grads = {theirs: own[mine].grad for theirs, mine in self.names.items()}
        return {name: grad for name, grad in grads.items() if grad is not None}

    def take(self, weights: Weights, prefix: str) -> None:
        """Copies the weights of the PyG layer."""
        own = dict(self.named_parameters())
        with torch.no_grad():
            for theirs, mine in self.names.items():
                own[mine].copy_(weights[prefix + theirs].reshape(own[mine].shape))


class Gcn(Twin):
    names: ClassVar = {"lin.weight": "weight", "bias": "bias"}

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = dglnn.GraphConv(inputs, outputs, norm="none", weight=False, bias=False, allow_zero_in_degree=True)
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, graph: DGLGraph, x: Tensor) -> Tensor:
        scale = graph.ndata["norm"]
        return self.conv(graph, (x @ self.weight.t()) * scale) * scale + self.bias


class Sage(Twin):
    names: ClassVar = {
        "lin_l.weight": "conv.fc_neigh.weight",
        "lin_l.bias": "conv.fc_self.bias",
        "lin_r.weight": "conv.fc_self.weight",
    }

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = dglnn.SAGEConv(inputs, outputs, "mean")

    def forward(self, graph: DGLGraph, x: Tensor) -> Tensor:
        return self.conv(graph, x)


class Gin(Twin):
    names: ClassVar = {f"nn.{i}.{kind}": f"conv.apply_func.{i}.{kind}" for i in (0, 2) for kind in ("weight", "bias")}

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        mlp = nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs))
        self.conv = dglnn.GINConv(mlp, "sum")

    def forward(self, graph: DGLGraph, x: Tensor) -> Tensor:
        return self.conv(graph, x)


class Gat(Twin):
    names: ClassVar = {
        "lin.weight": "conv.fc.weight",
        "att_src": "conv.attn_l",
        "att_dst": "conv.attn_r",
        "bias": "conv.bias",
    }

    def __init__(self, inputs: int, heads: int, channels: int) -> None:
        super().__init__()
        self.conv = dglnn.GATConv(inputs, channels, heads, allow_zero_in_degree=True)

    def forward(self, graph: DGLGraph, x: Tensor) -> Tensor:
        return self.conv(graph, x).flatten(1)


class Gatv2(Twin):
    names: ClassVar = {
        "lin_l.weight": "conv.fc_src.weight",
        "lin_l.bias": "conv.fc_src.bias",
        "lin_r.weight": "conv.fc_dst.weight",
        "lin_r.bias": "conv.fc_dst.bias",
        "att": "conv.attn",
    }

    def __init__(self, inputs: int, heads: int, channels: int) -> None:
        super().__init__()
        self.conv = dglnn.GATv2Conv(inputs, channels, heads, allow_zero_in_degree=True)

    def forward(self, graph: DGLGraph, x: Tensor) -> Tensor:
        return self.conv(graph, x).flatten(1)


class Monet(Twin):
    names: ClassVar = {"mu": "conv.mu", "root.weight": "root.weight", "bias": "conv.bias"}

    def __init__(self, inputs: int, outputs: int, pseudo: int, kernels: int) -> None:
        super().__init__()
        self.conv = dglnn.GMMConv(inputs, outputs, pseudo, kernels, "mean", allow_zero_in_degree=True)
        self.root = nn.Linear(inputs, outputs, bias=False)

    def take(self, weights: Weights, prefix: str) -> None:
        super().take(weights, prefix)
        with torch.no_grad():
            self.conv.fc.weight.copy_(weights[prefix + "g"].t())
            self.conv.inv_sigma.copy_(1 / weights[prefix + "sigma"])

    def pyg_grads(self) -> dict[str, Tensor]:
        return {**super().pyg_grads(), "g": self.conv.fc.weight.grad.t().contiguous()}

    def forward(self, graph: DGLGraph, x: Tensor) -> Tensor:
        return self.conv(graph, x, graph.edata["pseudo"]) + self.root(x)


class EdgeConv(Twin):
    """The linear message W [x_v, x_u - x_v] + b."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = dglnn.EdgeConv(inputs, outputs, allow_zero_in_degree=True)

    def take(self, weights: Weights, prefix: str) -> None:
        weight, bias = weights[prefix + "nn.weight"], weights[prefix + "nn.bias"]
        half = weight.size(1) // 2
        with torch.no_grad():
            self.conv.phi.weight.copy_(weight[:, :half])
            self.conv.theta.weight.copy_(-weight[:, half:])
            self.conv.theta.bias.copy_(bias)
            self.conv.phi.bias.zero_()

    def pyg_grads(self) -> dict[str, Tensor]:
        phi, theta = self.conv.phi.weight.grad, self.conv.theta.weight.grad
        return {"nn.weight": torch.cat([phi, -theta], 1), "nn.bias": self.conv.theta.bias.grad}

    def forward(self, graph: DGLGraph, x: Tensor) -> Tensor:
        return self.conv(graph, x)


class Layers(nn.Module):
    """Layers with ReLU between them."""

    def __init__(self, *layers: Twin) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self._twins = layers

    def forward(self, graph: DGLGraph, x: Tensor, y: Tensor | None = None) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(graph, x if i == 0 else x.relu())
        return x

    def loss(self, graph: DGLGraph, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self(graph, x), y)

    def take(self, weights: Weights) -> None:
        for i, layer in enumerate(self._twins):
            layer.take(weights, f"layers.{i}.")

    def pyg_grads(self) -> dict[str, Tensor]:
        return {
            f"layers.{i}.{name}": grad
            for i, layer in enumerate(self._twins)
            for name, grad in layer.pyg_grads().items()
        }


class UserDefined(nn.Module):
    """Layers of `bench.udf_layers`, whose parameters have PyG's names already."""

    def __init__(self, model: Stack) -> None:
        super().__init__()
        self.model = model

    def forward(self, graph: DGLGraph, x: Tensor, y: Tensor) -> Tensor | tuple[Tensor, ...]:
        return self.model(graph, x, y)

    def loss(self, graph: DGLGraph, x: Tensor, y: Tensor) -> Tensor:
        return self.model.loss(graph, x, y)

    def take(self, weights: Weights) -> None:
        self.model.load_state_dict(dict(weights))

    def pyg_grads(self) -> dict[str, Tensor]:
        return {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}


def model_of(spec: Spec, layer: str, inputs: int) -> Layers | UserDefined:
    """The layers of a Spec, of the kind `layer`."""
    if layer.startswith(USER_DEFINED):
        return UserDefined(LAYERS[layer.removeprefix(USER_DEFINED)](inputs))
    heads = spec.heads
    kinds: dict[str, Callable[[int, int], Twin]] = {
        "gcn": Gcn,
        "sage": Sage,
        "gin": Gin,
        "gat": lambda i, o: Gat(i, heads, o // heads),
        "gatv2": lambda i, o: Gatv2(i, heads, o // heads),
        "monet": lambda i, o: Monet(i, o, spec.pseudo, spec.kernels),
        "edgeconv": EdgeConv,
    }
    return Layers(*(kinds[layer](i, o) for i, o in pairwise((inputs, *spec.widths))))


_SELF_LOOPS = ("gcn", "gat", "gatv2", *(f"udf-{name}" for name in SELF_LOOPS))


def graph_of(model: str, case: Mapping[str, Tensor]) -> DGLGraph:
    """The graph with every format built and the fields that the layers read."""
    nodes = case["x"].size(0)
    graph = dgl.graph((case["edge_index"][0], case["edge_index"][1]), num_nodes=nodes)
    if model in _SELF_LOOPS:
        graph = dgl.add_self_loop(dgl.remove_self_loop(graph))
    if model in ("gcn", "udf-gcn"):
        graph.ndata["norm"] = graph.in_degrees().float().rsqrt().unsqueeze(1)
    if "edge_attr" in case:
        graph.edata["pseudo"] = case["edge_attr"]
    graph.create_formats_()
    return graph
