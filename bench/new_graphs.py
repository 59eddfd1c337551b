"""Training steps on graphs that are used only once, against eager PyG.

    python -m bench.new_graphs [--only NAME ...] [--repeats 20] [--threads 2] [--out FILE]

Every step gets tensors of its own, so that nothing that was prepared for an earlier graph can be reused. Making them is
not timed. 64 features, 64 hidden, 64 logits, float32, cross entropy compiled with the model.

- `sage`, `gcn`, `gat` (two layers) on R-MAT graphs of 2,000 nodes and 10,000 edges; 20,000 and 120,000; 100,000 and
  600,000.
- `random-nodes`: PyG's RandomNodeLoader, SAGE and GCN on 16 parts of 100,000 nodes and 600,000 edges.
- `sampled`: blocks of a neighbour sampler written by hand (1,024 seeds, 10 neighbours, two hops), SAGE.
- `molecules`: collated batches of 128 molecules (lipophilicity, 27 atoms each; about NCI1's size) for GIN with add
  pooling, attention pooling, SAGPooling and TopKPooling.
- `contact`: the formats of both directions of a million random edges among 100,000 nodes, against one eager gather of
  64 floats an edge.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import RandomNodeLoader

import graphweave
from bench.common import ratio_table, save, seconds_of
from bench.graphs import FEATURES, HIDDEN, data_dir
from bench.options import options_from
from bench.workloads import MODELS, WithLoss, mlp
from graphweave.data import rmat
from graphweave.runtime import formats
from graphweave.runtime.index import Index

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


def sampled_blocks(count: int, seeds: int = 1024, fanout: int = 10, hops: int = 2) -> Batches:
    """Subgraphs of `hops` rounds of `fanout` neighbours, with replacement. Nodes are renumbered; edges keep the order
    in which they were drawn."""
    y, x, index = whole_graphs(*SIZES[-1], 1)[0]
    generator = torch.Generator().manual_seed(1)
    order = index[1].argsort()
    source, degree = index[0][order], torch.bincount(index[1], minlength=x.size(0))
    begin = degree.cumsum(0) - degree
    out: Batches = []
    for _ in range(count):
        frontier = torch.randperm(x.size(0), generator=generator)[:seeds]
        nodes, drawn = frontier, []
        for _ in range(hops):
            have = frontier[degree[frontier] > 0].repeat_interleave(fanout)
            chosen = (torch.rand(have.numel(), generator=generator) * degree[have]).long()
            drawn.append(torch.stack([source[begin[have] + chosen], have]))
            frontier = drawn[-1][0].unique()
            nodes = torch.cat([nodes, frontier]).unique()
        edges = torch.cat(drawn, 1)
        number = torch.empty(x.size(0), dtype=torch.int64)
        number[nodes] = torch.arange(nodes.numel())
        out.append((y[nodes], x[nodes], number[edges]))
    return out


def molecules(count: int, size: int = 128) -> Batches:
    """Collated batches; atoms have 64 random features, graphs one of two classes."""
    import numpy as np

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


def cases(count: int) -> Iterator[tuple[str, Callable[[], nn.Module], Callable[[], Batches]]]:
    """Each case has a name, a function that makes the model, and one that makes the batches."""
    for nodes, edges in SIZES:
        for model in ("sage", "gcn", "gat"):
            make = lambda model=model: MODELS[model].make(FEATURES)  # noqa: E731
            yield f"{model} {nodes}", make, lambda n=nodes, e=edges: whole_graphs(n, e, count)
    for model in ("sage", "gcn"):
        yield f"random-nodes {model}", lambda m=model: MODELS[m].make(FEATURES), lambda: random_parts(count)
    yield "sampled sage", lambda: MODELS["sage"].make(FEATURES), lambda: sampled_blocks(count)
    if (data_dir() / "mol_lipophilicity.npz").is_file():
        for name, pool in POOLS.items():
            yield f"molecules {name}", pool, lambda: molecules(count)


def measure(make: Callable[[], nn.Module], batches: Batches) -> dict[str, Any]:
    """Median seconds of a step, and the compiler's counters. The first four batches warm up."""
    torch.manual_seed(0)
    model = make()
    parameters = list(model.parameters())
    losses = {"eager": WithLoss(model), "graphweave": graphweave.compile(WithLoss(model))}

    def step(system: str, batch: tuple[Tensor, ...]) -> Tensor:
        for parameter in parameters:
            parameter.grad = None
        loss = losses[system](*batch)
        loss.backward()
        return loss.detach()

    times: dict[str, list[float]] = {name: [] for name in losses}
    for i, batch in enumerate(batches):
        got: dict[str, Tensor] = {}
        gc.collect()
        gc.disable()
        for name in losses:
            fresh = tuple(t.clone() for t in batch)
            start = time.perf_counter()
            got[name] = step(name, fresh)
            if i >= 4:
                times[name].append(time.perf_counter() - start)
        gc.enable()
        torch.testing.assert_close(got["graphweave"], got["eager"], rtol=1e-3, atol=1e-4)
        if i == 3:
            graphweave.reset_counters()
    answer: dict[str, Any] = {name: median(taken) for name, taken in times.items()}
    return {**answer, "counters": graphweave.counters(), "batches": len(times["eager"])}


def contact(repeats: int, nodes: int = 100_000, edges: int = 1_000_000) -> dict[str, Any]:
    """Seconds of the formats of both directions, and of an eager gather of 64 floats an edge."""
    index = torch.randint(nodes, (2, edges))
    x = torch.randn(nodes, 64)
    times: dict[str, list[float]] = {"eager": [], "graphweave": []}
    for _ in range(repeats):
        src, dst = index[0].clone(), index[1].clone()
        times["eager"].append(seconds_of(lambda s=src: x[s]))

        def build(src: Tensor = src, dst: Tensor = dst) -> None:
            formats.column(Index(dst, nodes), Index(src, nodes))
            formats.column(Index(src, nodes), Index(dst, nodes))

        times["graphweave"].append(seconds_of(build))
    return {name: median(taken) for name, taken in times.items()}


def main(argv: Sequence[str] | None = None) -> int:
    options = options_from(argv, __doc__, only=("",), repeats=20)
    torch.set_num_threads(options.threads)
    wanted = tuple(options.only)
    results: dict[str, dict[str, Any]] = {}
    rows = []
    for name, make, batches in cases(options.repeats + 4):
        if name.startswith(wanted):
            results[name] = measure(make, batches())
    if "contact".startswith(wanted):
        results["contact"] = contact(options.repeats)
    for name, taken in results.items():
        eager, ours = taken["eager"], taken["graphweave"]
        rows.append([name, f"{1e3 * eager:.2f}", f"{1e3 * ours:.2f}", f"{eager / ours:.2f}x"])
    ratio_table(
        f"a graph never seen, {options.threads} threads, median",
        ["", "eager ms", "graphweave ms", "eager / graphweave"], rows,
    )  # fmt: skip
    save(options.out, {"benchmark": "new_graphs", "results": results})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
