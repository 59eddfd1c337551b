"""Message IR: one algebra of spaces, maps, pull and push (docs/design.md, "What it computes with").

A program is a list of nodes, each of which names its operands by position (`Ref`). Equal nodes therefore are equal
values, a dictionary finds common subexpressions, and text, hashing and comparison take linear time. Types follow from
nodes (`infer.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from graphweave.core.exact import Exact
from graphweave.core.lines import Location
from graphweave.core.sizes import Size
from graphweave.core.types import AnyFold, DType, Fold, Op, Space
from graphweave.ir.message.graph_nodes import Chosen as Chosen
from graphweave.ir.message.graph_nodes import Distinct as Distinct
from graphweave.ir.message.graph_nodes import DistinctKey as DistinctKey
from graphweave.ir.message.graph_nodes import DistinctRow as DistinctRow
from graphweave.ir.message.graph_nodes import EachItem as EachItem
from graphweave.ir.message.graph_nodes import EqualRuns as EqualRuns
from graphweave.ir.message.graph_nodes import Inverse as Inverse
from graphweave.ir.message.graph_nodes import JoinIndices as JoinIndices
from graphweave.ir.message.graph_nodes import NumbersOfSegments as NumbersOfSegments
from graphweave.ir.message.graph_nodes import Order as Order
from graphweave.ir.message.graph_nodes import Places as Places
from graphweave.ir.message.graph_nodes import Reordered as Reordered
from graphweave.ir.message.graph_nodes import Rounds as Rounds
from graphweave.ir.message.graph_nodes import RowsOfSegments as RowsOfSegments
from graphweave.ir.message.rank_nodes import AllReduce as AllReduce
from graphweave.ir.message.rank_nodes import Exchange as Exchange
from graphweave.ir.message.rank_nodes import ExchangeBack as ExchangeBack
from graphweave.ir.message.types import MESSAGE as MESSAGE
from graphweave.ir.message.types import AnyType as AnyType
from graphweave.ir.message.types import DistinctType as DistinctType
from graphweave.ir.message.types import MapType as MapType
from graphweave.ir.message.types import Ref as Ref
from graphweave.ir.message.types import Type as Type
from graphweave.ir.message.types import ValueType as ValueType

node = MESSAGE.union("Node")


# ---------------------------------------------------------------- leaves


@node()
@dataclass(frozen=True, slots=True)
class Input:
    """A value that the caller gives."""

    name: str
    type: Type | AnyType


@node()
@dataclass(frozen=True, slots=True, eq=False)
class Const(Exact):
    """out[r, ...] = value, for every row and feature."""

    value: float | int | bool
    type: Type


@node()
@dataclass(frozen=True, slots=True)
class Random:
    """out[r, i] = a uniform number in [0, 1), a function of the seed and the position r * numel(shape) + i alone.

    `seed: unit i64` is different for each draw; `ir/philox.py` is the function. The result is f32 or f64. The number is
    computed again wherever it is needed, so nothing is stored to make forward and backward agree.
    """

    seed: Ref
    type: Type


# ---------------------------------------------------------------- maps


@node("map {index} to {cod} {wrap}")
@dataclass(frozen=True, slots=True)
class MapOf:
    """The map r -> index[r]. `index: [dom] int`; every value lies in 0..rows(cod)-1 (checked when the format is built).

    With `wrap`, values -rows(cod)..-1 count from the end, as in `tensor[index]`.
    """

    index: Ref
    cod: Space
    wrap: bool = False


@node()
@dataclass(frozen=True, slots=True)
class ToUnit:
    """The only map from `dom` to the unit space; pushing along it reduces over all rows."""

    dom: Space


# ---------------------------------------------------------------- moving between spaces


@node()
@dataclass(frozen=True, slots=True)
class Pull:
    """out[e] = x[m(e)]. `x: cod x F -> dom x F`. (Graphiler: Broadcast; Zhang et al.: Scatter.)"""

    x: Ref
    map: Ref


@node("push.{fold} {x}, {map}| empty={empty}| {fused}")
@dataclass(frozen=True, slots=True, eq=False)
class Push(Exact):
    """out[v] = fold over e with m(e) = v of x[e]; `empty` if there is no such e. `x: dom x F -> cod x F`.

    (Graphiler: Reduce; Zhang et al.: Gather.) Along `ToUnit` the result is a unit value. `fused` changes no value: it
    says that the push itself multiplies the typed product `x`, whose rows are then stored nowhere
    (`analysis/typed.py` says for which products).
    """

    x: Ref
    map: Ref
    fold: AnyFold
    empty: float | int | bool = 0
    fused: bool = False

    @property
    def is_plain_sum(self) -> bool:
        """Whether rows to which nothing is pushed are 0, as a sum of nothing is. (-0.0 is another number.)"""
        return self.fold is Fold.sum and self.empty == 0 and math.copysign(1, self.empty) > 0


# ---------------------------------------------------------------- dense, row by row


@node("{op} {args}")
@dataclass(frozen=True, slots=True)
class Pointwise:
    """`out[r, i] = op(args[0][r, i], ...)`. Features are broadcast right-aligned, unit operands to all rows.

    All operands have one dtype (the importer casts), except that the condition of `where` is bool.
    """

    op: Op
    args: tuple[Ref, ...]


@node()
@dataclass(frozen=True, slots=True)
class Cast:
    """out = x converted to dtype, as torch does."""

    x: Ref
    dtype: DType


@node("reduce.{fold} {x} [{dims}] {keepdim}")
@dataclass(frozen=True, slots=True)
class Reduce:
    """The fold over feature dims `dims` (0 is the first); with `keepdim` they stay with size 1. An empty sum is 0."""

    x: Ref
    fold: Fold
    dims: tuple[int, ...]
    keepdim: bool


@node()
@dataclass(frozen=True, slots=True)
class Reshape:
    """Row-major reshape of the features of each row: F -> shape, with the same number of elements."""

    x: Ref
    shape: tuple[int, ...]


@node()
@dataclass(frozen=True, slots=True)
class Broadcast:
    """The features of each row broadcast (right-aligned) to `shape`."""

    x: Ref
    shape: tuple[int, ...]


@node()
@dataclass(frozen=True, slots=True)
class Permute:
    """The feature dims of each row permuted: out dim i is x dim perm[i]."""

    x: Ref
    perm: tuple[int, ...]


@node("slice {x} dim={dim} {start}:{stop}:{step}")
@dataclass(frozen=True, slots=True)
class Slice:
    """out[r, ..., j, ...] = x[r, ..., start + j*step, ...] for start + j*step < stop, along feature dim `dim`."""

    x: Ref
    dim: int
    start: int
    stop: int
    step: int = 1


@node("pad {x} dim={dim} {before}, {after}")
@dataclass(frozen=True, slots=True)
class Pad:
    """x with `before`/`after` zeros along feature dim `dim` (the gradient of Slice)."""

    x: Ref
    dim: int
    before: int
    after: int


@node("concat dim={dim} {xs}")
@dataclass(frozen=True, slots=True)
class Concat:
    """The features of `xs` side by side along feature dim `dim`; all on one space (unit operands are broadcast)."""

    xs: tuple[Ref, ...]
    dim: int


# ---------------------------------------------------------------- dense, heavy


@node()
@dataclass(frozen=True, slots=True)
class MatMul:
    """out[r, b, j] = sum_k x[r, b, k] w[m(r), b, k, j]: each row times the matrix that the map gives it.

    `x: S x [B, K]`, `w: R x [B, K, J]`, `map` is m: S -> R; the result is `S x [B, J]`. All three may lack the dim B of
    diagonal blocks (heads). Without `map`, m is the only map to unit: all rows share `w: unit x [B, K, J]`. No row has
    a copy of its matrix. With a map to types it is Hector's typed linear (2.3). `called` changes no value: it says that
    the vendor's library multiplies, between kernels (`lower/mark_calls.py`).
    """

    x: Ref
    w: Ref
    map: Ref | None = None
    called: bool = False


@node()
@dataclass(frozen=True, slots=True)
class AddMatMul:
    """out = a + MatMul(x, w, map); `a` has the product's type."""

    a: Ref
    x: Ref
    w: Ref
    map: Ref | None = None


