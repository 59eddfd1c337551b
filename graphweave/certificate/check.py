"""`graphweave.check`: runs a function compiled, in eager mode and in float64, and compares."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch._dynamo
from torch import Tensor, nn

from graphweave.certificate.certificate import Certificate
from graphweave.certificate.findings import CompiledParts, Inductor, PlacedReason, Repeats
from graphweave.certificate.judge import ValueCheck, judge
from graphweave.certificate.program_copy import Arguments, ProgramCopy, same_bits
from graphweave.certificate.step import Draws, Stepper, StepValues, eager_mode
from graphweave.compiler.report import Report, collect
from graphweave.core.break_even import BreakEven
from graphweave.core.counters import counters, kept_as_they_are
from graphweave.core.errors import SettingsError
from graphweave.frontends.dynamo.breaks import breaks_seen, breaks_since, recompilations
from graphweave.frontends.dynamo.captured import name_of
from graphweave.frontends.dynamo.compile import compile
from graphweave.frontends.dynamo.step_times import medians_in_turns
from graphweave.frontends.dynamo.uncompiled import original_of
from graphweave.frontends.halves.reference import rounded
from graphweave.frontends.tracing.reasons import line_of, one_line
from graphweave.runtime import machine_facts
from graphweave.runtime.peak_memory import peak_extra_bytes

_TRIALS = 12
"""Eager mode runs this many times on inputs that are rounded otherwise, to find ties, if an error is too large."""

_TURNS = 15
"""Timed steps of each system, if there is time for them."""


def check(
    fn: Callable[..., object], *args: object, others: Sequence[Sequence[object]] = (), inductor: bool = False,
    seconds: float = 10.0, seed: int = 0, **kwargs: object,
) -> Certificate:  # fmt: skip
    """Compile `fn` again and certify it on these arguments: errors, repeatability, fallbacks, speed and memory.

    The certificate prints as text. `.ok` says whether it passes, `.problems` why not, `.values` has the errors of each
    result and gradient, `.json()` everything as data, and `.save(path)` writes a page (.html), data (.json) or text.

    `fn` is a module or function as `graphweave.compile` takes it; if it is compiled already, its options are kept.
    Every result and every gradient (of parameters and arguments that require one, of a loss in which results are
    weighted by fixed signed numbers) is compared with eager mode in float64, and so is eager mode in the program's own
    precision, by which the compiled program is judged. So are tensors that the function changes in place.

    `others` are further arguments by position, such as another graph: `others=[(x2, edge_index2)]`. They are judged,
    too, and show whether anything is compiled again for them. `inductor=True` also times torch.compile's own backend.
    Timing ends after about `seconds`. All runs draw random numbers with `seed`.

    Everything runs on copies, so that the model, the arguments and PyTorch's random state stay as they are; variables
    that the function reads hold their copies meanwhile, so no other thread may use them. As by `graphweave.explain`,
    all compiled code is dropped. Raises DataError for what cannot be copied, and what the function itself raises.
    """
    target, dynamic, options = original_of(fn)
    calls: list[Arguments] = [(args, kwargs)]
    for other in others:
        if not isinstance(other, (tuple, list)):
            raise SettingsError(
                f"check: each of others must be a tuple of arguments (got {type(other).__name__}). Pass [(x, y)]."
            )
        calls.append((tuple(other), kwargs))
    with kept_as_they_are(), torch.random.fork_rng():
        trial = _Check(target, calls, dynamic, options, seed)
        return trial.certificate(inductor, seconds)


class _Check:
    """One function in eager mode and compiled, each on a copy of its own."""

    def __init__(
        self, target: Callable[..., object], calls: Sequence[Arguments], dynamic: bool | None,
        options: Mapping[str, Any] | None, seed: int,
    ) -> None:  # fmt: skip
        self._target, self._calls, self._seed = target, calls, seed
        copied = ProgramCopy(target, calls)
        self._eager = Stepper(copied, copied.call, seed)
        self._dtype = copied.dtype
        self._reference = "eager mode in float64"
        with eager_mode("in order"):  # what the function itself raises, it raises here
            self._draws = self._eager.values().draws
        copied = ProgramCopy(target, calls)
        torch._dynamo.reset()
        self._compiled = Stepper(copied, compile(copied.call, dynamic=dynamic, options=options), seed)

    def certificate(self, inductor: bool, seconds: float) -> Certificate:
        parts, first_call_seconds = self._compile()
        values, randomness = self._judged()
        repeats = self._repeats()
        step_seconds, other = self._times(inductor, seconds)
        with eager_mode("in order"):
            eager_peak = peak_extra_bytes(self._eager.seconds)
        peaks = peak_extra_bytes(self._compiled.seconds), eager_peak
        torch._dynamo.reset()
        machine = {"cpu": machine_facts.cpu(), "cuda": machine_facts.cuda(), "compiler": machine_facts.compiler()}
        return Certificate(
            name_of(self._target), line_of(self._target), values, self._reference, randomness, repeats, parts,
            BreakEven(first_call_seconds, *step_seconds), other, peaks, machine_facts.versions(), machine,
            self._compiled.program.uncopied,
        )  # fmt: skip

    # -------------------------------------------------------- what is compiled

    def _compile(self) -> tuple[CompiledParts, float]:
        """Run the first step, a second one, and one on each of the other arguments. Also returns the seconds of the
        first step."""
        before, seen, compilations = counters()["graph_breaks"], breaks_seen(), list[int]()
        with collect() as report:
            for data in (0, 0, *range(1, len(self._calls))):
                known = _graphs_compiled()
                seconds = self._compiled.seconds(data)
                if not compilations:
                    first_call_seconds, first = seconds, _copied(report)
                compilations.append(_graphs_compiled() - known)
        again = recompilations(self._compiled.program.call, f"traced_{name_of(self._target)}", of_others=True)
        left = (
            PlacedReason(note.what, note.why, ", ".join(line.shown for line in note.where))
            for graph in first.graphs
            for note in graph.fallbacks
        )
        parts = CompiledParts(
            len(first.captures), sum(len(graph.kernels) for graph in first.graphs), tuple(dict.fromkeys(left)),
            tuple(dict.fromkeys(report.eager)), counters()["graph_breaks"] - before,
            tuple(PlacedReason("graph break", b.why, b.where.shown) for b in breaks_since(seen)),
            tuple(compilations), tuple(PlacedReason(r.what, r.why, r.where) for r in again),
        )  # fmt: skip
        return parts, first_call_seconds

    # -------------------------------------------------------- values

    def _judged(self) -> tuple[tuple[ValueCheck, ...], str]:
        """The values, judged, and how random numbers were treated for that."""
        found = self._judged_by("by position")
        if not self._draws:
            return found, "none are drawn"
        if _all_ok(found):
            return found, "the same numbers in all runs, drawn by the positions of rows"
        in_order = self._judged_by("in order")
        if _all_ok(in_order):
            return in_order, "the same numbers in all runs, drawn in PyTorch's order"
        if not any(module.training for module in _all_modules(self._compiled.program)):
            return found, "numbers are drawn, and values are wrong if they are drawn in PyTorch's order, too"
        with _evaluating(self._eager.program), _evaluating(self._compiled.program):
            quiet = self._judged_by("by position")
        return quiet, "judged in evaluation mode, as the compiled program draws other numbers than eager mode"

    def _judged_by(self, draws: Draws) -> tuple[ValueCheck, ...]:
        return tuple(value for data in range(len(self._calls)) for value in self._judged_on(data, draws))

    def _judged_on(self, data: int, draws: Draws) -> Iterator[ValueCheck]:
        with eager_mode(draws):
            eager = self._eager.values(data)
        exact = self._exact(data, draws) or eager
        compiled = self._compiled.values(data)

        @cache
        def spreads() -> Mapping[str, Tensor]:
            with eager_mode(draws):
                return self._spreads(eager, data)

        def spread(name: str) -> Tensor:
            known = spreads().get(name)
            return torch.zeros((), dtype=torch.float64) if known is None else known

        yield from judge(compiled, eager, exact, spread, data)

    def _exact(self, data: int, draws: Draws) -> StepValues | None:
        """The values in float64; None if the program does not run so, which is noted."""
        copied = ProgramCopy(self._target, [self._calls[data]], wide=True)
        for mine, other in zip(_all_modules(copied), _all_modules(self._eager.program), strict=True):
            mine.training = other.training
        try:
            with eager_mode(draws, self._dtype):
                return Stepper(copied, copied.call, self._seed).values()
        except (RuntimeError, TypeError) as error:
            self._reference = (
                f"eager mode in {str(self._dtype).removeprefix('torch.')}, since the program does not run in float64: "
                f"{one_line(str(error))}"
            )
            return None

    def _spreads(self, eager: StepValues, data: int) -> dict[str, Tensor]:
        """How much each number of each value changes if eager mode's inputs are rounded otherwise."""
        noise, found = torch.Generator().manual_seed(self._seed), dict[str, Tensor]()

        def perturb() -> None:
            self._eager.program.perturb(lambda x: rounded(x, noise))

        for _ in range(_TRIALS):
            moved = self._eager.values(data, perturb).tensors
            for name, value in eager.tensors.items():
                if name in moved and moved[name].shape == value.shape:
                    off = (moved[name].double() - value.double()).abs().nan_to_num(0.0, 0.0)
                    found[name] = torch.maximum(found[name], off) if name in found else off
        return found

    # -------------------------------------------------------- repeats and times

    def _repeats(self) -> Repeats:
        own = torch.get_num_threads()
        usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        other = 1 if own > 1 else usable
        twice, across = _repeats_of(self._compiled, other)
        with eager_mode("in order"):
            eager_twice, eager_across = _repeats_of(self._eager, other)
        return Repeats(twice, eager_twice, (own, other), across, eager_across)

    def _times(self, inductor: bool, seconds: float) -> tuple[tuple[float, float], Inductor]:
        """The median seconds of a step in eager mode and compiled, and those of Inductor."""

        def eager() -> float:
            with eager_mode("in order"):
                return self._eager.seconds()

        steps, first = [eager, self._compiled.seconds], None
        why = "not measured; pass inductor=True" if not inductor else ""
        if inductor:
            copied = ProgramCopy(self._target, self._calls)
            other = Stepper(copied, torch.compile(copied.call), self._seed)
            try:
                first = other.seconds()
                steps.append(other.seconds)
            except RuntimeError as error:
                why = f"it fails: {one_line(str(error))}"
        eager_seconds, own, *rest = medians_in_turns(steps, _TURNS, seconds)
        return (eager_seconds, own), Inductor(first, rest[0] if rest else None, why)


