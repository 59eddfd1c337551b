"""Message IR: one algebra of spaces, maps, pull and push (docs/design.md, "What it computes with").

A program is a list of nodes in which each node names its operands by position (`Ref`), so equal nodes are equal
values, CSE is a dictionary, and text, hashing and comparison are linear. Types follow from nodes (`infer.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from graphweave.core.exact import Exact
from graphweave.core.sizes import Size
from graphweave.core.types import DType, Fold, Op, Space
from graphweave.ir.message.types import MESSAGE as MESSAGE
from graphweave.ir.message.types import AnyType as AnyType
from graphweave.ir.message.types import MapType as MapType
from graphweave.ir.message.types import PairsType as PairsType
from graphweave.ir.message.types import Type as Type
from graphweave.ir.message.types import ValueType as ValueType

node = MESSAGE.union("Node")

Ref: TypeAlias = int
"""Position of a node in its program; operands always come earlier."""


# ---------------------------------------------------------------- leaves


@node()
@dataclass(frozen=True, slots=True)
class Input:
    """A value that arrives from outside."""

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
    """out[r, i] = a number in [0, 1), uniform, a function of the seed and the position r * numel(shape) + i alone.

    `seed: unit i64`, of which each draw has its own; `ir/philox.py` is the function. f32 or f64. Evaluated again
    wherever it is needed: nothing has to be stored for forward and backward to agree.
    """

    seed: Ref
    type: Type


# ---------------------------------------------------------------- maps


@node("map {index} to {cod} {wrap}")
@dataclass(frozen=True, slots=True)
class MapOf:
    """The map r -> index[r]. `index: [dom] int`; every value lies in 0..rows(cod)-1 (checked when the format is built).

    With `wrap`, -rows(cod)..-1 count from the end, as `tensor[index]` allows.
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
@dataclass(frozen=True, slots=True)
class Push:
    """out[v] = fold over e with m(e) = v of x[e]; `empty` where no such e. `x: dom x F -> cod x F`.

    (Graphiler: Reduce; Zhang et al.: Gather.) Along `ToUnit` the result is a unit value. `fused` changes no value: the
    schedule chooses that the product which `x` is shall be multiplied as it is pushed, and its rows be stored nowhere
    (`analysis/typed.py` says of which products).
    """

    x: Ref
    map: Ref
    fold: Fold
    empty: float = 0.0
    fused: bool = False


# ---------------------------------------------------------------- dense, row by row


@node("{op} {args}")
@dataclass(frozen=True, slots=True)
class Pointwise:
    """out[r, i] = op(args[0][r, i], ...), features broadcast right-aligned, unit operands to the others' space.

    Operand dtypes are equal (the importer casts), but the condition of `where` is bool.
    """

    op: Op
    args: tuple[Ref, ...]


@node()
@dataclass(frozen=True, slots=True)
class Cast:
    """out = x converted to dtype as torch converts."""

    x: Ref
    dtype: DType


@node("reduce.{fold} {x} [{dims}] {keepdim}")
@dataclass(frozen=True, slots=True)
class Reduce:
    """Fold over feature dims `dims` (0 = first feature dim), kept as size 1 where `keepdim`. An empty sum is 0."""

    x: Ref
    fold: Fold
    dims: tuple[int, ...]
    keepdim: bool


@node()
@dataclass(frozen=True, slots=True)
class Reshape:
    """Row-major reshape of each row's block: F -> shape, same number of elements."""

    x: Ref
    shape: tuple[int, ...]


@node()
@dataclass(frozen=True, slots=True)
class Broadcast:
    """Each row's block broadcast (right-aligned) to `shape`."""

    x: Ref
    shape: tuple[int, ...]


@node()
@dataclass(frozen=True, slots=True)
class Permute:
    """Each row's block with its feature dims permuted: out dim i is x dim perm[i]."""

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
    """Blocks laid side by side along feature dim `dim`; all on one space (unit operands broadcast)."""

    xs: tuple[Ref, ...]
    dim: int


# ---------------------------------------------------------------- dense, heavy


@node()
@dataclass(frozen=True, slots=True)
class MatMul:
    """out[r, b, j] = sum_k x[r, b, k] w[m(r), b, k, j]: each row times the matrix that its map names.

    `x: S x [B, K]`, `w: R x [B, K, J]`, `map` is m: S -> R; gives `S x [B, J]`. The B blocks (heads) may be missing
    from all three. Without `map`, m is the map to unit, of which there is one only: all rows share
    `w: unit x [B, K, J]`. No row has a copy of its matrix. With a map to types it is Hector's typed linear (2.3).
    `called` changes no value: the schedule chooses that the vendor's library multiplies, between kernels
    (`lower/kernel_products.py`).
    """

    x: Ref
    w: Ref
    map: Ref | None = None
    called: bool = False


@node()
@dataclass(frozen=True, slots=True)
class AddMatMul:
    """out = a + MatMul(x, w, map), `a` being of the product's type."""

    a: Ref
    x: Ref
    w: Ref
    map: Ref | None = None


