"""SpMM sum and SDDMM dot at 64 features, from plain gather and scatter, against torch's own CSR product.

    python -m bench.kernels [--graph rmat] [--repeats 20] [--threads 2] [--out FILE] [--resume]

`handwritten` is a page of C++ for just this work on the same formats (bench/handwritten.cpp), a bound for generated
code. `csr` is the product of a torch CSR matrix, made before, and the features. GB/s counts the bytes that a kernel
without caches moves: a row of features for every end of an edge that it gathers, the index, and the result. `of triad`
compares this with the measured bandwidth of a = b + 3 c; a gather whose rows stay in cache exceeds it.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import graphweave
from bench.case import EXACT, Bench, Case, Check, Peers
from bench.graphs import FEATURES, GRAPHS, Workload, data_dir, load, missing
from bench.options import Among
from bench.runner import run
from bench.steps import Step
from graphweave.runtime import arena, formats, kernel_cache
from graphweave.runtime.index import Index
from graphweave.tuning.rates import triad_bandwidth

CHECK = Check(1e-5, exact=True)
"""Up to some thousand float32 terms are added in another order."""


def spmm(x: Tensor, edge_index: Tensor) -> Tensor:
    """out[v] = sum of x[u] over edges u -> v. [N, F] -> [N, F]."""
    return torch.zeros_like(x).index_add(0, edge_index[1], x.index_select(0, edge_index[0]))


def spmm_weighted(x: Tensor, edge_index: Tensor, weight: Tensor) -> Tensor:
    """out[v] = sum of weight[e] x[u] over edges e: u -> v. [N, F], [E] -> [N, F]."""
    messages = x.index_select(0, edge_index[0]) * weight.unsqueeze(1)
    return torch.zeros_like(x).index_add(0, edge_index[1], messages)


def sddmm(x: Tensor, edge_index: Tensor) -> Tensor:
    """out[e] = <x[src[e]], x[dst[e]]>. [N, F] -> [E]."""
    return (x.index_select(0, edge_index[0]) * x.index_select(0, edge_index[1])).sum(-1)


def spmm_bytes(nodes: int, edges: int) -> int:
    """Each edge gathers a row and reads a 4-byte index; each node reads an 8-byte pointer and writes a row."""
    return edges * (4 * FEATURES + 4) + nodes * (4 * FEATURES + 8)


def sddmm_bytes(nodes: int, edges: int) -> int:
    """Each edge moves a gathered row, a 4-byte index and a 4-byte result; each node a row and an 8-byte pointer."""
    return edges * (4 * FEATURES + 8) + nodes * (4 * FEATURES + 8)


KERNELS: dict[str, tuple[Callable[..., Tensor], Callable[[int, int], int], tuple[str, ...]]] = {
    "spmm": (spmm, spmm_bytes, ("eager", "csr", "handwritten", "graphweave")),
    "spmm-weighted": (spmm_weighted, spmm_bytes, ("eager", "csr", "graphweave")),
    "sddmm": (sddmm, sddmm_bytes, ("eager", "handwritten", "graphweave")),
}
"""Name -> the kernel in plain PyTorch, the bytes that it moves, and what it is compared with."""


def csr_product(work: Workload, weight: Tensor) -> Callable[[], Tensor]:
    """torch's CSR matrix product, whose values are the weights of the edges."""
    rows, columns = work.edge_index[1], work.edge_index[0]
    order = torch.argsort(rows, stable=True)
    pointer = torch.zeros(work.x.size(0) + 1, dtype=torch.int64)
    pointer[1:] = torch.bincount(rows, minlength=work.x.size(0)).cumsum(0)
    size = (work.x.size(0), work.x.size(0))
    matrix = torch.sparse_csr_tensor(pointer, columns[order], weight[order], size, check_invariants=False)
    return lambda: matrix @ work.x


