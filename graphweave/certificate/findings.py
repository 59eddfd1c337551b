"""The findings of `graphweave.check`, as data."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from graphweave.certificate.judge import LARGEST, NOISE_FLOOR, TIMES_EAGER, TOLERANCE, ValueCheck
from graphweave.core.break_even import BreakEven


@dataclass(frozen=True, slots=True)
class Repeats:
    """Whether two runs with one seed give the same bits: twice alike, and on other numbers of threads (None if there is
    a single core); and the same for eager mode, by which a function that keeps state in Python is told."""

    twice: bool
    eager_twice: bool
    threads: tuple[int, int]
    across_threads: bool | None
    eager_across_threads: bool | None


@dataclass(frozen=True, slots=True)
class PlacedReason:
    """Something that was not compiled as one piece, why, and the user's line ("" if none is known)."""

    what: str
    why: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class CompiledParts:
    """The parts that were compiled: graphs and kernels, work left to PyTorch, graph breaks, and what was compiled
    again.

    `compilations` counts the graphs that were compiled in each call: the first and the second on the same arguments,
    then one on each of the others.
    """

    graphs: int
    kernels: int
    left_to_pytorch: tuple[PlacedReason, ...]
    eager: tuple[str, ...]
    graph_breaks: int
    breaks: tuple[PlacedReason, ...]
    compilations: tuple[int, ...]
    recompiled: tuple[PlacedReason, ...]


@dataclass(frozen=True, slots=True)
class Inductor:
    """torch.compile's own backend: the seconds of its first call and of a later step, or why there are none."""

    first_call_seconds: float | None
    step_seconds: float | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings of `graphweave.check` about one function on given data.

    `reference` says what results are compared with, `randomness` how random numbers were treated, `uncopied` which
    variables of the function could not be copied and why. `peak_bytes` are those of a step, compiled and in eager mode,
    beyond data and model (None if the system cannot tell).

    `ok` is True if `problems` is empty: every result and gradient is within its limit (`limits` says which), and two
    runs give the same bits. What is slower than it could be is no problem: graph breaks, work left to PyTorch.
    """

    what: str
    where: str
    values: tuple[ValueCheck, ...]
    reference: str
    randomness: str
    repeats: Repeats
    compiled: CompiledParts
    break_even: BreakEven
    inductor: Inductor
    peak_bytes: tuple[int | None, int | None]
    versions: Mapping[str, str]
    machine: Mapping[str, Any]
    uncopied: Mapping[str, str] = field(default_factory=dict)

    @property
    def problems(self) -> tuple[str, ...]:
        """The problems that were found, a sentence each."""
        return tuple(self._problems())

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def limits(self) -> Mapping[str, Any]:
        """The limits of `ok`."""
        return {
            "relative error": {str(dtype).removeprefix("torch."): limit for dtype, limit in TOLERANCE.items()},
            "times eager mode's own error": TIMES_EAGER,
            "but at most": LARGEST,
            "share of the largest gradient that gradients are relative to": NOISE_FLOOR,
        }

    def limits_text(self) -> str:
        """The limits of errors in words."""
        dtypes = dict.fromkeys(value.dtype for value in self.values)
        always = [f"{self.limits['relative error'][t]:.1g} ({t})" for t in dtypes if t in self.limits["relative error"]]
        return f"{', '.join(always) or 'none'}, or {TIMES_EAGER:.0f} times eager mode's own, up to {LARGEST:g}"

    def _problems(self) -> Iterator[str]:
        if not self.repeats.eager_twice:
            yield (
                "eager mode itself gives other numbers in a second run with the same seed, such as by state that the "
                "function keeps in Python, so that nothing can be compared with it"
            )
        for value in self.values:
            if value.problem:
                on = f" on other data {value.data}" if value.data else ""
                yield f"{value.name}{on}: {value.problem}"
        if self.repeats.eager_twice and not self.repeats.twice:
            yield "two compiled runs with the same seed differ"

    def facts(self) -> dict[str, Any]:
        """Everything as plain values that JSON can write. Numbers that are not finite are None."""
        more = {"ok": self.ok, "problems": list(self.problems), "limits": self.limits,
                "break_even_steps": self.break_even.steps}  # fmt: skip
        return {**_plain(self), **_plain(more)}

    def json(self) -> str:
        return json.dumps(self.facts(), indent=2) + "\n"


def _plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
