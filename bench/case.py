"""The declaration of a benchmark: its cases, the peers that do the same work, and when a result counts as right.

`bench.runner` measures declared cases, `bench.worker` serves one peer of a case in a process of its own, and
`bench.dgl_worker` one in DGL's environment. CONTRIBUTING.md has an example.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor, nn

from bench.check import error_against, worst_error
from bench.options import COMMON, parser_of
from bench.steps import Result, Step, gradients
from bench.turns import ROOT

EXACT = "exact"
"""Name of a peer that computes in float64. It is asked for its result where float32 is in doubt, and never timed."""

NEARBY = tuple(f"{EXACT}, nearby {i}" for i in range(1, 5))
"""Peers that do what EXACT does, at inputs and weights that differ by less than float32 can tell."""

IN_FLOAT64 = (EXACT, *NEARBY)
"""The peers that judge and are never timed."""

Peers: TypeAlias = Mapping[str, Callable[[], Step]]
"""Peer -> a function that prepares its step."""


def of_names(want: Result, got: Result) -> Result:
    """The outputs, and the gradients that `got` has, too."""
    return Result(want.outputs, {name: grad for name, grad in want.grads.items() if name in got.grads})


@dataclass(frozen=True, slots=True)
class Check:
    """A result is right if its relative error is at most `tolerance` from the result of the peer `reference`.

    If it is larger, and the case has a peer EXACT (`exact`), a result in float32 is right if its error against that one
    is at most the tolerance or 4 times the reference's own. With `nearby` it is right, too, if that error is at most 4
    times the largest one of the peers NEARBY: then the rounding of the inputs alone moves the function as far (Higham,
    Accuracy and Stability of Numerical Algorithms, section 1.5), as where rounding decides which of two messages is the
    larger. `error` gives the error, and the name of the value with it; `compared(want, got)` gives what is wanted of a
    result that lacks gradients, or has them under other names.
    Where the reference cannot run, the result of the peer `otherwise` takes its place, if the case measures that peer.
    Where that cannot run either, the result of EXACT, rounded, does. `others` are peers that compute another function,
    and the peer that has it.
    """

    tolerance: float
    reference: str = "eager"
    exact: bool = False
    nearby: bool = False
    otherwise: str | None = None
    others: Mapping[str, str] = field(default_factory=dict)
    error: Callable[[Result, Result], tuple[float, str]] = worst_error
    compared: Callable[[Result, Result], Result] = of_names

    def verdict(self, got: Result, want: Result, judge: Callable[[str], Result] | None = None) -> dict[str, Any]:
        """`status` ("ok", or which value is wrong), and the errors. `judge` gives the results of EXACT and NEARBY."""
        want = self.compared(want, got)
        error, where = self.error(got, want)
        answer: dict[str, Any] = {"status": "ok", "error": error}
        if error <= self.tolerance:
            return answer
        if self.exact and judge is not None:
            true = self.compared(judge(EXACT), got)
            own, other = error_against(got, true), error_against(want, true)
            answer.update(error_in_float64=own, reference_error_in_float64=other)
            if own <= max(self.tolerance, 4 * other):
                return answer
            if self.nearby:
                moved = max(error_against(self.compared(judge(peer), got), true) for peer in NEARBY)
                answer.update(moved_by_rounding=moved)
                if own <= 4 * moved:
                    return answer
        answer["status"] = f"wrong: {where} is off by {error:.1e}"
        return answer


def training_result(loss: Tensor, model: nn.Module) -> Result:
    """The loss of a training step and the gradients of all parameters, after the backward."""
    return Result((loss.detach(),), gradients(model))


@dataclass(frozen=True, slots=True)
class Case:
    """One piece of work that all of `peers` do. `build(**sizes)` makes the data, and gives what prepares each peer.

    `small` are the sizes for `--quick`, to see that everything runs. `inputs(**sizes)` gives the arrays that a peer of
    DGL reads from a file. `notes(peer, step)` is asked after all turns, in the peer's process, for numbers other than
    times; of a peer of DGL, the function of that name in DGL's module, if it has one. `missing` says why the case
    cannot run here, `refusal(peer, **sizes)` why a peer cannot (None: it can). With `memory` the peak of a step is
    measured, too, in processes of their own.
    """

    name: str
    build: Callable[..., Peers]
    peers: tuple[str, ...]
    check: Check
    sizes: Mapping[str, Any] = field(default_factory=dict)
    small: Mapping[str, Any] = field(default_factory=dict)
    inputs: Callable[..., Mapping[str, Tensor]] | None = None
    notes: Callable[[str, Step], Mapping[str, Any]] | None = None
    missing: str | None = None
    refusal: Callable[..., str | None] | None = None
    memory: bool = False


@dataclass(frozen=True, slots=True)
class Numbers:
    """A measurement that is no turn: the numbers that `measure(**sizes)` returns, through JSON.

    It is called in a new process with `environment`, or, if `here`, in this one, as it starts processes itself. An
    answer whose `status` begins with "wrong" fails the run.
    """

    name: str
    measure: Callable[..., Any]
    sizes: Mapping[str, Any] = field(default_factory=dict)
    small: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    here: bool = False
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class Bench:
    """A benchmark: `cases(options)` declares them, `options` has the defaults of its own options (bench/options.py).

    Peers run in this process, or, if `apart`, each in a process of its own, with the variables of `environment` added.
    `dgl` is the module with the steps of peers whose names begin with "dgl" (bench/dgl_worker.py). A peer whose warm
    step takes longer than `slow` seconds takes no turns: it has at most `slow_repeats` steps, and fewer if these take
    more than `bench.runner.SLOW_SECONDS`. Its memory is free again before the next peer starts. `columns` are added to
    the table: from the answers of all peers of a case, and the peer's own, to text. `base` is the peer whose time all
    others are divided by, and is never slow. `show` prints other tables, from the results and the options.
    """

    module: str
    doc: str | None
    cases: Callable[[Namespace], Iterable[Case | Numbers]]
    options: Mapping[str, Any] = field(default_factory=dict)
    apart: bool = False
    base: str = "graphweave"
    repeats: int = 10
    threads: int = 2
    timeout: float = 900.0
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    dgl: str | None = None
    slow: float = float("inf")
    slow_repeats: int = 3
    columns: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], str]] = field(default_factory=dict)
    show: Callable[[Mapping[str, Any], Namespace], None] | None = None

    @property
    def name(self) -> str:
        return self.module.removeprefix("bench.")


def options_of(bench: Bench, argv: Sequence[str]) -> Namespace:
    """The benchmark's own options, and those of all. `--cases` are beginnings of names, `--systems` names of peers.

    `--quick` takes small sizes, to see that everything runs; `--resume` keeps the cases that the file `--out` has, and
    begins none after `--seconds`.
    """
    common = {**COMMON, "threads": bench.threads, "repeats": bench.repeats, "timeout": bench.timeout}
    more: dict[str, Any] = {"quick": False, "resume": False, "cases": (), "systems": (), "seconds": float("inf")}
    if bench.dgl is not None:
        more["dgl_python"] = ROOT / ".venv-dgl" / "bin" / "python"
    options = parser_of(bench.doc, {**common, **more, **bench.options}).parse_args(argv)
    options.cases = tuple(options.cases)
    return options


def sizes_of(case: Case | Numbers, options: Namespace) -> dict[str, Any]:
    return {**case.sizes, **(case.small if options.quick else {})}
