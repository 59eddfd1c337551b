"""The printer's state at one point of a kernel's text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from graphweave.codegen.arrays import Array, flatten
from graphweave.codegen.names import Names
from graphweave.codegen.triton.axes import Axes, Axis, aligned, names_of, power_of_two
from graphweave.codegen.triton.parts import RUN, Parts
from graphweave.codegen.writer import Writer
from graphweave.core.types import DType, OwnFold
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.types import POSITION
from graphweave.ir.loop.walk import subexpressions

_KEPT = 512
"""Upper limit on the lanes of a row's value that stays in registers while the row's edges are walked."""

Position: TypeAlias = tuple[dict[str, int], int, list[tuple[loop.Expr, int]]]
"""A position in an array: coefficients of lanes, an offset, and (expression, stride) pairs for the other terms."""


@dataclass(frozen=True, slots=True)
class Printed:
    """The text of an expression, and the axes on which it depends.

    If `ranked` it has a dimension for every axis around it, otherwise none.
    """

    text: str
    axes: frozenset[str] = frozenset()
    ranked: bool = False


@dataclass(frozen=True, slots=True)
class Variable:
    text: str
    dims: tuple[str, ...]  # the axes around its definition, () for a scalar
    axes: frozenset[str]  # the axes on which it depends


@dataclass(frozen=True, slots=True)
class Held:
    """An array in registers: a tensor with the dimensions `axes` and a last one of `padded` elements; without the last
    one if `padded` is 0. If `matrix` is set, it gives two dimensions that stand in place of the last one.
    """

    name: str
    dtype: DType
    axes: Axes
    numel: int
    padded: int
    matrix: tuple[int, int] | None = None


@dataclass(slots=True)
class Ahead:
    """The place ahead of a loop over edges. `line` adds a line there, `known` are the variables that can be named
    there, and `loaded` the texts of values that are loaded there."""

    line: Callable[[str], None]
    known: set[str]
    loaded: set[str] = field(default_factory=set)


@dataclass(slots=True)
class TritonScope:
    """`names` and `arrays` are those of the kernel; the rest changes from line to line."""

    w: Writer
    names: Names
    arrays: dict[str, Array]
    types: dict[str, DType]
    axes: Axes = ()
    variables: dict[str, Variable] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)
    helpers: set[str] = field(default_factory=set)
    own_folds: dict[OwnFold, tuple[str, str]] = field(default_factory=dict)
    """Users' folds -> the name and the text of the function that computes each."""
    loaded: dict[tuple[str, tuple[loop.Expr, ...], tuple[str, ...]], Printed] = field(default_factory=dict)
    parts: Parts = field(default_factory=Parts)
    count: int = 0  # the number of fresh names so far
    ahead: Ahead | None = None
    """The place ahead of the loop over edges that is being printed."""

    # ------------------------------------------------------------ names

    def fresh(self, *parts: str) -> str:
        self.count += 1
        return self.names.derived(*parts, str(self.count))

    def bind(self, name: str, dtype: DType, value: Printed) -> str:
        """The Triton name of a variable that has the dimensions of `value` from here on."""
        text = self.names.of(name)
        if self.ahead is not None:
            self.ahead.known.discard(name)
        self.types[name] = dtype
        self.variables[name] = Variable(text, self.dims if value.ranked else (), value.axes)
        return text

    @property
    def dims(self) -> tuple[str, ...]:
        return names_of(self.axes)

    @property
    def lane_axes(self) -> Axes:
        return tuple(axis for axis in self.axes if axis.lanes)

    def position(self, array: str, index: tuple[loop.Expr, ...]) -> Position:
        """The position of `array[index]` for an array in registers."""
        info = self.arrays[array]
        affine, rest = flatten(index[1:] if info.has_rows else index, info.shape)
        return {name: c for name, c in affine.terms.items() if c and self.variables[name].axes}, affine.offset, rest

    # ------------------------------------------------------------ blocks

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """An indented block; loads inside it are not reused after it."""
        loaded = dict(self.loaded)
        with self.w.block(head):
            yield
        self.loaded = loaded

    @contextmanager
    def walk(self, head: str) -> Iterator[None]:
        """A block that is a loop over edges."""
        before, self.ahead = self.ahead, Ahead(self.w.gap(), set(self.variables))
        with self.block(head):
            yield
        self.ahead = before

    def line_of_load(self, at: Printed, index: tuple[loop.Expr, ...], name: str) -> Callable[[str], None]:
        """The function that writes the line that loads `name` from the address `at` of `index`.

        What a row holds is loaded ahead of the loop over its edges, once, and stays in registers: FeatGraph's cached
        features of a node. Triton itself would load it again in each step of a loop that stores.
        """
        ahead = self.ahead
        lanes = math.prod(int(axis.size) for axis in self.lane_axes if axis.name in at.axes)
        if ahead is None or "rows" not in at.axes or "edges" in at.axes or lanes > _KEPT:
            return self.w.line
        if not all(self._known_ahead(e, ahead) for i in index for e in subexpressions(i)):
            return self.w.line
        ahead.loaded.add(name)
        return ahead.line

    def _known_ahead(self, expr: loop.Expr, ahead: Ahead) -> bool:
        match expr:
            case loop.Var(name):
                return name in ahead.known
            case loop.IndexSum(terms):
                return ahead.known.issuperset(name for name, _ in terms)
            case loop.Load(buffer, index):
                found = self.loaded.get((buffer, index, self.dims))
                return found is not None and found.text in ahead.loaded
        return not isinstance(expr, loop.Degree | loop.Uniform)

    @contextmanager
    def under(self, *axes: Axis) -> Iterator[None]:
        before = self.axes
        self.axes = (*before, *axes)
        yield
        self.axes = before

    @contextmanager
    def lanes(self, lanes: Iterable[tuple[str, int]]) -> Iterator[Axis | None]:
        """Binds `lanes` under an axis for all their combinations; None if there is only one combination."""
        lanes = tuple(lanes)
        line = self.w.line if self.ahead is None else self.ahead.line
        wide = tuple((name, extent) for name, extent in lanes if extent != 1)
        for name, extent in lanes:
            if extent == 1:
                self.types[name], self.variables[name] = POSITION, Variable("0", (), frozenset())
        if self.ahead is not None:
            self.ahead.known.update(name for name, _ in lanes)
        if not wide:
            yield None
            return
        name = self.fresh("lane")
        axis = Axis(name, "0", wide)
        divided = axis.extent == self.parts.elements
        padded = RUN if divided else power_of_two(axis.extent)
        masked = divided or padded != axis.extent
        axis = Axis(name, str(padded), wide, f"{name}_ok" if masked else "")
        line(f"{name} = {f'part * {RUN} + ' if divided else ''}tl.arange(0, {padded})")
        if masked:
            line(f"{axis.mask} = {name} < {axis.extent}")
        with self.under(axis):
            rest = axis.extent
            for lane, extent in wide:
                stride = rest // extent
                text = name if stride == 1 else f"({name} // {stride})"
                text = text if rest == axis.extent else f"({text} % {extent})"
                self.types[lane] = POSITION
                self.variables[lane] = Variable(text, (name,), frozenset([name]))
                rest = stride
            yield axis

    # ------------------------------------------------------------ masks

    def mask(self, axes: Iterable[str]) -> str:
        """The text of a mask that is false for padding along `axes`, with all dimensions around; "" without padding."""
        wanted = set(axes)
        if {"rows", "edges"} <= wanted:
            wanted.discard("rows")  # padding of rows has no edges
        parts = []
        for axis in self.axes:
            if axis.name in wanted and axis.mask:
                dims = ("rows", "edges") if axis.name == "edges" else (axis.name,)
                parts.append(aligned(axis.mask, dims, self.dims))
        return " & ".join(parts)