@node()
@dataclass(frozen=True, slots=True)
class Gram:
    """out[t, b, i, j] = sum over rows r with m(r) = t of x[r, b, i] y[r, b, j], the weights' gradient of MatMul.

    `x: S x [B, I]`, `y: S x [B, J]`, `map` is m: S -> R; the result is `R x [B, I, J]`, 0 for a type without rows. The
    dim B may be missing. Without `map`, m is the map to unit: the result is shared data. `called` is as in MatMul.
    """

    x: Ref
    y: Ref
    map: Ref | None = None
    called: bool = False


# ---------------------------------------------------------------- disjoint unions of spaces


@node()
@dataclass(frozen=True, slots=True)
class Join:
    """The rows of xs[0], then those of xs[1], ...: a value on `space`, the disjoint union of their spaces.

    All are of one shape and dtype; a unit operand is one row.
    """

    xs: tuple[Ref, ...]
    space: Space


@node()
@dataclass(frozen=True, slots=True)
class Part:
    """The rows of `x` that belong to `of[at]`. The space of `x` is the disjoint union of `of`, in order.

    If of[at] is the unit space, the part is one row, and the result is shared data.
    """

    x: Ref
    of: tuple[Space, ...]
    at: int


# ---------------------------------------------------------------- order of execution


@node()
@dataclass(frozen=True, slots=True)
class After:
    """out = x, but nodes that read it run after the nodes `others`."""

    x: Ref
    others: tuple[Ref, ...]


