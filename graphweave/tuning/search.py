"""The search: forms of the program first, then schedules of each half, then a comparison with the untuned choice.

Every step is a race of compiled candidates on the arguments of the call at hand. What is found by the time that the
budget ends is what is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch

from graphweave.compiler.report import RacedCandidate
from graphweave.compiler.request import Half
from graphweave.core.errors import GraphweaveError
from graphweave.core.log import logger
from graphweave.core.schedule import COMPILERS_CHOICE, Schedule
from graphweave.execute.build import executable_of
from graphweave.execute.executable import Executable
from graphweave.tuning.candidates import candidates, combined
from graphweave.tuning.choice import Choice, ProgramForm
from graphweave.tuning.deadline import Deadline, OutOfTime
from graphweave.tuning.machine import caches
from graphweave.tuning.note import Outcome
from graphweave.tuning.predict import predicted, walks_of
from graphweave.tuning.race import race, timed
from graphweave.tuning.trial import NotMeasurable, PreparedForm, Workshop, unseen

_log = logger(__name__)

_HOPELESS_FORM = 2.5
"""A form that the cost model takes to be this many times as slow as the compiler's own is not measured."""

_GAIN = 0.98
"""A candidate replaces another only if it takes at most this share of its time: less may be noise."""

_FORMS_SHARE, _FORWARD_SHARE, _LAST_SHARE = 0.5, 0.5, 0.85
"""Shares of the time that is left: for forms, then for the schedule of the forward if there is a backward, then for the
schedule of the last half. What is left after that is for the comparison of whole calls."""

_COMPILE_SHARE = 0.7
"""Share of a race's time after which nothing more is compiled."""

_BATCH = 4
"""Candidates that are compiled at once, before the time is looked at again."""

_FAILURES = (GraphweaveError, RuntimeError, MemoryError)
"""Errors that a candidate may raise although the untuned choice did not: it is then left out."""

UNTUNED = "untuned"


@dataclass(frozen=True, slots=True)
class GraphToTune:
    """The graph that is tuned: `prepare` makes a form of the program, `forms` are those to try besides the compiler's
    `own`. `is_local`: near numbers already stand for neighbours. `tell` is called with words and the share of the
    budget that has passed."""

    prepare: Callable[[ProgramForm], PreparedForm]
    own: ProgramForm
    forms: tuple[ProgramForm, ...]
    is_local: bool
    tell: Callable[[str, float], None]


