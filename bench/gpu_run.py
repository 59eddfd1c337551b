"""Runs the cases of `bench.gpu`: keeps to the budget of time, drives the process with the device, records failures."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench.gpu_cases import MODES, Pair, guess, kind_of, other_function
from bench.gpu_measure import nvidia_smi
from bench.gpu_report import verdicts
from bench.turns import Player, PlayerLost, take_turns

GRACE_SECONDS = 15.0
"""A question that has no answer yet is given up this long after the budget is spent."""

TURN_SECONDS = 0.02
"""Length of a turn. There are no pauses between turns, because all systems share a process."""

PACE_LIMITS = (0.2, 4.0)
"""Smallest and largest factor by which guesses are corrected."""


@dataclass(slots=True)
class Budget:
    """The seconds of a run. A case's estimate is its guess times the pace: seconds taken so far over those guessed."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    began: float | None = None
    _guessed: float = 0.0
    _taken: float = 0.0

    def __post_init__(self) -> None:
        if self.began is None:
            self.began = self.clock()

    @property
    def left(self) -> float:
        assert self.began is not None
        return self.began + self.seconds - self.clock()

    @property
    def pace(self) -> float:
        return min(max(self._taken / self._guessed, PACE_LIMITS[0]), PACE_LIMITS[1]) if self._guessed else 1.0

    def refusal(self, guessed: float) -> str | None:
        """Why a case is skipped; None if it fits into the time that is left."""
        need, left = guessed * self.pace, self.left
        return None if need <= left else f"skipped: would take about {need:.0f} s, {max(left, 0):.0f} s are left"

    def spent(self, guessed: float, taken: float) -> None:
        self._guessed += guessed
        self._taken += taken


class Lost(Exception):
    """The process with the device has ended, or can no longer use the device. `system` is the cause, if it is known."""

    def __init__(self, system: str | None, answer: dict[str, Any]) -> None:
        super().__init__(answer["status"])
        self.system, self.answer = system, answer


