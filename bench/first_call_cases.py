"""The cases of `bench.first_call`, on small seeded graphs: nearly all of a first call is compilation. Twelve are whole
models; those named `zoo:NAME` are single layers and models of the zoo (`tests.pyg.zoo_cases`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bench.workloads import Layers, WithLoss, mlp
from tests.pyg.zoo_cases import CASES as ZOO
from tests.pyg.zoo_cases import build as build_of_zoo

NODES, EDGES, FEATURES, HIDDEN, CLASSES = 1000, 6000, 64, 64, 7
GRAPHS = 64
RELATIONS = 4


@dataclass(frozen=True, slots=True)
class Case:
    """A module that returns a loss, and its arguments. A module that `evaluates` is also called after `eval()`, without
    gradients."""

    module: nn.Module
    arguments: tuple[Any, ...]
    evaluates: bool = False
    keywords: Mapping[str, Any] = field(default_factory=dict)


class Pooled(nn.Module):
    """The loss of graphs' labels, from the sums of their nodes' features."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.head = model, nn.Linear(HIDDEN, CLASSES)

    def forward(self, y: Tensor, batch: Tensor, x: Tensor, edge_index: Tensor) -> Tensor:
        return F.cross_entropy(self.head(pyg.global_add_pool(self.model(x, edge_index), batch, size=GRAPHS)), y)


class Typed(nn.Module):
    """The mean of a heterogeneous model's squared results over the types of nodes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: dict[str, Tensor], edge_index: dict[tuple[str, str, str], Tensor]) -> Tensor:
        return torch.stack([out.square().mean() for out in self.model(x, edge_index).values()]).mean()


def _edges(sources: int = NODES, targets: int = NODES, count: int = EDGES) -> Tensor:
    return torch.stack([torch.randint(sources, (count,)), torch.randint(targets, (count,))])


def _classify(model: nn.Module, *others: Tensor) -> Case:
    """The loss of nodes' labels."""
    return Case(WithLoss(model), (torch.randint(CLASSES, (NODES,)), torch.randn(NODES, FEATURES), _edges(), *others))


