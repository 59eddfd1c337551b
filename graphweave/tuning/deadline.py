"""The time that a search may take."""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass, field


class OutOfTime(Exception):
    """The budget does not suffice for the next piece of work."""


@dataclass(slots=True)
class Deadline:
    """A search ends `seconds` after this object was made. Work begins only if it is expected to end before that."""

    seconds: float
    _begun: float = field(default_factory=time.perf_counter)

    @property
    def passed(self) -> float:
        """Seconds since the search began."""
        return time.perf_counter() - self._begun

    @property
    def left(self) -> float:
        return self.seconds - self.passed

    def allow(self, expected: float) -> None:
        """OutOfTime if work that is expected to take so many seconds would not end in time."""
        if self.left < expected:
            raise OutOfTime(f"{expected:.2f} s were needed and {max(0.0, self.left):.2f} s were left")

    def part(self, share: float) -> Deadline:
        """A deadline that ends after this share of the time that is left."""
        return Deadline(max(0.0, share * self.left))


shared_deadline: ContextVar[Deadline | None] = ContextVar("shared_deadline", default=None)
"""The deadline of all graphs that are captured by one call; None gives each graph a budget of its own."""