@dataclass(slots=True)
class _Search:
    subject: GraphToTune
    shop: Workshop
    tried: int = 0
    raced: list[RacedCandidate] = field(default_factory=list)

    def run(self) -> Outcome:
        """The outcome of the whole search. OutOfTime or NotMeasurable if not even the untuned choice was measured."""
        own = self._built(self.subject.prepare(self.subject.own), self.shop.deadline)
        untuned = self.shop.call(own.form, *own.made)
        with unseen():
            self._first(untuned)
            expected = {UNTUNED: timed(untuned, 1)}
            measured = race({UNTUNED: untuned}, expected, self.shop.deadline.part(0.2), UNTUNED)[UNTUNED]
        self.tried = 1
        best, finished = own, True
        schedules = [COMPILERS_CHOICE, COMPILERS_CHOICE]
        try:
            best = self._best_form(own)
            finished = self._best_schedules(best, schedules)
        except OutOfTime as why:
            _log.info("the search ends early: %s", why)
            finished = False
        choice = Choice(best.form.form, *schedules)
        now = measured
        if choice != Choice(own.form.form):
            choice, now, measured = self._confirmed(choice, best, own, measured)
        price, prices = self._price(best if choice.form == best.form.form else own, choice), self._price(own, Choice())
        return Outcome(
            choice, price, now, prices, measured, self.tried, finished and self.shop.deadline.left > 0,
            self.shop.deadline.seconds, raced=tuple(self.raced),
        )  # fmt: skip

    # -------------------------------------------------------- forms

    def _best_form(self, own: _Built) -> _Built:
        """The form of the shortest call."""
        part = self.shop.deadline.part(_FORMS_SHARE)
        built = {UNTUNED: own}
        for made in self._other_forms(own, part):
            built[str(made.form.form.given)] = made
        if len(built) == 1:
            return own
        calls = {name: self.shop.call(b.form, *b.made) for name, b in built.items()}
        prices = {name: b.form.seconds for name, b in built.items()}
        times = self._raced(calls, self.shop.deadline.part(_FORMS_SHARE), "forms", prices)
        return built[_winner(times)]

    def _other_forms(self, own: _Built, part: Deadline) -> Iterator[_Built]:
        seen = {own.form.text}
        for form in self.subject.forms:
            before = part.passed
            if part.left < self.shop.longest:
                return
            try:
                prepared = self.subject.prepare(form)
                if prepared.text in seen or prepared.seconds > _HOPELESS_FORM * own.form.seconds:
                    continue
                seen.add(prepared.text)
                self._tell(f"form {form.given}")
                yield self._built(prepared, part)
            except OutOfTime:
                return
            except _FAILURES as error:
                _log.info("form %s is left out: %s", form.given, error)
            self.shop.longest = max(self.shop.longest, part.passed - before)

    def _built(self, prepared: PreparedForm, deadline: Deadline) -> _Built:
        made = [executable_of(half, self.shop.options_by(COMPILERS_CHOICE)) for half in prepared.halves.parts]
        self.shop.compile(made, deadline)
        return _Built(prepared, (made[0], made[1] if len(made) > 1 else None))

    # -------------------------------------------------------- schedules

    def _best_schedules(self, best: _Built, schedules: list[Schedule]) -> bool:
        """Set the best schedule of each half of `best`. Returns whether all candidates were tried."""
        forward, backward = best.made
        share = _LAST_SHARE if backward is None else _FORWARD_SHARE
        schedules[0], finished = self._best_schedule(
            best.form.halves.parts[0], forward, best, self.shop.forward, self.shop.deadline.part(share), "forward"
        )
        if backward is None:
            return finished
        with unseen():
            given = self.shop.backward(best.form, backward)(self.shop.forward(forward)())
        schedules[1], tried_all = self._best_schedule(
            best.form.halves.parts[1], backward, best, lambda made: lambda: made(list(given)),
            self.shop.deadline.part(_LAST_SHARE), "backward",
        )  # fmt: skip
        return finished and tried_all

    def _best_schedule(
        self, half: Half, own: Executable, best: _Built, run: Callable[[Executable], Callable[[], object]],
        part: Deadline, name: str,
    ) -> tuple[Schedule, bool]:  # fmt: skip
        """The best schedule of a half, and whether all candidates were tried."""
        walks = walks_of(own.plan, best.form.halves.glossary.statistics)
        found = candidates(walks, caches(), torch.get_num_threads(), self.subject.is_local)
        made, all_made = self._compiled(half, own, found, part)
        calls = {repr(s): run(e) for s, e in made.items()}
        if not calls:
            return COMPILERS_CHOICE, all_made
        calls[UNTUNED] = run(own)
        prices = {repr(s): predicted(walks, s, caches(), torch.get_num_threads()) for s in (COMPILERS_CHOICE, *made)}
        prices[UNTUNED] = prices.pop(repr(COMPILERS_CHOICE))
        times = self._raced(calls, part, name, prices)
        gains = [s for s in made if repr(s) in times and times[repr(s)] < _GAIN * times[UNTUNED]]
        gains.sort(key=lambda s: times[repr(s)])
        if not gains:
            return COMPILERS_CHOICE, all_made
        together, _ = self._compiled(half, own, tuple(combined(gains)), part)
        if not together:
            return gains[0], all_made
        again = {repr(s): run(e) for s, e in together.items()}
        first = repr(gains[0])
        try:
            prices = {repr(s): predicted(walks, s, caches(), torch.get_num_threads()) for s in together}
            times = self._raced({first: calls[first], **again}, part, f"{name}, combinations", prices, kept=first)
        except OutOfTime:
            return gains[0], False
        won = _winner(times, first)
        return next((s for s in together if repr(s) == won), gains[0]), all_made

    def _compiled(
        self, half: Half, own: Executable, found: Sequence[Schedule], part: Deadline
    ) -> tuple[dict[Schedule, Executable], bool]:
        """The candidates that differ from each other, compiled, and whether these are all."""
        made: dict[Schedule, Executable] = {}
        seen = {_kernels_of(own)}
        for batch in (found[i : i + _BATCH] for i in range(0, len(found), _BATCH)):
            if part.passed > _COMPILE_SHARE * part.seconds:
                return made, False
            new: dict[Schedule, Executable] = {}
            try:
                for schedule in batch:
                    planned = executable_of(half, self.shop.options_by(schedule))
                    kernels = _kernels_of(planned)
                    if kernels not in seen and _takes(planned, schedule):
                        seen.add(kernels)
                        new[schedule] = planned
                self.shop.compile(list(new.values()), part)
            except OutOfTime:
                return made, False
            except _FAILURES as error:
                _log.info("candidates %s are left out: %s", batch, error)
                continue
            made |= new
            self._tell(f"{len(made)} schedules compiled")
        return made, True

    # -------------------------------------------------------- measuring

    def _confirmed(self, choice: Choice, best: _Built, own: _Built, measured: float) -> tuple[Choice, float, float]:
        """The choice, or the untuned one if it is not faster for a whole call; its seconds, and the untuned ones."""
        halves = zip(best.form.halves.parts, (choice.forward, choice.backward), strict=False)
        try:
            made = [executable_of(half, self.shop.options_by(schedule)) for half, schedule in halves]
            self.shop.compile(made, self.shop.deadline, known=True)
            tuned = self.shop.call(best.form, made[0], made[1] if len(made) > 1 else None)
            calls = {"tuned": tuned, UNTUNED: self.shop.call(own.form, *own.made)}
            times = self._raced(calls, self.shop.deadline, "whole calls")
        except OutOfTime as why:
            _log.info("a choice is dropped, since whole calls were not compared: %s", why)
            return Choice(own.form.form), measured, measured
        if times.get("tuned", times[UNTUNED]) > _GAIN * times[UNTUNED]:
            return Choice(own.form.form), times[UNTUNED], times[UNTUNED]
        return choice, times["tuned"], times[UNTUNED]

    def _raced(
        self, calls: dict[str, Callable[[], object]], part: Deadline, what: str,
        prices: Mapping[str, float] = MappingProxyType({}), kept: str = UNTUNED,
    ) -> dict[str, float]:  # fmt: skip
        """The times of a race of `calls`, each of which has run before it, so that formats are made. Calls with a price
        by the cost model are noted with it."""
        expected: dict[str, float] = {}
        with unseen():
            for name in [kept, *(name for name in calls if name != kept)]:
                self._tell(f"{what}: {name}")
                part.allow(0.0)
                try:
                    begun = part.passed
                    calls[name]()
                    if part.left > 2 * (part.passed - begun) or name == kept:
                        expected[name] = timed(calls[name], 1)
                except _FAILURES as error:
                    _log.info("%s is left out: %s", name, error)
                if part.left < 4 * sum(expected.values()):
                    break
            self.tried += len(expected) - 1
            times = race({name: calls[name] for name in expected}, expected, part, kept)
        choice = what.partition(",")[0]
        self.raced += [RacedCandidate(choice, n, prices[n], expected[n]) for n in expected if n in prices]
        return times

    def _first(self, call: Callable[[], object]) -> None:
        """The first run of the untuned choice, which makes its formats."""
        try:
            call()
        except _FAILURES as error:
            raise NotMeasurable(f"a run apart from the user's call failed: {error}") from error

    def _price(self, built: _Built, choice: Choice) -> float:
        """The predicted seconds of a call."""
        pairs = zip([e for e in built.made if e is not None], (choice.forward, choice.backward), strict=False)
        rows, threads = built.form.halves.glossary.statistics, torch.get_num_threads()
        return sum(predicted(walks_of(e.plan, rows), s, caches(), threads) for e, s in pairs)

    def _tell(self, what: str) -> None:
        deadline = self.shop.deadline
        self.subject.tell(f"tuning ({what})", min(1.0, deadline.passed / max(deadline.seconds, 1e-9)))


