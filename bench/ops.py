"""Operators on edges of `graphweave.ops` against MKL's CSR product, code by hand, eager PyG and DGL 2.1, in turn.

    python -m bench.ops [--graphs rand-10k uniform-99.95 ... rmat] [--operators gcn weighted weighted-own mlp dot ...]
                        [--lengths 32 64 128 256 512] [--systems graphweave mkl handwritten pyg dgl] [--threads 2]
                        [--repeats 10] [--dgl-python PYTHON] [--cases NAME ...] [--out FILE] [--resume]

bench/ops_cases.py defines the operators, bench/named_graphs.py has the graphs. Every system is compared with the
definition in float64 first, on a sample of rows where there are many. Forward passes without gradients are measured, in
float32. `first` is the first call, with compilation; `formats` is a call on a graph that has not been seen, when all is
compiled. MKL is `torch.sparse`'s product with a CSR matrix made before. `handwritten` is a page of C++ for just this
work on the same formats (bench/handwritten.cpp), a bound for generated code at 64 features. PyG is left out if its
messages would not fit into memory, DGL if it is not there (`make bench-ops` makes its environment).

GB/s counts the bytes that a kernel without caches moves: a row of features for every end of an edge that it gathers,
the index, and the result. `of triad` compares this with the measured bandwidth of a = b + 3 c; a gather whose rows stay
in cache exceeds it.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch
from torch import Tensor

from bench.case import Bench, Case, Check, Peers
from bench.check import relative_error
from bench.common import available_memory, seconds_of
from bench.graphs import data_dir
from bench.named_graphs import UNIFORM, absent, edges_of
from bench.ops_cases import CASES, Data, data_of, expected, graphweave_call, mkl_call, pyg_bytes, pyg_call, sample_of
from bench.options import Among
from bench.runner import run
from bench.steps import Result, Step
from graphweave.runtime import arena, formats, kernel_cache
from graphweave.runtime.index import Index
from graphweave.tuning.rates import triad_bandwidth

TOLERANCE = 1e-4
"""Error relative to the largest result: thousands of float32 terms are added in another order, then exponentiated."""

GRAPHS = ("rand-10k", *UNIFORM, "coauthor_physics", "flickr_small", "rmat")
LENGTHS = (32, 64, 128, 256, 512)
DEFINITION = "definition"
"""Peer that computes a sample of the result in float64."""

HANDWRITTEN = {"gcn": "spmm", "dot": "sddmm"}
"""Operator -> the kernel of bench/handwritten.cpp, whose rows have 64 features."""


def moved(operator: str, nodes: int, edges: int, length: int) -> int | None:
    """Bytes without caches. Each edge gathers a row and reads a 4-byte index; each node reads an 8-byte pointer and
    writes a row; of a dot product, each edge writes a 4-byte result and each node reads its row."""
    if operator not in ("gcn", "weighted", "dot"):
        return None
    return edges * (4 * length + (4 if operator == "gcn" else 8)) + nodes * (4 * length + 8)


def handwritten(operator: str, data: Data) -> Callable[[], Tensor]:
    """The handwritten kernel, on formats built before. Its result lies in the arena, as graphweave's does."""
    dst, src = data.index[1].contiguous(), data.index[0].contiguous()
    edges = src.numel()
    to, of = Index(dst, data.nodes), Index(src, data.nodes)
    csr, perm, column = formats.csr(to), formats.perm(to), formats.column(to, of)
    perm = perm if perm is not None else torch.arange(edges, dtype=torch.int32)
    name = HANDWRITTEN[operator]
    kernel = kernel_cache.load(Path(__file__).with_name("handwritten.cpp").read_text(), name)

    def call() -> Tensor:
        out = arena.empty((data.nodes, 64) if name == "spmm" else (edges,), torch.float32)
        tensors = (csr.indptr, column, data.x, out, perm)
        kernel([t.data_ptr() for t in tensors], (data.nodes,), csr.chunks, torch.get_num_threads())
        return out

    return call


