"""Prints the statement `raise` of an online softmax."""

from __future__ import annotations

from collections.abc import Callable

from graphweave.codegen.arrays import Array
from graphweave.codegen.cpp.expr import element, expression
from graphweave.codegen.cpp.lane_expr import Vector
from graphweave.codegen.cpp.lanes import Loop, innermost_last, nest, opened, vector_loop, vector_of
from graphweave.codegen.cpp.names import ctype
from graphweave.codegen.cpp.printer import SHORT, CppPrinter
from graphweave.codegen.cpp.walk import lanes_used
from graphweave.ir.loop import nodes as loop


def print_raise(p: CppPrinter, stmt: loop.Raise) -> None:
    """Prints one comparison a tile; the rescaling after it is rare, as few tiles of a long row raise the maximum."""
    scope = p.scope
    scope.headers |= {"online_softmax", "lanes"}
    raised, factor = (scope.names.derived(stmt.reference, part) for part in ("raised", "factor"))
    info = scope.arrays[stmt.reference]
    scope.arrays[factor], scope.types[factor] = Array(factor, info.dtype, info.shape, has_rows=False), info.dtype
    with p.w.block(f"if ({_begun(p, stmt.tile)})"):
        p.w.line(f"bool {raised} = false;")
        _compare(p, stmt, raised)
        with p.w.block(f"if ({raised})"):
            p.w.line(f"{ctype(info.dtype)} {factor}[{stmt.lane[1]}];")
            _store_each(p, stmt, factor, "gw_factor")
            for s in stmt.sums:
                _rescale(p, s, loop.Load(factor, (s.of,)))
    _store_each(p, stmt, stmt.reference, "gw_max")


def _begun(p: CppPrinter, tile: str) -> str:
    """The C++ condition that the tile is not the row's first."""
    names = p.scope.names
    return f"{names.derived(tile, 'begin')} > {names.derived(p.csr_of[tile], 'begin')}"


def _compare(p: CppPrinter, stmt: loop.Raise, raised: str) -> None:
    """Sets `raised` if any value is above its reference, or NaN."""
    reference = loop.Load(stmt.reference, (loop.Var(stmt.lane[0]),))

    def numbers() -> None:
        value = expression(stmt.value, p.scope)
        p.w.line(f"{raised} |= !({value} <= {expression(reference, p.scope)});")

    def vectors(v: Vector) -> None:
        above = f"gw_not({v.value(stmt.value)} <= {v.value(reference)})"
        p.w.line(f"{raised} |= gw_any({above if v.rest is None else f'gw_kept<{v.rest}>({above}, 0)'});")

    _loops(p, (stmt.lane,), (), (stmt.value,), numbers, vectors)


def _store_each(p: CppPrinter, stmt: loop.Raise, target: str, function: str) -> None:
    """target[i] = function(reference[i], value)"""
    at = (loop.Var(stmt.lane[0]),)
    old = loop.Load(stmt.reference, at)

    def numbers() -> None:
        arguments = f"{expression(old, p.scope)}, {expression(stmt.value, p.scope)}"
        p.w.line(f"{element(target, at, p.scope)} = {function}({arguments});")

    def vectors(v: Vector) -> None:
        p.w.line(f"{v.stored(target, at, f'{function}({v.value(old)}, {v.value(stmt.value)})')};")

    _loops(p, (stmt.lane,), (), (stmt.value, old), numbers, vectors)


def _rescale(p: CppPrinter, s: loop.Rescaled, factor: loop.Load) -> None:
    old = loop.Load(s.buffer, s.index)

    def numbers() -> None:
        target = element(s.buffer, s.index, p.scope)
        p.w.line(f"{target} = gw_rescaled({target}, {expression(factor, p.scope)});")

    def vectors(v: Vector) -> None:
        p.w.line(f"{v.stored(s.buffer, s.index, f'gw_rescaled({v.value(old)}, {v.value(factor)})')};")

    _loops(p, s.lanes, (loop.Store(s.buffer, s.index, factor),), (factor, old), numbers, vectors)


def _loops(
    p: CppPrinter,
    lanes: tuple[Loop, ...],
    body: tuple[loop.Stmt, ...],
    values: tuple[loop.Expr, ...],
    numbers: Callable[[], None],
    vectors: Callable[[Vector], None],
) -> None:
    """Prints loops over `lanes` with the body `vectors`, or `numbers` if there are few lanes."""
    loops = innermost_last(nest(p, lanes, body, values))
    used = lanes_used(body, values)
    if not loops or loops[-1][1] < SHORT:
        with opened(p, loops, lanes, used):
            numbers()
        return
    with opened(p, loops[:-1], lanes, used):
        vector_loop(p, vector_of(p, loops[-1], lanes), list(values), vectors)
