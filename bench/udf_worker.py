"""Two layers by graphweave or eager PyG, in a process of its own: `python -m bench.udf_worker OPTIONS` serves.

Questions: "first" and "first_infer" run once (seconds, compilation included); "result" writes the loss and gradients,
"result_infer" the outputs; "save_case" writes inputs and initial weights for DGL; "turn" times training steps (forward,
loss, backward), "infer" forward passes without gradients.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.utils import add_self_loops, remove_self_loops

import graphweave
from bench.common import seconds_of
from bench.graphs import data_dir, load
from bench.turns import Player, serve, steps_timer
from bench.udf_layers import LAYERS, SELF_LOOPS, Stack, WithLoss, joined
from bench.udf_variants import BUILTIN, PYG, plain_names
from bench.worker import write_arrays

SYSTEMS: dict[str, tuple[dict[str, Callable[[int], Stack]], bool]] = {
    "udf": (LAYERS, True),
    "udf-eager": (LAYERS, False),
    "builtin": (BUILTIN, True),
    "pyg": (PYG, True),
    "eager": (PYG, False),
}
"""Name -> (layers by name, whether graphweave compiles model and loss). eager: PyTorch alone."""


def start(
    system: str, layer: str, graph: str, *, threads: int, folder: Path | None = None, wide: bool = False,
    timeout: float = 900, memory: int | None = None,
) -> Player:  # fmt: skip
    command = [sys.executable, "-m", "bench.udf_worker", system, layer, graph, "--threads", str(threads)]
    command += ["--data-dir", str(folder or data_dir())] + ["--wide"] * wide
    return Player(command, {"OMP_NUM_THREADS": str(threads)}, timeout=timeout, memory=memory)


def with_self_loops(edge_index: Tensor, num_nodes: int) -> Tensor:
    """The edges with exactly one self-loop at every node, after all other edges."""
    return add_self_loops(remove_self_loops(edge_index)[0], num_nodes=num_nodes)[0]


def graph_of(layer: str, edge_index: Tensor, x: Tensor) -> Any:
    """graphweave's graph with the fields that the layers read."""
    if layer in SELF_LOOPS:
        edge_index = with_self_loops(edge_index, x.size(0))
    graph = graphweave.graph((edge_index[0], edge_index[1]), num_nodes=x.size(0))
    if layer == "gcn":
        graph.ndata["norm"] = graph.in_degrees().to(x.dtype).rsqrt().unsqueeze(1)
    return graph


class Work:
    """The state of the process: inputs, model, and compiled functions."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        work = load(options.graph, options.data_dir)
        writing, compiled = SYSTEMS[options.system]
        torch.manual_seed(0)
        self.model = PYG[options.layer](work.x.size(1))
        self.case = {"x": work.x, "edge_index": work.edge_index, "y": work.y}
        weights = plain_names({name: value.detach().clone() for name, value in self.model.named_parameters()})
        self.case.update((f"weight.{name}", value) for name, value in weights.items())
        over: Any = work.edge_index
        if writing is not PYG:
            self.model = writing[options.layer](work.x.size(1))
            self.model.load_state_dict(weights)
        if options.wide:
            work, self.model = work.double(), self.model.double()
        if writing is not PYG:
            over = graph_of(options.layer, work.edge_index, work.x)
        elif options.layer == "cgat":  # PyG's own layers insert self-loops themselves
            over = with_self_loops(work.edge_index, work.x.size(0))
        self.inputs = (over, work.x, work.y)
        self.parameters = list(self.model.parameters())
        make: Callable[[nn.Module], Callable[..., Any]] = graphweave.compile if compiled else lambda model: model
        self._loss, self._infer = make(WithLoss(self.model)), make(self.model)

    def step(self) -> Tensor:
        for parameter in self.parameters:
            parameter.grad = None
        loss: Tensor = self._loss(*self.inputs)
        loss.backward()
        return loss.detach()

    def infer(self) -> Any:
        with torch.no_grad():
            return self._infer(*self.inputs)

    def first(self) -> dict[str, Any]:
        """Runs the first step. The answer has graphweave's counters, which show a fallback to eager mode."""
        return {**self._counted(self.step), "nodes": self.case["x"].size(0), "edges": self.case["edge_index"].size(1)}

    def first_infer(self) -> dict[str, Any]:
        return self._counted(self.infer)

    def _counted(self, call: Callable[[], Any]) -> dict[str, Any]:
        graphweave.reset_counters()
        seconds = seconds_of(call)
        return {"first": seconds, "counters": {name: n for name, n in graphweave.counters().items() if n}}

    def result(self, path: str) -> None:
        loss = self.step()
        grads = {name: value.grad for name, value in self.model.named_parameters() if value.grad is not None}
        write_arrays(path, {"out": loss, **plain_names(grads)})


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("layer", choices=LAYERS)
    parser.add_argument("graph")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--wide", action="store_true")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    work = Work(options)
    serve(
        {
            "first": work.first,
            "first_infer": work.first_infer,
            "result": work.result,
            "result_infer": lambda path: write_arrays(path, {"out": joined(work.infer())}),
            "save_case": lambda path: write_arrays(path, work.case),
            "turn": steps_timer(work.step),
            "infer": steps_timer(work.infer),
        }
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
