"""DGL's own layers on one Spec, by the Python of DGL's environment: serves what bench/papers/worker.py serves."""

from __future__ import annotations

import argparse
import ctypes
import gc
import re
import time
import warnings
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bench.dgl_models import EdgeConv, Gat, Gcn, Layers, Monet, Sage, Twin, UserDefined, graph_of
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


class Work:
    def __init__(self, spec: Spec, mode: str, path: str) -> None:
        with np.load(path) as arrays:
            case = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        self.train, self.x, self.y = mode == "train", case["x"], case["y"]
        self.model = model_of(spec)
        self.model.take({name.removeprefix("weight."): v for name, v in case.items() if name.startswith("weight.")})
        self.graph = graph_of(spec.layer, case, torch.int64)

    def step(self) -> Tensor:
        if not self.train:
            with torch.no_grad():
                return joined(self.model(self.graph, self.x, self.y))
        for parameter in self.model.parameters():
            parameter.grad = None
        loss = self.model.loss(self.graph, self.x, self.y)
        loss.backward()
        return loss.detach()

    def first(self) -> dict[str, float]:
        start = time.perf_counter()
        self.step()
        return {"first": time.perf_counter() - start}

    def result(self, path: str) -> None:
        out = self.step()
        grads = self.model.pyg_grads() if self.train else {}
        np.savez(path, out=out.numpy(), **{name: grad.numpy() for name, grad in grads.items()})

    def peak(self) -> int:
        """Peak bytes of a step beyond those resident before (Linux)."""
        self.step()
        for parameter in self.model.parameters():
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
    serve({"turn": steps_timer(work.step), **{n: getattr(work, n) for n in ("first", "result", "peak")}})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
