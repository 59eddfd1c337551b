"""The printer's state at one point of a kernel's text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from graphweave.codegen.arrays import Array, flatten
from graphweave.codegen.names import Names
from graphweave.codegen.triton.axes import Axes, Axis, aligned, names_of, power_of_two
from graphweave.codegen.triton.parts import RUN, Parts
from graphweave.codegen.writer import Writer
from graphweave.core.types import DType, OwnFold
from graphweave.ir.loop.nodes import Expr
from graphweave.ir.loop.types import POSITION

Position: TypeAlias = tuple[dict[str, int], int, list[tuple[Expr, int]]]
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
    loaded: dict[tuple[str, tuple[Expr, ...], tuple[str, ...]], Printed] = field(default_factory=dict)
    parts: Parts = field(default_factory=Parts)
    count: int = 0  # the number of fresh names so far

    # ------------------------------------------------------------ names

    def fresh(self, *parts: str) -> str:
        self.count += 1
        return self.names.derived(*parts, str(self.count))

    def bind(self, name: str, dtype: DType, value: Printed) -> str:
        """The Triton name of a variable that has the dimensions of `value` from here on."""
        text = self.names.of(name)
        self.types[name] = dtype
        self.variables[name] = Variable(text, self.dims if value.ranked else (), value.axes)
        return text

    @property
    def dims(self) -> tuple[str, ...]:
        return names_of(self.axes)

    @property
    def lane_axes(self) -> Axes:
        return tuple(axis for axis in self.axes if axis.lanes)

    def position(self, array: str, index: tuple[Expr, ...]) -> Position:
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
    def under(self, *axes: Axis) -> Iterator[None]:
        before = self.axes
        self.axes = (*before, *axes)
        yield
        self.axes = before

    @contextmanager
    def lanes(self, lanes: Iterable[tuple[str, int]]) -> Iterator[Axis | None]:
        """Binds `lanes` under an axis for all their combinations; None if there is only one combination."""
        lanes = tuple(lanes)
        wide = tuple((name, extent) for name, extent in lanes if extent != 1)
        for name, extent in lanes:
            if extent == 1:
                self.types[name], self.variables[name] = POSITION, Variable("0", (), frozenset())
        if not wide:
            yield None
            return
        name = self.fresh("lane")
        axis = Axis(name, "0", wide)
        divided = axis.extent == self.parts.elements
        padded = RUN if divided else power_of_two(axis.extent)
        masked = divided or padded != axis.extent
        axis = Axis(name, str(padded), wide, f"{name}_ok" if masked else "")
        self.w.line(f"{name} = {f'part * {RUN} + ' if divided else ''}tl.arange(0, {padded})")
        if masked:
            self.w.line(f"{axis.mask} = {name} < {axis.extent}")
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
