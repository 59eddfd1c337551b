"""PyG eager or graphweave on one Spec, in a process of its own: `python -m bench.papers.worker OPTIONS` serves.

Questions: "first" runs the first step (seconds); "result" writes loss and gradients, or outputs; "save_case" writes
inputs and weights for DGL; "turn" times steps; "peak" gives the peak bytes of a step beyond those before it; "moved"
the bytes that the cost model and eager's calls move.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import graphweave
from bench.common import peak_extra_bytes, seconds_of
from bench.forget import forget_graphs
from bench.papers.graphs import workload
from bench.papers.spec import USER_DEFINED, Spec, spec_of
from bench.train_worker import write_arrays
from bench.turns import Player, serve, steps_timer
from bench.udf_layers import LAYERS, joined
from bench.udf_layers import WithLoss as UdfWithLoss
from bench.udf_variants import PYG, plain_names
from bench.udf_worker import graph_of
from bench.workloads import Layers, WithLoss, mlp

EAGER, OURS, RUNS_ALONE = "eager", "graphweave", "graphweave-eager"
"""Systems: eager PyG, the model compiled by graphweave, and user-defined functions outside graphweave.compile."""


def start(
    system: str, spec: Spec, mode: str, *, threads: int, folder: Path, options: Mapping[str, Any] | None = None,
    wide: bool = False, timeout: float = 600, memory: int | None = None, environment: Mapping[str, str] | None = None,
) -> Player:  # fmt: skip
    """Starts the process of a system. `options` are graphweave's, such as {"fuse": False}."""
    command = [sys.executable, "-m", "bench.papers.worker", system, spec.text(), mode, "--threads", str(threads)]
    command += ["--data-dir", str(folder), "--options", json.dumps(dict(options or {}))] + ["--wide"] * wide
    given = {"OMP_NUM_THREADS": str(threads), **(environment or {})}
    return Player(command, given, timeout=timeout, memory=memory)


def model_of(spec: Spec) -> nn.Module:
    """PyG's layers."""
    if spec.layer.startswith(USER_DEFINED):
        return PYG[spec.layer.removeprefix(USER_DEFINED)](spec.inputs)
    kinds: dict[str, Callable[[int, int], nn.Module]] = {
        "gcn": lambda i, o: pyg.GCNConv(i, o),
        "sage": lambda i, o: pyg.SAGEConv(i, o),
        "gat": lambda i, o: pyg.GATConv(i, o // spec.heads, heads=spec.heads),
        "monet": lambda i, o: pyg.GMMConv(i, o, spec.pseudo, spec.kernels),
        "edgeconv": lambda i, o: pyg.EdgeConv(nn.Linear(2 * i, o)),
        "edgeconv-mlp": lambda i, o: pyg.EdgeConv(mlp(2 * i, o)),
    }
    return Layers(*(kinds[spec.layer](i, o) for i, o in pairwise((spec.inputs, *spec.widths))))


class Work:
    """The state of the process: inputs, model, and the step of its mode."""

    def __init__(self, given: argparse.Namespace) -> None:
        spec = self.spec = spec_of(given.spec)
        self.train = given.mode == "train"
        pseudo = spec.pseudo if spec.layer == "monet" else 0
        work = workload(spec.graph, spec.inputs, pseudo, spec.widths[-1], given.data_dir)
        torch.manual_seed(0)
        model: nn.Module = model_of(spec)
        weights = {name: value.detach().clone() for name, value in model.named_parameters()}
        user_defined = spec.layer.startswith(USER_DEFINED)
        self.weights = plain_names(weights) if user_defined else weights
        self.work = work
        own = user_defined and given.system != EAGER
        if own:
            model = LAYERS[spec.layer.removeprefix(USER_DEFINED)](spec.inputs)
            model.load_state_dict(self.weights)
        if given.wide:
            work, model = work.double(), model.double()
        self.model = model
        self.user_defined = user_defined
        make = graphweave_compiler(json.loads(given.options)) if given.system == OURS else lambda module: module
        over: Any = work.edge_index
        if own:
            over = graph_of(spec.layer.removeprefix(USER_DEFINED), work.edge_index, work.x)
        if user_defined:
            self._inputs: tuple[Any, ...] = (over, work.x, work.y)
            self._loss, self._loss_inputs = make(UdfWithLoss(model)), self._inputs  # type: ignore[arg-type]
        else:
            self._inputs = work.inputs
            self._loss, self._loss_inputs = make(WithLoss(model)), (work.y, *work.inputs)
        self._infer = make(model)

    def step(self) -> Tensor:
        if not self.train:
            with torch.no_grad():
                return joined(self._infer(*self._inputs))
        for parameter in self.model.parameters():
            parameter.grad = None
        loss: Tensor = self._loss(*self._loss_inputs)
        loss.backward()
        return loss.detach()

    def first(self) -> dict[str, Any]:
        return {"first": seconds_of(self.step), "nodes": self.work.x.size(0), "edges": self.work.edge_index.size(1)}

    def result(self, path: str) -> None:
        out = self.step()
        grads = {name: p.grad for name, p in self.model.named_parameters() if self.train and p.grad is not None}
        write_arrays(path, {"out": out, **(plain_names(grads) if self.user_defined else grads)})

    def save_case(self, path: str) -> None:
        given = {"x": self.work.x, "edge_index": self.work.edge_index, "y": self.work.y}
        if self.work.edge_attr is not None:
            given["edge_attr"] = self.work.edge_attr
        write_arrays(path, {**given, **{f"weight.{name}": value for name, value in self.weights.items()}})

    def peak(self) -> int:
        """Peak bytes of a step beyond those resident before, with all that is kept for the graph."""
        self.step()
        for parameter in self.model.parameters():
            parameter.grad = None
        forget_graphs()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        return peak_extra_bytes(self.step)

    def moved(self) -> dict[str, int | None]:
        """Bytes of a step: by the cost model, and of eager's calls. None where the compiler does not count them."""
        fn, inputs = (self._loss, self._loss_inputs) if self.train else (self._infer, self._inputs)
        captures = graphweave.explain(fn, *inputs).captures
        return {name: _sum([getattr(c, name) for c in captures]) for name in ("moved", "eager_moved")}


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def graphweave_compiler(options: Mapping[str, Any]) -> Callable[[nn.Module], Callable[..., Any]]:
    return lambda module: graphweave.compile(module, options=dict(options))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("system", choices=(EAGER, OURS, RUNS_ALONE))
    parser.add_argument("spec", help="JSON of a Spec")
    parser.add_argument("mode", choices=("train", "infer"))
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--options", default="{}")
    parser.add_argument("--wide", action="store_true")
    given = parser.parse_args(argv)
    torch.set_num_threads(given.threads)
    work = Work(given)
    questions = ("first", "result", "save_case", "peak", "moved")
    serve({"turn": steps_timer(work.step), **{name: getattr(work, name) for name in questions}})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
