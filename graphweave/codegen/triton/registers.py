"""Arrays in registers: reading an element for each lane, and writing one from each lane.

Triton cannot index registers. Reads by lanes that walk an array in its order are the array itself; reads by some lanes
of an axis, with sizes that are powers of two, are a view of it. All other reads at positions that are known when the
text is printed are a `tl.gather`.
"""

from __future__ import annotations

from graphweave.codegen.triton.axes import Axes, Axis, aligned, names_of, shape
from graphweave.codegen.triton.names import literal, ttype
from graphweave.codegen.triton.scope import Held, Position, Printed, TritonScope
from graphweave.core.errors import IRError
from graphweave.ir.loop.nodes import Expr, IndexSum

_OWN = "element"
"""Name of an array's own dimension, which is that of no axis."""


def read(scope: TritonScope, held: Held, at: Position) -> Printed:
    """The element at each lane's position."""
    terms, offset, rest = at
    outer, want = names_of(held.axes), scope.dims
    depends = frozenset(outer)
    if held.padded == 0:
        return Printed(aligned(held.name, outer, want), depends, bool(outer))
    involved = tuple(axis for axis in scope.lane_axes if any(lane in terms for lane, _ in axis.lanes))
    depends |= frozenset(names_of(involved)) | _lanes_in(scope, rest)
    if not rest and not involved:
        return _one(scope, held, offset)
    if not rest and offset == 0 and _in_order(involved, terms, held):
        text = held.name if len(involved) == 1 else f"tl.reshape({held.name}, {shape((*held.axes, *involved))})"
        return Printed(aligned(text, (*outer, *names_of(involved)), want), depends, True)
    if not rest and offset == 0 and len(involved) == 1 and _in_part(involved[0], terms, held):
        axis = involved[0]
        dims = [extent if lane in terms else 1 for lane, extent in axis.lanes]
        full = [extent for _, extent in axis.lanes]
        text = f"tl.reshape({held.name}, {shape(held.axes, *dims)})"
        text = f"tl.reshape(tl.broadcast_to({text}, {shape(held.axes, *full)}), {shape((*held.axes, axis))})"
        return Printed(aligned(text, (*outer, axis.name), want), depends, True)
    return _gathered(scope, held, at, depends)


def _in_order(axes: Axes, terms: dict[str, int], held: Held) -> bool:
    """Whether the lanes of `axes` walk the array from its first element to its last."""
    stride = 1
    for i, axis in reversed(list(enumerate(axes))):
        for lane, extent in reversed(axis.lanes):
            if terms.get(lane, 0) != stride:
                return False
            stride *= extent
        if i > 0 and axis.mask:
            return False  # padding between the rows
    total = 1
    for axis in axes:
        total *= int(axis.size)
    return total == held.padded and stride == held.numel


def _in_part(axis: Axis, terms: dict[str, int], held: Held) -> bool:
    """Whether some lanes of the axis walk the array in order; the sizes of all its lanes must be powers of two."""
    if any(extent & (extent - 1) for _, extent in axis.lanes):
        return False
    stride = 1
    for lane, extent in reversed(axis.lanes):
        if lane in terms:
            if terms[lane] != stride:
                return False
            stride *= extent
    return stride == held.numel == held.padded


def _one(scope: TritonScope, held: Held, at: int) -> Printed:
    """The element `at` of an array, the same for every lane."""
    outer = names_of(held.axes)
    chosen = aligned(f"(tl.arange(0, {held.padded}) == {at})", (_OWN,), (*outer, _OWN))
    picked = f"tl.sum(tl.where({chosen}, {held.name}, {literal(0, held.dtype)}), axis={len(outer)})"
    if not held.dtype.is_float:
        picked = f"{picked}.to({ttype(held.dtype)})"
    return Printed(aligned(picked, outer, scope.dims), frozenset(outer), bool(outer))


def _lanes_in(scope: TritonScope, rest: list[tuple[Expr, int]]) -> frozenset[str]:
    """The lane axes on which the terms of a position that are not linear depend."""
    found: set[str] = set()
    for expr, _ in rest:
        if not isinstance(expr, IndexSum):
            raise IRError("a Triton kernel cannot index an array by a value that is known only at run time.")
        for lane, _ in expr.terms:
            found |= scope.variables[lane].axes
    return frozenset(found)


def _gathered(scope: TritonScope, held: Held, at: Position, depends: frozenset[str]) -> Printed:
    terms, offset, rest = at
    outer = names_of(held.axes)
    axes = tuple(axis for axis in scope.lane_axes if axis.name in depends)
    index = _index_text(scope, axes, terms, offset, rest)
    size = 1
    for axis in axes:
        size *= int(axis.size)
    if len(axes) > 1:
        index = f"tl.reshape(tl.broadcast_to({index}, {shape(axes)}), [{size}])"
    full = aligned(f"({index})", (_OWN,), (*outer, _OWN))
    # Positions of padding may lie beyond the array, so they are clamped.
    full = f"tl.minimum(tl.broadcast_to({full}, {shape(held.axes, size)}), {held.padded - 1})"
    text = gather(held.name, held.padded, full, size, held.axes)
    if len(axes) > 1:
        text = f"tl.reshape({text}, {shape((*held.axes, *axes))})"
    return Printed(aligned(text, (*outer, *names_of(axes)), scope.dims), depends, True)


