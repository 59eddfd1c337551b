"""PyG's own relational classes, unchanged: eager, and with the training step compiled by graphweave.

    python -m bench.pyg_modules [--graphs aifb mutag bgs het_acm ...] [--models hgt han rgcn ...] [--modes infer train]
                                [--repeats 7] [--threads 2] [--seconds 60] [--out FILE]

Graphs are those of `bench.relational`, and the typed graphs `het_*.npz`, each with the reverse of every relation. All
nodes have 64 random features and labels of 64 classes. Models have 64 channels; attention has 4 heads; `to_hetero`
turns two layers for graphs without types into one for each relation. `infer` is a forward pass without gradients,
`train` the forward, the cross entropy over all nodes and the backward for all weights.

Each case runs in a process of its own. There, loss and gradients are compared with eager mode in float64 before both
systems take turns; a case that is wrong is not timed. A case is left out if its eager step takes more than `--seconds`.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from statistics import geometric_mean
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import graphweave
from bench import relational_graphs
from bench.common import in_fresh_process, interleaved, seconds_of
from bench.graphs import data_dir
from bench.options import Among, options_from
from bench.record import Record

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


def graph(name: str) -> Typed:
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


def error(found: Sequence[Tensor | None], want: Sequence[Tensor | None]) -> float:
    """The largest error of several tensors, each relative to the largest number of the wanted one."""
    worst = 0.0
    for a, b in zip(found, want, strict=True):
        if b is not None and b.numel():
            got = torch.zeros_like(b) if a is None else a.double()
            worst = max(worst, float((got - b).abs().max() / b.abs().max().clamp(min=1e-3)))
    return worst


def gradients(module: nn.Module, loss: Tensor) -> list[Tensor | None]:
    """The loss and the gradients of all parameters."""
    module.zero_grad()
    loss.backward()
    return [loss.detach(), *(None if p.grad is None else p.grad.clone() for p in module.parameters())]


def measure(name: str, model: str, modes: Sequence[str], repeats: int, threads: int, seconds: float) -> dict[str, Any]:
    """Errors, times and counters of one model on one graph."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    typed = graph(name)
    by_type = model in BY_TYPE
    module: nn.Module = ByType(BY_TYPE[model](typed)) if by_type else Joined(JOINED[model](typed))
    parts = [torch.cat(list(rows.values())) for rows in (typed.x, typed.y)]
    given: Any = (typed.x, typed.edges, typed.y) if by_type else (parts[0], typed.edge_index, typed.etype, parts[1])
    first = seconds_of(lambda: gradients(module, module(*given)))
    if first > seconds:
        return {"status": f"an eager step takes {first:.0f} s"}
    double = copy.deepcopy(module).double()
    wide = torch.utils._pytree.tree_map(lambda t: t.double() if t.is_floating_point() else t, given)
    want = gradients(double, double(*wide))
    compiled = graphweave.compile(module)
    graphweave.reset_counters()
    out: dict[str, Any] = {"status": "ok", "modes": {}}
    out["first"] = seconds_of(lambda: gradients(module, compiled(*given)))
    out["counters"] = {name: n for name, n in graphweave.counters().items() if n}
    out["error"], out["eager_error"] = (error(gradients(module, f(*given)), want) for f in (compiled, module))
    if not out["error"] < max(TOLERANCE, 4 * out["eager_error"]):
        return {**out, "status": "wrong"}

    def step(run: nn.Module, mode: str) -> None:
        if mode == "infer":
            with torch.no_grad():
                run(*given)
        else:
            module.zero_grad()
            run(*given).backward()

    for mode in modes:
        calls = {s: lambda run=run: step(run, mode) for s, run in (("eager", module), ("graphweave", compiled))}  # noqa: B023
        slow = min(repeats, max(1, math.ceil(seconds / max(first, 1e-3) / 2)))
        times = interleaved(calls, repeats=slow, warmup=2 if first < 1 else 1)
        out["modes"][mode] = {system: asdict(timing) for system, timing in times.items()}
    return out


def show(cases: Mapping[str, Any]) -> None:
    table = Table("case", "mode", "eager ms", "graphweave ms", "ratio", "first s", "kernels", "calls left", "error")
    ratios: dict[str, list[float]] = {}
    for case, found in cases.items():
        counters = found.get("counters", {})
        for mode, times in found.get("modes", {}).items():
            eager, ours = (times[system]["median"] for system in ("eager", "graphweave"))
            ratios.setdefault(mode, []).append(eager / ours)
            counts = [str(counters.get(name, 0)) for name in ("kernel_launches", "fallback_calls")]
            table.add_row(
                case, mode, f"{eager * 1e3:.2f}", f"{ours * 1e3:.2f}", f"{eager / ours:.1f}", f"{found['first']:.1f}",
                *counts, f"{found['error']:.1e}",
            )  # fmt: skip
        if found["status"] != "ok":
            table.add_row(case, "", "", "", found["status"])
    console = Console()
    console.print(table)
    for mode, all_of in ratios.items():
        console.print(
            f"{mode}: geometric mean {geometric_mean(all_of):.1f}, least {min(all_of):.1f}, {len(all_of)} cases"
        )


def main(argv: Sequence[str] | None = None) -> int:
    options = options_from(
        argv,
        __doc__,
        graphs=Among(GRAPHS),
        models=Among(MODELS),
        modes=Among(("infer", "train")),
        repeats=7,
        seconds=60.0,
        resume=False,
    )
    given = {key: getattr(options, key) for key in ("modes", "repeats", "threads", "seconds")}
    environment = {"OMP_NUM_THREADS": str(options.threads)}
    pairs = [(name, model) for name in options.graphs for model in options.models]
    show(
        Record(options.out, {"benchmark": "pyg_modules"}, resume=options.resume).fill(
            {
                f"{model} {name}": partial(
                    in_fresh_process, measure, environment, timeout=900, name=name, model=model, **given
                )
                for name, model in pairs
            }
        )
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
