"""PyG's own relational classes, unchanged: eager, and with the training step compiled by graphweave.

    python -m bench.pyg_modules [--graphs aifb mutag bgs het_acm ...] [--models hgt han rgcn ...] [--modes infer train]
                                [--cases NAME ...] [--repeats 7] [--threads 2] [--out FILE] [--resume]

Graphs are those of `bench.relational`, and the typed graphs `het_*.npz`, each with the reverse of every relation. All
nodes have 64 random features and labels of 64 classes. Models have 64 channels; attention has 4 heads; `to_hetero`
turns two layers for graphs without types into one for each relation. `infer` is a forward pass without gradients,
`train` the forward, the cross entropy over all nodes and the backward for all weights. Both return the loss.
"""

from __future__ import annotations

import copy
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from statistics import geometric_mean
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import graphweave
from bench import relational_graphs
from bench.case import EXACT, Bench, Case, Check, Peers
from bench.graphs import data_dir
from bench.options import Among
from bench.runner import run
from bench.steps import MODES, ModelStep, Step

WIDTH, HEADS, BLOCKS = 64, 4, 4
TOLERANCE = 2e-4
"""Error of float32 results relative to their largest number. Sums over a hub's edges are the longest."""

HET = ("het_acm", "het_imdb", "het_aminer", "het_freebase_movie", "het_ogbn_mag_10pct")
GRAPHS = ("aifb", "mutag", "bgs", "rdf_aifb", *HET)


class Typed:
    """A graph with types: numbers of nodes by type, edges by relation, and the same with all nodes in one space."""

    def __init__(self, counts: Mapping[str, int], edges: Mapping[tuple[str, str, str], Tensor]) -> None:
        self.counts, self.edges = dict(counts), dict(edges)
        generator = torch.Generator().manual_seed(0)
        self.x = {name: torch.randn(count, WIDTH, generator=generator) for name, count in counts.items()}
        self.y = {name: torch.randint(WIDTH, (count,), generator=generator) for name, count in counts.items()}
        first = dict(zip(counts, np.cumsum([0, *counts.values()])[:-1].tolist(), strict=True))
        shifted = [e + torch.tensor([[first[s]], [first[d]]]) for (s, _, d), e in edges.items()]
        self.edge_index = torch.cat(shifted, 1)
        sizes = torch.tensor([e.size(1) for e in shifted])
        self.etype = torch.repeat_interleave(torch.arange(len(shifted)), sizes)

    @property
    def metadata(self) -> tuple[list[str], list[tuple[str, str, str]]]:
        return list(self.counts), list(self.edges)


def graph_of(name: str) -> Typed:
    if not name.startswith("het_"):
        case = relational_graphs.make(name, data_dir())
        counts = {f"n{t}": count for t, count in enumerate(case.counts.tolist())}
        relations = zip(case.ends.tolist(), case.by_relation(), strict=True)
        edges = {(f"n{s}", f"r{r}", f"n{d}"): e for r, ((s, d), e) in enumerate(relations)}
        return Typed(counts, edges)
    with np.load(data_dir() / f"{name}.npz") as file:
        counts = dict(zip(file["node_type_names"].tolist(), file["node_counts"].tolist(), strict=True))
        edges = {}
        for text in file["edge_type_names"].tolist():
            source, relation, target = text.split("|")
            ends = [torch.from_numpy(file[f"edge_{relation}_{end}"].astype(np.int64)) for end in ("src", "dst")]
            edges[source, relation, target] = torch.stack(ends)
            edges[target, f"rev_{relation}", source] = torch.stack(ends[::-1])
    return Typed(counts, edges)


class ByType(nn.Module):
    """The loss of a layer that takes and gives dictionaries by type. A type without results has no part in it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: dict[str, Tensor], edges: dict[Any, Tensor], y: dict[str, Tensor]) -> Tensor:
        out = {name: rows for name, rows in self.layer(x, edges).items() if rows is not None}
        return F.cross_entropy(torch.cat(list(out.values())), torch.cat([y[name] for name in out]))


class Joined(nn.Module):
    """The loss of a layer that takes all nodes as one tensor, and the type of each edge."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, edge_index: Tensor, etype: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.layer(x, edge_index, etype), y)


