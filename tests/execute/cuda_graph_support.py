"""A stand-in for a CUDA device: it captures calls on CPU tensors, and replays them by running them again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from graphweave.runtime.capturing import capturing

T = TypeVar("T")


class StandIn:
    """A stand-in whose captured work has not run: floating results are NaN until they are replayed."""

    kind = "cpu"

    def __init__(self) -> None:
        self.current: int | None = 0
        self.asides = self.captures = self.replays = 0
        self.fails: Exception | None = None

    def stream(self) -> int | None:
        return self.current

    def aside(self, work: Callable[[], T]) -> T:
        self.asides += 1
        return work()

    def capture(self, work: Callable[[], T]) -> tuple[Callable[[], None], T]:
        self.captures += 1
        before = torch.get_rng_state()
        made = work()
        torch.set_rng_state(before)
        if self.fails is not None:
            raise self.fails
        spoil(made)

        def replay() -> None:
            self.replays += 1
            with capturing(refuses=False):  # replays what was recorded, which is what a capture contains
                again = work()
            assert isinstance(made, list) and isinstance(again, list)
            for out, value in zip(made, again, strict=True):
                out.copy_(value)

        return replay, made


def spoil(tensors: object) -> None:
    assert isinstance(tensors, list)
    for t in tensors:
        assert isinstance(t, Tensor)
        t.fill_(float("nan") if t.is_floating_point() else 1)
