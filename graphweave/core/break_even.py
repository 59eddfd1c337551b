"""When a compilation has paid: what the first call cost, against what each later step saves."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The seconds of a first call, which compiles, and of a later step, by PyTorch's own calls and compiled.

    After n steps, the compiled ones have taken first_call + (n - 1) * compiled_step, eager ones n * eager_step. So
    compiling has paid from the smallest n on with n * (eager_step - compiled_step) >= first_call - compiled_step.
    """

    first_call_seconds: float
    eager_step_seconds: float
    compiled_step_seconds: float

    @property
    def saved_seconds(self) -> float:
        """Seconds that a step saves; negative if it takes longer compiled."""
        return self.eager_step_seconds - self.compiled_step_seconds

    @property
    def steps(self) -> int | None:
        """The number of steps, the first one included, after which compiling has paid. None if it never does."""
        if self.saved_seconds <= 0:
            return None
        return max(1, math.ceil((self.first_call_seconds - self.compiled_step_seconds) / self.saved_seconds))

    def text(self, step: str = "step") -> str:
        """One line. `step` is what is repeated."""
        first, eager, compiled = map(
            seconds_text, (self.first_call_seconds, self.eager_step_seconds, self.compiled_step_seconds)
        )
        said = f"the first {step} took {first}, with compilation; each later one takes {compiled}, eagerly {eager}"
        if self.steps is None:
            return f"{said}: compiling never pays here, so run it as PyTorch's own"
        saved, unit = seconds_text(self.saved_seconds), step if self.steps == 1 else f"{step}s"
        return f"{said}: {saved} saved each time, so that compiling has paid after {self.steps:,} {unit}"


def seconds_text(seconds: float) -> str:
    """Seconds in three digits, with the unit that fits."""
    for scale, unit in ((1.0, "s"), (1e-3, "ms")):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
