"""The models that the benchmarks train, the systems that run them, and the training step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.utils import softmax

import graphweave
from bench.graphs import GRAPHS, POINT_SETS, Workload
from bench.specs import ON_POINTS, SPECS, Spec
from bench.steps import drop_gradients
from graphweave.points import knn_graph


class Layers(nn.Module):
    """Convolutions with ReLU between them. `edge_attr`, if given, goes to each."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, edge_index: Tensor, *edge_attr: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(x if i == 0 else x.relu(), edge_index, *edge_attr)
        return x


class ConcatenatedGat(nn.Module):
    """GAT without self-loops, as its paper writes it: the attention is a product with both ends' features of an edge.

    PyG's layer has that product with the features of nodes, which is what a reorganisation of operators finds.
    """

    def __init__(self, inputs: int, features: int, heads: int) -> None:
        super().__init__()
        self.lin = nn.Linear(inputs, heads * features, bias=False)
        self.att = nn.Parameter(torch.randn(heads, 2 * features) / features**0.5)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        h = self.lin(x).view(x.size(0), self.att.size(0), -1)
        score = F.leaky_relu((torch.cat([h[src], h[dst]], -1) * self.att).sum(-1), 0.2)
        share = softmax(score, dst, num_nodes=x.size(0)).unsqueeze(-1)
        return torch.zeros_like(h).index_add(0, dst, h[src] * share).flatten(1)


class OnPoints(Layers):
    """Layers over the graph of the `k` points that are nearest to each, itself among them, which each call searches."""

    def __init__(self, k: int, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.k = k

    def forward(self, x: Tensor, batch: Tensor, *edge_attr: Tensor) -> Tensor:
        return super().forward(x, knn_graph(x, self.k, batch, loop=True), *edge_attr)


class WithLoss(nn.Module):
    """Mean cross entropy of a model's logits over every node."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, y: Tensor, *inputs: Tensor) -> Tensor:
        return F.cross_entropy(self.model(*inputs), y)


@dataclass(frozen=True, slots=True)
class Model:
    """`make(input width)` builds the model. `points`: it runs on k-NN graphs only. `pseudo`: see Workload."""

    make: Callable[[int], nn.Module]
    points: bool = False
    pseudo: bool = False

    @property
    def graphs(self) -> tuple[str, ...]:
        return tuple(POINT_SETS) if self.points else GRAPHS


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs))


def layers_of(spec: Spec, inputs: int) -> Layers:
    """PyG's layers, but for gat-concatenated. They cache nothing between steps: GCN normalises in every one."""
    heads = spec.heads
    kinds: dict[str, Callable[[int, int], nn.Module]] = {
        "gcn": pyg.GCNConv,
        "sage": pyg.SAGEConv,
        "gin": lambda i, o: pyg.GINConv(mlp(i, o)),
        "gat": lambda i, o: pyg.GATConv(i, o // heads, heads=heads),
        "gat-concatenated": lambda i, o: ConcatenatedGat(i, o // heads, heads),
        "gatv2": lambda i, o: pyg.GATv2Conv(i, o // heads, heads=heads),
        "transformer": lambda i, o: pyg.TransformerConv(i, o // heads, heads=heads),
        "monet": lambda i, o: pyg.GMMConv(i, o, spec.pseudo, spec.kernels),
        "edgeconv": lambda i, o: pyg.EdgeConv(nn.Linear(2 * i, o)),
        "edgeconv-mlp": lambda i, o: pyg.EdgeConv(mlp(2 * i, o)),
    }
    kind = kinds[spec.layer.removesuffix(ON_POINTS)]
    layers = (kind(i, o) for i, o in pairwise((inputs, *spec.widths)))
    return Layers(*layers) if spec.on_points is None else OnPoints(spec.on_points[2], *layers)


MODELS: dict[str, Model] = {
    name: Model(partial(layers_of, spec), points=name.startswith("edgeconv"), pseudo=name == "monet")
    for name, spec in SPECS.items()
}

COMPILERS: dict[str, Callable[[nn.Module], Callable[..., Tensor]]] = {
    "eager": lambda model: model,
    "inductor": lambda model: torch.compile(model, dynamic=False),
    "inductor-autotune": lambda model: torch.compile(model, dynamic=False, mode="max-autotune"),
    "graphweave": graphweave.compile,
    "plain": lambda model: torch.compile(model, backend="graphweave", dynamic=True),
    "graphweave-always": partial(graphweave.compile, options={"recompute": "always"}),
}
"""System -> the function with which its user compiles a model. inductor compiles for static sizes, its faster setting,
and inductor-autotune also measures several forms of each product.

plain is graphweave as a backend of torch.compile.
graphweave-always recomputes all that it can for the backward: less memory, more time."""


THP = "THP_MEM_ALLOC_ENABLE"
"""PyTorch's switch for huge pages in its CPU allocator, read when torch is loaded."""


def training_step(system: str, model: nn.Module, *, compile_loss: bool) -> Callable[[Workload], Tensor]:
    """A function that runs one step: forward, cross entropy over every node, backward into fresh gradients.

    There is no optimiser, because it would be the same for all systems. With `compile_loss` a compiled system gets the
    loss and the model as one function, as its user would write it; without, it gets the model, and eager PyTorch
    computes the loss. Eager mode runs the same calls either way. The step returns the loss, detached.
    """
    compiler = COMPILERS[system]
    if compile_loss:
        loss_of = compiler(WithLoss(model))
    else:
        logits = compiler(model)

        def loss_of(y: Tensor, *inputs: Tensor) -> Tensor:
            return F.cross_entropy(logits(*inputs), y)

    def step(work: Workload) -> Tensor:
        drop_gradients(model)
        loss = loss_of(work.y, *work.inputs)
        loss.backward()
        return loss.detach()

    return step
