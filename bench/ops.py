"""Operators on edges of `graphweave.ops` against MKL's CSR product, eager PyG and DGL 2.1, in turn.

    python -m bench.ops [--graphs rand-10k uniform-99.95 ... rmat] [--cases gcn weighted weighted-own mlp dot attend]
                        [--lengths 32 64 128 256 512] [--systems mkl pyg dgl] [--threads 2] [--repeats 10]
                        [--dgl-python PYTHON] [--out FOLDER]

bench/ops_cases.py defines the cases, bench/ops_graphs.py the graphs. Every system is compared with the definition in
float64 first: a wrong one is not timed. Forward passes without gradients are measured, in float32. `first` is the first
call, with compilation; `formats` is a call on a graph that has not been seen, when all is compiled. Both are in the
JSON only. MKL is `torch.sparse`'s product with a CSR matrix made before. PyG is left out if its messages would not fit
into memory, DGL if no --dgl-python is given (an interpreter that has DGL; `make bench-peers` makes one). Ratios are the
system's time over graphweave's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch
from torch import Tensor

from bench.check import relative_error
from bench.common import available_memory, ratio_table, save, seconds_of
from bench.graphs import data_dir
from bench.ops_cases import CASES, Data, data_of, definition, graphweave_call, mkl_call, pyg_bytes, pyg_call
from bench.ops_graphs import GRAPHS, absent, edges_of
from bench.options import Among, options_from
from bench.runner import Here
from bench.steps import read_result, write_arrays
from bench.turns import Player, PlayerLost, steps_timer, take_turns
from graphweave.runtime import formats

TOLERANCE = 1e-4
"""Error relative to the largest result: thousands of float32 terms are added in another order, then exponentiated."""

LENGTHS = (32, 64, 128, 256, 512)
SYSTEMS = ("graphweave", "mkl", "pyg", "dgl")


def here(call: Callable[[], Tensor]) -> Here:
    """A system in this process, without gradients."""

    def step() -> Tensor:
        with torch.no_grad():
            return call()

    return Here(
        {
            "first": lambda: seconds_of(step),
            "result": lambda path: write_arrays(path, {"out": step()}),
            "turn": steps_timer(step),
        }
    )


def systems_of(
    case: str, data: Data, operands: Path, threads: int, dgl: Path | None, wanted: Sequence[str]
) -> dict[str, Any]:
    """Name -> the player that is asked for turns, or why the system is left out."""
    found: dict[str, Any] = {"graphweave": here(graphweave_call(case, data))}
    mkl = mkl_call(case, data)
    if mkl is not None and "mkl" in wanted:
        found["mkl"] = here(mkl)
    if "pyg" in wanted:
        fits = pyg_bytes(case, data) < available_memory()
        found["pyg"] = here(pyg_call(case, data)) if fits else "its messages exceed the memory"
    if dgl is not None and "dgl" in wanted:
        command = [str(dgl), "-m", "bench.ops_dgl", case, str(operands), "--threads", str(threads)]
        found["dgl"] = Player(command, {"OMP_NUM_THREADS": str(threads)}, timeout=600, memory=available_memory())
    return found


def measure(
    case: str,
    data: Data,
    *,
    threads: int,
    repeats: int,
    dgl: Path | None,
    folder: Path,
    wanted: Sequence[str] = SYSTEMS,
    sample: int = 1,
) -> dict[str, dict[str, Any]]:
    """System -> its times, or why it has none. Of the results, one row in `sample` is checked."""
    operands = folder / "operands.npz"
    if dgl is not None:
        write_arrays(operands, data.as_tensors())
    want, out = expected(case, data, sample), folder / "out.npz"
    answer: dict[str, dict[str, Any]] = {}
    playing: dict[str, Any] = {}
    systems = systems_of(case, data, operands, threads, dgl, wanted)
    try:
        for name, system in systems.items():
            answer[name] = {"status": system} if isinstance(system, str) else checked(system, want, out, sample)
            if answer[name]["status"] == "ok":
                playing[name] = system
        if "graphweave" in playing:
            formats.clear()
            answer["graphweave"]["formats"] = playing["graphweave"].ask("first")
        for name, taken in take_turns(playing, repeats=repeats).items():
            answer[name] |= taken
    finally:
        for system in systems.values():
            if not isinstance(system, str):
                system.close()
    return answer


def expected(case: str, data: Data, sample: int) -> Tensor:
    """In float64, every row of the result whose number is a multiple of `sample`.

    If the result has a row for each edge, only these edges are computed; otherwise only edges into these nodes.
    """
    if sample == 1:
        return definition(case, data)
    edges = torch.arange(data.index.shape[1]) if case == "dot" else data.index[1]
    chosen = edges % sample == 0
    want = definition(case, replace(data, index=data.index[:, chosen], weight=data.weight[chosen]))
    return want if case == "dot" else want[::sample]


def checked(system: Any, want: Tensor, path: Path, sample: int = 1) -> dict[str, Any]:
    """The first call, and whether the result is right, of which `want` has one row in `sample`."""
    try:
        first = system.ask("first")
        system.ask("result", path=str(path))
    except PlayerLost as problem:
        return {"status": str(problem)[:300]}
    error = relative_error(read_result(path).outputs[0][::sample].double(), want)
    return {"status": "ok" if error < TOLERANCE else f"wrong by {error:.1e}", "first": first, "error": error}


def ratios(answer: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """System -> its time over graphweave's."""
    ours = answer["graphweave"].get("median")
    return {} if ours is None else {s: one["median"] / ours for s, one in answer.items() if "median" in one}


