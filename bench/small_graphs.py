"""Calls in which overhead dominates: models on a graph of Cora's size, and a call with almost nothing to compute.

    python -m bench.small_graphs [--models gcn sage gin gat] [--nodes 2708 30] [--repeats 40] [--threads 2] [--out FILE]

The graph has 2,708 nodes and 10,556 edges, or 30 nodes and twice as many edges; models have 64 features, 64 hidden, 64
logits, two layers, float32. Training is forward, cross entropy over every node (compiled with the model, or outside of
it) and backward; inference is the model under `torch.no_grad`. Graphweave is called by `graphweave.compile` and, as
"plain", by `torch.compile(backend="graphweave")`. The systems take turns in one process; a turn is as many calls as
fill 20 ms, and medians over the turns are compared.

The call with almost nothing to compute is `x * 2` of eight numbers, against a `torch.autograd.Function` that does the
same: forward and backward of each, in microseconds.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

import graphweave
from bench.common import ratio_table, save, seconds_of
from bench.graphs import FEATURES, HIDDEN, Workload
from bench.options import Among, options_from
from bench.workloads import MODELS, training_step
from graphweave.data import rmat

NODES, EDGES = 2_708, 10_556
"""The size of Cora."""

TURN_SECONDS = 0.02

DEFAULT_MODELS = ("gcn", "sage", "gin", "gat")


def in_turns(calls: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median seconds of each call; a turn is as many calls as fill TURN_SECONDS."""
    counts = {}
    for name, call in calls.items():
        for _ in range(3):
            call()
        counts[name] = max(1, int(TURN_SECONDS / min(seconds_of(call) for _ in range(5))))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        gc.collect()
        gc.disable()
        for name, call in calls.items():
            taken = seconds_of(lambda call=call, count=counts[name]: [call() for _ in range(count)])
            times[name].append(taken / counts[name])
        gc.enable()
    return {name: median(taken) for name, taken in times.items()}


def workload(nodes: int) -> Workload:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(nodes, FEATURES, generator=generator)
    index = rmat(nodes, EDGES, 0) if nodes == NODES else torch.randint(nodes, (2, 2 * nodes), generator=generator)
    return Workload(x, index, torch.randint(HIDDEN, (nodes,), generator=generator))


def of_model(name: str, nodes: int, repeats: int) -> dict[str, dict[str, float]]:
    """Seconds of a training step and of inference, eager and compiled."""
    work = workload(nodes)
    torch.manual_seed(0)
    model = MODELS[name].make(FEATURES)
    out: dict[str, dict[str, float]] = {}
    for inside in (True, False):
        steps = {s: training_step(s, model, compile_loss=inside) for s in ("eager", "graphweave", "plain")}
        losses = {s: float(step(work)) for s, step in steps.items()}
        assert max(losses.values()) - min(losses.values()) < 1e-4 * abs(losses["eager"]), losses
        kind = "training" if inside else "training, loss outside"
        out[kind] = in_turns({s: (lambda step=step: step(work)) for s, step in steps.items()}, repeats)
    compiled = graphweave.compile(model)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*work.inputs), model(*work.inputs), rtol=1e-3, atol=1e-4)
        out["inference"] = in_turns(
            {"eager": lambda: model(*work.inputs), "graphweave": lambda: compiled(*work.inputs)}, repeats
        )
    return out


class _Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


def of_nothing(repeats: int) -> dict[str, dict[str, float]]:
    """Seconds of a call with almost nothing to compute, forward and backward, and forward alone."""
    x, ones = torch.randn(8, 1, requires_grad=True), torch.ones(8, 1)
    compiled = graphweave.compile(lambda x: x * 2)

    def step(function: Callable[[Tensor], Tensor]) -> None:
        function(x).backward(ones)
        x.grad = None

    def forward(function: Callable[[Tensor], Tensor]) -> None:
        with torch.no_grad():
            function(x)

    functions = {"autograd function": _Nothing.apply, "graphweave": compiled}
    return {
        "training": in_turns({n: (lambda f=f: step(f)) for n, f in functions.items()}, repeats),
        "inference": in_turns({n: (lambda f=f: forward(f)) for n, f in functions.items()}, repeats),
    }


def main(argv: Sequence[str] | None = None) -> int:
    options = options_from(argv, __doc__, models=Among(MODELS, DEFAULT_MODELS), nodes=(NODES, 30), repeats=40)
    torch.set_num_threads(options.threads)
    results = {f"{name} {n}": of_model(name, n, options.repeats) for n in options.nodes for name in options.models}
    results["nothing"] = of_nothing(options.repeats)
    rows = []
    for name, kinds in results.items():
        for kind, taken in kinds.items():
            first, ours = (taken[s] for s in (("autograd function" if name == "nothing" else "eager"), "graphweave"))
            plain = f"{first / taken['plain']:.2f}x" if "plain" in taken else ""
            rows.append([f"{name} {kind}", f"{1e6 * first:.0f}", f"{1e6 * ours:.0f}", f"{first / ours:.2f}x", plain])
    head = ["", "eager us", "graphweave us", "eager / graphweave", "eager / plain"]
    ratio_table(f"known graphs by their nodes, {options.threads} threads, median", head, rows)
    save(options.out, {"benchmark": "small_graphs", "results": results})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
