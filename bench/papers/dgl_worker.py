"""DGL's own layers on one Spec, by the Python of DGL's environment: serves what bench/papers/worker.py serves."""

from __future__ import annotations

import argparse
import ctypes
import gc
import re
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import dgl
import numpy as np
import torch
from torch import Tensor, nn

from bench.dgl_models import EdgeConv, Gat, Gcn, Layers, Monet, Sage, Twin, UserDefined, graph_of
from bench.papers import tasks
from bench.papers.dgl_bytes import moved_by
from bench.papers.spec import USER_DEFINED, Spec, spec_of
from bench.turns import serve, steps_timer
from bench.udf_layers import LAYERS, joined


def model_of(spec: Spec) -> Layers | UserDefined:
    if spec.layer.startswith(USER_DEFINED):
        return UserDefined(LAYERS[spec.layer.removeprefix(USER_DEFINED)](spec.inputs))
    kinds: dict[str, Callable[[int, int], Twin]] = {
        "gcn": Gcn,
        "sage": Sage,
        "gat": lambda i, o: Gat(i, spec.heads, o // spec.heads),
        "monet": lambda i, o: Monet(i, o, spec.pseudo, spec.kernels),
        "edgeconv": EdgeConv,
    }
    return Layers(*(kinds[spec.layer](i, o) for i, o in pairwise((spec.inputs, *spec.widths))))


class DglAlong:
    """`Along` by DGL's g-SpMM and g-SDDMM. An index is a block from sources to destinations."""

    def total(self, x: Tensor, index: dgl.DGLGraph, weight: Tensor, rows: int) -> Tensor:
        out: Tensor = dgl.ops.u_mul_e_sum(index, x, weight[:, None])
        return out

    def dot(self, left: Tensor, right: Tensor, index: dgl.DGLGraph) -> Tensor:
        out: Tensor = dgl.ops.u_dot_v(index, left, right).squeeze(-1)
        return out


@dataclass(slots=True)
class Built:
    """A model as calls: its outputs, its loss, and the gradients that can be compared, by PyG's names."""

    model: nn.Module
    infer: Callable[[], Tensor]
    loss: Callable[[], Tensor]
    grads: Callable[[], dict[str, Tensor]]


def built_task(spec: Spec, case: dict[str, Tensor], weights: dict[str, Tensor]) -> Built:
    """A model of bench/papers/tasks.py, which is its own loss."""
    model = tasks.module_of(spec, DglAlong())
    model.load_state_dict(weights)
    count = sum(name.startswith("input.") for name in case)
    inputs: list[Any] = [case[f"input.{i}"] for i in range(count)]
    for i in range(count):
        if (sides := case.get(f"sides.{i}")) is not None:
            inputs[i] = block(inputs[i], *sides.tolist())

    def grads() -> dict[str, Tensor]:
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    return Built(model, lambda: model(*inputs), lambda: model(*inputs), grads)


def block(index: Tensor, sources: int, destinations: int) -> dgl.DGLGraph:
    made = dgl.create_block((index[0], index[1]), num_src_nodes=sources, num_dst_nodes=destinations)
    made.create_formats_()
    return made


def built_layers(spec: Spec, case: dict[str, Tensor], weights: dict[str, Tensor]) -> Built:
    """DGL's own layers, or user-defined functions."""
    model = model_of(spec)
    model.take(weights)
    graph = graph_of(spec.layer, case, torch.int64)
    x, y = case["x"], case["y"]
    return Built(model, lambda: joined(model(graph, x, y)), lambda: model.loss(graph, x, y), model.pyg_grads)


class Work:
    def __init__(self, spec: Spec, mode: str, path: str) -> None:
        with np.load(path) as arrays:
            case = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        weights = {name.removeprefix("weight."): v for name, v in case.items() if name.startswith("weight.")}
        self.train = mode == "train"
        self.built = (built_task if spec.layer in tasks.INPUTS else built_layers)(spec, case, weights)

    def step(self) -> Tensor:
        if not self.train:
            with torch.no_grad():
                return self.built.infer()
        for parameter in self.built.model.parameters():
            parameter.grad = None
        loss = self.built.loss()
        loss.backward()
        return loss.detach()

    def first(self) -> dict[str, float]:
        start = time.perf_counter()
        self.step()
        return {"first": time.perf_counter() - start}

    def result(self, path: str) -> None:
        out = self.step()
        grads = self.built.grads() if self.train else {}
        arrays: dict[str, Any] = {"out": out.numpy(), **{name: grad.numpy() for name, grad in grads.items()}}
        np.savez(path, **arrays)

    def moved(self) -> dict[str, int]:
        """Bytes that a step moves, counted as bench/papers/dgl_bytes.py says."""
        self.step()
        return {"moved": moved_by(self.step)}

    def peak(self) -> int:
        """Peak bytes of a step beyond those resident before (Linux)."""
        self.step()
        for parameter in self.built.model.parameters():
            parameter.grad = None
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _status_kib("VmRSS")
        self.step()
        return max(_status_kib("VmHWM") - before, 0) * 1024


def _status_kib(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None, f"/proc/self/status has no {field}"
    return int(found[1])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("spec", help="JSON of a Spec")
    parser.add_argument("mode", choices=("train", "infer"))
    parser.add_argument("case", help=".npz of inputs and weights")
    parser.add_argument("--threads", type=int, required=True)
    given = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    torch.set_num_threads(given.threads)
    work = Work(spec_of(given.spec), given.mode, given.case)
    serve({"turn": steps_timer(work.step), **{n: getattr(work, n) for n in ("first", "result", "peak", "moved")}})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
