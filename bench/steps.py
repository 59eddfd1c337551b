"""Steps of a peer, and the questions that its process answers about them.

Only NumPy and PyTorch are imported, because a peer's virtual environment runs this file, too.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bench.turns import peak_extra_bytes, steps_timer

Step: TypeAlias = Callable[[], Any]
"""One call of the work that is timed. It returns what it computes: tensors, arrays, or a `Result`."""

MODES = ("infer", "train")
"""The work of a `ModelStep`: a forward pass without gradients, or forward, loss and backward."""


@dataclass(frozen=True, slots=True)
class Result:
    """The results of one step: `outputs` in tree order, `grads` by name of the parameter or input (`input[i]`)."""

    outputs: tuple[Tensor, ...]
    grads: dict[str, Tensor | None]

    def rounded(self) -> Result:
        """The same values, in float32 where they are in float64."""
        grads = {name: None if grad is None else _rounded(grad) for name, grad in self.grads.items()}
        return Result(tuple(map(_rounded, self.outputs)), grads)


def _rounded(value: Tensor) -> Tensor:
    return value.float() if value.dtype == torch.float64 else value


def result_of(value: Any) -> Result:
    """The tensors that a step returned, in tree order; arrays of other libraries become tensors."""
    if isinstance(value, Result):
        return value
    leaves = (leaf if isinstance(leaf, Tensor) else torch.as_tensor(leaf) for leaf in pytree.tree_leaves(value))
    return Result(tuple(leaf.detach() for leaf in leaves), {})


def gradients(model: nn.Module) -> dict[str, Tensor | None]:
    """The gradients that parameters have, by name."""
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def drop_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = None


@dataclass(slots=True)
class ModelStep:
    """A step of a model in one of MODES. `infer` computes outputs, `loss` a scalar to be differentiated.

    `grads` gives the gradients under the names by which peers are compared, by default those of the parameters.
    """

    model: nn.Module
    mode: str
    infer: Callable[[], Any]
    loss: Callable[[], Tensor]
    grads: Callable[[], Mapping[str, Tensor | None]] | None = None

    def __call__(self) -> Result:
        if self.mode == "infer":
            with torch.no_grad():
                return result_of(self.infer())
        drop_gradients(self.model)
        loss = self.loss()
        loss.backward()
        return Result((loss.detach(),), dict(self.grads() if self.grads is not None else gradients(self.model)))

    def run(self, mode: str) -> Result:
        self.mode = mode
        return self()

    def release(self) -> None:
        drop_gradients(self.model)


class Asked:
    """One peer: `make` prepares its step when it is first asked; `notes` gives other numbers; `forget` drops caches.

    Questions: "prepare" makes the step; "first" does, and makes the first call (seconds); "result" writes what another
    call computes, as `out`, `out.1`, ..., and gradients by name (seconds); "turn" times steps; "peak" gives the peak
    bytes of a step beyond those before it, with all that is kept for the graph; "notes" asks for other numbers.
    """

    def __init__(
        self, make: Callable[[], Step], notes: Callable[[Step], Mapping[str, Any]] | None = None,
        forget: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._make, self._notes, self._forget = make, notes, forget

    def prepare(self) -> None:
        self._step = self._make()
        self._turn = steps_timer(self._step)

    def first(self) -> dict[str, Any]:
        self.prepare()
        start = time.perf_counter()
        self._step()
        return {"first": time.perf_counter() - start}

    def result(self, path: str) -> float:
        start = time.perf_counter()
        value = self._step()
        seconds = time.perf_counter() - start
        write_result(path, result_of(value))
        self._release()
        return seconds

    def turn(self, steps: int) -> float:
        return self._turn(steps)

    def peak(self) -> int:
        self._release()
        self._forget()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        return peak_extra_bytes(self._step)

    def _release(self) -> None:
        if isinstance(self._step, ModelStep):
            self._step.release()

    def notes(self) -> dict[str, Any]:
        return dict(self._notes(self._step)) if self._notes is not None else {}

    @property
    def handlers(self) -> dict[str, Callable[..., Any]]:
        return {name: getattr(self, name) for name in ("prepare", "first", "result", "turn", "peak", "notes")}


def write_result(path: str, result: Result) -> None:
    outputs = {f"out.{i}" if i else "out": value for i, value in enumerate(result.outputs)}
    write_arrays(path, outputs | {name: grad for name, grad in result.grads.items() if grad is not None})


def write_arrays(path: str | Path, tensors: Mapping[str, Tensor]) -> None:
    arrays: dict[str, Any] = {name: value.detach().numpy() for name, value in tensors.items()}
    np.savez(path, **arrays)


def read_arrays(path: str | Path) -> dict[str, Tensor]:
    with np.load(path) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def read_result(path: Path) -> Result:
    """The arrays that a process wrote: outputs are named `out`, `out.1`, ..., all others are gradients."""
    tensors = read_arrays(path)
    outputs = [tensors.pop(name) for name in list(tensors) if name == "out" or name.startswith("out.")]
    return Result(tuple(outputs), dict(tensors))