@node()
@dataclass(frozen=True, slots=True)
class Gram:
    """out[t, b, i, j] = sum over rows r with m(r) = t of x[r, b, i] y[r, b, j], the weights' gradient of MatMul.

    `x: S x [B, I]`, `y: S x [B, J]`, `map` is m: S -> R; gives `R x [B, I, J]`, 0 for a type without rows. The blocks
    may be missing. Without `map`, m is the map to unit: the result is shared data. `called`: as in MatMul.
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
    """The rows of `x` that belong to `of[at]`, where the space of `x` is the disjoint union of `of`, in order.

    A part that is the unit space is one row: the result is shared data.
    """

    x: Ref
    of: tuple[Space, ...]
    at: int


# ---------------------------------------------------------------- indices that are made once a graph


@node()
@dataclass(frozen=True, slots=True)
class UniquePairs:
    """The different pairs (a[r], b[r]) of the rows r, ordered by b, then a: one row of `space` for each.

    `a, b: E x [] int`; rows of no edges have no pairs. `PairIndex` reads from it which pair a row has, and the two ends
    of each pair, so that one sort serves all three. `space` belongs to this node: the node says whose pairs it has.
    """

    a: Ref
    b: Ref
    space: Space


PairPart: TypeAlias = Literal["rows", "a", "b"]


@node()
@dataclass(frozen=True, slots=True)
class PairIndex:
    """out[r] = the pair of row r, `E x [] i64` (part "rows"), or out[p] = a or b of pair p, `P x [] i64` ("a", "b").

    `pairs` is a UniquePairs of rows of E whose space is P; a[r] is the "a" of pair "rows"[r].
    """

    pairs: Ref
    part: PairPart


@node()
@dataclass(frozen=True, slots=True)
class JoinIndices:
    """out[r] = the row, in the disjoint union of `of`, of row indices[k][r] of the segment of[at[k]]; k after k.

    `indices[k]: S_k x [] int -> space x [] i64`, `space` being the disjoint union of the S_k. Each index is checked
    against its own segment when it is made, where one out of range would be a row of the next segment; where
    `wraps[k]`, -1 is the segment's last row. A segment that is the unit space is one row.
    """

    indices: tuple[Ref, ...]
    of: tuple[Space, ...]
    at: tuple[int, ...]
    wraps: tuple[bool, ...]
    space: Space


@node()
@dataclass(frozen=True, slots=True)
class RowsOfSegments:
    """out = the rows, in the disjoint union of `of`, of the segment of[at[0]], then those of of[at[1]], ...: i64.

    A value on `space`, the disjoint union of the of[at[k]].
    """

    of: tuple[Space, ...]
    at: tuple[int, ...]
    space: Space


@node()
@dataclass(frozen=True, slots=True)
class NumbersOfSegments:
    """out[r] = numbers[k] for every row r of of[k]: i64, on `space`, the disjoint union of `of`."""

    of: tuple[Space, ...]
    numbers: tuple[int, ...]
    space: Space


# ---------------------------------------------------------------- order of execution


@node()
@dataclass(frozen=True, slots=True)
class After:
    """out = x, but whoever reads it runs after the nodes `others` have been computed."""

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
    """out = x, its dims in memory in `order`, outermost first, without gaps; `whole`: from where its memory starts."""

    x: Ref
    order: tuple[int, ...]
    whole: bool = False


@node()
@dataclass(frozen=True, slots=True)
class Own:
    """out = x, laid out whole in `order` in memory that no argument of the program lies in."""

    x: Ref
    order: tuple[int, ...]


@node()
@dataclass(frozen=True, slots=True)
class Kept:
    """out = a copy of x for the backward, as a user may overwrite x before it."""

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


Arg: TypeAlias = "Operand | Atom | int | float | bool | str | tuple[Arg, ...] | None"


@node("call {target}({args+kwargs})| serial={serial}|")
@dataclass(frozen=True, slots=True)
class Aten:
    """An operator the algebra does not know, executed by PyTorch as it stands: slower, never wrong, and counted.

    `target` is the operator's qualified name ("aten.sort.stable"), or "builtin.<name>" for scalar arithmetic and
    getitem. `serial` tells impure calls (random numbers) apart, 0 for pure ones.
    """

    target: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...]
    type: Type | AnyType
    serial: int = 0


Opaque: TypeAlias = (
    UniquePairs | PairIndex | JoinIndices | RowsOfSegments | NumbersOfSegments | After | AssertIndex
    | LaidOut | Own | Kept | Aten
)  # fmt: skip
"""What is executed as one call, whose result lies in memory: no kernel computes it, nor looks into it."""

Node: TypeAlias = (
    Input | Const | Random | MapOf | ToUnit | Pull | Push | Pointwise | Cast | Reduce | Reshape | Broadcast | Permute
    | Slice | Pad | Concat | MatMul | AddMatMul | Gram | Join | Part | Opaque
)  # fmt: skip

NOTHING = AnyType(other="none")
"""The type of what has no value."""


@dataclass(frozen=True, slots=True)
class Program:
    """`nodes[i]` may use `nodes[:i]`. `types[i]` is what infer() says; `locs[i]` is the user's line ("file:line code").

    `spaces` holds the row count of each space, None where nothing but the rows themselves tell it; `outputs` may hold
    None for results that are not tensors (as FX graphs have them).
    """

    nodes: tuple[Node, ...]
    types: tuple[ValueType, ...]
    locs: tuple[str, ...]
    outputs: tuple[Ref | None, ...]
    spaces: tuple[tuple[Space, Size | None], ...]
