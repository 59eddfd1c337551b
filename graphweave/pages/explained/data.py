"""The content of the page about a compiled function, as plain data: `dataclasses.asdict` gives JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from graphweave.core.kernel_cost import KernelCost, Rates

Became = Literal["kernel", "call", "once", "saved", "pytorch", "break", "eager", "again"]
"""The fate of a line: a kernel computes it, or a call of PyTorch as it should, it runs once for each graph, its
value is saved for the backward, it is left to PyTorch for a reason, the capture breaks there, it runs eagerly, or it
was compiled again."""


@dataclass(frozen=True, slots=True)
class ShownPlace:
    """The user's line, "train.py:8", and the line of a library inside it at which something happens; "" if unknown or
    the same."""

    own: str = ""
    inner: str = ""

    @property
    def text(self) -> str:
        return f"{self.own} ({self.inner})" if self.own and self.inner else self.own or self.inner


@dataclass(frozen=True, slots=True)
class ShownSource:
    """Lines of source code from the line `first` on: the function `name` of a file, the user's `own` or a library's."""

    file: str
    name: str
    first: int
    lines: tuple[str, ...]
    own: bool


@dataclass(frozen=True, slots=True)
class ShownFate:
    """The fate of the line at `place` ("train.py:8"). `kernels` are keys of kernels."""

    place: str
    became: Became
    text: str
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShownCalls:
    """The calls that eager mode makes for the line at `place`, and the bytes that they read and write, if known."""

    place: str
    calls: int
    moved: int | None


@dataclass(frozen=True, slots=True)
class ShownValue:
    """A value of a program; `compiler/report.py` says what the fields of a ValueNote mean. `kernels` are keys."""

    kind: str
    type: str
    operation: str
    operands: tuple[int, ...]
    place: ShownPlace
    role: str
    kernels: tuple[str, ...] = ()
    stored: bool = False
    made_from: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ShownProgram:
    """A program: its spaces as (name, words, rows), its values, the positions of its results. `made_from` of its values
    are positions in the program `source`, a key."""

    key: str
    title: str
    spaces: tuple[tuple[str, str, int], ...]
    values: tuple[ShownValue, ...]
    outputs: tuple[int, ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True)
class ShownPiece:
    """Lines of a kernel's code, and the place in the user's program that they come from, with its text."""

    place: ShownPlace
    text: str
    code: str


@dataclass(frozen=True, slots=True)
class ShownKernel:
    """A kernel, the `number`th of the page. `half` is "forward", "backward", "inference" or "once a graph"; `does` is
    what it computes, in words; `ignored` has the fields of the user's schedule that do not apply, with reasons."""

    number: int
    key: str
    name: str
    half: str
    does: str
    places: tuple[ShownPlace, ...]
    pieces: tuple[ShownPiece, ...]
    loops: str
    cost: KernelCost | None
    ignored: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ShownChoice:
    """Rewriting rules that were tried together: megabytes moved and millions of operations (on vectors, in products)
    before and after, and the seconds that are gained (negative: lost)."""

    rules: str
    place: ShownPlace
    before: tuple[float, float, float]
    after: tuple[float, float, float]
    seconds: float
    taken: bool


@dataclass(frozen=True, slots=True)
class ShownStep:
    """A step of a call: bytes besides arguments and parameters that exist during it and after it."""

    half: str
    step: str
    during: int
    after: int


@dataclass(frozen=True, slots=True)
class ShownWork:
    """Work of a measured step: a kernel (with its `key` and what it `does`), a call left to PyTorch, or all else. It
    ran `runs` times, for so many seconds together."""

    kind: Literal["kernel", "call", "other"]
    name: str
    does: str
    runs: float
    seconds: float
    key: str


@dataclass(frozen=True, slots=True)
class ShownMeasured:
    """A step as it was measured, `about` says how. `peak` are the most bytes in use at once, `above` those of them that
    were taken in the step; None if they are not known."""

    about: str
    seconds: float
    work: tuple[ShownWork, ...]
    peak: int | None
    above: int | None


@dataclass(frozen=True, slots=True)
class ShownLine:
    """Something that is told in one line, about a place."""

    text: str
    place: ShownPlace = field(default_factory=ShownPlace)


@dataclass(frozen=True, slots=True)
class ExplainedData:
    """The compiler's work on the function `what`, defined at `where`. `numbers` are its few facts, `summary` the
    short form: (heading, text, place). `saved` has (space, shape, bytes, place) of what the backward needs besides the
    arguments, and `troubles` has (heading, line) of what is left to PyTorch, runs eagerly, breaks the capture or was
    compiled again. `rates` are those of the machine. `listings` are texts with their titles. `measured` is
    there after `graphweave profile` only."""

    what: str
    where: str
    numbers: tuple[tuple[str, str], ...]
    summary: tuple[tuple[str, str, str], ...]
    sources: tuple[ShownSource, ...]
    fates: tuple[ShownFate, ...]
    eager: tuple[ShownCalls, ...]
    programs: tuple[ShownProgram, ...]
    kernels: tuple[ShownKernel, ...]
    memory: tuple[ShownStep, ...]
    saved: tuple[tuple[str, str, int, ShownPlace], ...]
    troubles: tuple[tuple[str, ShownLine], ...]
    choices: tuple[ShownChoice, ...]
    rates: Rates
    listings: tuple[tuple[str, str], ...]
    measured: ShownMeasured | None = None