def _batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Labels of graphs, the graph of each node, features and edges within the graphs."""
    size = NODES // GRAPHS
    first = torch.randint(GRAPHS, (EDGES,)) * size
    index = torch.stack([first + torch.randint(size, (EDGES,)), first + torch.randint(size, (EDGES,))])
    batch = torch.arange(GRAPHS).repeat_interleave(size)
    return torch.randint(CLASSES, (GRAPHS,)), batch, torch.randn(GRAPHS * size, FEATURES), index


def _gin() -> Case:
    """Five layers with batch norms on a batch of graphs: a training step and an evaluation."""
    return Case(Pooled(pyg.GIN(FEATURES, HIDDEN, 5, norm="batch_norm")), _batch(), evaluates=True)


def _to_hetero() -> Case:
    """SAGE of two layers on two types of nodes with four relations."""
    kinds = [("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "by", "author"),
             ("author", "knows", "author")]  # fmt: skip
    counts = {"paper": NODES, "author": NODES // 2}
    model = pyg.to_hetero(pyg.GraphSAGE(FEATURES, HIDDEN, 2, CLASSES), ([*counts], kinds))
    x = {name: torch.randn(rows, FEATURES) for name, rows in counts.items()}
    return Case(Typed(model), (x, {kind: _edges(counts[kind[0]], counts[kind[2]]) for kind in kinds}))


def _rgcn() -> Case:
    layers = pyg.RGCNConv(FEATURES, HIDDEN, RELATIONS), pyg.RGCNConv(HIDDEN, CLASSES, RELATIONS)
    return _classify(Layers(*layers), torch.randint(RELATIONS, (EDGES,)))


def _relations(count: int) -> Case:
    """A layer of SAGE for each relation of two types of nodes."""
    counts = {"paper": NODES, "author": NODES // 2}
    kinds = [(("paper", "author")[i % 2], f"r{i}", ("paper", "author")[i // 2 % 2]) for i in range(count)]
    model = pyg.HeteroConv({kind: pyg.SAGEConv((FEATURES, FEATURES), HIDDEN) for kind in kinds})
    x = {name: torch.randn(rows, FEATURES) for name, rows in counts.items()}
    return Case(Typed(model), (x, {kind: _edges(counts[kind[0]], counts[kind[2]]) for kind in kinds}))


def _gps(count: int = 2) -> Case:
    """GraphGPS: message passing by GIN, and attention among all nodes of a graph."""
    layers = (pyg.GPSConv(HIDDEN, pyg.GINConv(mlp(HIDDEN, HIDDEN)), heads=4) for _ in range(count))
    return Case(Pooled(Layers(*layers)), _batch())


def _pna() -> Case:
    options = {"aggregators": ["mean", "max", "std"], "scalers": ["identity", "amplification"]}
    degrees = torch.bincount(torch.bincount(_edges()[1], minlength=NODES))
    return _classify(pyg.PNA(FEATURES, HIDDEN, 2, CLASSES, deg=degrees, **options))


def _edge_conv() -> Case:
    return _classify(Layers(pyg.EdgeConv(mlp(2 * FEATURES, HIDDEN)), pyg.EdgeConv(mlp(2 * HIDDEN, CLASSES))))


def _transformer() -> Case:
    layers = pyg.TransformerConv(FEATURES, HIDDEN // 4, heads=4), pyg.TransformerConv(HIDDEN, CLASSES)
    return _classify(Layers(*layers))


CASES: dict[str, Callable[[], Case]] = {
    "gcn-2": lambda: _classify(pyg.GCN(FEATURES, HIDDEN, 2, CLASSES)),
    "gat-2": lambda: _classify(pyg.GAT(FEATURES, HIDDEN, 2, CLASSES, heads=4)),
    "sage-2": lambda: _classify(pyg.GraphSAGE(FEATURES, HIDDEN, 2, CLASSES)),
    "gin-5": _gin,
    "to-hetero": _to_hetero,
    "rgcn-2": _rgcn,
    "gps-2": _gps,
    "gcn-20": lambda: _classify(pyg.GCN(FEATURES, HIDDEN, 20, CLASSES)),
    "pna-2": _pna,
    "edge-conv-2": _edge_conv,
    "transformer-2": _transformer,
    "gatv2-2": lambda: _classify(pyg.GAT(FEATURES, HIDDEN, 2, CLASSES, heads=4, v2=True)),
}
"""Twelve whole models."""

EQUAL_LAYERS: dict[str, Callable[[], Case]] = {
    "gcn-10": lambda: _classify(pyg.GCN(FEATURES, HIDDEN, 10, CLASSES)),
    "gcn-100": lambda: _classify(pyg.GCN(FEATURES, HIDDEN, 100, CLASSES)),
    "gps-10": lambda: _gps(10),
    "relations-104": lambda: _relations(104),
}
"""Models of many equal layers, which show how the first call grows with their number."""

ZOO_PREFIX = "zoo:"


def sample_of_zoo(count: int) -> list[str]:
    """`count` cases spread evenly over the zoo, in its order."""
    names = [ZOO_PREFIX + name for name in ZOO]
    return [names[i * len(names) // count] for i in range(count)]


class Squared(nn.Module):
    """The mean of the squared results of a module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        results = pytree.tree_leaves(self.module(*args, **kwargs))
        floats = [r for r in results if isinstance(r, Tensor) and r.is_floating_point()]
        return torch.stack([r.square().mean() for r in floats]).mean()


def build(name: str) -> Case:
    """A case, the same at every call."""
    if name.startswith(ZOO_PREFIX):
        built = build_of_zoo(name.removeprefix(ZOO_PREFIX))
        return Case(Squared(built.module), built.args, keywords=built.kwargs)
    torch.manual_seed(0)
    return (CASES | EQUAL_LAYERS)[name]()
