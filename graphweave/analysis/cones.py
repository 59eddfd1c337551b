"""What a node needs, as kernels see it: values of its own row, and values of other rows.

Row-wise light nodes below a push are not kernels of their own: they are recomputed for every edge inside the push (its
*cone*), whose leaves are pulls, materialised values of the edge's own row, and shared data. Matrix products on edges
are inside cones too: they are computed for tiles of edges (`tiles.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from graphweave.analysis.tiles import is_tiled
from graphweave.analysis.typed import is_typed_product, is_walked, matrices, pushed_product
from graphweave.core.types import UNIT, DType, Space
from graphweave.ir.message.builder import operands
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import (
    AddMatMul,
    Broadcast,
    Cast,
    Concat,
    Const,
    Gram,
    Input,
    MapOf,
    MapType,
    MatMul,
    Node,
    Pad,
    Permute,
    Pointwise,
    Program,
    Pull,
    Push,
    Random,
    Reduce,
    Ref,
    Reshape,
    Slice,
    Type,
)

KERNEL_DTYPES = frozenset({DType.f32, DType.f64, DType.f16, DType.bf16, DType.bool, DType.i32, DType.i64})
_MANY = 1024  # rows that are enough to share among threads
_WIDE = 8  # elements from which a gathered row costs more than the order of edges
_INLINE_UNIT = 4096  # elements; larger shared values are computed once by PyTorch and read


def is_light(program: Program, ref: Ref) -> bool:
    """A node that a kernel may compute: O(1) work an element, sizes known, element type that kernels have.

    Or a product of matrices over edges, in tiles, or over rows of types.
    """
    node, t = program.nodes[ref], program.types[ref]
    if not isinstance(t, Type) or t.dtype not in KERNEL_DTYPES or numel(t.shape) == 0:
        return False
    if isinstance(node, MatMul | Gram):
        return is_tiled(program, ref) or is_walked(program, ref)
    if isinstance(node, Push):
        source = program.types[node.x]
        good = isinstance(source, Type) and t.dtype.is_float and numel(source.shape) > 0
        return good and pushed_product(program, ref) is None
    if t.space == UNIT:
        good = (
            isinstance(node, Pointwise | Cast | Reshape | Permute | Broadcast | Slice)
            and numel(t.shape) <= _INLINE_UNIT
        )
    else:
        good = isinstance(
            node, Pointwise | Cast | Reduce | Reshape | Broadcast | Permute | Slice | Pad | Concat | Pull | Random
        )
    return good and all(_readable(program, r) for r in operands(node))


def _readable(program: Program, ref: Ref) -> bool:
    t = program.types[ref]
    return isinstance(t, MapType) or (isinstance(t, Type) and t.dtype in KERNEL_DTYPES and numel(t.shape) > 0)


def space_of(program: Program, ref: Ref) -> Space | None:
    t = program.types[ref]
    return t.space if isinstance(t, Type) else None


def type_of(program: Program, ref: Ref) -> Type:
    t = program.types[ref]
    assert isinstance(t, Type)
    return t


def map_type(program: Program, ref: Ref) -> MapType:
    t = program.types[ref]
    assert isinstance(t, MapType)
    return t


def widens(program: Program, ref: Ref) -> bool:
    """A row-wise node whose rows are larger than every row behind it that holds data of its own."""
    return isinstance(program.nodes[ref], Pointwise | Broadcast) and _width(program, ref) < _elements(program, ref)


def _width(program: Program, ref: Ref) -> int:
    """Elements of the widest row that `ref` must read, looking through what only widens."""
    node = program.nodes[ref]
    if not isinstance(node, Pointwise | Broadcast | Reshape):
        return _elements(program, ref)
    rows = [r for r in operands(node) if isinstance(t := program.types[r], Type) and t.space != UNIT]
    return min(_elements(program, ref), max((_width(program, r) for r in rows), default=_elements(program, ref)))


def _elements(program: Program, ref: Ref) -> int:
    t = program.types[ref]
    return numel(t.shape) if isinstance(t, Type) else 0


def is_push(program: Program, ref: Ref) -> bool:
    """Whether `ref` folds the rows of edges (or of nodes, to a total): a push, or a Gram in tiles."""
    node = program.nodes[ref]
    if isinstance(node, Push):
        return pushed_product(program, ref) is None
    return isinstance(node, Gram) and (is_tiled(program, ref) or is_walked(program, ref))


def pushed_along(program: Program, ref: Ref) -> Ref | None:
    """The map along which a push, or a gram by type, is summed into rows; None for a total, and for anything else."""
    node = program.nodes[ref]
    if not isinstance(node, Push | Gram) or not is_push(program, ref) or space_of(program, ref) == UNIT:
        return None
    return node.map


def walks_along(program: Program, ref: Ref) -> Ref | None:
    """The map under whose rows a value of edges is best computed, though it lies on the edges themselves.

    Where a node reads wide values through two maps, grouping its edges by one of them leaves only the other to be
    gathered (an SDDMM); where it needs a product of matrices, edges come in tiles; a typed product reads each matrix
    once for all its rows. None for anything else: its own rows, in their order, do.
    """
    if is_typed_product(node := program.nodes[ref]) and is_walked(program, ref):
        assert isinstance(node, MatMul)
        return node.map
    if is_push(program, ref) or not is_light(program, ref) or space_of(program, ref) == UNIT:
        return None
    width = _widths(program, ref)
    if in_tiles(program, ref):
        return tile_map(program, ref)
    return max(sorted(width), key=lambda m: (width[m], m)) if len(width) > 1 else None


def in_tiles(program: Program, ref: Ref) -> bool:
    """Whether computing `ref` from other rows takes tiles of edges: it is a product of matrices, or has one inside."""
    if is_tiled(program, ref) or is_walked(program, ref):
        return True
    return any(is_tiled(program, r) for r in needs(program, ref, frozenset(), through=True).inner)


def tile_map(program: Program, ref: Ref) -> Ref:
    """The map under whose rows the tiles of `ref` are computed, unless `ref` folds along one: what it reads most."""
    node = program.nodes[ref]
    space = space_of(program, node.x) if isinstance(node, Push | Gram) else space_of(program, ref)
    width = _widths(program, ref)
    maps = [r for r, n in enumerate(program.nodes) if isinstance(n, MapOf) and map_type(program, r).dom == space]
    return max(maps, key=lambda m: (width.get(m, 0), _has_many_rows(program, m), m))


def _widths(program: Program, ref: Ref) -> dict[Ref, int]:
    """Elements of wide values that computing `ref` reads through each map, of those with enough rows to share."""
    width: dict[Ref, int] = {}
    for y, m in needs(program, ref, frozenset(), through=True).pulls:
        t = map_type(program, m)
        if _elements(program, y) >= _WIDE and _has_many_rows(program, m) and t.dom != t.cod:
            width[m] = width.get(m, 0) + _elements(program, y)
    return width


def _has_many_rows(program: Program, m: Ref) -> bool:
    """A few rows (types) would not fill the threads."""
    rows = dict(program.spaces).get(map_type(program, m).cod)
    return not isinstance(rows, int) or rows >= _MANY


def on_edges(program: Program, ref: Ref) -> bool:
    """Whether `ref` is computed edge by edge, with all that leads to it from the edges' ends."""
    return is_push(program, ref) or walks_along(program, ref) is not None


