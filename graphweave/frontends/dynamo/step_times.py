"""Measures a step compiled and by PyTorch's own calls, without effects that a user sees."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from graphweave.core.break_even import BreakEven
from graphweave.core.counters import kept_as_they_are
from graphweave.core.settings import override
from graphweave.frontends.tracing.call_state import State
from graphweave.runtime.cuda_stream import wait_for_gpu

_RUNS = 5
"""Timed runs of each, of which the median counts."""
_MAX_SECONDS = 2.0
"""No further run begins after this many seconds."""


def break_even(
    target: Callable[..., object],
    compiled: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    first_call_seconds: float,
) -> BreakEven:
    """Run `target` and `compiled` in turns: forward, and backward where the result requires a gradient.

    Random state and buffers are restored afterwards, and no gradient is accumulated. What the function's own Python
    code does, such as printing, is done in each run.
    """
    before = State(target)
    try:
        with kept_as_they_are():
            eager, own = medians_in_turns([partial(_step, f, args, kwargs) for f in (_eagerly(target), compiled)])
    finally:
        before.restore()
    return BreakEven(first_call_seconds, eager, own)


def medians_in_turns(
    steps: Sequence[Callable[[], float]], runs: int = _RUNS, max_seconds: float = _MAX_SECONDS
) -> list[float]:
    """The median of the seconds that each of `steps` returns, over `runs` runs in turns, after one that fills caches.

    No further turn begins after `max_seconds`, but there is one.
    """
    begun = time.perf_counter()
    for step in steps:
        step()
    turns: list[list[float]] = []
    while len(turns) < runs and (not turns or time.perf_counter() - begun < max_seconds):
        turns.append([step() for step in steps])
    return [statistics.median(seconds) for seconds in zip(*turns, strict=True)]


def _step(f: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object]) -> float:
    """The seconds of a call and of its backward."""
    wait_for_gpu()
    begun = time.perf_counter()
    results = [x for x in tree_leaves(f(*args, **kwargs)) if isinstance(x, Tensor) and x.requires_grad]
    if wanted := _leaves_behind(results):
        torch.autograd.grad(results, wanted, [torch.ones_like(x) for x in results])
    wait_for_gpu()
    return time.perf_counter() - begun


def _leaves_behind(results: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that a backward from `results` would give a gradient to."""
    todo, seen, found = [x.grad_fn for x in results if x.grad_fn is not None], set[Any](), list[Tensor]()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(leaf := getattr(node, "variable", None), Tensor):
            found.append(leaf)
        todo += [behind for behind, _ in node.next_functions if behind is not None]
    return found


def _eagerly(target: Callable[..., object]) -> Callable[..., object]:
    """`target` without the kernels that graphs use outside of compiled functions."""

    def eager(*args: object, **kwargs: object) -> object:
        with override(eager_kernels=False):
            return target(*args, **kwargs)

    return eager