def build(operator: str, graph: str, length: int, folder: Path) -> Peers:
    data = data_of(*edges_of(graph, folder), length)
    sample = sample_of(data.index.shape[1], length)
    made: dict[str, Callable[[], Callable[[], Tensor] | None]] = {
        "graphweave": lambda: graphweave_call(operator, data),
        "mkl": lambda: mkl_call(operator, data),
        "handwritten": lambda: handwritten(operator, data),
        "pyg": lambda: pyg_call(operator, data),
    }

    def prepared(make: Callable[[], Callable[[], Tensor] | None]) -> Step:
        call = make()
        assert call is not None
        return torch.no_grad()(call)

    return {**{name: partial(prepared, make) for name, make in made.items()},
            DEFINITION: lambda: lambda: expected(operator, data, sample)}  # fmt: skip


def inputs(operator: str, graph: str, length: int, folder: Path) -> Mapping[str, Tensor]:
    return data_of(*edges_of(graph, folder), length).as_tensors()


def error(got: Result, want: Result) -> tuple[float, str]:
    """The rows of a result that the definition has, too: these are compared."""
    (one,), (other,) = got.outputs, want.outputs
    every = -(-len(one) // max(len(other), 1)) if len(other) else 1
    return relative_error(one[::every].double(), other), "result"


def refusal(peer: str, operator: str, graph: str, length: int, folder: Path) -> str | None:
    if peer != "pyg" or pyg_bytes(operator, edges_of(graph, folder)[0].shape[1], length) < available_memory():
        return None
    return "its messages exceed the memory"


@cache
def _triad() -> float:
    return triad_bandwidth()


def noted(sizes: Mapping[str, Any], peer: str, step: Step) -> dict[str, Any]:
    """The bytes that are moved, and the seconds on a graph that has not been seen."""
    index, nodes = edges_of(sizes["graph"], sizes["folder"])
    found: dict[str, Any] = {"triad_bytes_per_second": _triad()}
    found["bytes"] = moved(sizes["operator"], nodes, index.shape[1], sizes["length"])
    if peer == "graphweave":
        formats.clear()
        found["formats"] = seconds_of(step)
    return found


def case_of(operator: str, graph: str, length: int, folder: Path) -> Case:
    by_hand = ("handwritten",) if operator in HANDWRITTEN and length == 64 else ()
    mkl = ("mkl",) if operator in ("gcn", "weighted", "weighted-own") else ()
    sizes = {"operator": operator, "graph": graph, "length": length, "folder": folder}
    return Case(
        f"{graph} {operator} {length}", build, ("graphweave", *mkl, *by_hand, "pyg", "dgl"),
        Check(TOLERANCE, DEFINITION, error=error), sizes, {"graph": "rmat:300:2000"}, inputs, partial(noted, sizes),
        absent(graph, folder), refusal,
    )  # fmt: skip


def cases(options: Namespace) -> Iterator[Case]:
    for graph in options.graphs:
        for operator in options.operators:
            for length in options.lengths:
                yield case_of(operator, graph, length, options.data_dir)


def own_over_built_in(results: Mapping[str, Mapping[str, Any]]) -> float | None:
    """The time of a function of one's own over that of the equal built-in, in the geometric mean."""
    found = []
    for what, answer in results.items():
        other = results.get(what.replace(" weighted-own ", " weighted "), {}).get("graphweave", {})
        if " weighted-own " in what and "median" in answer["graphweave"] and "median" in other:
            found.append(answer["graphweave"]["median"] / other["median"])
    return geometric_mean(found) if found else None


def show(results: Mapping[str, Any], options: Namespace) -> None:
    if (own := own_over_built_in(results)) is not None:
        print(f"a function of one's own takes {own:.2f} of the time of the built-in")


def _rate(one: Mapping[str, Any], over: float, digits: int) -> str:
    return f"{one['bytes'] / one['median'] / over:.{digits}f}" if one.get("bytes") else ""


BENCH = Bench(
    "bench.ops", __doc__, cases,
    {"graphs": GRAPHS, "operators": Among(CASES), "lengths": LENGTHS, "data_dir": data_dir()}, dgl="bench.ops_dgl",
    timeout=600.0, show=show,
    columns={
        "GB/s": lambda found, one: _rate(one, 1e9, 1),
        "of triad": lambda found, one: _rate(one, one.get("triad_bytes_per_second", 1.0), 2),
    },
)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