def print_table(graph: str, threads: int, results: Mapping[str, Mapping[str, Any]]) -> None:
    rows = []
    for what, answer in results.items():
        found = ratios(answer)
        cells = [f"{found[s]:.2f}" if s in found else answer.get(s, {}).get("status", "") for s in SYSTEMS[1:]]
        ours = answer["graphweave"]
        rows.append([what, f"{1e3 * ours['median']:.2f}" if "median" in ours else ours["status"], *cells])
    ratio_table(f"{graph}, {threads} threads", ["case, length", "graphweave ms", *SYSTEMS[1:]], rows)


def own_over_built_in(results: Mapping[str, Mapping[str, Any]]) -> float | None:
    """The time of a function of one's own over that of the equal built-in, in the geometric mean."""
    found = []
    for what, answer in results.items():
        case, length = what.split()
        other = results.get(f"weighted {length}", {}).get("graphweave", {})
        if case == "weighted-own" and "median" in answer["graphweave"] and "median" in other:
            found.append(answer["graphweave"]["median"] / other["median"])
    return geometric_mean(found) if found else None


def main(argv: Sequence[str] | None = None) -> int:
    options = options_from(
        argv, __doc__, graphs=Among(GRAPHS, tuple(g for g in GRAPHS if g != "tiny")), cases=Among(CASES),
        lengths=LENGTHS, systems=Among(SYSTEMS[1:]), repeats=10, dgl_python=Path, data_dir=data_dir(),
    )  # fmt: skip
    torch.set_num_threads(options.threads)
    record: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for graph in options.graphs:
            if (why := absent(graph, options.data_dir)) is not None:
                record[graph] = {"status": why}
                print(f"{graph}: {why}")
                continue
            index, nodes = edges_of(graph, options.data_dir)
            results = record[graph] = {}
            for case in options.cases:
                for length in options.lengths:
                    results[f"{case} {length}"] = measure(
                        case, data_of(index, nodes, length), threads=options.threads, repeats=options.repeats,
                        dgl=options.dgl_python, folder=Path(folder), wanted=options.systems,
                    )  # fmt: skip
            print_table(graph, options.threads, results)
            own = own_over_built_in(results)
            if own is not None:
                print(f"a function of one's own takes {own:.2f} of the time of the built-in")
            save(options.out, {"benchmark": "ops", "threads": options.threads, "results": record})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
