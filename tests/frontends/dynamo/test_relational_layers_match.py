"""PyG's relational layers, compiled, equal eager ones in float64, with every gradient, for every decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import graphweave
from tests.support import assert_matches, by_default
from tests.typed_spellings import GRAPHS, TypedEdges

pytestmark = pytest.mark.usefixtures("fresh_compiler")

RELATIONS, IN, OUT, HEADS, ATTR = 6, 12, 8, 2, 3


def _usual(graph: TypedEdges) -> TypedEdges:
    """Types up to `RELATIONS`."""
    return graph._replace(types=RELATIONS, etype=graph.etype % RELATIONS)


LAYER_GRAPHS = tuple(_usual(graph) for graph in GRAPHS if graph.name != "many types")
SOME = tuple(graph for graph in LAYER_GRAPHS if graph.name in ("usual", "no edges", "one edge", "duplicate pairs",
                                                               "many rows of few types"))  # fmt: skip


def rgat(**options: Any) -> Callable[[], nn.Module]:
    return lambda: pyg.RGATConv(IN, OUT, RELATIONS, heads=HEADS, **options)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "fast-rgcn": lambda: pyg.FastRGCNConv(IN, OUT, RELATIONS),
    "fast-rgcn-bases": lambda: pyg.FastRGCNConv(IN, OUT, RELATIONS, num_bases=2),
    "fast-rgcn-blocks": lambda: pyg.FastRGCNConv(IN, OUT, RELATIONS, num_blocks=2),
    "fast-rgcn-sum": lambda: pyg.FastRGCNConv(IN, OUT, RELATIONS, aggr="add", root_weight=False),
    "rgcn": lambda: pyg.RGCNConv(IN, OUT, RELATIONS),
    "rgcn-bases": lambda: pyg.RGCNConv(IN, OUT, RELATIONS, num_bases=2),
    "rgcn-blocks": lambda: pyg.RGCNConv(IN, OUT, RELATIONS, num_blocks=2),
    "rgat": rgat(),
    "rgat-within": rgat(attention_mechanism="within-relation"),
    "rgat-multiplicative": rgat(attention_mode="multiplicative-self-attention", dim=2),
    "rgat-multiplicative-within": rgat(
        attention_mode="multiplicative-self-attention", attention_mechanism="within-relation", concat=False
    ),
    "rgat-bases": rgat(num_bases=3),
    "rgat-blocks": rgat(num_blocks=2),
    "rgat-attr": rgat(edge_dim=ATTR),
    "rgat-attr-blocks": rgat(edge_dim=ATTR, num_blocks=4, concat=False),
    "rgat-additive": rgat(mod="additive"),
    "rgat-scaled": rgat(mod="scaled"),
    "rgat-f-additive-within": rgat(mod="f-additive", attention_mechanism="within-relation"),
}  # fmt: skip

USUAL = ("fast-rgcn",)
DECIDED: dict[str, Mapping[str, Any]] = {
    "neither": {"compact": False, "reorder": False},
    "compact": {"compact": True, "reorder": False},
    "reorder": {"compact": False, "reorder": True},
    "both": {"compact": True, "reorder": True},
    "always": {"recompute": "always"},
    "never": {"recompute": "never", "compact": True, "reorder": True},
    "verify": {"verify": True, "compact": True, "reorder": True},
}


def spread(layer: nn.Module) -> nn.Module:
    """The layer in float64 with signed and spread parameters: no bias is 0, no scale 1."""
    layer = layer.double()
    generator = torch.Generator().manual_seed(5)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.5 + 0.1
    return layer


def check(name: str, graphs: tuple[TypedEdges, ...], options: Mapping[str, Any] | None = None) -> None:
    layer = spread(LAYERS[name]())
    compiled = graphweave.compile(layer, options=options)
    for graph in graphs:
        generator = torch.Generator().manual_seed(6)
        x = torch.randn(graph.nodes, IN, generator=generator, dtype=torch.float64)
        attr = (torch.randn(len(graph.src), ATTR, generator=generator, dtype=torch.float64),) * ("attr" in name)
        given = x, torch.stack([graph.src, graph.dst]), graph.etype, *attr
        assert_matches(compiled, layer, *given, module=layer, label=graph.name)
    assert graphweave.counters()["eager_fallbacks"] == 0


@pytest.mark.parametrize("name", by_default(LAYERS, *USUAL))
def test_layers(name: str) -> None:
    check(name, LAYER_GRAPHS)


_FAST = {("rgat", "both"), ("fast-rgcn", "compact")}


@pytest.mark.parametrize(
    ("name", "decided"),
    [
        pytest.param(name, decided, marks=() if (name, decided) in _FAST else pytest.mark.slow)
        for name in LAYERS
        for decided in DECIDED
    ],
)
def test_decided(name: str, decided: str) -> None:
    check(name, SOME, DECIDED[decided])


# ---------------------------------------------------------------- several types of nodes

NODES = ("author", "paper", "venue")
EDGES = (("author", "writes", "paper"), ("paper", "cites", "paper"), ("venue", "prints", "paper"),
         ("paper", "by", "author"), ("author", "knows", "author"))  # fmt: skip


class Hgt(nn.Module):
    """PyG's layer as a function of tensors: features and edges in the order of `NODES` and `EDGES`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.HGTConv(IN, OUT, (list(NODES), list(EDGES)), heads=HEADS)

    def forward(self, xs: list[Tensor], edges: list[Tensor]) -> list[Tensor]:
        out = self.conv(dict(zip(NODES, xs, strict=True)), dict(zip(EDGES, edges, strict=True)))
        return [out[name] for name in NODES if out.get(name) is not None]


def hetero(sizes: tuple[int, int, int], edges: tuple[int, ...], seed: int) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    count = dict(zip(NODES, sizes, strict=True))
    xs = [torch.randn(n, IN, generator=generator, dtype=torch.float64) for n in sizes]
    found = [
        torch.stack([torch.randint(count[end], (n,), generator=generator) for end in (src, dst)])
        for (src, _, dst), n in zip(EDGES, edges, strict=True)
    ]
    return xs, found


HETERO = {
    "usual": ((7, 9, 3), (20, 30, 9, 20, 11)),
    "relations without edges": ((7, 9, 3), (20, 0, 0, 5, 0)),
    "one edge each": ((4, 2, 2), (1, 1, 1, 1, 1)),
    "no edges": ((4, 3, 2), (0, 0, 0, 0, 0)),
    "nearly all in one": ((40, 60, 5), (900, 3, 1, 2, 1)),
}


@pytest.mark.slow
def test_relations_without_edges_compile_nothing() -> None:
    """The indices are in a list, in which all get the same kind of strides."""
    layer = spread(Hgt())
    compiled = graphweave.compile(layer)
    for seed, name in enumerate(("usual", "relations without edges", "no edges")):
        sizes, edges = HETERO[name]
        assert_matches(compiled, layer, *hetero(sizes, edges, seed), module=layer, label=name)
    counts = graphweave.counters()
    assert counts["compilations"] == 1 and counts["eager_fallbacks"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("decided", ["", *DECIDED])
def test_hgt(decided: str) -> None:
    layer = spread(Hgt())
    compiled = graphweave.compile(layer, options=DECIDED.get(decided))
    for seed, (name, (sizes, edges)) in enumerate(HETERO.items()):
        assert_matches(compiled, layer, *hetero(sizes, edges, seed), module=layer, label=name)
    assert graphweave.counters()["eager_fallbacks"] == 0
