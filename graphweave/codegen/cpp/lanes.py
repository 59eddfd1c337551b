"""Loops over lanes as loops over explicit vectors (`lanes.h`), so that their speed does not depend on the compiler.

The innermost loop of a nest goes in steps of a vector. Lanes left over are a last vector, of which only these lanes are
loaded and stored. Some loops are not printed over vectors: those of fewer than 4 lanes without a `where`, an expensive
operation or folds for each lane, those with loops or edges inside, and those whose lanes all write to one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from itertools import product
from math import prod

from graphweave.codegen.cpp.expr import expression, fold_into
from graphweave.codegen.cpp.fold_cost import is_cheaper_across
from graphweave.codegen.cpp.lane_expr import Vector, functor
from graphweave.codegen.cpp.names import ctype, literal
from graphweave.codegen.cpp.printer import SHORT, CppPrinter
from graphweave.codegen.cpp.walk import can_fuse, lanes_used
from graphweave.core.types import HALF, DType, Fold, Op, OwnFold
from graphweave.ir.loop import nodes as loop_ir
from graphweave.ir.loop.own_folds import as_store
from graphweave.ir.loop.types import POSITION, identity
from graphweave.ir.loop.walk import expressions, statements, subexpressions

Loop = tuple[str, int]
"""A lane and its extent."""


_MOST_UNROLLED = 9
"""Lanes of a fold that is unrolled inside of a loop over vectors. The components of a vector, a quadratic form or a
spherical harmonic are so few that a vector for each fold would be mostly empty, and folding it the larger part of the
work."""


def is_short(stmt: loop_ir.FoldLanes) -> bool:
    return 0 < _terms(stmt) <= SHORT


def _terms(stmt: loop_ir.FoldLanes) -> int:
    return prod(extent for _, extent in stmt.lanes)


def parts_of(extent: int, dtype: DType, asked: int | None = None) -> int:
    """The number of partial folds, a power of 2, of a fold over `extent` lanes. Only it decides the bits of a sum.

    It is what a schedule asks for, if there are so many lanes; else what a vector of 64 bytes holds, or half of that if
    this leaves no lanes over or there are too few lanes.
    """
    if asked is not None and asked <= extent:
        return asked
    widths = (8, 4) if dtype.itemsize == 8 else (16, 8)
    fitting = [width for width in widths if extent >= width]
    return next((w for w in fitting if extent % w == 0), fitting[0] if fitting else 8)


# ---------------------------------------------------------------- nests of loops


def nest(
    p: CppPrinter, lanes: tuple[Loop, ...], body: tuple[loop_ir.Stmt, ...], values: tuple[loop_ir.Expr, ...]
) -> list[Loop]:
    """The loops over `lanes`, without those of one iteration, and with neighbours fused that walk memory linearly."""
    for name, _ in lanes:
        p.bind(name, POSITION)
    loops: list[Loop] = []
    for name, extent in reversed([lane for lane in lanes if lane[1] != 1]):
        if loops and can_fuse(name, *loops[0], body, values, p.scope.arrays):
            p.scope.fused.add(name)
            loops[0] = (loops[0][0], loops[0][1] * extent)
        else:
            loops.insert(0, (name, extent))
    return loops


@contextmanager
def opened(p: CppPrinter, loops: list[Loop], lanes: tuple[Loop, ...], used: set[str]) -> Iterator[None]:
    """Opens plain loops, and defines constants for the lanes of one iteration that are `used`."""
    constants = [name for name, extent in lanes if extent == 1 and name in used]
    with ExitStack() as stack:
        if constants and not loops:
            stack.enter_context(p.w.block(""))
        for name, extent in loops:
            lane = p.scope.names.of(name)
            stack.enter_context(p.w.block(f"for (int64_t {lane} = 0; {lane} < {extent}; ++{lane})"))
        for name in constants:
            p.w.line(f"const int64_t {p.scope.names.of(name)} = 0;")
        yield


def innermost_last(loops: list[Loop]) -> list[Loop]:
    """`loops` with the one last that is printed over vectors: the innermost, or the longest if that one is short."""
    if loops and loops[-1][1] < SHORT:
        longest = max(reversed(loops), key=lambda loop: loop[1])
        return [*(loop for loop in loops if loop is not longest), longest]
    return loops


def vector_of(p: CppPrinter, loop: Loop, lanes: tuple[Loop, ...]) -> Vector:
    """The vector for a loop over a lane and the lanes fused with it; `lanes` are those of the statement."""
    names, (lane, extent) = p.scope.names, loop
    covered = frozenset({lane, *(name for name, _ in lanes if name in p.scope.fused)})
    return Vector(p.scope, covered, names.of(lane), names.derived(lane, "lanes"), set(), p.is_padded, extent)


# ---------------------------------------------------------------- loops


def print_lanes(p: CppPrinter, stmt: loop_ir.Lanes) -> None:
    loops = innermost_last(nest(p, stmt.lanes, stmt.body, ()))
    if p.walked:
        loops = loops or list(stmt.lanes[-1:])  # without edges, the compiler may vectorise the loop over rows instead
    used = lanes_used(stmt.body, ())
    loop = _vectorised(p, stmt, loops)
    if loop is None:
        loops = [x for x in loops if x[1] != 1]
        with opened(p, loops, stmt.lanes, used), p.w.block("") if not loops else nullcontext():
            p.body(stmt.body)
        return
    with opened(p, [x for x in loops if x is not loop], stmt.lanes, used - {loop[0]}):
        exprs = [expr for inner in statements(stmt.body) for expr in _values(inner)]
        vector = vector_of(p, loop, stmt.lanes)
        learn(p, vector, stmt.body)
        targets = [(s.buffer, s.index) for s in statements(stmt.body) if isinstance(s, loop_ir.Store | loop_ir.Accum)]
        # A partly stored vector would have to reach the cache before it could be loaded again.
        full = any(buffer in p.local and not vector.is_whole(buffer, index) for buffer, index in targets)
        stored = max((p.scope.types[buffer].itemsize for buffer, _ in targets), default=1)
        vector_loop(p, vector, exprs, lambda v: _body(p, v, stmt.body), full=full, stored=stored)


def _values(stmt: loop_ir.Stmt) -> tuple[loop_ir.Expr, ...]:
    match stmt:
        case loop_ir.Store(value=value) | loop_ir.Accum(value=value):
            return (value,)
    return expressions(stmt)


def _is_long(loop: Loop, body: tuple[loop_ir.Stmt, ...]) -> bool:
    """Whether a loop has enough lanes for vectors; one is enough if an operation is expensive or would be a branch."""
    calls = (part for stmt in statements(body) for expr in _values(stmt) for part in subexpressions(expr))
    return loop[1] >= SHORT or any(isinstance(c, loop_ir.Call) and (c.op.facts.dear or c.op is Op.where) for c in calls)


def _vectorised(p: CppPrinter, stmt: loop_ir.Lanes, loops: list[Loop]) -> Loop | None:
    """The one of `loops` that is printed over vectors: the last, or one whose vectors make folds inside cheaper."""
    if loops and _is_long(loops[-1], stmt.body) and _fits(p, stmt, loops[-1]):
        return loops[-1]
    return next((loop for loop in reversed(loops) if _takes_folds(p, stmt, loop)), None)


def _takes_folds(p: CppPrinter, stmt: loop_ir.Lanes, loop: Loop) -> bool:
    """Whether there are folds inside of `loop` that are cheaper over its vectors, one term after the other."""
    vector = vector_of(p, loop, stmt.lanes)
    learn(p, vector, stmt.body)
    taken = [is_cheaper_across(vector, s) for s in stmt.body if isinstance(s, loop_ir.FoldLanes) and not is_short(s)]
    return bool(taken) and all(taken) and _fits(p, stmt, loop)


def _fits(p: CppPrinter, stmt: loop_ir.Lanes, loop: Loop) -> bool:
    """Whether vectors can do all that is inside `loop`."""
    inner = list(statements(stmt.body))
    if not all(
        isinstance(s, loop_ir.Let | loop_ir.Store | loop_ir.Accum | loop_ir.Comment | loop_ir.FoldLanes) for s in inner
    ):
        return False
    vector = vector_of(p, loop, stmt.lanes)
    learn(p, vector, stmt.body)
    folds = [s for s in inner if isinstance(s, loop_ir.FoldLanes)]
    if not all(is_short(s) or _is_unrolled(vector, s) or is_cheaper_across(vector, s) for s in folds):
        return False
    targets = [s.index for s in inner if isinstance(s, loop_ir.Store | loop_ir.Accum)]
    return all(any(vector.differs(part) for part in index) for index in targets)


def _is_unrolled(vector: Vector, stmt: loop_ir.FoldLanes) -> bool:
    """Whether a fold that is not short is unrolled in the loop over `vector`. One of 8 lanes fills a vector itself."""
    terms = _terms(stmt)
    return SHORT < terms <= min(_MOST_UNROLLED, vector.extent) and terms != 8 and _differs(vector, stmt)


def learn(p: CppPrinter, vector: Vector, body: tuple[loop_ir.Stmt, ...]) -> None:
    """Note the types of the variables of `body`, and which of them differ from lane to lane."""
    for stmt in body:
        if isinstance(stmt, loop_ir.FoldLanes):
            learn(p, vector, stmt.body)
        if isinstance(stmt, loop_ir.Let | loop_ir.FoldLanes):
            p.scope.types[stmt.name] = stmt.dtype
            if vector.differs(stmt.value):
                vector.values.add(stmt.name)


def vector_loop(
    p: CppPrinter, vector: Vector, exprs: list[loop_ir.Expr], body: Callable[[Vector], None], *, full: bool = False,
    stored: int = 1,
) -> None:  # fmt: skip
    """Prints `body` for all lanes of `vector`, whose values are `exprs`: in whole vectors, then for lanes left over. If
    `full`, these are taken in shorter vectors that are full, as far as possible. The widest stored number has
    `stored` bytes; it may be the same for all lanes."""
    w, c, width, extent = p.w, vector.variable, vector.width, vector.extent
    p.scope.headers.add("lanes")
    size = max(vector.widest(exprs), stored)
    most = p.scope.vectors
    if all(extent % lanes == 0 for lanes in _widths(extent, size, most)):
        with w.block(""):
            w.line(f"constexpr int {width} = {_lanes_of(p, extent, size)};")
            with w.block(f"for (int64_t {c} = 0; {c} < {extent}; {c} += {width})"):
                body(replace(vector, values=set()))
        return
    rest = p.scope.names.derived(width, "there")
    full = full or extent * size % 16 == 0
    cut = f", {str(full).lower()}, {most}" if most is not None else ", true" * full
    with w.block(f"gw_over<{extent}, {size}{cut}>([&](auto gw_part, int64_t {c}) GW_BODY", "});"):
        w.line(f"constexpr int {width} = gw_part.lanes, {rest} = gw_part.there;")
        body(replace(vector, values=set(), rest=rest))


def _lanes_of(p: CppPrinter, extent: int, size: int) -> str:
    """Lanes of a vector for a loop over `extent` lanes whose widest values have `size` bytes."""
    return f"gw_lanes({extent}, {size}{'' if p.scope.vectors is None else f', {p.scope.vectors}'})"


def _widths(extent: int, size: int, most: int | None) -> Iterator[int]:
    """The values of `gw_lanes(extent, size, most)` on machines with vectors of 16, 32 and 64 bytes."""
    for register in (16, 32, 64):
        width = min(register, most or register) // size
        while width // 2 >= extent and width * size > 16:
            width //= 2
        yield width


def _body(p: CppPrinter, vector: Vector, body: tuple[loop_ir.Stmt, ...]) -> None:
    for i, stmt in enumerate(body):
        match stmt:
            case loop_ir.Let(name, dtype, value) if vector.differs(value):
                text = vector.value(value)
                p.w.line(f"const auto {p.bind(name, dtype)} = {text};")
                vector.values.add(name)
            case loop_ir.FoldLanes() if _differs(vector, stmt):
                written_out = is_short(stmt) or _is_unrolled(vector, stmt)
                (_fold_unrolled if written_out else _fold_across)(p, vector, stmt)
            case loop_ir.Store(buffer, index, value):
                if (
                    isinstance(value, loop_ir.CastTo)
                    and value.dtype in HALF
                    and p.scope.arrays[buffer].dtype is value.dtype
                ):
                    value = loop_ir.CastTo(value.x, DType.f32)  # the store rounds
                p.w.line(f"{vector.stored(buffer, index, vector.value(value))};")
            case loop_ir.Accum(buffer, fold=OwnFold() as own):
                _body(p, vector, (as_store(stmt, own, p.scope.types[buffer]),))
            case loop_ir.Accum(buffer, index):
                p.w.line(f"{vector.stored(buffer, index, _accumulated(p, vector, stmt))};")
            case _:
                p.statement(stmt, body[i + 1 :])


def _accumulated(p: CppPrinter, vector: Vector, stmt: loop_ir.Accum) -> str:
    """The new value of the element; a product is added in one step, as by `expr.accumulated`."""
    dtype, old = p.scope.types[stmt.buffer], vector.loaded(stmt.buffer, stmt.index)
    assert isinstance(stmt.fold, Fold)
    match stmt.value:
        case loop_ir.Call(Op.mul, (a, b)) if stmt.fold is Fold.sum and dtype.is_float:
            return f"gw_fma({vector.value(a)}, {vector.value(b)}, {old})"
    return vector.fold_into(stmt.fold, dtype, old, vector.value(stmt.value))


def _differs(vector: Vector, stmt: loop_ir.FoldLanes) -> bool:
    return any(vector.differs(expr) for expr in (stmt.value, *(let.value for let in stmt.body)))


# ---------------------------------------------------------------- folds


def print_fold(p: CppPrinter, stmt: loop_ir.FoldLanes) -> None:
    if is_short(stmt):
        _fold_unrolled(p, None, stmt)
        return
    loops = innermost_last(nest(p, stmt.lanes, stmt.body, (stmt.value,)))
    if not loops or loops[-1][1] <= SHORT:
        _fold_numbers(p, stmt, loops)
        return
    _fold_vectors(p, stmt, loops)


def _fold_unrolled(p: CppPrinter, vector: Vector | None, stmt: loop_ir.FoldLanes) -> None:
    """Prints a fold over few lanes one lane after the other, so that the loop around them can be over vectors."""
    name, start = p.bind(stmt.name, stmt.dtype), literal(identity(stmt.fold, stmt.dtype).value, stmt.dtype)
    if vector is None:
        p.w.line(f"{ctype(stmt.dtype)} {name} = {start};")
    else:
        p.w.line(f"auto {name} = {vector.spread(start, stmt.dtype)};")
    used = lanes_used(stmt.body, (stmt.value,))
    for at in product(*(range(extent) for _, extent in stmt.lanes)):
        with p.w.block(""):
            for (lane, _), i in zip(stmt.lanes, at, strict=True):
                p.bind(lane, POSITION)
                if lane in used:
                    p.w.line(f"constexpr int64_t {p.scope.names.of(lane)} = {i};")
            if vector is None:
                p.body(stmt.body)
                value = expression(stmt.value, p.scope)
                p.w.line(f"{fold_into(stmt.fold, stmt.dtype, name, value, p.scope)};")
            else:
                vector.constants.update((lane, i) for (lane, _), i in zip(stmt.lanes, at, strict=True))
                _body(p, vector, stmt.body)
                p.w.line(f"{name} = {vector.fold_into(stmt.fold, stmt.dtype, name, vector.value(stmt.value))};")
    if vector is not None:
        vector.values.add(stmt.name)


def _fold_across(p: CppPrinter, vector: Vector, stmt: loop_ir.FoldLanes) -> None:
    """Prints a fold for each lane of `vector`, all of them at once, with the partial folds of `_fold_vectors`."""
    p.scope.headers.add("folds")
    ((lane, extent),), dtype = stmt.lanes, stmt.dtype
    name, c, parts = p.bind(stmt.name, dtype), p.bind(lane, POSITION), parts_of(extent, dtype, stmt.parts)
    part, first = p.scope.names.derived(stmt.name, "part"), p.scope.names.derived(lane, "block")
    p.w.line(f"gw_vec<{ctype(dtype)}, {vector.width}> {part}[{parts}];")
    if parts != extent:
        start = literal(identity(stmt.fold, dtype).value, dtype)
        p.w.line(f"for (auto& gw_part : {part}) gw_part = {vector.spread(start, dtype)};")
    full = extent // parts * parts
    for begin, end in [span for span in ((0, full), (full, extent)) if span[0] < span[1]]:
        with p.w.block(f"for (int64_t {first} = {begin}; {first} < {end}; {first} += {parts})"):
            p.w.flush_left("#pragma GCC unroll 16")
            with p.w.block(f"for (int64_t {c} = {first}; {c} < {first} + {min(parts, end - begin)}; ++{c})"):
                _body(p, vector, stmt.body)
                value, to = vector.value(stmt.value), f"{part}[{c} - {first}]"
                value = value if parts == extent else vector.fold_into(stmt.fold, dtype, to, value)
                p.w.line(f"{to} = {value};")
    p.w.line(f"const auto {name} = gw_fold_each({part}, {functor(stmt.fold, dtype)});")
    vector.values.add(stmt.name)


def _fold_numbers(p: CppPrinter, stmt: loop_ir.FoldLanes, loops: list[Loop]) -> None:
    name = p.bind(stmt.name, stmt.dtype)
    p.w.line(f"{ctype(stmt.dtype)} {name} = {literal(identity(stmt.fold, stmt.dtype).value, stmt.dtype)};")
    used = lanes_used(stmt.body, (stmt.value,))
    with opened(p, loops, stmt.lanes, used), p.w.block("") if not loops else nullcontext():
        p.body(stmt.body)
        p.w.line(f"{fold_into(stmt.fold, stmt.dtype, name, expression(stmt.value, p.scope), p.scope)};")


def _fold_vectors(p: CppPrinter, stmt: loop_ir.FoldLanes, loops: list[Loop]) -> None:
    """Prints `parts_of` partial folds in vectors; the vectors are halved at last, in one order on all machines."""
    p.scope.headers.add("folds")
    names, extent = p.scope.names, loops[-1][1]
    name = p.bind(stmt.name, stmt.dtype)
    vector = vector_of(p, loops[-1], stmt.lanes)
    width, part, dtype = vector.width, names.derived(stmt.name, "part"), stmt.dtype
    parts = parts_of(extent, dtype, stmt.parts)
    exprs = [stmt.value, *(let.value for let in stmt.body)]
    learn(p, vector, stmt.body)
    size = max(vector.widest(exprs), dtype.itemsize)
    vector.values.clear()
    start = literal(identity(stmt.fold, dtype).value, dtype)
    element = "int32_t" if dtype is DType.bool else ctype(dtype)
    once = parts == extent and len(loops) == 1
    p.w.line(f"{ctype(dtype)} {name};")
    with p.w.block(""):
        p.w.line(f"constexpr int {width} = {_lanes_of(p, parts, size)};")
        p.w.line(f"gw_vec<{element}, {width}> {part}[{parts} / {width}];")
        if not once:
            p.w.line(f"for (auto& gw_part : {part}) gw_part = {vector.spread(start, dtype)};")

        def add(v: Vector, to: str) -> None:
            _body(p, v, stmt.body)
            value = v.value(stmt.value)
            value = f"gw_mask<4>({value})" if dtype is DType.bool else value
            if v.rest is not None:
                value = f"gw_kept<{v.rest}>({value}, {'-' * (start == 'true')}{start})"
            p.w.line(f"{to} = {value if once else v.fold_into(stmt.fold, dtype, to, value)};")

        full = extent // parts * parts
        with opened(p, loops[:-1], stmt.lanes, lanes_used(stmt.body, (stmt.value,))):
            if full:
                _whole_blocks(p, vector, (parts, full), part, add)
            if extent > full:
                _last_block(p, vector, (full, extent), part, add)
        folded_ = f"gw_fold({part}, {functor(stmt.fold, dtype)})"
        p.w.line(f"{name} = {folded_}{' != 0' if dtype is DType.bool else ''};")


def _whole_blocks(
    p: CppPrinter, v: Vector, blocks: tuple[int, int], part: str, add: Callable[[Vector, str], None]
) -> None:
    (parts, full), c, first = blocks, v.variable, p.scope.names.derived(v.variable, "block")
    with p.w.block(f"for (int64_t {first} = 0; {first} < {full}; {first} += {parts})"):
        p.w.flush_left("#pragma GCC unroll 16")
        with p.w.block(f"for (int64_t {c} = {first}; {c} < {first} + {parts}; {c} += {v.width})"):
            add(v, f"{part}[({c} - {first}) / {v.width}]")


def _last_block(p: CppPrinter, v: Vector, span: tuple[int, int], part: str, add: Callable[[Vector, str], None]) -> None:
    """Adds the lanes of `span`, which are fewer than the parts."""
    (full, extent), c, width = span, v.variable, v.width
    rest = extent - full
    if rest > 1:
        p.w.flush_left("#pragma GCC unroll 16")
        with p.w.block(f"for (int64_t {c} = {full}; {c} + {width} <= {extent}; {c} += {width})"):
            add(replace(v, values=set()), f"{part}[({c} - {full}) / {width}]")
    with p.w.block(f"if constexpr ({rest} % {width} != 0)"):
        p.w.line(f"constexpr int {width}_left = {rest} % {width};")
        p.w.line(f"constexpr int64_t {c} = {extent} - {width}_left;")
        add(replace(v, values=set(), rest=f"{width}_left"), f"{part}[{rest} / {width}]")