def gather(source: str, elements: int, index: str, taken: int, outer: Axes) -> str:
    """`taken` of the `elements` along the last dimension, behind the dimensions `outer`; both are powers of two.

    Triton 3.7 fails to lay out a gather that takes more elements than there are, so the elements are repeated first.
    """
    times = taken // elements
    if times > 1:
        repeated = f"tl.broadcast_to(tl.expand_dims({source}, {len(outer) + 1}), {shape(outer, elements, times)})"
        source, index = f"tl.reshape({repeated}, {shape(outer, taken)})", f"{index} * {times}"
    return f"tl.gather({source}, {index}, axis={len(outer)})"


def _index_text(
    scope: TritonScope, axes: Axes, terms: dict[str, int], offset: int, rest: list[tuple[Expr, int]]
) -> str:
    """The text of the position for each combination of the lanes of `axes`, with the dimensions of `axes` only."""
    dims = names_of(axes)

    def lane(name: str) -> str:
        v = scope.variables[name]
        return aligned(v.text, v.dims, dims) if v.dims else v.text

    parts = [f"{lane(name)} * {c}" for name, c in terms.items()]
    for expr, stride in rest:
        assert isinstance(expr, IndexSum)
        inner = " + ".join([*(f"{lane(name)} * {c}" for name, c in expr.terms), str(expr.offset)])
        text = f"(({inner}) // {expr.div})"
        parts.append(f"{text if expr.mod is None else f'({text} % {expr.mod})'} * {stride}")
    return " + ".join([*parts, str(offset)])


# ---------------------------------------------------------------- writing


def placed(scope: TritonScope, value: str, axes: Axes, held: Held, at: Position) -> tuple[str, str]:
    """`value`, which has the dimensions `axes` (those of `held`, then lanes), rearranged like the array; and a mask.

    The mask says which elements of the array get a value; it is "" if all do.
    """
    terms, offset, rest = at
    if rest:
        raise IRError("a Triton kernel can write arrays only at positions that are sums of lanes.")
    outer, lanes = held.axes, axes[len(held.axes) :]
    if held.padded == 0:
        return f"tl.broadcast_to({value}, {shape(outer)})" if outer else value, ""
    if not lanes:
        chosen = aligned(f"(tl.arange(0, {held.padded}) == {offset})", (_OWN,), (*names_of(outer), _OWN))
        if outer:
            value = f"tl.broadcast_to({value}, {shape(outer)})[{', '.join([':'] * len(outer))}, None]"
        return f"tl.broadcast_to({value}, {shape(outer, held.padded)})", chosen
    full = f"tl.broadcast_to({value}, {shape(axes)})"
    if offset == 0 and _in_order(lanes, terms, held):
        return full if len(lanes) == 1 else f"tl.reshape({full}, {shape(outer, held.padded)})", ""
    return _scattered(scope, full, lanes, held, terms, offset)


def _scattered(
    scope: TritonScope, value: str, lanes: Axes, held: Held, terms: dict[str, int], offset: int
) -> tuple[str, str]:
    """Like `placed`, but divides each element's position by the strides of the lanes, to find the lanes that write
    it."""
    size, strides, stride = 1, {}, 1
    for axis in reversed(lanes):
        inner = stride
        for lane, extent in reversed(axis.lanes):
            strides[lane] = inner
            inner *= extent
        stride *= int(axis.size)
        size *= int(axis.size)
    extents = {lane: extent for axis in lanes for lane, extent in axis.lanes}
    w, name = scope.w, scope.fresh("place")
    w.line(f"{name} = tl.arange(0, {held.padded}) - {offset}")
    w.line(f"{name}_inside = {name} >= 0")
    w.line(f"{name}_from = tl.zeros_like({name})")
    ordered = sorted(terms.items(), key=lambda term: -term[1])
    if set(terms) != set(extents) or any(c < 0 for _, c in ordered):
        raise IRError("a Triton kernel must write a different element of an array for each combination of lanes.")
    for lane, c in ordered:
        w.line(f"{name}_lane = tl.maximum({name} // {c}, 0)")
        w.line(f"{name}_inside = {name}_inside & ({name}_lane < {extents[lane]})")
        w.line(f"{name}_from += tl.minimum({name}_lane, {extents[lane] - 1}) * {strides[lane]}")
        w.line(f"{name} -= {name}_lane * {c}")
    w.line(f"{name}_inside = {name}_inside & ({name} == 0)")
    outer = names_of(held.axes)
    flat = value if len(lanes) == 1 else f"tl.reshape({value}, {shape(held.axes, size)})"
    index = aligned(f"{name}_from", (_OWN,), (*outer, _OWN))
    index = f"tl.broadcast_to({index}, {shape(held.axes, held.padded)})"
    return gather(flat, size, index, held.padded, held.axes), aligned(f"{name}_inside", (_OWN,), (*outer, _OWN))
