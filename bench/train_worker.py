"""One system training one model on one graph, in a process of its own: `python -m bench.train_worker OPTIONS` serves.

Questions: "first" builds the model and runs the first step (seconds, compilation included); "result" runs one more and
writes loss and gradients to a file; "save_case" writes inputs and initial weights for a peer; "turn" times steps.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import graphweave
from bench.common import seconds_of
from bench.graphs import Workload, data_dir, load
from bench.turns import Player, serve, steps_timer
from bench.workloads import MODELS, training_step

THP = "THP_MEM_ALLOC_ENABLE"
"""PyTorch's switch for huge pages in its CPU allocator, read when torch is loaded."""

SYSTEMS: dict[str, tuple[str, dict[str, str]]] = {
    "eager": ("eager", {}),
    "eager-thp": ("eager", {THP: "1"}),
    "inductor": ("inductor", {}),
    "graphweave": ("graphweave", {}),
}
"""Name -> compiler and environment of its process. eager-thp: eager PyTorch with huge pages too."""


def start(
    system: str, model: str, graph: str, *, threads: int, seed: int = 0, compile_loss: bool = True, wide: bool = False,
    folder: Path | None = None, timeout: float = 1800, memory: int | None = None,
) -> Player:  # fmt: skip
    """Starts the process of one system, in float64 if `wide`. `folder` holds the graph files."""
    compiler, environment = SYSTEMS[system]
    command = [sys.executable, "-m", "bench.train_worker", compiler, model, graph, "--threads", str(threads)]
    command += ["--seed", str(seed), "--data-dir", str(folder or data_dir())]
    command += ["--compile-loss"] * compile_loss + ["--wide"] * wide
    return Player(command, {"OMP_NUM_THREADS": str(threads), **environment}, timeout=timeout, memory=memory)


class Training:
    """The state of the process: the workload, the model, and its training step."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.work = load(options.graph, options.data_dir, pseudo=MODELS[options.model].pseudo)
        torch.manual_seed(options.seed)
        self.model = MODELS[options.model].make(self.work.x.size(1))
        if options.wide:
            self.work, self.model = self.work.double(), self.model.double()
        self._step = training_step(options.system, self.model, compile_loss=options.compile_loss)

    def step(self) -> Tensor:
        return self._step(self.work)

    def first(self) -> dict[str, Any]:
        """Runs the first step. The answer has graphweave's counters, which show a fallback to eager mode."""
        seconds = seconds_of(self.step)
        answer: dict[str, Any] = {"first": seconds, "nodes": self.work.x.size(0), "edges": self.work.edge_index.size(1)}
        if self.options.system == "graphweave":
            answer["counters"] = graphweave.counters()
        return answer

    def result(self, path: str) -> None:
        loss = self.step()
        grads = {name: value.grad for name, value in self.model.named_parameters() if value.grad is not None}
        write_arrays(path, {"out": loss, **grads})

    def save_case(self, path: str) -> None:
        write_arrays(path, {**_inputs(self.work), **{f"weight.{k}": v for k, v in self.model.state_dict().items()}})


def _inputs(work: Workload) -> dict[str, Tensor]:
    given = {"x": work.x, "edge_index": work.edge_index, "y": work.y}
    return given if work.edge_attr is None else {**given, "edge_attr": work.edge_attr}


def write_arrays(path: str, tensors: Mapping[str, Tensor]) -> None:
    np.savez(path, **{name: value.detach().numpy() for name, value in tensors.items()})


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("system")
    parser.add_argument("model")
    parser.add_argument("graph")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--compile-loss", action="store_true")
    parser.add_argument("--wide", action="store_true")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    training = Training(options)
    serve(
        {
            "first": training.first,
            "result": training.result,
            "save_case": training.save_case,
            "turn": steps_timer(training.step),
        }
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