def handwritten(name: str, work: Workload) -> Callable[[], Tensor]:
    """The handwritten kernel, on formats built before. Its result lies in the arena, as graphweave's does."""
    dst, src = work.edge_index[1].contiguous(), work.edge_index[0].contiguous()
    nodes, edges = work.x.size(0), src.numel()
    to, of = Index(dst, nodes), Index(src, nodes)
    csr, perm, column = formats.csr(to), formats.perm(to), formats.column(to, of)
    perm = perm if perm is not None else torch.arange(edges, dtype=torch.int32)
    kernel = kernel_cache.load(Path(__file__).with_name("handwritten.cpp").read_text(), name)

    def call() -> Tensor:
        out = arena.empty((nodes, FEATURES) if name == "spmm" else (edges,), torch.float32)
        tensors = (csr.indptr, column, work.x, out, perm)
        kernel([t.data_ptr() for t in tensors], (nodes,), csr.chunks, torch.get_num_threads())
        return out

    return call


@dataclass(frozen=True, slots=True)
class Kernel:
    """A call without gradients, and the bytes that it moves."""

    call: Callable[[], Tensor]
    bytes: int

    def __call__(self) -> Tensor:
        with torch.no_grad():
            return self.call()


def arguments_of(kernel: str, work: Workload) -> dict[str, Tensor]:
    given = {"x": work.x, "edge_index": work.edge_index}
    if kernel != "spmm-weighted":
        return given
    return {**given, "weight": torch.randn(work.edge_index.size(1), generator=torch.Generator().manual_seed(1))}


def build(kernel: str, graph: str, folder: Path) -> Peers:
    work = load(graph, folder)
    given = arguments_of(kernel, work)
    fn, bytes_of, _ = KERNELS[kernel]
    moved = bytes_of(work.x.size(0), work.edge_index.size(1))
    weight = given.get("weight", torch.ones(work.edge_index.size(1)))
    wide = [value.double() if value.is_floating_point() else value for value in given.values()]
    makers: dict[str, Callable[[], Callable[[], Tensor]]] = {
        "eager": lambda: partial(fn, *given.values()),
        "graphweave": lambda: partial(graphweave.compile(fn), *given.values()),
        "csr": lambda: csr_product(work, weight),
        "handwritten": lambda: handwritten(kernel, work),
        EXACT: lambda: partial(fn, *wide),
    }

    def prepared(make: Callable[[], Callable[[], Tensor]]) -> Callable[[], Step]:
        return lambda: Kernel(make(), moved)

    return {name: prepared(make) for name, make in makers.items()}


def inputs(kernel: str, graph: str, folder: Path) -> Mapping[str, Tensor]:
    return arguments_of(kernel, load(graph, folder))


def moved(peer: str, step: Any) -> dict[str, Any]:
    return {"bytes": step.bytes, "triad_bytes_per_second": _triad()}


@cache
def _triad() -> float:
    return triad_bandwidth()


def case_of(name: str, kernel: str, graph: str, options: Namespace, peers: tuple[str, ...]) -> Case:
    sizes = {"kernel": kernel, "graph": graph, "folder": options.data_dir}
    return Case(
        name, build, peers, CHECK, sizes, {"graph": "tiny"}, inputs=inputs, notes=moved,
        missing=None if options.quick else missing(graph, options.data_dir),
    )  # fmt: skip


def cases(options: Namespace) -> Iterator[Case]:
    for kernel, (_, _, peers) in KERNELS.items():
        yield case_of(f"{kernel} {options.graph}", kernel, options.graph, options, peers)


BENCH = Bench(
    "bench.kernels", __doc__, cases, {"graph": Among(GRAPHS, "rmat"), "data_dir": data_dir()}, repeats=20,
    columns={
        "GB/s": lambda found, one: f"{one['bytes'] / one['median'] / 1e9:.1f}",
        "of triad": lambda found, one: f"{one['bytes'] / one['median'] / one['triad_bytes_per_second']:.2f}",
    },
)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
