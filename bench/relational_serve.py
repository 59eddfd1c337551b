"""The server in each process of `bench.relational`: a layer on one case at a time, in the forms of several systems.

Questions: "case" loads a graph and weights and drops the previous case; "first" runs a form once (seconds, counters);
"result" writes the results of that run; "turn" times steps; "peak" measures peak memory of a step. A form is named by
`system`, and `mode` is "infer" (forward, no gradients) or "train" (forward, loss, backward). Both virtual environments
run this file.
"""

from __future__ import annotations

import ctypes
import gc
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.relational_graphs import Case, load
from bench.turns import serve, steps_timer


@dataclass(slots=True)
class Form:
    """A layer in the form of one system. `infer` returns outputs [N, 64], `loss` a scalar to be differentiated.

    `grads`: gradients of the module's parameters under the names of `bench.relational_models`.
    """

    module: nn.Module
    infer: Callable[[], Tensor]
    loss: Callable[[], Tensor]
    grads: Callable[[], dict[str, Tensor]]
    last: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def step(self, mode: str) -> None:
        if mode == "infer":
            with torch.no_grad():
                self.last[mode] = {"out": self.infer()}
            return
        for parameter in self.module.parameters():
            parameter.grad = None
        loss = self.loss()
        loss.backward()
        self.last[mode] = {"out": loss.detach()}


Build = Callable[[str, str, Case, Mapping[str, Tensor]], Form]
"""(system, model, case, weights) -> the layer in the form of that system."""


def _status_kib(what: str) -> int:
    found = re.search(rf"^{what}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


class Host:
    """The state of the process.

    `forget` drops what a system keeps for graphs, `next_case` what it keeps for a case. `counted` returns a system's
    counters, and `reset` sets them to 0.
    """

    def __init__(
        self,
        build: Build,
        *,
        packages: tuple[str, ...],
        forget: Callable[[], None] = lambda: None,
        next_case: Callable[[], None] = lambda: None,
        counted: Callable[[], dict[str, int]] = dict,
        reset: Callable[[], None] = lambda: None,
    ) -> None:
        self._build, self._forget, self._next_case = build, forget, next_case
        self._counted, self._reset = counted, reset
        self._versions = {name: version(name) for name in (*packages, "torch", "numpy")}
        self._forms: dict[str, Form] = {}
        gc.collect()
        gc.freeze()  # the collections before every turn skip imported objects

    def case(self, graph: str, weights: str, model: str) -> dict[str, str]:
        self._forms.clear()
        self._next_case()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        self._case, self._model = load(graph), model
        with np.load(weights) as arrays:
            self._weights = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        return self._versions

    def _form(self, system: str) -> Form:
        if system not in self._forms:
            self._forms[system] = self._build(system, self._model, self._case, self._weights)
        return self._forms[system]

    def first(self, system: str, mode: str) -> dict[str, Any]:
        """Seconds of the first step, with compilation, but without building the layer and its formats."""
        form = self._form(system)
        self._reset()
        start = time.perf_counter()
        form.step(mode)
        seconds = time.perf_counter() - start
        return {"first": seconds, "counters": self._counted()}

    def result(self, system: str, mode: str, path: str) -> None:
        """Writes the results of the last step, without running the system again."""
        form = self._form(system)
        tensors = form.last[mode] if mode == "infer" else {**form.last[mode], **form.grads()}
        arrays: dict[str, Any] = {name: value.detach().numpy() for name, value in tensors.items()}
        np.savez(path, **arrays)

    def turn(self, system: str, mode: str, steps: int) -> float:
        form = self._form(system)
        return steps_timer(lambda: form.step(mode))(steps)

    def peak(self, system: str, mode: str) -> int:
        """Peak resident bytes of a step beyond those before it, with all that is kept for the graph (Linux)."""
        form = self._form(system)
        form.step(mode)  # compiles, so that the memory of compilation is not counted
        form.last.clear()
        for parameter in form.module.parameters():
            parameter.grad = None
        self._forget()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = _status_kib("VmRSS")
        form.step(mode)
        return max(_status_kib("VmHWM") - before, 0) * 1024

    def launches(self, system: str, mode: str) -> int:
        """The number of kernels that one warm step calls."""
        form = self._form(system)
        self._reset()
        form.step(mode)
        return self._counted().get("kernel_launches", 0)

    def serve(self) -> None:
        questions = ("case", "first", "result", "turn", "peak", "launches")
        serve({name: getattr(self, name) for name in questions})
