"""A report of what was compiled, as data that `explain` prints and tests read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from graphweave.core.kernel_cost import KernelCost
from graphweave.core.lines import Location
from graphweave.passes.rewritten import Step


@dataclass(frozen=True, slots=True)
class KernelNote:
    """A kernel. `does` says in the user's words what it computes, `lines` are the source lines of that, each once."""

    name: str
    rows: str
    along: str | None
    computes: tuple[str, ...]
    text: str
    does: str
    lines: tuple[Location, ...]
    loops: str = ""
    """The kernel's loop IR, or that of the kernels over source partitions that run instead."""

    not_taken: tuple[tuple[str, str], ...] = ()
    """Fields of the user's schedule that do not apply to the kernel, with the reasons."""

    cost: KernelCost | None = None
    """The bytes and operations of one run, for the sizes of the first call."""

    label: str = ""
    """The kernel's name among those of all graphs, as profiles have it after "graphweave::"."""


@dataclass(frozen=True, slots=True)
class FallbackNote:
    """Work that is left to PyTorch: the operator, the reason, the user's lines, and whether it may work on as many rows
    as there are edges (`analysis/edge_rows.py`)."""

    what: str
    why: str
    where: tuple[Location, ...]
    on_edges: bool = True


@dataclass(frozen=True, slots=True)
class SavedNote:
    """A value that the forward keeps for the backward besides the arguments. `space` is in the user's words."""

    space: str
    shape: str
    bytes: int
    where: Location


Role = Literal["given", "constant", "index", "kernel", "pytorch", "view", "once", "unused"]
"""The fate of a value of a program: the caller gives it, it is a constant, a map or a number that holds no data, a
kernel computes it, PyTorch does, it shares the memory of another value, it is computed once for each graph, or nothing
needs it."""


@dataclass(frozen=True, slots=True)
class ValueNote:
    """A value of a program: the node that makes it, as the IR writes it, and the word for its kind, which for an input
    is the user's name; its type; the positions of its operands; the line that made it.

    `kernels` are the names of all kernels that compute it, each for itself. A value that is `stored` exists as a
    tensor. `made_from` are the positions of those values of the captured program that became this one.
    """

    operation: str
    kind: str
    type: str
    operands: tuple[int, ...]
    where: Location
    role: Role
    kernels: tuple[str, ...] = ()
    stored: bool = False
    made_from: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SpaceNote:
    """A space of a program, in the user's words, and its rows in the first call."""

    name: str
    words: str
    rows: int


@dataclass(frozen=True, slots=True)
class MemoryNote:
    """Bytes of tensors, besides arguments and parameters, that exist `during` a step of a call and `after` it."""

    step: str
    during: int
    after: int


@dataclass(frozen=True, slots=True)
class GraphNote:
    """One compiled graph. Its `half` is "forward", "backward" or "inference", and `recompute` is the policy by which
    `saved` was chosen.

    `saved` are all values that the forward hands to the backward, as the IR writes them; `keeps` are those among them
    that take additional memory. `products` counts the matrix products that are calls, and `native` the calls of native
    code on indices; `once` are the kernels of the prelude. `values` and `spaces` are the program, of which `outputs`
    are results and `handed` those among them that are saved, and `memory` has the steps of a call, by the cost model.
    It runs on `device`.
    """

    name: str
    half: str
    ir: str
    kernels: tuple[KernelNote, ...]
    fallbacks: tuple[FallbackNote, ...]
    hoisted: int
    saved: tuple[str, ...]
    wrapper: str
    recompute: str = ""
    keeps: tuple[SavedNote, ...] = ()
    products: int = 0
    once: tuple[KernelNote, ...] = ()
    values: tuple[ValueNote, ...] = ()
    spaces: tuple[SpaceNote, ...] = ()
    outputs: tuple[int, ...] = ()
    handed: tuple[int, ...] = ()
    memory: tuple[MemoryNote, ...] = ()
    device: str = "cpu"
    native: int = 0


@dataclass(frozen=True, slots=True)
class EagerCall:
    """A call of PyTorch's that eager mode makes, and the bytes that it reads and writes; None if data decides its
    sizes."""

    name: str
    moved: int | None
    where: Location


@dataclass(frozen=True, slots=True)
class CaptureNote:
    """One captured graph: its spaces in the user's words with their rows, and its work for one call.

    `moved` are the bytes that the compiled programs move according to the cost model: forward, and backward if there is
    one; None if operations are not fused, as the model supposes. `eager` are the calls that eager mode would make.
    """

    spaces: tuple[tuple[str, int], ...]
    moved: float | None
    eager: tuple[EagerCall, ...]
    trains: bool

    @property
    def eager_calls(self) -> int:
        return len(self.eager)

    @property
    def eager_moved(self) -> int | None:
        """The bytes that all calls of eager mode read and write; None if those of one are not known."""
        moved = [call.moved for call in self.eager if call.moved is not None]
        return sum(moved) if len(moved) == len(self.eager) else None


Stage = Literal["spellings", "joint", "partition", "half", "prelude"]
"""The stages of the road (`road.py`) in which passes run."""


