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
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import graphweave
from bench.common import peak_extra_bytes, seconds_of
from bench.forget import forget_graphs
from bench.graphs import Workload
from bench.papers import tasks
from bench.papers.graphs import edges_of, workload
from bench.papers.spec import USER_DEFINED, Spec, spec_of
from bench.turns import Player, serve, steps_timer
from bench.udf_layers import LAYERS, joined
from bench.udf_layers import WithLoss as UdfWithLoss
from bench.udf_variants import PYG, plain_names
from bench.udf_worker import graph_of, with_self_loops
from bench.worker import write_arrays
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
    kinds: dict[str, Callable[[int, int], nn.Module]] = {
        "gcn": lambda i, o: pyg.GCNConv(i, o),
        "sage": lambda i, o: pyg.SAGEConv(i, o),
        "gat": lambda i, o: pyg.GATConv(i, o // spec.heads, heads=spec.heads),
        "monet": lambda i, o: pyg.GMMConv(i, o, spec.pseudo, spec.kernels),
        "edgeconv": lambda i, o: pyg.EdgeConv(nn.Linear(2 * i, o)),
        "edgeconv-mlp": lambda i, o: pyg.EdgeConv(mlp(2 * i, o)),
    }
    return Layers(*(kinds[spec.layer](i, o) for i, o in pairwise((spec.inputs, *spec.widths))))


class PygAlong(pyg.MessagePassing):
    """`Along` by PyG's message passing. An index is an edge index [2, E]."""

    def __init__(self) -> None:
        super().__init__(aggr="sum")

    def total(self, x: Tensor, index: Tensor, weight: Tensor, rows: int) -> Tensor:
        out: Tensor = self.propagate(index, x=x, weight=weight, size=(x.size(0), rows))
        return out

    def message(self, x_j: Tensor, weight: Tensor) -> Tensor:
        return x_j * weight[:, None]

    def dot(self, left: Tensor, right: Tensor, index: Tensor) -> Tensor:
        return (left[index[0]] * right[index[1]]).sum(-1)


@dataclass(slots=True)
class Built:
    """A model and its loss, each with its arguments, and what DGL's process needs of them."""

    model: nn.Module
    inputs: tuple[Any, ...]
    loss: nn.Module
    loss_inputs: tuple[Any, ...]
    arrays: dict[str, Tensor]
    weights: dict[str, Tensor]


def built_task(spec: Spec, wide: bool, folder: Path) -> Built:
    """A model of bench/papers/tasks.py, which is its own loss."""
    given = tasks.inputs_of(spec, lambda nodes, edges: edges_of(f"rmat:{nodes}:{edges}", folder)[0])
    inputs = [one.index if isinstance(one, tasks.Edges) else one for one in given]
    arrays = {f"input.{i}": value for i, value in enumerate(inputs)}
    for i, one in enumerate(given):
        if isinstance(one, tasks.Edges):
            arrays[f"sides.{i}"] = torch.tensor([one.sources, one.destinations])
    torch.manual_seed(0)
    module = tasks.module_of(spec, PygAlong())
    weights = {name: value.detach().clone() for name, value in module.named_parameters()}
    if wide:
        module = module.double()
        inputs = [value.double() if value.is_floating_point() else value for value in inputs]
    return Built(module, tuple(inputs), module, tuple(inputs), arrays, weights)


def built_layers(spec: Spec, wide: bool, folder: Path) -> Built:
    """PyG's layers, and the cross entropy of the last."""
    work = workload(spec.graph, spec.inputs, spec.pseudo if spec.layer == "monet" else 0, spec.widths[-1], folder)
    torch.manual_seed(0)
    model = model_of(spec)
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    arrays = arrays_of(work)
    if wide:
        work, model = work.double(), model.double()
    return Built(model, work.inputs, WithLoss(model), (work.y, *work.inputs), arrays, weights)


def built_functions(spec: Spec, wide: bool, folder: Path, *, eager: bool) -> Built:
    """Two layers of user-defined functions; for eager PyG, the same of PyG's layers."""
    name = spec.layer.removeprefix(USER_DEFINED)
    work = workload(spec.graph, spec.inputs, 0, spec.widths[-1], folder)
    torch.manual_seed(0)
    model: Any = PYG[name](spec.inputs)
    weights = plain_names({key: value.detach().clone() for key, value in model.named_parameters()})
    if not eager:
        model = LAYERS[name](spec.inputs)
        model.load_state_dict(weights)
    arrays = arrays_of(work)
    if wide:
        work, model = work.double(), model.double()
    over: Any = work.edge_index if eager else graph_of(name, work.edge_index, work.x)
    if eager and name == "cgat":  # PyG's own layers insert self-loops themselves
        over = with_self_loops(work.edge_index, work.x.size(0))
    inputs = (over, work.x, work.y)
    return Built(model, inputs, UdfWithLoss(model), inputs, arrays, weights)


def arrays_of(work: Workload) -> dict[str, Tensor]:
    attributes = {} if work.edge_attr is None else {"edge_attr": work.edge_attr}
    return {"x": work.x, "edge_index": work.edge_index, "y": work.y, **attributes}


class Work:
    """The state of the process: inputs, model, and the step of its mode."""

    def __init__(self, given: argparse.Namespace) -> None:
        spec = spec_of(given.spec)
        self.train = given.mode == "train"
        if spec.layer in tasks.INPUTS:
            self.built = built_task(spec, given.wide, given.data_dir)
        elif spec.layer.startswith(USER_DEFINED):
            self.built = built_functions(spec, given.wide, given.data_dir, eager=given.system == EAGER)
        else:
            self.built = built_layers(spec, given.wide, given.data_dir)
        self.model = self.built.model
        make = graphweave_compiler(json.loads(given.options)) if given.system == OURS else lambda module: module
        self._infer, self._loss = make(self.built.model), make(self.built.loss)

    def step(self) -> Tensor:
        if not self.train:
            with torch.no_grad():
                return joined(self._infer(*self.built.inputs))
        for parameter in self.model.parameters():
            parameter.grad = None
        loss: Tensor = self._loss(*self.built.loss_inputs)
        loss.backward()
        return loss.detach()

    def first(self) -> dict[str, Any]:
        return {"first": seconds_of(self.step)}

    def result(self, path: str) -> None:
        out = self.step()
        grads = {name: p.grad for name, p in self.model.named_parameters() if self.train and p.grad is not None}
        write_arrays(path, {"out": out, **plain_names(grads)})

    def save_case(self, path: str) -> None:
        weights = {f"weight.{name}": value for name, value in self.built.weights.items()}
        write_arrays(path, {**self.built.arrays, **weights})

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
        both = (self._loss, self.built.loss_inputs), (self._infer, self.built.inputs)
        fn, inputs = both[0] if self.train else both[1]
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