class TwoLayers(nn.Module):
    """Two layers for a graph without types, to be turned into one for each relation by `to_hetero`."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = make(), make()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


def hetero(typed: Typed, make: Callable[[], nn.Module]) -> nn.Module:
    return pyg.to_hetero(TwoLayers(make), typed.metadata, aggr="sum")


def sage() -> nn.Module:
    return pyg.SAGEConv((WIDTH, WIDTH), WIDTH)


def gat() -> nn.Module:
    return pyg.GATConv((WIDTH, WIDTH), WIDTH // HEADS, heads=HEADS, add_self_loops=False)


def convs(typed: Typed, make: Callable[[], nn.Module]) -> nn.Module:
    layers: dict[Any, Any] = {relation: make() for relation in typed.edges}
    return pyg.HeteroConv(layers, aggr="sum")


Make = Callable[[Typed], nn.Module]

BY_TYPE: dict[str, Make] = {
    "hgt": lambda g: pyg.HGTConv(WIDTH, WIDTH, g.metadata, heads=HEADS),
    "han": lambda g: pyg.HANConv(WIDTH, WIDTH, g.metadata, heads=HEADS),
    "hetero-sage": lambda g: convs(g, sage),
    "hetero-gat": lambda g: convs(g, gat),
    "to-hetero-sage": lambda g: hetero(g, sage),
    "to-hetero-gat": lambda g: hetero(g, gat),
}
"""Model -> PyG's class over dictionaries by type."""

JOINED: dict[str, Make] = {
    "rgcn": lambda g: pyg.RGCNConv(WIDTH, WIDTH, len(g.edges)),
    "rgcn-bases": lambda g: pyg.RGCNConv(WIDTH, WIDTH, len(g.edges), num_bases=8),
    "rgcn-blocks": lambda g: pyg.RGCNConv(WIDTH, WIDTH, len(g.edges), num_blocks=BLOCKS),
    "rgat": lambda g: pyg.RGATConv(WIDTH, WIDTH, len(g.edges)),
}
"""Model -> PyG's class over all nodes as one tensor."""

MODELS = (*BY_TYPE, *JOINED)


def build(model: str, graph: str, mode: str) -> Peers:
    torch.manual_seed(0)
    typed = graph_of(graph)
    by_type = model in BY_TYPE
    module: nn.Module = ByType(BY_TYPE[model](typed)) if by_type else Joined(JOINED[model](typed))
    x, y = (torch.cat(list(rows.values())) for rows in (typed.x, typed.y))
    given: Any = (typed.x, typed.edges, typed.y) if by_type else (x, typed.edge_index, typed.etype, y)

    def exact() -> Step:
        wide = tree_map(lambda t: t.double() if t.is_floating_point() else t, given)
        double = copy.deepcopy(module).double()
        return ModelStep(double, mode, partial(double, *wide), partial(double, *wide))

    def prepared(make: Callable[[nn.Module], Callable[..., Any]]) -> Step:
        made = make(module)
        return ModelStep(module, mode, partial(made, *given), partial(made, *given))

    makers: Peers = {"eager": partial(prepared, lambda m: m), "graphweave": partial(prepared, graphweave.compile)}
    return {**makers, EXACT: exact}


def counted(peer: str, step: Step) -> dict[str, Any]:
    """graphweave's counters over all calls."""
    return {"counters": {name: n for name, n in graphweave.counters().items() if n}} if peer == "graphweave" else {}


def missing(graph: str) -> str | None:
    if not graph.startswith("het_"):
        return relational_graphs.missing(graph, data_dir())
    file = data_dir() / f"{graph}.npz"
    return None if file.is_file() else f"{file} is absent"


def show(results: Mapping[str, Any], options: Namespace) -> None:
    for mode in options.modes:
        pairs = [found for name, found in results.items() if name.endswith(f" {mode}")]
        times = [[found.get(peer, {}).get("median") for peer in ("eager", "graphweave")] for found in pairs]
        ratios = [eager / ours for eager, ours in times if eager and ours]
        if ratios:
            least = f"least {min(ratios):.1f}, {len(ratios)} cases"
            print(f"{mode}: geometric mean {geometric_mean(ratios):.1f}, {least}")


def cases(options: Namespace) -> Iterator[Case]:
    check = Check(TOLERANCE, exact=True)
    for graph in options.graphs:
        for model in options.models:
            for mode in options.modes:
                sizes = {"model": model, "graph": graph, "mode": mode}
                yield Case(
                    f"{model} {graph} {mode}", build, ("eager", "graphweave"), check, sizes, {"graph": "tiny"},
                    notes=counted, missing=None if options.quick else missing(graph),
                )  # fmt: skip


BENCH = Bench(
    "bench.pyg_modules", __doc__, cases, {"graphs": Among(GRAPHS), "models": Among(MODELS), "modes": Among(MODES)},
    apart=True, repeats=7, slow=4.0, show=show,
    columns={"kernels, all calls": lambda found, one: str(one.get("counters", {}).get("kernel_launches", ""))},
)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
