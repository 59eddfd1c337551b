"""The values that a step of a tape reads, makes and frees, and the sizes that it uses."""

from __future__ import annotations

from graphweave.core.types import Space
from graphweave.ir.held import held
from graphweave.ir.message.types import Ref
from graphweave.ir.tape.nodes import (
    Computed,
    Count,
    DimOf,
    DistinctOf,
    FirstPart,
    Fixed,
    Number,
    NumberOf,
    RunKernels,
    Step,
)

_READ, _MADE, _FREED, _SPACE = (frozenset(words) for words in (("Ref", "Given"), ("Made",), ("Freed",), ("Space",)))


def reads_of(step: Step) -> tuple[Ref, ...]:
    """The values that must be there before the step, each once. Of late values, `FirstPart` reads the rows that are
    there."""
    if isinstance(step, Count):
        return numbers_in(step.number)
    late = {one.value for one in step.late} if isinstance(step, FirstPart) else frozenset()
    return tuple(dict.fromkeys(r for r in held(step, _READ) if r is not None and r not in late))


def numbers_in(number: Number) -> tuple[Ref, ...]:
    """The values that tell a number."""
    match number:
        case Fixed():
            return ()
        case DimOf(value) | NumberOf(value) | DistinctOf(value):
            return (value,)
        case Computed(_, known):
            return tuple(dict.fromkeys(r for one in known for r in numbers_in(one.number)))


def makes_of(step: Step) -> tuple[Ref, ...]:
    """The values that are there after the step and were not before."""
    return held(step, _MADE)


def frees_of(step: Step) -> tuple[Ref, ...]:
    return held(step, _FREED)


def rows_of(step: Step) -> tuple[Space, ...]:
    """The spaces whose rows must be counted before the step."""
    return () if isinstance(step, Count) else held(step, _SPACE)


def lives_inside(step: RunKernels) -> dict[Ref, tuple[int, int]]:
    """The first and the last member, by position, that have to do with each value inside; -1 is what comes before the
    first."""
    lives = {t.value: (-1, -1) for t in step.transposes}
    for at, member in enumerate(step.members):
        for r in (*member.writes, *member.reads):
            lives[r] = (lives[r][0] if r in lives else at), at
    return {one.value: lives[one.value] for one in step.inside}
