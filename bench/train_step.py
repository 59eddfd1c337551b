"""Training step of 2-layer models: PyG eager, torch.compile's default backend, graphweave.

    python -m bench.train_step [--models gcn sage gin gat gatv2] [--graphs arxiv pubmed cora cora-features rmat]
                               [--systems eager inductor graphweave] [--repeats 10] [--threads 2] [--out FILE]

Forward, cross entropy on random labels over every node, backward; no optimiser, since all systems would share it.
64 random input features (cora-features: Cora's own 1433), 64 hidden, 64 logits, float32. Every model on every graph
has its own process, in which the systems take turns, so that a crash or a lack of memory ends one row only. Before
timing, loss and gradients are compared with eager's: a wrong system is not timed. Where they differ by more than the
tolerance, which eager's own float32 sums over hubs can cause, a float64 run judges: a system is wrong when its error is
above the tolerance and above 4 times eager's own (a logit within rounding of leaky_relu's kink can do that to a right
one: another --seed of the weights tells). torch.compile runs with
dynamic=False, its faster setting (sizes known at compile time), and Dynamo's other settings as they are by default.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import graphweave
from bench.check import Result, error_against, worst_error
from bench.common import arguments, in_fresh_process, interleaved, ratio_table, save, seconds_of
from bench.workloads import GRAPHS, MODELS, Workload, data_dir, load, missing, training_step

COMPILERS: dict[str, Callable[[nn.Module], Any]] = {
    "eager": lambda model: model,
    "inductor": lambda model: torch.compile(model, dynamic=False),
    "graphweave": graphweave.compile,
}

TOLERANCE = 1e-4
"""Relative error of loss and gradients against eager above which a system is wrong.

Looser than the tests' 1e-5: a hub adds 13,000 float32 terms, and a weight gradient 169,343.
"""


def worker(options: argparse.Namespace) -> None:
    """Measure one model on one graph; the answer goes to `options.worker`."""
    torch.set_num_threads(options.threads)
    work = load(options.graphs[0], options.data_dir)
    systems: dict[str, dict[str, Any]] = {}
    calls: dict[str, Callable[[], Tensor]] = {}
    first: dict[str, float] = {}
    want: Result | None = None
    exact: Result | None = None
    for name in options.systems:
        torch.manual_seed(options.seed)
        model = MODELS[options.models[0]](work.x.size(1))
        call = _step(COMPILERS[name](model), list(model.parameters()), work)
        try:
            first[name] = seconds_of(call)
            got = _result(call(), model)
        except Exception as problem:  # a system that fails is a result of this benchmark
            systems[name] = {"status": f"{type(problem).__name__}: {problem}"[:300]}
            continue
        want = want or got
        error, where = worst_error(got, want)
        systems[name] = {"status": "ok", "error": error}
        if error > TOLERANCE:
            exact = exact or in_float64(options.models[0], work, options.seed)
            own, eager = error_against(got, exact), error_against(want, exact)
            systems[name].update(error_in_float64=own, eager_error_in_float64=eager)
            if own > max(TOLERANCE, 4 * eager):
                systems[name]["status"] = f"wrong: {where} is off by {error:.1e}"
                continue
        calls[name] = call
    taken = interleaved(calls, repeats=options.repeats, first=first)
    for name, timing in taken.items():
        systems[name].update(asdict(timing))
    options.worker.write_text(json.dumps({"status": "ok", "edges": work.edge_index.size(1), "systems": systems}))


def in_float64(model: str, work: Workload, seed: int) -> Result:
    """The same step by eager PyTorch in float64."""
    torch.manual_seed(seed)
    made = MODELS[model](work.x.size(1)).double()
    wide = Workload(work.x.double(), work.edge_index, work.y)
    return _result(training_step(made, list(made.parameters()), wide), made)


def _step(model: Callable[..., Tensor], parameters: list[nn.Parameter], work: Workload) -> Callable[[], Tensor]:
    return lambda: training_step(model, parameters, work)


def _result(loss: Tensor, model: nn.Module) -> Result:
    grads = {name: None if value.grad is None else value.grad.clone() for name, value in model.named_parameters()}
    return Result((loss,), grads)


def table_row(model: str, graph: str, answer: dict[str, Any], names: Sequence[str]) -> list[str]:
    """Milliseconds of each system, then how many times faster than the others graphweave is."""
    if answer["status"] != "ok":
        return [f"{model} {graph}", answer["status"]]
    systems = answer["systems"]

    def cell(name: str) -> str:
        one = systems[name]
        if one["status"] != "ok":
            return one["status"]
        return f"{1e3 * one['median']:.2f} ±{500 * (one['q3'] - one['q1']):.2f} ({one['first']:.1f} s)"

    def ratio(name: str) -> str:
        both = [systems.get(one, {}).get("median") for one in (name, "graphweave")]
        return f"{both[0] / both[1]:.2f}x" if all(both) else "-"

    return [f"{model} {graph}", *map(cell, names), *(ratio(name) for name in names if name != "graphweave")]


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--graphs", nargs="+", choices=GRAPHS, default=list(GRAPHS))
    parser.add_argument("--systems", nargs="+", choices=COMPILERS, default=list(COMPILERS))
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    parser.add_argument("--data-dir", type=Path, default=data_dir())
    options = parser.parse_args(argv)
    if options.worker is not None:
        worker(options)
        return 0
    results: dict[str, Any] = {}
    rows = []
    for graph in options.graphs:
        for model in options.models:
            reason = missing(graph, options.data_dir)
            answer = {"status": f"skipped: {reason}"} if reason else _measure(options, model, graph)
            results[f"{model} {graph}"] = answer
            rows.append(table_row(model, graph, answer, options.systems))
            save(options.out, {"benchmark": "train_step", "results": results})
    others = [f"{name} / graphweave" for name in options.systems if name != "graphweave"]
    headings = ["model graph", *(f"{name} ms (first)" for name in options.systems), *others]
    ratio_table(f"training step, median ± half the interquartile range, {options.threads} threads", headings, rows)
    return 0


def _measure(options: argparse.Namespace, model: str, graph: str) -> Any:
    given = ["--models", model, "--graphs", graph, "--systems", *options.systems, "--data-dir", str(options.data_dir)]
    given += ["--repeats", str(options.repeats), "--threads", str(options.threads), "--seed", str(options.seed)]
    return in_fresh_process("bench.train_step", given, {"OMP_NUM_THREADS": str(options.threads)})


if __name__ == "__main__":
    raise SystemExit(main())
