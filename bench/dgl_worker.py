"""DGL's process of `bench.peers` and `bench.udf`, run by the Python of DGL's environment: serves one case from a file.

Questions: "first" builds the formats and runs once; "result" writes the kernel's output, or loss and gradients (by
PyG's names) of the last step, because another step may take minutes; "turn" times steps; "first_infer", "result_infer"
and "infer" are the same for forward passes of a model. PyTorch computes the loss eagerly, because its compiler cannot
capture DGL 2.1's graphs.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import dgl
import numpy as np
import torch
from torch import Tensor

from bench.dgl_models import MODELS, graph_of
from bench.turns import serve, steps_timer
from bench.udf_layers import joined


class Training:
    """A model of DGL's layers."""

    def __init__(self, name: str, case: Mapping[str, Tensor], index: torch.dtype) -> None:
        self.x, self.y = case["x"], case["y"]
        self.graph = graph_of(name, case, index)
        self.model = MODELS[name](self.x.size(1))
        prefix = "weight."
        self.model.take({key[len(prefix) :]: value for key, value in case.items() if key.startswith(prefix)})

    def step(self) -> Tensor:
        for parameter in self.model.parameters():
            parameter.grad = None
        loss = self.model.loss(self.graph, self.x, self.y)
        loss.backward()
        self.loss = loss.detach()
        return self.loss

    def infer(self) -> Tensor | tuple[Tensor, ...]:
        with torch.no_grad():
            self.outputs = self.model(self.graph, self.x, self.y)
        return self.outputs

    def result(self) -> dict[str, Tensor]:
        return {"out": self.loss, **self.model.pyg_grads()}


class KernelCall:
    """One of DGL's sparse operators, without gradients."""

    def __init__(self, name: str, case: Mapping[str, Tensor], index: torch.dtype) -> None:
        graph, x = graph_of(name, case, index), case["x"]
        weight = case["weight"].unsqueeze(1) if "weight" in case else x
        calls: dict[str, Callable[[], Tensor]] = {
            "spmm": lambda: dgl.ops.copy_u_sum(graph, x),
            "spmm-weighted": lambda: dgl.ops.u_mul_e_sum(graph, x, weight),
            "sddmm": lambda: dgl.ops.u_dot_v(graph, x, x).squeeze(-1),
        }
        self._call = calls[name]

    def step(self) -> Tensor:
        with torch.no_grad():
            return self._call()

    def result(self) -> dict[str, Tensor]:
        return {"out": self.step()}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="a model of bench.dgl_models or a kernel")
    parser.add_argument("case", help=".npz of x, edge_index, y, edge_attr, weight, weight.<parameter>")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--index-bits", type=int, choices=(32, 64), required=True)
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    with np.load(options.case) as arrays:
        case = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    index = torch.int32 if options.index_bits == 32 else torch.int64
    work = Training(options.name, case, index) if options.name in MODELS else KernelCall(options.name, case, index)

    def first(call: Callable[[], Any] = work.step) -> dict[str, Any]:
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
        return {"first": seconds, "versions": {name: version(name) for name in ("dgl", "torch", "numpy")}}

    def write(path: str, tensors: Mapping[str, Tensor]) -> None:
        np.savez(path, **{name: value.numpy() for name, value in tensors.items()})

    handlers: dict[str, Callable[..., Any]] = {
        "first": first,
        "result": lambda path: write(path, work.result()),
        "turn": steps_timer(work.step),
    }
    if isinstance(work, Training):
        handlers["first_infer"] = lambda: first(work.infer)
        handlers["result_infer"] = lambda path: write(path, {"out": joined(work.outputs)})
        handlers["infer"] = steps_timer(work.infer)
    serve(handlers)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