def _repeats_of(stepper: Stepper, other_threads: int) -> tuple[bool, bool | None]:
    """Whether a step gives the same bits twice, and on another number of threads (None if there is no other)."""
    first = stepper.values()
    twice = _alike(first, stepper.values())
    if other_threads == torch.get_num_threads():
        return twice, None
    with _threads(other_threads):
        return twice, _alike(first, stepper.values())


def _alike(a: StepValues, b: StepValues) -> bool:
    return a.tensors.keys() == b.tensors.keys() and all(same_bits(x, b.tensors[name]) for name, x in a.tensors.items())


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _evaluating(program: ProgramCopy) -> Iterator[None]:
    """All modules of `program` are in evaluation mode within the block."""
    modules = _all_modules(program)
    before = [module.training for module in modules]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module, training in zip(modules, before, strict=True):
            module.training = training


def _all_modules(program: ProgramCopy) -> list[nn.Module]:
    return [inner for module in program.modules for inner in module.modules()]


def _all_ok(values: Sequence[ValueCheck]) -> bool:
    return all(value.ok for value in values)


def _graphs_compiled() -> int:
    now = counters()
    return now["compilations"] + now["restored_graphs"]


def _copied(report: Report) -> Report:
    """The report so far."""
    return Report(captures=[*report.captures], graphs=[*report.graphs], eager=[*report.eager])
