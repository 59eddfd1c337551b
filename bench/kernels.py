"""SpMM sum and SDDMM dot at 64 features, from plain gather and scatter, against torch's own CSR product.

    python -m bench.kernels [--graph rmat] [--repeats 20] [--threads 2] [--out FILE]

`handwritten` is a page of C++ for just this work on the same formats (bench/handwritten.cpp), a bound for generated
code. `csr` is the product of a torch CSR matrix (of ones, made before) and the features. It is timed beside both
kernels, and `ratio` is its time over the system's. GB/s counts the bytes that a kernel without caches moves: a row of
features for every end of an edge that it gathers, the index, and the result. `of triad` compares this with the measured
bandwidth of a = b + 3 c; a gather whose rows stay in cache exceeds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import graphweave
from bench.check import relative_error
from bench.common import arguments, interleaved, ratio_table, save, seconds_of
from bench.graphs import FEATURES, GRAPHS, Workload, data_dir, load, missing
from graphweave.runtime import arena, formats, kernel_cache
from graphweave.runtime.index import Index
from graphweave.tuning.rates import triad_bandwidth

TOLERANCE = 1e-5
"""Error relative to the largest result: up to some thousand float32 terms are added in another order."""


def spmm(x: Tensor, edge_index: Tensor) -> Tensor:
    """out[v] = sum of x[u] over edges u -> v. [N, F] -> [N, F]."""
    return torch.zeros_like(x).index_add(0, edge_index[1], x.index_select(0, edge_index[0]))


def sddmm(x: Tensor, edge_index: Tensor) -> Tensor:
    """out[e] = <x[src[e]], x[dst[e]]>. [N, F] -> [E]."""
    return (x.index_select(0, edge_index[0]) * x.index_select(0, edge_index[1])).sum(-1)


def spmm_bytes(nodes: int, edges: int) -> int:
    """Each edge gathers a row and reads a 4-byte index; each node reads an 8-byte pointer and writes a row."""
    return edges * (4 * FEATURES + 4) + nodes * (4 * FEATURES + 8)


def sddmm_bytes(nodes: int, edges: int) -> int:
    """Each edge moves a gathered row, a 4-byte index and a 4-byte result; each node a row and an 8-byte pointer."""
    return edges * (4 * FEATURES + 8) + nodes * (4 * FEATURES + 8)


def csr_product(work: Workload) -> Callable[[], Tensor]:
    """torch's CSR matrix product with the same result as `spmm`."""
    rows, columns = work.edge_index[1], work.edge_index[0]
    order = torch.argsort(rows, stable=True)
    pointer = torch.zeros(work.x.size(0) + 1, dtype=torch.int64)
    pointer[1:] = torch.bincount(rows, minlength=work.x.size(0)).cumsum(0)
    size = (work.x.size(0), work.x.size(0))
    matrix = torch.sparse_csr_tensor(pointer, columns[order], torch.ones(rows.numel()), size, check_invariants=False)
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


def measure(name: str, fn: Callable[[Tensor, Tensor], Tensor], work: Workload, repeats: int) -> dict[str, Any]:
    """Checks graphweave and the handwritten kernel against eager mode, then times all systems in turn."""
    compiled = graphweave.compile(fn)
    calls: dict[str, Callable[[], Tensor]] = {
        "eager": lambda: fn(work.x, work.edge_index),
        "csr": csr_product(work),
        "handwritten": handwritten(name, work),
        "graphweave": lambda: compiled(work.x, work.edge_index),
    }
    with torch.no_grad():
        first = {system: seconds_of(call) for system, call in calls.items()}
        expected = calls["eager"]()
        errors = {system: relative_error(calls[system](), expected) for system in ("handwritten", "graphweave")}
        for system, error in errors.items():
            if error >= TOLERANCE:
                return {system: {"status": f"wrong by {error:.1e}"}}
        timings = interleaved(calls, repeats=repeats, first=first)
    answer = {system: {"status": "ok", **asdict(timing)} for system, timing in timings.items()}
    answer["graphweave"]["error"] = errors["graphweave"]
    return answer


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--graph", choices=GRAPHS, default="rmat")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--data-dir", type=Path, default=data_dir())
    options = parser.parse_args(argv)
    reason = missing(options.graph, options.data_dir)
    if reason:
        parser.error(reason)
    torch.set_num_threads(options.threads)
    work = load(options.graph, options.data_dir)
    bandwidth = triad_bandwidth()
    results: dict[str, Any] = {}
    rows = []
    for name, fn, count in (("spmm", spmm, spmm_bytes), ("sddmm", sddmm, sddmm_bytes)):
        results[name] = measure(name, fn, work, options.repeats)
        moved = count(work.x.size(0), work.edge_index.size(1))
        for system, one in results[name].items():
            if one["status"] != "ok":
                rows.append([f"{name} {system}", one["status"]])
                continue
            one["ratio_to_csr"] = results[name]["csr"]["median"] / one["median"]
            one["bytes_per_second"] = moved / one["median"]
            one["of_triad"] = one["bytes_per_second"] / bandwidth
            numbers = (1e3 * one["median"], one["ratio_to_csr"], one["bytes_per_second"] / 1e9, one["of_triad"])
            rows.append([f"{name} {system}", *(f"{number:.2f}" for number in numbers)])
    title = f"{options.graph}, {FEATURES} features, {options.threads} threads, triad {bandwidth / 1e9:.1f} GB/s"
    ratio_table(title, ["kernel system", "ms", "ratio", "GB/s", "of triad"], rows)
    save(options.out, {"benchmark": "kernels", "triad_bytes_per_second": bandwidth, "results": results})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
