"""Calls in which overhead dominates: models on a graph of Cora's size, and a call with almost nothing to compute.

    python -m bench.small_graphs [--models gcn sage gin gat] [--nodes 2708 30] [--repeats 40] [--threads 2]
                                 [--out FILE] [--resume]

The graph has 2,708 nodes and 10,556 edges, or 30 nodes and twice as many edges; models have 64 features, 64 hidden, 64
logits, two layers, float32. Training is forward, cross entropy over every node (compiled with the model, or outside of
it) and backward; inference is the model under `torch.no_grad`. Graphweave is called by `graphweave.compile` and, as
"plain", by `torch.compile(backend="graphweave")`. The peers take turns in one process.

The call with almost nothing to compute is `x * 2` of eight numbers, forward and backward, and forward alone; there,
"eager" is a `torch.autograd.Function` that does the same.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import graphweave
from bench.case import Bench, Case, Check, Peers
from bench.graphs import data_dir
from bench.options import Among
from bench.runner import run
from bench.spec_peers import case_of
from bench.specs import SPECS
from bench.steps import Step

NODES, EDGES = 2_708, 10_556
"""The size of Cora."""

SYSTEMS = ("eager", "graphweave", "plain")
DEFAULT_MODELS = ("gcn", "sage", "gin", "gat")


class _Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


def build_nothing(kind: str) -> Peers:
    x, ones = torch.randn(8, 1, requires_grad=True), torch.ones(8, 1)

    def prepare(make: Callable[[], Callable[[Tensor], Tensor]]) -> Step:
        function = make()

        def step() -> Tensor | None:
            if kind == "inference":
                with torch.no_grad():
                    return function(x)
            x.grad = None
            function(x).backward(ones)
            return x.grad

        return step

    return {
        "eager": partial(prepare, lambda: _Nothing.apply),
        "graphweave": partial(prepare, lambda: graphweave.compile(lambda x: x * 2)),
    }


def cases(options: Namespace) -> Iterator[Case]:
    for nodes in options.nodes:
        for model in options.models:
            for kind in ("training", "training, loss outside", "inference"):
                mode = "infer" if kind == "inference" else "train"
                spec = replace(SPECS[model], graph=f"rmat:{nodes}:{EDGES if nodes == NODES else 2 * nodes}")
                sizes = {"compile_loss": kind == "training"}
                yield case_of(f"{model} {nodes}, {kind}", spec, mode, data_dir(), SYSTEMS, sizes)
    for kind in ("training", "inference"):
        yield Case(f"nothing, {kind}", build_nothing, SYSTEMS[:2], Check(0.0), {"kind": kind})


OPTIONS = {"models": Among(SPECS, DEFAULT_MODELS), "nodes": (NODES, 30)}
BENCH = Bench("bench.small_graphs", __doc__, cases, OPTIONS, repeats=40)


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
