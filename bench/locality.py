"""What the numbering of nodes, caches and page tables cost, and what orders, tiles and partitions win back.

    python -m bench.locality --cases price [--edges 1500000 15000000 30000000] [--models gcn gat] [--repeats 6]
    python -m bench.locality --cases forms [--nodes 1000000] [--lengths 64 128 256 512] [--functions spmm step]
                             [--graph rmat] [--repeats 6] [--threads 2] [--out FILE] [--resume]

`price`: a training step of two layers (64 -> 64 -> 64) on R-MAT graphs of 15 edges a node with shuffled numbers, in
nanoseconds an edge, and the ratio to the smallest graph's. The loss is compiled with the model. `forms`: the sum of
neighbours, and a training step of one GCN layer with its features' gradient, in float32: as the compiler chooses, with
each schedule and order, and by MKL's CSR product with both directions' matrices made before. Results are compared with
those of the compiler's own choice. `prepare` is what its first call takes longer than the choice's own (formats,
orders), and `steps` how many steps pay for it. `--graph` may be the name of a graph file;
its nodes are shuffled.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import graphweave
from bench.case import Bench, Case, Check, Peers
from bench.common import ratio_table
from bench.graphs import data_dir
from bench.options import Among
from bench.runner import run
from bench.specs import SPECS
from bench.steps import ModelStep, Step
from bench.workloads import layers_of
from graphweave import Schedule
from graphweave.data import npz, rmat
from graphweave.runtime import formats

EDGES_A_NODE = 15
WIDTH = 64
MAX_ERROR = 1e-3
"""Largest difference between two forms, relative to the largest element: hubs' sums have 100,000 terms."""


class Squared(nn.Module):
    """The loss, a part of what is compiled: PyTorch's own calls would fault in memory for each tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.model(x, edge_index)
        return out.square().mean()


def build_step(model: str, edges: int) -> Peers:
    graph, x = rmat(edges // EDGES_A_NODE, edges), torch.randn(edges // EDGES_A_NODE, WIDTH)

    def prepare() -> Step:
        torch.manual_seed(0)
        net = Squared(layers_of(SPECS[model], WIDTH))
        loss = partial(graphweave.compile(net), x, graph)
        return ModelStep(net, "train", loss, loss)

    return {"graphweave": prepare}


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
    def forward(ctx: Any, h: Tensor, matrix: Tensor, transposed: Tensor) -> Tensor:
        ctx.transposed = transposed
        return matrix @ h

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return ctx.transposed @ g, None, None


def mkl(function: Callable[..., Tensor], matrix: Tensor, transposed: Tensor) -> Callable[..., Tensor]:
    if function is spmm:
        return lambda x, src, dst: matrix @ x

    def with_mkl(x: Tensor, weight: Tensor, norm: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return (MklSum.apply((x @ weight) * norm, matrix, transposed) * norm).relu()

    return with_mkl


def csr(rows: Tensor, columns: Tensor, size: int) -> Tensor:
    indptr = torch.zeros(size + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(rows, minlength=size).cumsum(0)
    return torch.sparse_csr_tensor(indptr, columns[rows.argsort(stable=True)], torch.ones(rows.numel()), (size, size))


def graph_of(graph: str, nodes: int) -> tuple[Tensor, int]:
    if graph == "rmat":
        return rmat(nodes, EDGES_A_NODE * nodes), nodes
    data = npz(data_dir() / f"{graph}.npz")
    order = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(0))
    return order[data.edge_index], data.num_nodes


def build_forms(function: str, graph: str, nodes: int, length: int) -> Peers:
    index, count = graph_of(graph, nodes)
    x = torch.randn(count, length, generator=torch.Generator().manual_seed(0))

    def by_mkl() -> Step:
        matrix, transposed = csr(index[1], index[0], count), csr(index[0], index[1], count)
        return calls(function, x, index, partial(mkl, matrix=matrix, transposed=transposed))

    found = candidates(length)

    def prepared(chosen: Mapping[str, Any]) -> Step:
        formats.clear()  # the first call counts those of this form
        return calls(function, x, index, partial(graphweave.compile, options=chosen))

    return {**{name: partial(prepared, chosen) for name, chosen in found.items()}, "MKL": by_mkl}


def show(results: Mapping[str, Any], options: Namespace) -> None:
    for title in ("price", "forms"):
        found = {name: one for name, one in results.items() if name.startswith(title) and "status" not in one}
        rows = list((_prices if title == "price" else _gains)(found))
        headings = ["", "ns an edge"] if title == "price" else ["", "form", "of chosen", "prepare, s", "steps"]
        ratio_table(title, headings, rows)


def _prices(found: Mapping[str, Any]) -> Iterator[list[str]]:
    for name, one in found.items():
        seconds = one["graphweave"].get("median")
        yield [name, f"{1e9 * seconds / int(name.split()[-1]):.1f}" if seconds else one["graphweave"]["status"]]


def _gains(found: Mapping[str, Any]) -> Iterator[list[str]]:
    for name, forms in found.items():
        chosen = forms.get("chosen", {})
        for form, one in forms.items():
            if form != "chosen" and "median" in one and "median" in chosen:
                prepare = max(0.0, one["first"] - one["median"] - (chosen["first"] - chosen["median"]))
                gain = chosen["median"] - one["median"]
                pays = f"{prepare / gain:.0f}" if gain > 0 and form != "MKL" else "-"
                yield [name, form, f"{one['median'] / chosen['median']:.2f}x", f"{prepare:.1f}", pays]


def cases(options: Namespace) -> Iterator[Case]:
    for model in options.models:
        for edges in options.edges:
            sizes = {"model": model, "edges": edges}
            check = Check(MAX_ERROR, "graphweave")
            yield Case(f"price {model} {edges}", build_step, ("graphweave",), check, sizes, {"edges": 3000})
    for function in options.functions:
        for length in options.lengths:
            sizes = {"function": function, "graph": options.graph, "nodes": options.nodes, "length": length}
            peers = (*candidates(length), "MKL")
            check = Check(MAX_ERROR, "chosen")
            yield Case(f"forms {function} {length}", build_forms, peers, check, sizes, {"nodes": 200})


BENCH = Bench(
    "bench.locality", __doc__, cases,
    {"edges": (1_500_000, 15_000_000, 30_000_000), "models": Among(("gcn", "gat")), "nodes": 1_000_000,
     "lengths": (64, 128, 256, 512), "functions": Among(("spmm", "step")), "graph": "rmat"},
    base="chosen", repeats=6, show=show,
)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
