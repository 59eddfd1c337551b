"""Arrays of a JAX trace as values of a message program: which dim is that of the rows, and which only repeat.

An array [edges, heads, width] is a value on the space of edges, of feature shape [heads, width]; JAX may also have
transposed it, so that its rows are another dim. A dim along which JAX has broadcast is not made: it stays of size 1
until somebody needs it. So an array of ones [edges, 4] is the number 1, and a bias [4] that JAX has broadcast to
[edges, 4] is still one row, shared by all edges. Which dim holds rows follows from where an array comes from, never
from its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphweave.core.lines import NOWHERE
from graphweave.core.numbers import Number, typed
from graphweave.core.types import UNIT, DType, Op, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import numel


class CannotSay(Exception):
    """A computation that a message program cannot express, in words that end a sentence about the primitive."""


@dataclass(frozen=True, slots=True)
class Value:
    """An array of `shape`. Dim `rows` is that of the space on which `ref` lies, None for shared data. The features of
    `ref` are the other dims, in order, with size 1 for those in `spread`."""

    ref: ir.Ref
    shape: tuple[int, ...]
    rows: int | None = None
    spread: frozenset[int] = frozenset()

    def is_uniform(self, dim: int) -> bool:
        """Whether all places along `dim` hold the same."""
        return dim != self.rows and (dim in self.spread or self.shape[dim] == 1)


class Values:
    """Builds nodes, and gives the operands of an operation the same rows."""

    def __init__(self, build: Builder, row_wise: bool = False) -> None:
        """With `row_wise`, a total over rows is refused."""
        self.build = build
        self.row_wise = row_wise
        self.loc = NOWHERE
        """The user's line, which nodes that are added get."""

    def add(self, node: ir.Node) -> ir.Ref:
        return self.build.add(node, self.loc)

    def type(self, ref: ir.Ref) -> ir.Type:
        t = self.build.types[ref]
        assert isinstance(t, ir.Type)
        return t

    def space(self, v: Value) -> Space:
        return self.type(v.ref).space

    def const(self, number: Number, dtype: DType) -> ir.Ref:
        return self.add(ir.Const(typed(number, dtype), ir.Type(UNIT, (), dtype)))

    def number(self, number: Number, dtype: DType) -> Value:
        return Value(self.const(number, dtype), ())

    # ---------------------------------------------------------------- shapes

    def reshaped(self, ref: ir.Ref, shape: Sequence[int]) -> ir.Ref:
        return ref if self.type(ref).shape == tuple(shape) else self.add(ir.Reshape(ref, tuple(shape)))

    def broadcast(self, ref: ir.Ref, shape: Sequence[int]) -> ir.Ref:
        return ref if self.type(ref).shape == tuple(shape) else self.add(ir.Broadcast(ref, tuple(shape)))

    def permuted(self, ref: ir.Ref, perm: Sequence[int]) -> ir.Ref:
        return ref if tuple(perm) == tuple(range(len(perm))) else self.add(ir.Permute(ref, tuple(perm)))

    def kept(self, v: Value, rows: int | None, spread: frozenset[int] = frozenset()) -> ir.Ref:
        """The features of `v`, as they are where its rows are the dim `rows`: made along each dim that is not in
        `spread`. CannotSay where `v` has other rows."""
        if v.shape == ():
            return v.ref
        shape = [1 if i in spread else n for i, n in enumerate(v.shape) if i != rows]
        return self.broadcast(self.beside(v, rows), shape)

    def beside(self, v: Value, rows: int | None) -> ir.Ref:
        """The features of `v` so that they broadcast with values whose rows are the dim `rows`; what only repeats has
        size 1."""
        if rows is None or v.rows == rows or v.shape == ():
            return v.ref
        if v.rows is not None:
            raise CannotSay("meets rows of one operand with features of another")
        if not v.is_uniform(rows):
            raise CannotSay("reads data of its own for each row that is none of the arguments' rows")
        shape = list(self.type(v.ref).shape)
        del shape[rows]
        return self.reshaped(v.ref, shape)

    def on(self, v: Value, space: Space) -> ir.Ref:
        """`v` as a value on `space`, whose rows are its dim 0."""
        if v.rows == 0:
            if self.space(v) != space:
                raise CannotSay(f"moves rows of {self.space(v)} as if they were rows of {space}")
            return v.ref
        ref = self.beside(v, 0)
        node = self.build.nodes[ref]
        if isinstance(node, ir.Const):
            t = node.type
            return self.add(ir.Const(node.value, ir.Type(space, t.shape, t.dtype)))
        return self.add(ir.Pull(ref, self.add(ir.ToUnit(space))))

    def rows_of(self, values: Sequence[Value]) -> int | None:
        """The dim of rows of the result of an elementwise operation. CannotSay where two spaces meet."""
        found = [v for v in values if v.rows is not None]
        if len({(v.rows, self.space(v)) for v in found}) > 1:
            spaces = sorted({str(self.space(v)) for v in found})
            raise CannotSay(f"meets rows of {' and '.join(spaces)}, or rows with features")
        return found[0].rows if found else None

    def pointwise(self, op: Op, *args: Value) -> Value:
        rows = self.rows_of(args)
        rank = max(len(v.shape) for v in args)
        sizes = zip(*(v.shape for v in args if len(v.shape) == rank), strict=True)
        shape = tuple(next((n for n in along if n != 1), 1) for along in sizes)
        ref = self.add(ir.Pointwise(op, tuple(self.beside(v, rows) for v in args)))
        full = [v for v in args if v.shape != ()]
        spread = frozenset(i for i in range(len(shape)) if i != rows and all(v.is_uniform(i) for v in full))
        if len(self.type(ref).shape) < len(shape) - (rows is not None):  # all operands are numbers
            ref = self.reshaped(ref, [1] * (len(shape) - (rows is not None)))
        return Value(ref, shape, rows, spread)

    def check_total(self) -> None:
        """CannotSay where a sum over rows is not allowed."""
        if self.row_wise:
            raise CannotSay("mixes rows: the result of one edge would change with the data of another")

    # ---------------------------------------------------------------- dims

    def with_dims(self, v: Value, shape: tuple[int, ...], places: Sequence[int]) -> Value:
        """Dim i of `v` becomes dim places[i] of the result; it repeats along all others, and along dims of size 1."""
        for i, at in enumerate(places):
            if i == v.rows and shape[at] != v.shape[i]:
                raise CannotSay("repeats rows")
        rows = None if v.rows is None else places[v.rows]
        own = dict(zip((p for p in places if p != rows), self.type(v.ref).shape, strict=True))
        ref = self.reshaped(v.ref, [own.get(i, 1) for i in range(len(shape)) if i != rows])
        whole = {places[i] for i in range(len(places)) if not v.is_uniform(i)}
        return Value(ref, shape, rows, frozenset(i for i in range(len(shape)) if i not in whole and i != rows))

    def with_shape(self, v: Value, shape: tuple[int, ...]) -> Value:
        """`v` reshaped, row-major. Rows stay rows, and repeated dims stay so where the result has them, too."""
        if v.rows is None and all(v.is_uniform(i) for i in range(len(v.shape))):
            return Value(self.reshaped(v.ref, [1] * len(shape)), shape, None, frozenset(range(len(shape))))
        same = dict(_same_dims(v.shape, shape))
        rows = None if v.rows is None else same.get(v.rows)
        if v.rows is not None and rows is None:
            raise CannotSay("mixes rows with features")
        kept = {i: at for i, at in same.items() if i in v.spread}
        ref = self.kept(v, v.rows, frozenset(kept))
        spread = frozenset(kept.values())
        ref = self.reshaped(ref, [1 if i in spread else n for i, n in enumerate(shape) if i != rows])
        return Value(ref, shape, rows, spread)

    def transposed(self, v: Value, perm: Sequence[int]) -> Value:
        """Dim i of the result is dim perm[i] of `v`."""
        places = [perm.index(i) for i in range(len(perm))]
        rows = None if v.rows is None else places[v.rows]
        features = [i for i in range(len(perm)) if i != v.rows]
        ref = self.permuted(v.ref, [features.index(p) for p in perm if p != v.rows])
        return Value(ref, tuple(v.shape[p] for p in perm), rows, frozenset(places[i] for i in v.spread))

    def feature(self, v: Value, dim: int) -> int:
        """The dim of the features of `v.ref` that is dim `dim` of `v`."""
        return dim - (v.rows is not None and v.rows < dim)


def _same_dims(old: Sequence[int], new: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of dims that a row-major reshape leaves as they are: as large, behind as many elements, in order."""
    out: list[tuple[int, int]] = []
    after = -1
    for i, n in enumerate(old):
        for j in range(after + 1, len(new)):
            alike = new[j] == n and numel(new[:j]) == numel(old[:i]) and numel(new[j + 1 :]) == numel(old[i + 1 :])
            if alike:
                out.append((i, j))
                after = j
                break
    return out