class Failed(PlayerLost):
    """One system failed, but the process goes on."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__(answer["status"])
        self.answer = answer


class Worker(Protocol):
    """Something to ask questions. Raises PlayerLost if it does not answer within `seconds`, or has ended."""

    def ask_within(self, seconds: float, do: str, **given: Any) -> Any: ...

    def close(self) -> None: ...


class Process(Player):
    """A process of `bench.gpu_worker`."""

    def __init__(self, arguments: Sequence[str]) -> None:
        super().__init__([sys.executable, "-m", "bench.gpu_worker", *arguments], {}, timeout=600)

    def ask_within(self, seconds: float, do: str, **given: Any) -> Any:
        self._timeout = max(seconds, 0.1)
        return self.ask(do, **given)

    def _last_words(self) -> str:
        """How the process ended, and the end of its output."""
        code = self._process.wait(timeout=30)
        self._errors.seek(0)
        said = self._errors.read().strip()[-4000:]
        return f"{f'killed by signal {-code}' if code < 0 else f'exit {code}'}\n{said}"


@dataclass(frozen=True, slots=True)
class Seat:
    """One system in one mode, as a player of `take_turns`."""

    run: Run
    system: str
    mode: str

    def ask(self, do: str, **given: Any) -> Any:
        return self.run.ask(self.system, do, system=self.system, mode=self.mode, **given)


class Run:
    """One run of the benchmark. `record` holds all results, and is written to `out` after each answer."""

    def __init__(
        self, start: Callable[[], Worker], budget: Budget, record: dict[str, Any], out: Path | None, *,
        repeats: int = 12, system_seconds: float = 100.0, say: Callable[[str], None] = lambda text: None,
    ) -> None:  # fmt: skip
        self._start, self._budget, self.record, self._out = start, budget, record, out
        self._repeats, self._system_seconds, self._say = repeats, system_seconds, say
        self._worker: Worker | None = None

    def go(self, cases: Sequence[tuple[Pair, tuple[str, ...]]]) -> None:
        """Measures all cases and their systems, in order."""
        try:
            for pair, systems in cases:
                self._one(pair, systems)
                self.write()
        finally:
            self._close()

    def write(self) -> None:
        self.record["seconds"] = self._budget.seconds - self._budget.left
        self.record["targets"] = verdicts(self.record)
        write(self._out, self.record)

    # ------------------------------------------------------------ questions

    def ask(self, culprit: str | None, do: str, /, **given: Any) -> Any:
        """The answer to a question about the system `culprit`. Raises Failed if the system failed, and Lost if there is
        no answer in time or the process can no longer be used.
        """
        allowed = min(self._system_seconds, self._budget.left + GRACE_SECONDS)
        try:
            answer = self._at_work().ask_within(allowed, do, **given)
        except PlayerLost as problem:
            first, _, rest = str(problem).partition("\n")
            raise Lost(culprit, {"status": f"failed: {first}", "traceback": rest, "lost": True}) from None
        failed = answer.get("failed") if isinstance(answer, dict) else None
        if failed is None:
            return answer
        failed["status"] = f"failed: {failed['status']}"
        raise Lost(culprit, failed) if failed["lost"] else Failed(failed)

    def _at_work(self) -> Worker:
        if self._worker is None:
            self._worker = self._start()
            found = self._worker.ask_within(self._budget.left + GRACE_SECONDS, "hello")
            if "failed" in found:
                raise PlayerLost(f"{found['failed']['status']}\n{found['failed']['traceback']}")
            self.record.setdefault("device", found)
        return self._worker

    def _close(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    # ------------------------------------------------------------ one case

    def _one(self, pair: Pair, systems: tuple[str, ...]) -> None:
        guessed = guess(pair, systems)
        reason = self._budget.refusal(guessed)
        entry: dict[str, Any] = {"status": reason or "running", "guess": guessed * self._budget.pace}
        self.record["cases"][pair.name] = entry
        if reason is not None:
            return
        began = self._budget.left
        try:
            self._measure(pair, systems, entry)
        except Exception as problem:  # an error costs one case and not the whole run, which is expensive to repeat
            entry.update(status=f"failed: {type(problem).__name__}: {problem}", traceback=traceback.format_exc())
            self._close()
        entry["seconds"] = began - self._budget.left
        entry["nvidia_smi"] = nvidia_smi() if self.record["settings"]["device"] == "cuda" else None
        self._budget.spent(guessed, entry["seconds"])
        self._say(f"{pair.name}: {entry['status']}, {entry['seconds']:.0f} s; {self._budget.left:.0f} s left")

    def _measure(self, pair: Pair, systems: tuple[str, ...], entry: dict[str, Any]) -> None:
        """Measures a case, and starts over without a system when that system ends the process or loses the device."""
        culprits: dict[str, dict[str, Any]] = {}
        while True:
            entry["modes"] = {mode: dict(culprits) for mode in MODES}
            try:
                self._attempt(pair, [name for name in systems if name not in culprits], entry)
                entry["status"] = "ok"
                return
            except Failed as problem:
                entry.update(problem.answer)
                return
            except Lost as problem:
                self._close()
                if problem.system is None or self._budget.left <= 0:
                    self._cut_short(entry, problem)
                    return
                culprits[problem.system] = problem.answer

    def _cut_short(self, entry: dict[str, Any], problem: Lost) -> None:
        """Ends a case early. What was measured so far stays in the record."""
        entry.update(problem.answer)
        if problem.system is not None:
            for found in entry["modes"].values():
                found.setdefault(problem.system, problem.answer)

    def _attempt(self, pair: Pair, systems: list[str], entry: dict[str, Any]) -> None:
        entry["graph"] = self.ask(None, "case", model=pair.model, graph=pair.graph)
        entry["references"] = {}
        for within in sorted({other_function(name, pair.model) for name in systems}):
            try:
                answer = self.ask(None, "reference", within=within)
            except Failed as problem:
                answer = problem.answer
            entry["references"]["other function" if within else "own"] = answer
        for mode in MODES:
            for system in systems:
                self._first(pair, system, mode, entry["modes"][mode])
        for mode in MODES:
            self._turns(mode, entry["modes"][mode])
            self.write()
        for mode in MODES:
            self._kernels(mode, entry["modes"][mode])

    def _first(self, pair: Pair, system: str, mode: str, found: dict[str, Any]) -> None:
        within = other_function(system, pair.model)
        try:
            found[system] = self.ask(system, "first", system=system, mode=mode, within=within)
        except Failed as problem:
            found[system] = problem.answer
        if within:
            found[system]["other_function"] = True
        self.write()

    def _turns(self, mode: str, found: dict[str, Any]) -> None:
        """Times all systems that ran. A system that is wrong is timed and keeps its status: no target counts it."""
        seats: Mapping[str, Any] = {name: Seat(self, name, mode) for name, one in found.items() if "first" in one}
        for name, timing in take_turns(seats, repeats=self._repeats, seconds=TURN_SECONDS, settle=0).items():
            status = timing.pop("status")
            found[name].update(timing)
            if status != "ok":
                found[name]["status"] = status

    def _kernels(self, mode: str, found: dict[str, Any]) -> None:
        one = found.get("graphweave", {})
        if not one.get("launches"):
            return
        try:
            one["bandwidth"] = self.ask("graphweave", "kernels", system="graphweave", mode=mode)
        except Failed as problem:
            one["bandwidth"] = problem.answer


def write(path: Path | None, record: Mapping[str, Any]) -> None:
    """Writes a record atomically, so that a reader finds a whole file even if the run is killed."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    beside.write_text(json.dumps(record, indent=1) + "\n")
    os.replace(beside, path)


def chosen(
    order: Sequence[Pair], models: Sequence[str], graphs: Sequence[str], kinds: Sequence[str]
) -> list[tuple[Pair, tuple[str, ...]]]:
    """The cases of the given models and graphs, each with its systems of the given kinds."""
    found = []
    for pair in order:
        systems = tuple(name for name in pair.systems if kind_of(name) in kinds)
        if pair.model in models and pair.graph in graphs and systems:
            found.append((pair, systems))
    return found
