"""Loop IR: one kernel, printable as C++ and as Triton.

A kernel walks the rows of one space in parallel. Inside a row it makes any number of passes over the edges that a CSR
format lists for that row. Inside either it runs data-parallel `Lanes` over dense features of static size. Edges may
come in `Tiles`: runs that are short enough to keep a row of numbers for each edge, which matrices then multiply. All
expressions are scalars of one lane, and nothing mentions threads, vectors or pointers, so each target is free to map
rows, edges and lanes to its own hardware.

Sparse access: `Edges` binds a position `k` in `indptr[row] .. indptr[row+1]`. Buffers over positions (a CSR's `perm`
and neighbour columns) are read at `k`, and give the row at which an edge or neighbour buffer is read. A position may be
the row of another CSR, so that the edges of a row come in nested groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from graphweave.core.exact import Exact
from graphweave.core.types import AnyFold, DType, Fold, Op
from graphweave.ir.syntax import Language

LOOP = Language()
"""The text of kernels; `values.py` adds how values of each annotation are written."""

expression, statement, part = LOOP.union("Expr"), LOOP.union("Stmt"), LOOP.union("part of another node")

Lane: TypeAlias = tuple[str, int]
"""A variable, and how many values it takes, from 0 on."""

Term: TypeAlias = tuple[str, int]
"""A lane and its coefficient."""

Text: TypeAlias = str
"""Any text. (The annotation `str` stands for a name.)"""

# ---------------------------------------------------------------- expressions (scalars)


@expression("{name}")
@dataclass(frozen=True, slots=True)
class Var:
    """A row, position, lane index, or a scalar bound by `Let` or `FoldLanes`."""

    name: str


@expression("{value}:{dtype}")
@dataclass(frozen=True, slots=True, eq=False)
class Lit(Exact):
    value: float | int | bool
    dtype: DType


@expression("{buffer}[{index}]")
@dataclass(frozen=True, slots=True)
class Load:
    """buffer[index]. For a parameter with rows the first index is the row (or position); the others are feature
    indices."""

    buffer: str
    index: tuple[Expr, ...]


@expression("{op}({args})")
@dataclass(frozen=True, slots=True)
class Call:
    """A row-wise scalar operator; operands have equal dtypes (the condition of `where` is bool).

    All operands are evaluated, both branches of `where` too: a load in either must be in range.
    """

    op: Op
    args: tuple[Expr, ...]


@expression("cast({x}, {dtype})")
@dataclass(frozen=True, slots=True)
class CastTo:
    x: Expr
    dtype: DType


@expression("{{terms+offset: + }| // {div}|| % {mod}|}")
@dataclass(frozen=True, slots=True)
class IndexSum:
    """The feature index ((offset + sum_i coefficient_i * lane_i) // div) % mod, without the modulus if `mod` is None.
    It is never negative."""

    terms: tuple[Term, ...]
    offset: int = 0
    div: int = 1
    mod: int | None = None


@expression("degree({csr}, {row})")
@dataclass(frozen=True, slots=True)
class Degree:
    """Number of edges that CSR `csr` lists for `row`, as i64."""

    csr: str
    row: Expr


@expression("uniform({seed}, {row}, {size}, {index}, {dtype})")
@dataclass(frozen=True, slots=True)
class Uniform:
    """A random number in [0, 1) of `dtype` (f32 or f64): a function of `seed` (i64) and of the position
    row * size + index, which is that of an element in a tensor with `size` elements in each row (`ir/philox.py`)."""

    seed: Expr
    row: Expr
    size: int
    index: IndexSum
    dtype: DType


Expr: TypeAlias = Var | Lit | Load | Call | CastTo | IndexSum | Degree | Uniform

# ---------------------------------------------------------------- statements


@statement("let {name}: {dtype} = {value}")
@dataclass(frozen=True, slots=True)
class Let:
    """name: dtype = value, for the rest of the enclosing block."""

    name: str
    dtype: DType
    value: Expr


@statement("alloc {name}: {dtype}[{shape}]| = {fill}|")
@dataclass(frozen=True, slots=True, eq=False)
class Alloc(Exact):
    """A dense array private to the enclosing row or edge, filled with `fill` (unset if that is None)."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    fill: float | int | bool | None


@statement("{buffer}[{index}] = {value}")
@dataclass(frozen=True, slots=True)
class Store:
    """buffer[index] = value. A kernel stores each element of an output buffer exactly once."""

    buffer: str
    index: tuple[Expr, ...]
    value: Expr


@statement("{buffer}[{index}] {fold}= {value}")
@dataclass(frozen=True, slots=True)
class Accum:
    """buffer[index] = fold(buffer[index], value). The buffer is an Alloc of the row, a TileArray at a position, or a
    `total` parameter (over all rows), whose fold is a member of `Fold`."""

    buffer: str
    index: tuple[Expr, ...]
    fold: AnyFold
    value: Expr


@part("rescale {lanes} { {buffer}[{index}] by {of} }")
@dataclass(frozen=True, slots=True)
class Rescaled:
    """A sum whose element buffer[index] belongs to element `of` of a reference, for every combination of lanes."""

    lanes: tuple[Lane, ...]
    buffer: str
    index: tuple[Expr, ...]
    of: IndexSum


@statement("raise {reference}[{lane}] to {value} of {tile} {\n  {sums}\n}")
@dataclass(frozen=True, slots=True)
class Raise:
    """Keeps sums of exp(x - reference[i]) * y in range while the edges come tile by tile: an online softmax.

    `lane` counts the elements i of the alloc `reference`; `value` is the maximum so far of each. In the first tile of a
    row the sums are still empty. In later tiles, if value <= reference[i] does not hold, each element of `sums` that
    belongs to i becomes 0 if reference[i] is -inf, else it is multiplied by exp(reference[i] - value). Then
    reference[i] becomes max(reference[i], value), NaN if either is.
    """

    tile: str
    reference: str
    lane: Lane
    value: Expr
    sums: tuple[Rescaled, ...]


@statement("fold {name}: {dtype} = {fold} {lanes}| in {parts}| {\n  {body}\n  yield {value}\n}")
@dataclass(frozen=True, slots=True)
class FoldLanes:
    """name: dtype = fold of value over all lanes. `body` (only Lets) runs before value for each combination of lanes.
    If there are none, the result is the fold's identity. With `parts`, a target that folds lanes side by side folds
    those of the innermost loop into so many partial results, lane i into that at i modulo `parts`, and these by
    halves."""

    name: str
    dtype: DType
    fold: Fold
    lanes: tuple[Lane, ...]
    body: tuple[Let, ...]
    value: Expr
    parts: int | None = None


@statement("lanes {lanes} {\n  {body}\n}")
@dataclass(frozen=True, slots=True)
class Lanes:
    """Runs body for every combination of lane indices, in any order or in parallel; two of them never conflict."""

    lanes: tuple[Lane, ...]
    body: tuple[Stmt, ...]


@part("prefetch {buffer}[{column}[{^k} + {shift+distance: + }]]| from {at}|| < {size}|")
@dataclass(frozen=True, slots=True)
class Prefetch:
    """A hint, which a target may ignore: row `buffer[column[k + distance]]` will be needed `distance` positions later.

    With `shift`, a variable, the hint is about row `buffer[column[k + shift + distance]]`, if the row's edges reach
    that far. With `at`, it is only about the `size` features of the row from feature `at` on.
    """

    buffer: str
    column: str
    distance: int
    shift: str | None = None
    at: IndexSum | None = None
    size: int | None = None


@statement("edges {k} in {csr}[{row}]| of {tile}|| unroll {unroll}| {prefetch: } {\n  {body}\n}")
@dataclass(frozen=True, slots=True)
class Edges:
    """Runs body for every position k with indptr[row] <= k < indptr[row + 1] (and in `tile`), in increasing order.

    `row` is the kernel's row, or a position of enclosing Edges, for each of which `csr` then has a row. With `unroll`
    the text of a loop holds body that many times; a target may ignore it.
    """

    k: str
    csr: str
    row: str
    prefetch: tuple[Prefetch, ...]
    body: tuple[Stmt, ...]
    tile: str | None = None
    unroll: int | None = None


@statement("tiles {tile} < {size} in {csr}[{row}] {\n  {body}\n}")
@dataclass(frozen=True, slots=True)
class Tiles:
    """Runs body for runs of at most `size` positions, which together are the positions of `row`, in increasing order.

    The target chooses how long each run is: nothing that a kernel computes depends on it.
    """

    tile: str
    size: int
    csr: str
    row: str
    body: tuple[Stmt, ...]


@statement("rows of {tile} {\n  {body}\n}")
@dataclass(frozen=True, slots=True)
class TileRows:
    """Runs body for every row of the kernel's tile of rows (`Kernel.tile`), in increasing order."""

    tile: str
    body: tuple[Stmt, ...]


@statement("array {name}: {dtype}[{tile}; {shape}]")
@dataclass(frozen=True, slots=True)
class TileArray:
    """An unset array over the positions of the tile in progress, [positions, *shape]. Its first index is a position.

    The positions of a tile of rows are the rows.
    """

    name: str
    tile: str
    dtype: DType
    shape: tuple[int, ...]


@part("{buffer}[{column+shift: + }]")
@dataclass(frozen=True, slots=True)
class Rows:
    """For each position k of a tile, row column[k] of a parameter with rows; with the variable `shift`, row
    column[k + shift].

    An operand is gathered, a result scattered. If a result is stored, no two positions of a kernel name the same row.
    If it is added, no two positions of a tile name the same row, and neither do positions of different rows of the
    kernel.
    """

    buffer: str
    column: str
    shift: str | None = None


Place: TypeAlias = str | Rows
"""Where a product reads or writes a row for each position of a tile. A name is a tile array or a stash; in a tile of
rows it may also be a parameter with a row for each row of the kernel."""


@statement("matmul |{blocks} |{out} = {add+x: + }, {transposed} {w}|[{row}]| of {tile}")
@dataclass(frozen=True, slots=True)
class TileMatMul:
    """out[k, j] = sum_i x[k, i] w[i, j] for every position k of the tile; an element has the same bits in every tile.

    Terms are added in the order of i, with one rounding for each; if there are fewer columns than a vector has
    elements, a target may sum vectors of i. `w` is an input of shared data, an alloc of the row, or, with the variable
    `row`, that row of an input with rows. It has I * J elements, or J * I if `transposed`. With `add` (as `x`, but [J])
    the sum begins with add[k, j] instead of 0; its memory may be that of `out`. If `add` is `Rows`, the product is
    added in place: `add` is `out`, and something has been stored in it before. With `blocks` = B the rows of x and out
    consist of B blocks, and so does w: out[k, b] = x[k, b] w[b].

    If x or w is of half precision, both are taken as numbers of that type (one that is f32 is rounded to it), their
    products are exact, and the sum is f32; `out` is f32, or the sum is rounded to its type. A target may therefore use
    instructions that multiply half precision.
    """

    tile: str
    out: Place
    x: Place
    w: str
    add: Place | None = None
    row: str | None = None
    transposed: bool = False
    blocks: int = 1


@statement("gram |{blocks} |{out} = {x}, {y} of {tile}")
@dataclass(frozen=True, slots=True)
class TileGram:
    """out[i, j] += sum_k x[k, i] y[k, j] over the positions k of the tile.

    `out` is a total, or an alloc of the row, of I * J elements, and never of half precision. `x`, `y`, half precision
    and `blocks` are as in TileMatMul: out[b, i, j] += sum_k x[k, b, i] y[k, b, j].
    """

    tile: str
    out: str
    x: Place
    y: Place
    blocks: int = 1


@statement("# {text}")
@dataclass(frozen=True, slots=True)
class Comment:
    """A line for the reader of the generated text (the user's source line)."""

    text: Text


Stmt: TypeAlias = (
    Let | Alloc | Store | Accum | Raise | FoldLanes | Lanes | Edges
    | Tiles | TileRows | TileArray | TileMatMul | TileGram | Comment
)  # fmt: skip

# ---------------------------------------------------------------- parameters


class Role(Enum):
    input = "in"
    output = "out"  # written, never read
    total = "total"  # output reduced by Accum in a fixed order: over all rows, or, if it has rows, over all items
    column = "column"  # i32/i64 array over the positions of a CSR: edge ids (perm) or neighbour rows
    index = "index"  # i32/i64 array over the kernel's rows: where a flat pull reads


@part("{role} {name}: {dtype}[{rows}; {shape}] {fold} {items}")
@dataclass(frozen=True, slots=True)
class Buffer:
    """A contiguous tensor parameter `[rows, *shape]`; `rows` names a size of the kernel, None for unit-space data.

    `fold` is the reduction of a `total` buffer, None for others. Column and index buffers have the dtype
    `Kernel.index`. With `items` the tensor has these rows for each item of the kernel (`Kernel.items`), one item after
    the other; the body reads and writes those of its item.
    """

    name: str
    role: Role
    dtype: DType
    rows: str | None
    shape: tuple[int, ...]
    fold: Fold | None = None
    items: bool = False


@part("csr {name}| in runs of {positions}|")
@dataclass(frozen=True, slots=True)
class Csr:
    """Positions grouped by row: `indptr` [rows + 1] of the kernel's index dtype.

    With `positions`, the size that counts them, they are as many runs of equal length as there are rows, and there is
    no indptr. The kernel has no other CSR then.
    """

    name: str
    positions: str | None = None


@part("stash {name}: {dtype}[{csr}; {shape}]")
@dataclass(frozen=True, slots=True)
class Stash:
    """Scratch for one row: an array `[degree(row), *shape]` over the edges of `csr`, kept from one pass to the next.

    It is loaded and stored like a buffer with the position k as its row. Its contents do not outlive the row.
    """

    name: str
    csr: str
    dtype: DType
    shape: tuple[int, ...]


@part("""\
kernel {name}({row} < {sizes}; {index}) {
  header {header}
  {csrs}
  {buffers}
  {stashes}
  do| vectors {vectors}|| sweep {sweep}|| tile {tile}|| within {within}|| items {items}|
    {body}
}""")
@dataclass(frozen=True, slots=True)
class Kernel:
    """Runs body for every `row` in 0..rows-1, in parallel.

    `sizes` names the run-time sizes (row counts of spaces), the kernel's own row count first. `index` is i32 or i64:
    the dtype of every indptr, column and index array. `header` holds comment lines about what made the kernel.

    With `tile`, a name and a size, body is run for tiles of at most that many rows, which together are all rows, in
    increasing order within a thread's share. Statements for one row then stand in `TileRows`, and the contents of a
    stash do not outlive one `TileRows`. The target chooses how long each tile is.

    With `sweep`, all rows are run for each combination of these lanes; with `within`, each row is run for each
    combination of those before the next row. The first lane is the outermost. Each output is then indexed by all of
    these lanes, so that each of its elements is stored once.

    With `vectors`, loops over lanes go in vectors of at most that many bytes; a target may ignore it.

    With `items`, the size that counts the rows of all items of a batch, all rows are run for each item. There are
    items / rows of them (none without rows), in parallel as rows are.
    """

    name: str
    row: str
    sizes: tuple[str, ...]
    index: DType
    csrs: tuple[Csr, ...]
    buffers: tuple[Buffer, ...]
    stashes: tuple[Stash, ...]
    body: tuple[Stmt, ...]
    header: tuple[Text, ...] = ()
    tile: Lane | None = None
    sweep: tuple[Lane, ...] = ()
    within: tuple[Lane, ...] = ()
    vectors: int | None = None
    items: str | None = None
