"""One step of a program: its results, the gradients of what they depend on, and what it changes in place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path

from graphweave.certificate.program_copy import ProgramCopy
from graphweave.certificate.random_numbers import CounterBased, DrawnAs, default_dtype
from graphweave.core.errors import DataError
from graphweave.core.settings import override
from graphweave.ir.philox import uniform
from graphweave.runtime.cuda_stream import wait_for_gpu

Draws: TypeAlias = Literal["by position", "in order"]
"""How random numbers are drawn: from a seed and the position of each number, as compiled programs do for tensors on
rows of a graph, or one after the other, as PyTorch does."""


@dataclass(frozen=True, slots=True)
class StepValues:
    """The tensors that a step has computed, by name: results, gradients (`gradients` are their names), and tensors that
    it has changed in place. `draws` says whether it has drawn random numbers.

    There is no gradient of a tensor on which no result depends.
    """

    tensors: dict[str, Tensor]
    gradients: frozenset[str]
    draws: bool


class Stepper:
    """Steps of one copy of a program by one way of running it. Every step begins in the same state, with `seed`."""

    def __init__(self, program: ProgramCopy, call: Callable[..., object], seed: int = 0) -> None:
        """`call` runs `program`: its own function, or that compiled."""
        self.program, self._call, self._seed = program, call, seed
        self._weights: dict[tuple[int, torch.Size], Tensor] = {}

    def values(self, data: int = 0, prepare: Callable[[], None] = lambda: None) -> StepValues:
        """Run a step on the arguments number `data`, after `prepare`."""
        self.program.restore()
        prepare()
        with self.program.in_place():
            torch.manual_seed(self._seed)
            state = _random_state()
            results, gradients = self._run(data)
            draws = state != _random_state()
        tensors = {name: x.detach().clone() for name, x in results.items()}
        tensors |= {f"gradient of {name}": _dense(g.detach()).clone() for name, g in gradients.items()}
        tensors |= {f"{name}, afterwards": x for name, x in self.program.changed(data).items()}
        self.program.restore()
        return StepValues(tensors, frozenset(f"gradient of {name}" for name in gradients), draws)

    def seconds(self, data: int = 0) -> float:
        """The time of a step, forward and backward."""
        self.program.restore()
        with self.program.in_place():
            torch.manual_seed(self._seed)
            wait_for_gpu()
            begun = time.perf_counter()
            self._run(data)
            wait_for_gpu()
            return time.perf_counter() - begun

    def _run(self, data: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        args, kwargs = self.program.calls[data]
        paths, _ = tree_flatten_with_path(self._call(*args, **kwargs))
        results = {f"result{keystr(path)}": _dense(x) for path, x in paths if isinstance(x, Tensor)}
        if not results:
            raise DataError("check needs a function that returns tensors (got none). Return some, in lists or dicts.")
        leaves = self.program.leaves(data)
        live = [x for x in results.values() if x.requires_grad]
        found: Any = [None] * len(leaves)
        if live and leaves:
            weights = [self._weight(i, x) for i, x in enumerate(live)]
            found = torch.autograd.grad(live, [x for _, x in leaves], weights, allow_unused=True)
        # A function that runs its own backward leaves gradients behind.
        gradients = {name: x.grad if g is None else g for (name, x), g in zip(leaves, found, strict=True)}
        return results, {name: g for name, g in gradients.items() if g is not None}

    def _weight(self, number: int, result: Tensor) -> Tensor:
        """Signed numbers of size about 1, the same in every precision, by which a result counts in the loss."""
        key = number, result.shape
        if key not in self._weights:
            position = torch.arange(result.numel()).reshape(result.shape)  # no generator, whose numbers modes change
            drawn = 4 * uniform(torch.tensor(number), position, torch.float64) - 2
            self._weights[key] = drawn.to(device=result.device, dtype=result.dtype)
        return self._weights[key]


@contextmanager
def eager_mode(draws: Draws, drawn: torch.dtype | None = None) -> Iterator[None]:
    """Within the block everything runs as PyTorch's own calls, also what is compiled. With `drawn`, the program is a
    copy in float64 of one that draws its random numbers in that type."""
    with ExitStack() as held:
        held.enter_context(torch.compiler.set_stance("force_eager"))
        held.enter_context(override(eager_kernels=False))
        if drawn is not None:
            held.enter_context(default_dtype(torch.float64))
            held.enter_context(DrawnAs(drawn))
        if draws == "by position":
            held.enter_context(CounterBased(drawn))
        yield


def _dense(x: Tensor) -> Tensor:
    return x if x.layout is torch.strided else x.to_dense()


def _random_state() -> list[bytes]:
    """The states of PyTorch's generators, on all devices in use."""
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    return [state.numpy().tobytes() for state in (torch.get_rng_state(), *on_gpus)]
