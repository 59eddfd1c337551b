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

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

import graphweave
from bench.common import (
    arguments,
    available_memory,
    in_fresh_process,
    ratio_table,
    save,
)
from bench.graphs import GRAPHS, POINT_SETS, data_dir, load, missing
from bench.probes import Probe, probed
from bench.workloads import MODELS, training_step
from graphweave.core.kernel_cost import Rates
from graphweave.tuning.rates import gemm_rate, triad_bandwidth

TARGET = 0.6
MIN_SHARE_SHOWN = 0.005
"""Rows that take less than this share of the step are in the JSON only."""


def worker(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    rates = Rates(triad_bandwidth(), gemm_rate())
    chosen = MODELS[options.models[0]]
    work = load(options.graphs[0], options.data_dir, pseudo=chosen.pseudo)
    torch.manual_seed(0)
    model = chosen.make(work.x.size(1))
    times = []
    with probed() as recorder:
        step = training_step("graphweave", model, compile_loss=options.compile_loss)
        for _ in range(3):
            step(work)
        recorder.on = True
        for _ in range(options.repeats):
            start = time.perf_counter()
            step(work)
            times.append(time.perf_counter() - start)
    if not any(probe.kernel for probe in recorder.probes.values()):
        options.worker.write_text(json.dumps({"status": f"no kernel ran: {graphweave.counters()}"}))
        return
    runs = [entry(probe, rates, len(times)) for probe in recorder.probes.values()]
    answer: dict[str, Any] = {
        "status": "ok", "triad_bytes_per_second": rates.bandwidth, "gemm_flops_per_second": rates.products,
        "step": median(times), "runs": runs, "kernels": total([one for one in runs if one["kernel"]]),
        "all": total(runs),
    }  # fmt: skip
    for key in ("compulsory", "gather"):
        answer[f"step_{key}_fraction"] = answer["all"][f"{key}_bound"] / answer["step"]
    options.worker.write_text(json.dumps(answer))


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


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--graphs", nargs="+", choices=(*GRAPHS, *POINT_SETS), default=["arxiv", "rmat", "points"])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--compile-loss", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--timeout", type=float, default=900, help="seconds that a model on a graph may take")
    parser.add_argument("--data-dir", type=Path, default=data_dir())
    options = parser.parse_args(argv)
    if options.worker is not None:
        worker(options)
        return 0
    results: dict[str, Any] = {}
    loss = "compiled" if options.compile_loss else "eager"
    for graph in options.graphs:
        for model in options.models:
            if graph not in MODELS[model].graphs:
                continue
            pair, reason = f"{model} {graph}", missing(graph, options.data_dir)
            results[pair] = {"status": f"skipped: {reason}"} if reason else _measure(options, model, graph)
            if results[pair]["status"] == "ok":
                table(pair, results[pair])
            else:
                ratio_table(pair, ["status"], [[results[pair]["status"]]])
            save(options.out, {"benchmark": "bounds", "loss": loss, "target": TARGET, "results": results})
    return 0


def _measure(options: argparse.Namespace, model: str, graph: str) -> Any:
    given = ["--models", model, "--graphs", graph, "--data-dir", str(options.data_dir)]
    given += ["--repeats", str(options.repeats), "--threads", str(options.threads)]
    given += ["--compile-loss" if options.compile_loss else "--no-compile-loss"]
    environment = {"OMP_NUM_THREADS": str(options.threads)}
    return in_fresh_process("bench.bounds", given, environment, timeout=options.timeout, memory=available_memory())


if __name__ == "__main__":
    raise SystemExit(main())
