"""How close every kernel of a compiled training step comes to the bounds of the machine.

    python -m bench.bounds [--models gcn sage gin gat ...] [--graphs arxiv rmat points] [--repeats 20] [--threads 2]
                           [--no-compile-loss] [--out FILE]

For each fused kernel, and each call left to PyTorch: the bytes it must move, its flops, its median time, and the
fraction bound / time, where bound = max(bytes / triad, flops / gemm). The machine's triad bandwidth and its rate of
matrix products are measured in the same process with as many threads. Bytes are counted from the loop IR in two ways
(`ir/loop/traffic.py`): `compulsory` counts every tensor and index array once, as if caches held all gathered rows;
`gather` counts a gathered row for every edge, as if there were no caches. The truth lies between the two columns, and
the second may exceed 1. Flops are one for each operator and element, and the bound assumes the rate of matrix products,
so kernels with much other arithmetic (exponentials) show small fractions.

`kernels` sums the fused kernels, `step` is the whole training step. The difference between the step and the sum of all
rows is Python, autograd and (with --no-compile-loss) the loss. Every model and graph has a process of its own.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

import graphweave
from bench.case import Bench, Numbers
from bench.common import ratio_table
from bench.graphs import GRAPHS, POINT_SETS, data_dir, load, missing
from bench.options import Among
from bench.probes import Probe, probed
from bench.runner import run
from bench.workloads import MODELS, training_step
from graphweave.core.kernel_cost import Rates
from graphweave.tuning.rates import gemm_rate, triad_bandwidth

TARGET = 0.6
MIN_SHARE_SHOWN = 0.005
"""Rows that take less than this share of the step are in the JSON only."""


def kernels_of(model: str, graph: str, folder: str, repeats: int, compile_loss: bool, threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    rates = Rates(triad_bandwidth(), gemm_rate())
    work = load(graph, Path(folder), pseudo=MODELS[model].pseudo)
    torch.manual_seed(0)
    net = MODELS[model].make(work.x.size(1))
    times = []
    with probed() as recorder:
        step = training_step("graphweave", net, compile_loss=compile_loss)
        for _ in range(3):
            step(work)
        recorder.on = True
        for _ in range(repeats):
            start = time.perf_counter()
            step(work)
            times.append(time.perf_counter() - start)
    if not any(probe.kernel for probe in recorder.probes.values()):
        return {"status": f"no kernel ran: {graphweave.counters()}"}
    runs = [entry(probe, rates, len(times)) for probe in recorder.probes.values()]
    answer: dict[str, Any] = {
        "status": "ok", "triad_bytes_per_second": rates.bandwidth, "gemm_flops_per_second": rates.products,
        "step": median(times), "runs": runs, "kernels": total([one for one in runs if one["kernel"]]),
        "all": total(runs),
    }  # fmt: skip
    fractions = {f"step_{k}_fraction": answer["all"][f"{k}_bound"] / answer["step"] for k in ("compulsory", "gather")}
    return {**answer, **fractions}


def entry(probe: Probe, rates: Rates, repeats: int) -> dict[str, Any]:
    """One row of the table, in seconds of a step, over all calls in the step."""
    traffic = probe.traffic
    calls = max(1, round(len(probe.seconds) / repeats))
    answer: dict[str, Any] = {
        "name": probe.name, "kernel": probe.kernel, "seconds": median(probe.seconds) * calls, "calls": calls,
        "compulsory_bytes": traffic.compulsory * calls, "gather_bytes": traffic.gather * calls,
        "flops": traffic.flops * calls,
    }  # fmt: skip
    for key, moved in (("compulsory", traffic.compulsory), ("gather", traffic.gather)):
        bound = rates.seconds(moved, traffic.flops) * calls
        answer.update({f"{key}_bound": bound, f"{key}_fraction": bound / answer["seconds"]})
    return answer


def total(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    keys = ("seconds", "compulsory_bytes", "gather_bytes", "flops", "compulsory_bound", "gather_bound")
    answer: dict[str, Any] = {key: sum(one[key] for one in runs) for key in keys}
    for key in ("compulsory", "gather"):
        answer[f"{key}_fraction"] = answer[f"{key}_bound"] / answer["seconds"] if answer["seconds"] else 0.0
    return answer


def table(pair: str, answer: dict[str, Any]) -> None:
    shown = [one for one in answer["runs"] if one["seconds"] >= MIN_SHARE_SHOWN * answer["step"]]
    rows = [_row(one["name"], one) for one in sorted(shown, key=lambda one: -one["seconds"])]
    rows.append(_row("kernels", answer["kernels"]))
    whole = {**answer["all"], "seconds": answer["step"]}
    whole.update({f"{key}_fraction": answer[f"step_{key}_fraction"] for key in ("compulsory", "gather")})
    rows.append(_row("step", whole))
    rates = f"triad {answer['triad_bytes_per_second'] / 1e9:.1f} GB/s, gemm {answer['gemm_flops_per_second'] / 1e9:.0f}"
    headings = ["step of the program", "ms", "compulsory MB", "gather MB", "Mflop", "of compulsory", "of gather"]
    ratio_table(f"{pair}: {rates} GFLOP/s, target {TARGET}", headings, rows)


def _row(name: str, one: dict[str, Any]) -> list[str]:
    numbers = [one["compulsory_bytes"] / 1e6, one["gather_bytes"] / 1e6, one["flops"] / 1e6]
    fractions = (f"{one[f'{key}_fraction']:.2f}" for key in ("compulsory", "gather"))
    return [name, f"{1e3 * one['seconds']:.3f}", *(f"{number:.1f}" for number in numbers), *fractions]


def show(results: Mapping[str, Any], options: Namespace) -> None:
    for pair, answer in results.items():
        if answer["status"] == "ok":
            table(pair, answer)
        else:
            ratio_table(pair, ["status"], [[answer["status"]]])


def cases(options: Namespace) -> Iterator[Numbers]:
    given = {key: getattr(options, key) for key in ("repeats", "compile_loss", "threads")}
    for graph in options.graphs:
        for model in options.models:
            if graph in MODELS[model].graphs:
                sizes = {"model": model, "graph": graph, "folder": str(options.data_dir), **given}
                small = {"graph": "tiny-points" if MODELS[model].points else "tiny", "repeats": 1}
                why = None if options.quick else missing(graph, options.data_dir)
                yield Numbers(f"{model} {graph}", kernels_of, sizes, small, missing=why)


BENCH = Bench(
    "bench.bounds", __doc__, cases,
    {"models": Among(MODELS), "graphs": Among((*GRAPHS, *POINT_SETS), ("arxiv", "rmat", "points")),
     "compile_loss": True, "data_dir": data_dir()},
    repeats=20, show=show,
)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
