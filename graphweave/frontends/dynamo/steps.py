"""Steps of a program that is not ours: they end with steps of an optimizer, or begin with calls of a compiled
function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

listeners: list[Callable[[object], None]] = []
"""Each is told of a call of a function behind `graphweave.compile` before it begins."""


class EnoughSteps(BaseException):
    """Ends a program after as many steps as were asked for. It is no Exception, so that programs let it pass."""


class StepCounter:
    """Counts steps, and calls `ended` after each with their number.

    In training, steps of the optimizer that first made one are counted. A program without optimizers has a step for
    each call of the compiled function that is called first, up to its next call.
    """

    def __init__(self, limit: int | None = None, ended: Callable[[int], None] = lambda number: None) -> None:
        """The program ends after `limit` steps."""
        self.number, self.optimizer = 0, None
        self._limit, self._ended = limit, ended
        self._first: object = None

    @contextmanager
    def counted(self) -> Iterator[None]:
        """In this block, steps are counted. EnoughSteps ends it."""
        hook = register_optimizer_step_post_hook(self._stepped)
        listeners.append(self._called)
        try:
            yield
        except EnoughSteps:
            pass
        finally:
            listeners.remove(self._called)
            hook.remove()

    def _stepped(self, optimizer: Any, args: object, kwargs: object) -> None:
        if self.optimizer is None:
            self.optimizer, self.number = optimizer, 0  # the calls before were parts of this step
        if optimizer is self.optimizer:
            self._end()

    def _called(self, function: object) -> None:
        if self.optimizer is None and self._first is function:
            self._end()
        self._first = self._first or function

    def _end(self) -> None:
        self.number += 1
        self._ended(self.number)
        if self.number == self._limit:
            raise EnoughSteps