@dataclass(frozen=True, slots=True)
class PassNote:
    """A pass that ran: nodes of the program (or of the captured graph) `before` and `after`, the `seconds` that it
    took, whether it has `changed` anything, how many of its choices by cost were taken, and what it measured."""

    stage: Stage
    name: str
    before: int
    after: int
    seconds: float
    changed: bool
    choices: tuple[int, int] = (0, 0)
    measured: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.changed:
            return f"{self.name}: nothing to do"
        taken, tried = self.choices
        return f"{self.name}: {self.before} -> {self.after} nodes" + (
            f", {taken} of {tried} choices taken" if tried else ""
        )


@dataclass(frozen=True, slots=True)
class RewriteNote:
    """The program of the graph `name` before and after rewriting, the choices made by cost, taken and refused, and
    those made by measuring. `values` are those of the program before."""

    before: str
    after: str
    steps: tuple[Step, ...]
    measured: tuple[str, ...] = ()
    name: str = ""
    values: tuple[ValueNote, ...] = ()


@dataclass(frozen=True, slots=True)
class RacedCandidate:
    """A candidate that the tuner measured: which choice it belongs to ("forms", "forward" or "backward"), what it is
    (`name`, "untuned" for the compiler's own), the cost model's price of it, and its shortest time, in seconds."""

    choice: str
    name: str
    predicted: float
    measured: float


@dataclass(frozen=True, slots=True)
class TuningNote:
    """The result of tuning one captured graph: a `choice` in words, its predicted and measured seconds of a call, and
    those of the compiler's own choice (None: not measured, and `why` says why).

    `tried` candidates were measured. The search took `seconds`, unless an earlier one had `stored` it, and was
    `finished` before its budget was. `raced` are the candidates with their times.
    """

    choice: str
    predicted: float | None
    measured: float | None
    untuned_predicted: float | None
    untuned_measured: float | None
    tried: int
    seconds: float
    stored: bool
    finished: bool
    why: str
    raced: tuple[RacedCandidate, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class MemoryBudgetNote:
    """The form that was chosen for a graph whose step must fit into `budget` bytes besides its arguments: its `choice`
    in words, the predicted `peak` of its step, and the `unlimited` one of the compiler's own choice, which takes
    `slower` seconds less by the cost model."""

    budget: int
    peak: int
    unlimited: int
    choice: str
    slower: float


@dataclass(frozen=True, slots=True)
class FormNote:
    """A form of a function's program: its `name` by the rules that made it, and the `seconds` of a call that the cost
    model predicts for the graph at hand, which has `taken` it or not. It `suits` graphs with these rows, of spaces in
    the user's words. One that is not `made` was only priced; one that could not be made says why (`refused`)."""

    name: str
    seconds: float
    taken: bool
    made: bool
    suits: tuple[tuple[str, int], ...] = ()
    refused: str = ""


@dataclass(frozen=True, slots=True)
class FormsNote:
    """A decision at run time: the forms of the function `about`, of which the graph at hand has taken one, for its
    price or for what was measured (`why`)."""

    about: str
    forms: tuple[FormNote, ...]
    why: str = ""


@dataclass(slots=True)
class Report:
    """Everything that was compiled in a `collect` block; `eager` says why whole graphs could not be compiled, and
    `left` names those that would gain nothing."""

    captures: list[CaptureNote] = field(default_factory=list)
    rewrites: list[RewriteNote] = field(default_factory=list)
    passes: list[PassNote] = field(default_factory=list)
    graphs: list[GraphNote] = field(default_factory=list)
    eager: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    tunings: list[TuningNote] = field(default_factory=list)
    budgets: list[MemoryBudgetNote] = field(default_factory=list)
    forms: list[FormsNote] = field(default_factory=list)


_collecting: list[Report] = []


@contextmanager
def collect() -> Iterator[Report]:
    """Record what is compiled inside the block."""
    report = Report()
    _collecting.append(report)
    try:
        yield report
    finally:
        _collecting.remove(report)


@contextmanager
def uncollected() -> Iterator[None]:
    """Record nothing inside the block, for programs that are compiled to be tried."""
    reports, _collecting[:] = list(_collecting), []
    try:
        yield
    finally:
        _collecting[:] = reports


def collecting() -> bool:
    """Whether a report is being collected. If not, facts that only a report needs are not computed."""
    return bool(_collecting)


def record_graph(note: GraphNote) -> None:
    for report in _collecting:
        report.graphs.append(note)


def record_capture(note: CaptureNote) -> None:
    for report in _collecting:
        report.captures.append(note)


def record_pass(note: PassNote) -> None:
    for report in _collecting:
        report.passes.append(note)


def record_rewrites(note: RewriteNote) -> None:
    for report in _collecting:
        report.rewrites.append(note)


def record_tuning(note: TuningNote) -> None:
    for report in _collecting:
        report.tunings.append(note)


def record_memory_budget(note: MemoryBudgetNote) -> None:
    for report in _collecting:
        report.budgets.append(note)


def record_forms(note: FormsNote) -> None:
    for report in _collecting:
        report.forms.append(note)


def record_left(graph: str) -> None:
    """Note a graph that runs as PyTorch's own, since nothing in it gains by being compiled."""
    for report in _collecting:
        report.left.append(graph)


def record_eager(why: str) -> None:
    for report in _collecting:
        report.eager.append(why)
