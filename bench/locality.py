"""What the numbering of nodes, caches and page tables cost, and what orders, tiles and partitions win back.

    python -m bench.locality price [--edges 1500000 15000000 30000000] [--models gcn gat] [--repeats 6] [--out FILE]
    python -m bench.locality forms [--nodes 1000000] [--edges 15000000] [--lengths 64 128 256 512]
                                   [--functions spmm step] [--graph rmat] [--repeats 6] [--out FILE]

`price`: a training step of two layers (64 -> 64 -> 64) on R-MAT graphs of 15 edges a node with shuffled numbers, in
nanoseconds an edge, and the ratio to the smallest graph's. The loss is compiled with the model. `forms`: the sum of
neighbours, and a training step of one GCN layer with its features' gradient, in float32: as the compiler chooses, with
each schedule and order, and by MKL's CSR product with both directions' matrices made before. Each form takes turns with
the compiler's own choice, and its results are compared with those. `prepare` is what its first call takes longer than
the choice's own (formats, orders), and `steps` how many steps pay for it. `--graph` may be the name of a graph file;
its nodes are shuffled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import graphweave
from bench.common import interleaved, ratio_table, save, seconds_of
from bench.graphs import data_dir
from bench.options import COMMON, parser_of
from graphweave import Schedule
from graphweave.core.errors import ScheduleError
from graphweave.data import npz, rmat
from graphweave.runtime import formats

EDGES_A_NODE = 15
WIDTH = 64
MAX_ERROR = 1e-3
"""Largest difference between two forms, relative to the largest element: hubs' sums have 100,000 terms."""

Step = Callable[[], Any]