@dataclass(frozen=True, slots=True)
class Needs:
    """Leaves of a node: `pulls` are (value, map) read at another row, `same` are values of the node's own row.

    `shared` are unit values that must exist before the kernel starts; `inner` the nodes recomputed on the way.
    """

    pulls: tuple[tuple[Ref, Ref], ...]
    same: tuple[Ref, ...]
    shared: tuple[Ref, ...]
    inner: tuple[Ref, ...]


def needs(program: Program, ref: Ref, stored: frozenset[Ref], *, through: bool) -> Needs:
    """Leaves of the operands of `ref`; `stored` are nodes that exist as values.

    With `through` (a push), light nodes that are not stored are walked through; without, operands are the leaves.
    Reshapes are always looked through, since they are views, random numbers, which are drawn again, and nodes that only
    widen what they read: to store and load those costs more than to compute them again.
    """
    walk = _Walk(program, stored, through)
    walk.below(program.nodes[ref])
    return walk.needs()


def leaves(program: Program, refs: Iterable[Ref], stored: frozenset[Ref]) -> Needs:
    """Leaves of `refs` themselves, walked through as far as nothing is `stored`."""
    walk = _Walk(program, stored, True)
    for ref in refs:
        walk.visit(ref)
    return walk.needs()


class _Walk:
    def __init__(self, program: Program, stored: frozenset[Ref], through: bool) -> None:
        self._program, self._stored, self._through = program, stored, through
        self._pulls: dict[tuple[Ref, Ref], None] = {}
        self._same: dict[Ref, None] = {}
        self._shared: dict[Ref, None] = {}
        self._inner: set[Ref] = set()

    def needs(self) -> Needs:
        return Needs(tuple(self._pulls), tuple(self._same), tuple(self._shared), tuple(sorted(self._inner)))

    def visit(self, r: Ref) -> None:
        node, light = self._program.nodes[r], is_light(self._program, r)
        if isinstance(node, Const) or r in self._inner:
            return
        seen_through = isinstance(node, Reshape | Random) and light
        exists = r in self._stored or not light or isinstance(node, Push | Gram | Input) or is_typed_product(node)
        if space_of(self._program, r) == UNIT:
            leaf, found = exists, self._shared
        else:
            leaf, found = exists or not (self._through or widens(self._program, r)), self._same
        if leaf and not seen_through:
            found[r] = None
        else:
            self._inner.add(r)
            self.below(node)

    def below(self, node: Node) -> None:
        """Visit the operands of `node`."""
        match node:
            case Pull(x, m) if isinstance(self._program.nodes[m], MapOf):
                self._pulls[(x, m)] = None
            case Push(x) | Pull(x):  # a pull of shared data
                self.visit(x)
            case MatMul(x, w, None):
                self._shared[w] = None  # read as a whole
                self.visit(x)
            case AddMatMul(a, x, w, None):
                self._shared[w] = None
                self.visit(a)
                self.visit(x)
            case MatMul(x, w, int(m)):  # the matrix of the row's own type
                self._pulls[(matrices(self._program, w).w, m)] = None
                self.visit(x)
            case Gram(x, y):
                self.visit(x)
                self.visit(y)
            case _:
                for operand in operands(node):
                    self.visit(operand)
