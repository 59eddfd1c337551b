"""Training steps on graphs that are used only once, against eager PyG.

    python -m bench.new_graphs [--cases NAME ...] [--repeats 20] [--threads 2] [--out FILE]

Every step gets tensors of its own, so that nothing that was prepared for an earlier graph can be reused. Making them is
not timed. 64 features, 64 hidden, 64 logits, float32, cross entropy compiled with the model.

- `sage`, `gcn`, `gat` (two layers) on R-MAT graphs of 2,000 nodes and 10,000 edges; 20,000 and 120,000; 100,000 and
  600,000.
- `random-nodes`: PyG's RandomNodeLoader, SAGE and GCN on 16 parts of 100,000 nodes and 600,000 edges.
- `molecules`: collated batches of 128 molecules (lipophilicity, 27 atoms each; about NCI1's size) for GIN with add
  pooling, attention pooling, SAGPooling and TopKPooling.

`python -m bench.sampling` has steps on sampled blocks, `python -m bench.udf --cases build` times the formats of a graph
that was not seen before.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any

import numpy as np
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import RandomNodeLoader

from bench.batches import WARM, step_by_step
from bench.case import Bench, Numbers
from bench.common import ratio_table
from bench.graphs import FEATURES, HIDDEN, data_dir
from bench.runner import run
from bench.workloads import MODELS, WithLoss, mlp
from graphweave.data import rmat

SIZES = ((2_000, 10_000), (20_000, 120_000), (100_000, 600_000))

Batches = list[tuple[Tensor, ...]]
"""Labels, then the arguments of the model."""


def whole_graphs(nodes: int, edges: int, count: int) -> Batches:
    generator = torch.Generator().manual_seed(0)
    made = [rmat(nodes, edges, seed) for seed in range(min(count, 4))]
    x = torch.randn(nodes, FEATURES, generator=generator)
    y = torch.randint(HIDDEN, (nodes,), generator=generator)
    return [(y, x, made[i % len(made)]) for i in range(count)]


def random_parts(count: int) -> Batches:
    y, x, index = whole_graphs(*SIZES[-1], 1)[0]
    loader = RandomNodeLoader(Data(x=x, edge_index=index, y=y), num_parts=16, shuffle=True)
    out: Batches = []
    while len(out) < count:
        out += [(b.y, b.x, b.edge_index) for b in loader]
    return out[:count]


def molecules(count: int, size: int = 128) -> Batches:
    """Collated batches; atoms have 64 random features, graphs one of two classes."""
    file = np.load(data_dir() / "mol_lipophilicity.npz")
    pointer = torch.from_numpy(file["graph_ptr"]).long()
    src, dst = (torch.from_numpy(file[k]).long() for k in ("src", "dst"))
    generator = torch.Generator().manual_seed(0)
    graph_of = torch.bucketize(src, pointer, right=True) - 1
    begin = torch.searchsorted(graph_of, torch.arange(pointer.numel()))
    graphs = [
        Data(
            x=torch.randn(int(b - a), FEATURES, generator=generator),
            edge_index=torch.stack([src[p:q] - a, dst[p:q] - a]),
            y=torch.randint(2, (1,), generator=generator),
        )
        for a, b, p, q in zip(pointer, pointer[1:], begin, begin[1:], strict=False)
    ]
    out: Batches = []
    for _ in range(count):
        chosen = torch.randperm(len(graphs), generator=generator)[:size].tolist()
        batch = Batch.from_data_list([graphs[i] for i in chosen])
        out.append((batch.y, batch.x, batch.edge_index, batch.batch, torch.empty(size, 0)))
    return out


class Pooled(nn.Module):
    """Two GIN layers and a readout. `pool`, if given, drops nodes between the layers."""

    def __init__(self, readout: Callable[..., Tensor], pool: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.second = pyg.GINConv(mlp(FEATURES, HIDDEN)), pyg.GINConv(mlp(HIDDEN, HIDDEN))
        self.pool, self.readout = pool, readout
        self.classify = nn.Linear(HIDDEN, 2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, graphs: Tensor) -> Tensor:
        x = self.first(x, edge_index).relu()
        if self.pool is not None:
            x, edge_index, _, batch, *_ = self.pool(x, edge_index, batch=batch)
        x = self.second(x, edge_index).relu()
        return self.classify(self.readout(x, batch, dim_size=graphs.size(0)))


def _add(x: Tensor, batch: Tensor, dim_size: int) -> Tensor:
    return pyg.global_add_pool(x, batch, dim_size)


POOLS: dict[str, Callable[[], nn.Module]] = {
    "gin": lambda: Pooled(_add),
    "attention": lambda: Pooled(pyg.aggr.AttentionalAggregation(nn.Linear(HIDDEN, 1))),
    "sagpool": lambda: Pooled(_add, pyg.SAGPooling(HIDDEN)),
    "topkpool": lambda: Pooled(_add, pyg.TopKPooling(HIDDEN)),
}


def made(name: str, count: int) -> tuple[nn.Module, Batches]:
    """The model of a case, and its batches."""
    kind, what = name.split()
    torch.manual_seed(0)
    if kind == "molecules":
        return POOLS[what](), molecules(count)
    if kind == "random-nodes":
        return MODELS[what].make(FEATURES), random_parts(count)
    nodes = int(what)
    return MODELS[kind].make(FEATURES), whole_graphs(nodes, dict(SIZES)[nodes], count)


def measure(name: str, repeats: int, threads: int) -> dict[str, Any]:
    """Median seconds of a step, and the compiler's counters."""
    torch.set_num_threads(threads)
    model, batches = made(name, repeats + WARM)
    found = step_by_step(WithLoss(model), fresh(batches), repeats)
    if "status" in found:
        return found
    medians = {name: median(found[name]) for name in ("eager", "graphweave")}
    return {**medians, "counters": found["counters"], "batches": repeats}


def fresh(batches: Batches) -> Iterator[tuple[Tensor, ...]]:
    """Each batch in tensors of its own, so that nothing that was prepared for an earlier graph can be reused."""
    for batch in batches:
        yield tuple(tensor.clone() for tensor in batch)


def show(results: Mapping[str, Any], options: Namespace) -> None:
    rows = [
        [name, f"{1e3 * one['eager']:.2f}", f"{1e3 * one['graphweave']:.2f}",
         f"{one['eager'] / one['graphweave']:.2f}x"]
        if "eager" in one else [name, one["status"]]
        for name, one in results.items()
    ]  # fmt: skip
    title = f"a graph never seen, {options.threads} threads, median"
    ratio_table(title, ["", "eager ms", "graphweave ms", "eager / graphweave"], rows)


def cases(options: Namespace) -> Iterator[Numbers]:
    names = [f"{model} {nodes}" for nodes, _ in SIZES for model in ("sage", "gcn", "gat")]
    names += ["random-nodes sage", "random-nodes gcn", *(f"molecules {name}" for name in POOLS)]
    file = data_dir() / "mol_lipophilicity.npz"
    for name in names:
        missing = f"{file} is absent" if name.startswith("molecules") and not file.is_file() else None
        sizes = {"name": name, "repeats": options.repeats, "threads": options.threads}
        yield Numbers(name, measure, sizes, {"repeats": 1}, missing=missing)


BENCH = Bench("bench.new_graphs", __doc__, cases, repeats=20, show=show)


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