@dataclass(frozen=True, slots=True)
class _Built:
    """A form, with its forward and perhaps its backward compiled by the compiler's own schedule."""

    form: PreparedForm
    made: tuple[Executable, Executable | None]


def search(subject: GraphToTune, shop: Workshop) -> Outcome:
    """The best choice that was found before the deadline. Where nothing could be measured, it is the untuned one, and
    `why` says so."""
    try:
        return _Search(subject, shop).run()
    except OutOfTime as error:
        budget = f"the budget of {shop.deadline.seconds:g} s"
        why = f"{budget} did not suffice to compile and measure anything ({error}); give a larger one"
    except NotMeasurable as error:
        why = str(error)
    return replace(Outcome(Choice(subject.own), budget=shop.deadline.seconds), why=why)


def _winner(times: dict[str, float], kept: str = UNTUNED) -> str:
    """The name of the least time, or `kept` if none is less by enough."""
    best = min(times, key=lambda name: times[name])
    return best if times[best] < _GAIN * times[kept] else kept


def _kernels_of(made: Executable) -> tuple[object, ...]:
    """The key that tells executables of one half apart: the texts of their kernels, and what is decided at the
    launch."""
    return tuple((k.code, k.scheduled.pieces, k.scheduled.taken) for k in made.plan.kernels.values())


def _takes(made: Executable, schedule: Schedule) -> bool:
    """Whether each field of the schedule is taken by some kernel."""
    taken = [k.scheduled.taken.given for k in made.plan.kernels.values()]
    return all(any(name in given for given in taken) for name in schedule.given)