def models() -> dict[str, Callable[[], nn.Module]]:
    from torch_geometric.nn import GATConv, GCNConv  # takes seconds to load

    class Two(nn.Module):
        def __init__(self, layer: Callable[[], nn.Module]) -> None:
            super().__init__()
            self.a, self.b = layer(), layer()

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            """The loss, a part of what is compiled: PyTorch's own calls would fault in memory for each tensor."""
            out: Tensor = self.b(self.a(x, edge_index).relu(), edge_index)
            return out.square().mean()

    return {
        "gcn": lambda: Two(lambda: GCNConv(WIDTH, WIDTH)),
        "gat": lambda: Two(lambda: GATConv(WIDTH, WIDTH // 4, heads=4)),
    }


def price(options: Any) -> dict[str, Any]:
    """Model -> edges -> seconds of a step, and nanoseconds an edge."""
    record: dict[str, Any] = {}
    for name in options.models:
        rows = []
        for edges in options.edges:
            graph, x = rmat(edges // EDGES_A_NODE, edges), torch.randn(edges // EDGES_A_NODE, WIDTH)
            torch.manual_seed(0)
            step = training_step(graphweave.compile(models()[name]()), x, graph)
            step()
            timing = interleaved({"step": step}, repeats=options.repeats)["step"]
            record.setdefault(name, {})[str(edges)] = {**asdict(timing), "ns": 1e9 * timing.median / edges}
            rows.append([f"{edges:,}", f"{1e3 * timing.median:.1f}", f"{1e9 * timing.median / edges:.1f}"])
            rows[-1].append(f"{float(rows[-1][2]) / float(rows[0][2]):.2f}x")
        ratio_table(name, ["edges", "ms", "ns an edge", "of the smallest"], rows)
    return record


def training_step(model: nn.Module, x: Tensor, graph: Tensor) -> Step:
    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(x, graph).backward()

    return step


# -------------------------------------------------------- forms


def spmm(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, dst, x[src])


def layer(x: Tensor, weight: Tensor, norm: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """A layer of GCN without self-loops; `norm` is 1 / sqrt(degree) of each node."""
    h = (x @ weight) * norm
    return (torch.zeros_like(h).index_add(0, dst, h[src]) * norm).relu()


def candidates(length: int) -> dict[str, dict[str, Any]]:
    """Options by what they change. The first is the compiler's own choice."""
    return {
        "chosen": {},
        "relabel auto": {"relabel": "auto"},
        "relabel by degree": {"relabel": "degree"},
        "relabel by locality": {"relabel": "locality"},
        "rows and edges by locality": {"schedule": Schedule(row_order="locality", edge_order="locality")},
        "edges by source": {"schedule": Schedule(edge_order="source")},
        "8 partitions": {"schedule": Schedule(source_partitions=8)},
        "2 tiles": {"schedule": Schedule(feature_tile=length // 2)},
    }


def calls(
    function: str, x: Tensor, graph: Tensor, make: Callable[[Callable[..., Tensor]], Callable[..., Tensor]]
) -> Step:
    """One step of a function, compiled or replaced by `make`. A step returns what it computes."""
    src, dst = graph
    if function == "spmm":
        made = make(spmm)

        def sums() -> list[Tensor]:
            with torch.no_grad():
                return [made(x, src, dst)]

        return sums
    torch.manual_seed(0)
    weight = (torch.randn(x.shape[1], x.shape[1]) / x.shape[1] ** 0.5).requires_grad_()
    norm = torch.bincount(dst, minlength=x.shape[0]).clamp(min=1).float().rsqrt().unsqueeze(1)
    trained, made = x.detach().requires_grad_(), make(layer)

    def step() -> list[Tensor]:
        out = made(trained, weight, norm, src, dst)
        return [out.detach(), *torch.autograd.grad(out.square().mean(), (trained, weight))]

    return step


class MklSum(torch.autograd.Function):
    """A @ h by MKL, and A^T @ g in the backward."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, matrix: Tensor, turned: Tensor) -> Tensor:
        ctx.turned = turned
        return matrix @ h

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return ctx.turned @ g, None, None


def mkl(function: Callable[..., Tensor], matrix: Tensor, turned: Tensor) -> Callable[..., Tensor]:
    if function is spmm:
        return lambda x, src, dst: matrix @ x

    def with_mkl(x: Tensor, weight: Tensor, norm: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return (MklSum.apply((x @ weight) * norm, matrix, turned) * norm).relu()

    return with_mkl


def csr(rows: Tensor, columns: Tensor, size: int) -> Tensor:
    indptr = torch.zeros(size + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(rows, minlength=size).cumsum(0)
    return torch.sparse_csr_tensor(indptr, columns[rows.argsort(stable=True)], torch.ones(rows.numel()), (size, size))


def measure(function: str, x: Tensor, graph: Tensor, repeats: int) -> dict[str, Any]:
    """Form -> its times beside the compiler's choice's in the same turns, or why it has none."""
    record: dict[str, Any] = {}
    matrices = csr(graph[1], graph[0], x.shape[0]), csr(graph[0], graph[1], x.shape[0])
    makers = {
        name: partial(graphweave.compile, options=options) for name, options in candidates(x.shape[1]).items()
    } | {"MKL": partial(mkl, matrix=matrices[0], turned=matrices[1])}
    chosen = calls(function, x, graph, makers.pop("chosen"))
    first_of_chosen = seconds_of(chosen)
    want = chosen()
    for name, make in makers.items():
        formats.clear()
        step = calls(function, x, graph, make)
        try:
            first = seconds_of(step)
        except ScheduleError as error:
            record[name] = {"status": str(error)}
            continue
        off = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(step(), want, strict=True))
        assert off < MAX_ERROR, f"{name} is wrong by {off:.1e}"
        both = {"chosen": first_of_chosen, name: first}
        timing = interleaved({"chosen": chosen, name: step}, repeats=repeats, first=both)
        record[name] = {"status": "ok", **asdict(timing[name]), "chosen": asdict(timing["chosen"])}
    return record


def show(title: str, record: Mapping[str, Mapping[str, Any]]) -> None:
    rows = []
    for name, one in record.items():
        if one["status"] != "ok":
            rows.append([name, "-", "-", "-", "-", "-", one["status"].partition(": ")[2][:60]])
            continue
        chosen = one["chosen"]
        prepare = max(0.0, one["first"] - one["median"] - (chosen["first"] - chosen["median"]))
        gain = chosen["median"] - one["median"]
        times = [
            f"{1e3 * one['median']:.1f}",
            f"{1e3 * chosen['median']:.1f}",
            f"{one['median'] / chosen['median']:.2f}x",
        ]
        rows.append(
            [name, *times, f"{prepare:.1f}", f"{prepare / gain:.0f}" if gain > 0 and name != "MKL" else "-", ""]
        )
    ratio_table(title, ["form", "ms", "chosen, ms", "of chosen", "prepare, s", "steps", ""], rows)


def forms(options: Any) -> dict[str, Any]:
    if options.graph == "rmat":
        graph, nodes = rmat(options.nodes, options.edges), options.nodes
    else:
        data = npz(data_dir() / f"{options.graph}.npz")
        nodes = data.num_nodes
        graph = torch.randperm(nodes, generator=torch.Generator().manual_seed(0))[data.edge_index]
    record: dict[str, Any] = {}
    for function in options.functions:
        for length in options.lengths:
            x = torch.randn(nodes, length, generator=torch.Generator().manual_seed(0))
            record[f"{function} {length}"] = found = measure(function, x, graph, options.repeats)
            show(f"{options.graph}, {nodes:,} nodes, {graph.shape[1]:,} edges: {function}, {length} features", found)
            save(options.out, {"benchmark": f"locality_forms_{options.graph}", "results": record})
    return record


def main() -> None:
    parser = parser_of(__doc__, COMMON)
    parser.add_argument("what", choices=["price", "forms"])
    parser.add_argument("--edges", type=int, nargs="+", default=None)
    parser.add_argument("--models", nargs="+", default=["gcn", "gat"])
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--functions", nargs="+", default=["spmm", "step"])
    parser.add_argument("--graph", default="rmat")
    parser.add_argument("--repeats", type=int, default=6)
    options = parser.parse_args()
    if options.what == "price":
        options.edges = options.edges or [1_500_000, 15_000_000, 30_000_000]
        save(options.out, {"benchmark": "locality_price", "results": price(options)})
    else:
        options.edges = options.edges[0] if options.edges else EDGES_A_NODE * options.nodes
        forms(options)


if __name__ == "__main__":
    main()
