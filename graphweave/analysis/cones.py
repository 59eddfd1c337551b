"""What a node needs, as kernels see it: values of its own row, and values of other rows.

Row-wise light nodes below a push are not kernels of their own: they are recomputed for every edge inside the push (its
*cone*), whose leaves are pulls, materialised values of the edge's own row, and shared data.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphweave.core.types import UNIT, DType, Space
from graphweave.ir.message.builder import operands
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import (
    Broadcast,
    Cast,
    Concat,
    Const,
    Input,
    MapOf,
    MapType,
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

KERNEL_DTYPES = frozenset({DType.f32, DType.f64, DType.bool, DType.i32, DType.i64})
_MANY = 1024  # rows that are enough to share among threads
_WIDE = 8  # elements from which a gathered row costs more than the order of edges
_INLINE_UNIT = 4096  # elements; larger shared values are computed once by PyTorch and read


def is_light(program: Program, ref: Ref) -> bool:
    """A node that a kernel may compute: O(1) work an element, sizes known, element type that kernels have."""
    node, t = program.nodes[ref], program.types[ref]
    if not isinstance(t, Type) or t.dtype not in KERNEL_DTYPES or numel(t.shape) == 0:
        return False
    if isinstance(node, Push):
        source = program.types[node.x]
        return isinstance(source, Type) and t.dtype.is_float and numel(source.shape) > 0
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


def walks_along(program: Program, ref: Ref) -> Ref | None:
    """The map under whose rows a value of edges is best computed, though it lies on the edges themselves.

    Where a node reads wide values through two maps, grouping its edges by one of them leaves only the other to be
    gathered (an SDDMM). None for anything else: its own rows, in their order, do.
    """
    if isinstance(program.nodes[ref], Push) or not is_light(program, ref):
        return None
    width: dict[Ref, int] = {}
    for y, m in needs(program, ref, frozenset(), through=True).pulls:
        t = map_type(program, m)
        rows = dict(program.spaces).get(t.cod, "")
        many = not rows.isdigit() or int(rows) >= _MANY  # a few rows (types) would not fill the threads
        if _elements(program, y) >= _WIDE and many and t.dom != t.cod:
            width[m] = width.get(m, 0) + _elements(program, y)
    return max(sorted(width), key=lambda m: (width[m], m)) if len(width) > 1 else None


def on_edges(program: Program, ref: Ref) -> bool:
    """Whether `ref` is computed edge by edge, with all that leads to it from the edges' ends."""
    return isinstance(program.nodes[ref], Push) or walks_along(program, ref) is not None


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
    pulls: dict[tuple[Ref, Ref], None] = {}
    same: dict[Ref, None] = {}
    shared: dict[Ref, None] = {}
    inner: dict[Ref, None] = {}

    def visit(r: Ref) -> None:
        node = program.nodes[r]
        if isinstance(node, Const) or r in inner:
            return
        if isinstance(node, Reshape | Random) and is_light(program, r):
            walk(r)
            return
        exists = r in stored or not is_light(program, r) or isinstance(node, Push | Input)
        if space_of(program, r) == UNIT:
            if exists:
                shared[r] = None
            else:
                walk(r)
        elif exists or not (through or widens(program, r)):
            same[r] = None
        else:
            walk(r)

    def walk(r: Ref) -> None:
        inner[r] = None
        node = program.nodes[r]
        if isinstance(node, Pull):
            pull(node)
            return
        for operand in operands(node):
            visit(operand)

    def pull(node: Pull) -> None:
        if isinstance(program.nodes[node.map], MapOf):
            pulls[(node.x, node.map)] = None
        else:
            visit(node.x)  # a pull of shared data

    node = program.nodes[ref]
    if isinstance(node, Push):
        visit(node.x)
    elif isinstance(node, Pull):
        pull(node)
    else:
        for operand in operands(node):
            visit(operand)
    return Needs(tuple(pulls), tuple(same), tuple(shared), tuple(sorted(inner)))
