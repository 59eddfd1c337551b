"""The verifier of tapes. An error names the step, what the step needs, and what there is instead."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from graphweave.core.errors import IRError
from graphweave.core.types import UNIT, Space
from graphweave.ir.message.types import Ref
from graphweave.ir.tape.nodes import (
    Begin,
    Count,
    FirstPart,
    InChunks,
    OnceAGraph,
    RunKernels,
    SecondPart,
    Settle,
    Step,
    Tape,
    Wait,
)
from graphweave.ir.tape.show import show_step
from graphweave.ir.tape.walk import frees_of, lives_inside, makes_of, reads_of, rows_of


def verify(tape: Tape) -> None:
    """Raise IRError unless every value is made once, before it is read, and freed at most once, after its last use and
    not if it is an output; rows are counted before they are used; what begins is waited for; and values that share
    memory inside a native call are not alive at once."""
    checked = _Checked(tape)
    for at, step in enumerate(tape.steps):
        checked.step(at, step)
    checked.end()


class _Checked:
    """The values that exist after the steps that have been checked."""

    def __init__(self, tape: Tape) -> None:
        self._tape, self._where = tape, f"tape {tape.name}"
        self._there: set[Ref] = {*tape.inputs, *tape.constants}
        self._freed: dict[Ref, str] = {}
        self._rows: set[Space] = {UNIT, *tape.rows}
        self._moving: dict[Ref, str] = {}  # values that have begun to move, and the step that has begun it
        self._halves: dict[int, tuple[FirstPart, str]] = {}  # kernels of which one part has run
        self._settled: set[int] = set()
        if len(self._there) < len(tape.inputs) + len(tape.constants):
            self._error("inputs and constants that differ", f"{_names((*tape.inputs, *tape.constants))}")

    def _error(self, expected: str, got: str) -> NoReturn:
        raise IRError(f"{self._where}: expected {expected} (got {got}). This is a bug in graphweave; please report it.")

    def step(self, at: int, step: Step) -> None:
        self._where = f"tape {self._tape.name}, step {at} ({show_step(step)})"
        for r in reads_of(step):
            self._needs(r)
        for space in rows_of(step):
            if space not in self._rows:
                self._error(f"the rows of {space} to be counted before", "no such count")
        if not isinstance(step, Begin):  # what a first part writes may only travel
            self._whole(reads_of(step))
        self._kind(step)
        for r in makes_of(step):
            if r in self._there or r in self._freed:
                self._error(f"one step that makes %{r}", "another one before")
            self._there.add(r)
        for r in frees_of(step):
            self._free(r)

    def _needs(self, r: Ref) -> None:
        if r in self._there:
            return
        if r in self._freed:
            self._error(f"%{r} to be alive", f"it is freed by {self._freed[r]}")
        if r in self._moving:
            self._error(f"%{r} to be there", f"no wait after {self._moving[r]}")
        self._error(f"%{r} to be made before", "no step before that makes it")

    def _whole(self, refs: tuple[Ref, ...]) -> None:
        for first, where in self._halves.values():
            for r in set(first.writes).intersection(refs):
                self._error(f"all rows of %{r}", f"only the first part of them, from {where}")

    def _free(self, r: Ref) -> None:
        self._needs(r)
        self._whole((r,))
        if r in self._tape.constants or any(r == out.value for out in self._tape.outputs):
            self._error("no constant and no output to be freed", f"%{r}")
        self._there.discard(r)
        self._freed[r] = self._where

    def _kind(self, step: Step) -> None:
        """Checks the further demands of each kind of step."""
        match step:
            case Count(space):
                if space in self._rows:
                    self._error(f"one count of the rows of {space}", "another one before")
                self._rows.add(space)
            case OnceAGraph(makes, reads, rows, tape):
                needed = len(tape.inputs), len(tape.rows)
                if (len(reads), len(rows)) != needed or len(makes) > len(tape.outputs):
                    self._error(
                        f"{needed[0]} values, {needed[1]} row counts and up to {len(tape.outputs)} results",
                        f"{len(reads)}, {len(rows)} and {len(makes)}",
                    )
                verify(tape)
            case InChunks(reads=reads, sliced=sliced, rows=rows, makes=makes, adds=adds, tape=tape):
                asked = len(tape.inputs), len(tape.rows), len(tape.outputs)
                there = len(reads), len(rows), len(makes) + len(adds)
                if there != asked:
                    self._error(f"{asked[0]} values, {asked[1]} row counts and {asked[2]} results", f"{there}")
                if not set(sliced) <= set(reads):
                    self._error(f"rows of values among {_names(reads)}", _names(sliced))
                verify(tape)
            case RunKernels():
                self._members(step)
            case Begin(value):
                if value in self._moving or value in self._there or value in self._freed:
                    self._error(f"%{value} to begin once", "it has begun before")
                self._moving[value] = self._where
            case Wait(value):
                if self._moving.pop(value, None) is None:
                    self._error(f"%{value} to have begun", "no such step before")
            case FirstPart(kernel):
                for late in step.late:
                    if late.value not in step.reads or (late.value not in self._moving):
                        self._error(f"%{late.value} to be read, and to have begun", "it is not")
                self._halves[kernel] = step, self._where
            case SecondPart(kernel):
                self._second(kernel)
            case Settle(result):
                if result >= len(self._tape.outputs) or result in self._settled:
                    self._error(f"one of {len(self._tape.outputs)} results, settled once", f"{result}")
                self._settled.add(result)
            case _:
                pass

    def _second(self, kernel: int) -> None:
        if kernel not in self._halves:
            self._error(f"the first part of kernel {kernel} before", "none")
        first, _ = self._halves.pop(kernel)
        for r in (*first.reads, *first.writes):
            self._needs(r)

    def _members(self, step: RunKernels) -> None:
        """Members read what the call reads, or what a member before has written; each value that is made is a result or
        lies inside; and those in one slot are not alive at once."""
        known = {*step.reads, *(t.value for t in step.transposes)}
        for t in step.transposes:
            if t.source not in step.reads:
                self._error(f"%{t.source}, which is transposed, among the reads", _names(step.reads))
        for member in step.members:
            for r in member.reads:
                if r not in known:
                    self._error(f"%{r} to be made before run {member.kernel}", f"only {_names(sorted(known))}")
            known.update(member.writes)
            limit = member.limit
            if limit is not None and not (limit.maps <= {*step.maps} and limit.spaces <= {UNIT, *step.rows}):
                self._error(f"maps and rows that tell the limit of run {member.kernel}", "others")
        made = {r for m in step.members for r in m.writes} | {t.value for t in step.transposes}
        placed = [*step.writes, *(one.value for one in step.inside)]
        if sorted(placed) != sorted(made):
            self._error(f"a place for each of {_names(sorted(made))}", _names(sorted(placed)))
        for r in step.frees:
            if r not in step.reads:
                self._error(f"only values that it reads to be freed, {_names(step.reads)}", f"%{r}")
        lives = lives_inside(step)
        for i, one in enumerate(step.inside):
            if one.space not in step.rows and one.space != UNIT:
                self._error(f"the rows of {one.space}, in which %{one.value} lies", "no count of them")
            for other in step.inside[:i]:
                (begin, end), (start, stop) = lives[one.value], lives[other.value]
                if one.slot == other.slot and begin <= stop and start <= end:
                    self._error(
                        "values that are alive at once in different slots",
                        f"%{other.value} and %{one.value} in slot {one.slot}",
                    )
        for room in step.rooms:
            if room.value not in step.writes:
                self._error("room only behind a value that it writes", f"%{room.value}")

    def end(self) -> None:
        self._where = f"tape {self._tape.name}, the return"
        for out in self._tape.outputs:
            if out.value is not None:
                self._needs(out.value)
                self._whole((out.value,))
        for r, where in self._moving.items():
            self._error(f"a wait for %{r}", f"none after {where}")
        for kernel, (_, where) in self._halves.items():
            self._error(f"the second part of kernel {kernel}", f"none after {where}")


def _names(refs: Iterable[Ref]) -> str:
    return ", ".join(f"%{r}" for r in refs) or "none"