@node()
@dataclass(frozen=True, slots=True)
class AssertIndex:
    """IndexRangeError unless 0 <= index[i] < size for every element; it has no value. `index` is an integer tensor."""

    index: Ref
    size: int


# ---------------------------------------------------------------- memory


@node()
@dataclass(frozen=True, slots=True)
class LaidOut:
    """out = x, whose dims lie in memory in `order`, outermost first, without gaps; with `whole`, x also starts where
    its memory starts."""

    x: Ref
    order: tuple[int, ...]
    whole: bool = False


@node()
@dataclass(frozen=True, slots=True)
class Own:
    """out = x, laid out in `order` from the start of its memory, which it shares with no argument of the program."""

    x: Ref
    order: tuple[int, ...]


@node()
@dataclass(frozen=True, slots=True)
class Kept:
    """out = a copy of x for the backward, since a user may overwrite x before the backward runs."""

    x: Ref


# ---------------------------------------------------------------- outside the algebra


@dataclass(frozen=True, slots=True)
class Atom:
    """A non-numeric argument of an ATen call: a dtype, device, layout or memory format, by its torch name."""

    text: str


@dataclass(frozen=True, slots=True)
class Operand:
    """A reference to another node inside the (nested) arguments of an ATen call."""

    ref: Ref

    def __str__(self) -> str:
        return f"%{self.ref}"


@node()
@dataclass(frozen=True, slots=True)
class RunningSum:
    """out[r] = x[0] + ... + x[r], or with `reverse` x[r] + ... + x[last]: `S x T`, for `x: S x T` of floats or i64."""

    x: Ref
    reverse: bool = False


Arg: TypeAlias = "Operand | Atom | int | float | bool | str | tuple[Arg, ...] | None"


@node("call {target}({args+kwargs})| serial={serial}|")
@dataclass(frozen=True, slots=True)
class Aten:
    """An operator outside the algebra, which PyTorch executes unchanged: slower, never wrong, and counted.

    `target` is the operator's qualified name ("aten.sort.stable"), or "builtin.<name>" for scalar arithmetic and
    getitem. `serial` is another number for each impure call (random numbers), 0 for pure calls.
    """

    target: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...]
    type: Type | AnyType
    serial: int = 0


MadeIndex: TypeAlias = (
    Distinct | DistinctRow | DistinctKey | JoinIndices | RowsOfSegments | NumbersOfSegments | EqualRuns | Rounds
    | EachItem | Places | Inverse | Order | Chosen
)  # fmt: skip
"""Indices that follow from other indices, and what they are made of."""

Opaque: TypeAlias = (
    MadeIndex | Reordered | RunningSum | Exchange | ExchangeBack | AllReduce | After | AssertIndex | LaidOut | Own
    | Kept | Aten
)  # fmt: skip
"""Nodes that are executed as one call, whose result lies in memory: no kernel computes them."""

ByArithmetic: TypeAlias = EqualRuns | Rounds | EachItem
"""Indices that follow by arithmetic from row counts, and from a smaller map: kernels that compute them read none."""

NativeOnCpu: TypeAlias = Order | Chosen | Distinct | RunningSum
"""Nodes that native code of ours computes on the CPU, and calls of PyTorch elsewhere."""

Node: TypeAlias = (
    Input | Const | Random | MapOf | ToUnit | Pull | Push | Pointwise | Cast | Reduce | Reshape | Broadcast | Permute
    | Slice | Pad | Concat | MatMul | AddMatMul | Gram | Join | Part | Opaque
)  # fmt: skip

NOTHING = AnyType(other="none")
"""The type of nodes without a value."""


@dataclass(frozen=True, slots=True)
class Program:
    """`nodes[i]` may use `nodes[:i]`. `types[i]` is the result of infer(), `locs[i]` the user's line.

    `spaces` has the row count of each space, None if only values on the space tell it. `outputs` has None for results
    that are not tensors (as FX graphs do).
    """

    nodes: tuple[Node, ...]
    types: tuple[ValueType, ...]
    locs: tuple[Location, ...]
    outputs: tuple[Ref | None, ...]
    spaces: tuple[tuple[Space, Size | None], ...]
