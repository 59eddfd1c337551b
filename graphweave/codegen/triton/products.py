"""Products by the matrix of a row, and grams of the edges of a row: a program takes one row, or a piece of one.

Rows are gathered and scattered where they lie. A matrix is read some rows of it at a time, since the whole of a wide
one would fill the registers; a gram stays there as one matrix for each of its blocks, until it is stored.
"""

from __future__ import annotations

from graphweave.codegen.sums import Sum
from graphweave.codegen.triton.axes import EDGES, ROWS, Axis, aligned, names_of, power_of_two
from graphweave.codegen.triton.names import ttype
from graphweave.codegen.triton.registers import gather
from graphweave.codegen.triton.scope import Held, Scope
from graphweave.core.errors import IRError
from graphweave.ir.loop.nodes import Kernel, Place, Rows, TileGram, TileMatMul
from graphweave.ir.loop.walk import statements

DOT = 16
"""The least extent of a matrix that `tl.dot` takes."""

LARGEST = 1 << 14
"""Elements of a matrix up to which a program keeps it in registers."""

LARGEST_ARRAY = 1 << 13
"""Elements of an array of a row, or of an edge, that registers hold."""

_POSITIONS = Axis("positions", "R * K")

_STEP = 32  # rows of a matrix that are multiplied at a time; fewer if they are
_WIDE = 2048  # bytes: a GPU has little memory for what programs share


def takes_one_row(kernel: Kernel) -> bool:
    """Whether programs of the kernel take one row at a time: its products have a matrix, or a sum, for each row."""
    arrays = {b.name for b in kernel.buffers}
    return any(
        (isinstance(s, TileMatMul) and not is_plain(s)) or (isinstance(s, TileGram) and s.out not in arrays)
        for s in statements(kernel.body)
    )


def is_plain(stmt: TileMatMul | TileGram) -> bool:
    """Whether all rows are multiplied by one matrix, and lie in arrays of the tile."""
    rows = (stmt.x, stmt.out) if isinstance(stmt, TileMatMul) else (stmt.x, stmt.y)
    own = isinstance(stmt, TileMatMul) and (stmt.row is not None or stmt.transposed)
    return stmt.blocks == 1 and not own and not any(isinstance(place, Rows) for place in rows)


def print_matmul(scope: Scope, stmt: TileMatMul, tile: str) -> None:
    """`tile` names the positions of the tile in progress."""
    w, names, arrays = scope.w, scope.names, scope.arrays
    if isinstance(stmt.add, str):
        raise IRError("a Triton kernel adds a product by a row's own matrix to rows in memory alone.")
    i, j = (arrays[_array(place)].numel // stmt.blocks for place in (stmt.x, stmt.out))
    columns = max(power_of_two(j), DOT)
    whole = max(power_of_two(i), DOT)
    acc, size = ttype(arrays[stmt.w].dtype), arrays[stmt.w].numel
    base = names.of(stmt.w)
    if stmt.row is not None:
        base = f"{base} + {_one(scope, stmt.row)} * {size}"
    elif stmt.w in scope.held:
        raise IRError("a Triton kernel multiplies by matrices in memory alone.")
    row = x = _read(scope, stmt.x, tile)
    out = _read(scope, stmt.out, tile)
    held = isinstance(stmt.x, str)
    wide = columns * arrays[stmt.w].dtype.itemsize > _WIDE
    step = min(whole, DOT if wide else _STEP)
    sliced = held and (stmt.blocks > 1 or step < whole)
    if step * columns > LARGEST:
        raise IRError(f"a matrix of {i} x {j} for each row is too large for a Triton kernel.")
    if isinstance(stmt.out, str) and stmt.blocks > 1:
        raise IRError("a Triton kernel stores rows of several blocks in memory alone.")
    total, at_i, at_j = (scope.fresh(stmt.w, part) for part in ("product", "i", "j"))
    w.line(f"{at_j} = tl.arange(0, {columns})")
    for b in range(stmt.blocks):
        w.line(f"{total} = tl.zeros([R * K, {columns}], {acc})")
        with scope.block(f"for {at_i}_from in range(0, {i}, {step})"):
            w.line(f"{at_i} = {at_i}_from + tl.arange(0, {step})")
            w.line(f"{at_i}_ok = {at_i} < {i}")
            if sliced:
                row = _slice(scope, stmt.x, x, f"{b * i} + {at_i}", f"{at_i}_ok", step)
            elif not held:
                row = _loaded(scope, stmt.x, x, f"{b * i} + {at_i}[None, :]", f"{at_i}_ok[None, :]")
            lies = (f"{at_j}[None, :] * {i}", f"{at_i}[:, None]") if stmt.transposed else (
                f"{at_i}[:, None] * {j}", f"{at_j}[None, :]"
            )  # fmt: skip
            inside = f"{at_i}_ok[:, None] & ({at_j} < {j})[None, :]"
            matrix = f"tl.load({base} + {b * i * j} + {' + '.join(lies)}, mask={inside}, other=0.0)"
            w.line(f"{total} = tl.dot({row}, {matrix}, {total}, input_precision=PRECISION, out_dtype={acc})")
        if isinstance(stmt.out, str):
            target = scope.held[stmt.out]
            w.line(f"{target.name} = tl.reshape({total}, [R, K, {columns}])")
        else:
            to = f"{names.of(stmt.out.buffer)} + {out}[:, None] * {arrays[stmt.out.buffer].numel} + {b * j}"
            inside = f"mask={_edges()}[:, None] & ({at_j} < {j})[None, :]"
            if stmt.add is not None:
                w.line("tl.debug_barrier()  # other threads of this program may have stored what is read here")
                w.line(f"{total} += tl.load({to} + {at_j}[None, :], {inside}, other=0.0)")
            w.line(f"tl.store({to} + {at_j}[None, :], {total}, {inside})")


def print_gram(scope: Scope, stmt: TileGram, tile: str) -> None:
    """Adds to the matrices that `start_sum` has made."""
    w, arrays = scope.w, scope.arrays
    if any(isinstance(place, str) for place in (stmt.x, stmt.y)) and stmt.blocks > 1:
        raise IRError("a Triton kernel reads rows of several blocks from memory alone.")
    places = [(place, _read(scope, place, tile)) for place in (stmt.x, stmt.y)]
    acc = ttype(arrays[stmt.out].dtype)
    for b in range(stmt.blocks):
        rows = []
        for place, at in places:
            n = arrays[_array(place)].numel // stmt.blocks
            lanes = f"tl.arange(0, {max(power_of_two(n), DOT)})"
            if isinstance(place, str):
                rows.append(f"tl.where({_edges()}[:, None], {at}, 0.0)")
            else:
                rows.append(_loaded(scope, place, at, f"{b * n} + {lanes}[None, :]", f"({lanes} < {n})[None, :]"))
        sum_ = _sum_name(scope, stmt.out, b)
        dot = f"tl.dot(tl.trans({rows[0]}), {rows[1]}, {sum_}, input_precision=PRECISION, out_dtype={acc})"
        w.line(f"{sum_} = {dot}")


def start_sum(scope: Scope, name: str, found: Sum) -> None:
    """In place of the array `name`."""
    i, j = _extents(scope, found.gram)
    rows, columns = (max(power_of_two(n), DOT) for n in (i, j))
    blocks = found.gram.blocks
    if rows * columns * blocks > LARGEST or i * j * blocks > LARGEST_ARRAY:
        raise IRError(f"a gram of {i} x {j} for each row is too large for the registers of a Triton kernel.")
    for b in range(found.gram.blocks):
        scope.w.line(f"{_sum_name(scope, name, b)} = tl.zeros([{rows}, {columns}], {ttype(scope.arrays[name].dtype)})")


def flatten_sum(scope: Scope, name: str, found: Sum) -> None:
    """After the edges: the array `name`, for what else is done with it."""
    i, j = _extents(scope, found.gram)
    rows, columns = (max(power_of_two(n), DOT) for n in (i, j))
    info = scope.arrays[name]
    padded = 0 if info.numel == 1 else power_of_two(info.numel)
    held = Held(scope.names.of(name), info.dtype, scope.axes, info.numel, padded)
    scope.types[name], scope.held[name] = info.dtype, held
    at, size = scope.fresh(name, "at"), max(padded, 1)
    scope.w.line(f"{at} = tl.arange(0, {size})")
    text = ""
    for b in range(found.gram.blocks):
        index = f"tl.minimum(tl.maximum({at} - {b * i * j}, 0), {i * j - 1})"
        flat = f"tl.reshape({_sum_name(scope, name, b)}, [{rows * columns}])"
        here = gather(flat, rows * columns, f"(({index} // {j}) * {columns} + {index} % {j})", size, ())
        text = here if not text else f"tl.where({at} < {b * i * j}, {text}, {here})"
    scope.w.line(f"{held.name} = tl.reshape({text}, [R{f', {padded}' if padded else ''}])")


def store_sum(scope: Scope, name: str, found: Sum, row: str) -> None:
    """In place of the statement that copies the array `name` to row `row`."""
    i, j = _extents(scope, found.gram)
    at_i, at_j = (f"tl.arange(0, {max(power_of_two(n), DOT)})" for n in (i, j))
    base = f"{scope.names.of(found.output)} + {_one(scope, row)} * {scope.arrays[name].numel}"
    mask = f"({at_i} < {i})[:, None] & ({at_j} < {j})[None, :]"
    for b in range(found.gram.blocks):
        to = f"{base} + {b * i * j} + {at_i}[:, None] * {j} + {at_j}[None, :]"
        scope.w.line(f"tl.store({to}, {_sum_name(scope, name, b)}, mask={mask})")


# ---------------------------------------------------------------- parts


def _array(place: Place) -> str:
    return place.buffer if isinstance(place, Rows) else place


def _extents(scope: Scope, gram: TileGram) -> tuple[int, int]:
    i, j = (scope.arrays[_array(place)].numel // gram.blocks for place in (gram.x, gram.y))
    return i, j


def _sum_name(scope: Scope, name: str, block: int) -> str:
    return scope.names.derived(name, f"sum{block}")


def _one(scope: Scope, variable: str) -> str:
    """The number of a program's only row, or of one of its groups."""
    v = scope.variables[variable]
    return f"{f'tl.sum({v.text}, axis=0)' if v.dims else v.text}.to(tl.int64)"


def _edges() -> str:
    return "tl.reshape(edge_ok, [R * K])"


def _read(scope: Scope, place: Place, tile: str) -> str:
    """The rows of an array of the tile, [R * K, elements], or where those in memory are, [R * K]."""
    if isinstance(place, str):
        held = scope.held[place]
        text = held.name
        if held.padded != held.numel:
            inside = aligned(
                f"(tl.arange(0, {held.padded}) < {held.numel})", ("element",), ("rows", "edges", "element")
            )
            text = f"tl.where({inside}, {text}, 0.0)"
        return f"tl.reshape({text}, [R * K, {held.padded}])"
    at = scope.variables[tile].text
    if place.shift is not None:
        shift = scope.variables[place.shift]
        at = f"{at} + {aligned(shift.text, shift.dims, names_of((ROWS, EDGES)))}"
    name = scope.fresh(place.buffer, "row")
    column = scope.names.of(place.column)
    scope.w.line(f"{name} = tl.load({column} + {at}, mask=edge_ok, other=0).to(tl.int64)")
    scope.w.line(f"{name} = tl.reshape({name}, [R * K])")
    return name


def _slice(scope: Scope, place: Place, rows: str, lanes: str, inside: str, taken: int) -> str:
    """Some of the elements of each row of an array of the tile, [R * K, taken], 0 where they are not inside."""
    assert isinstance(place, str)
    padded = scope.held[place].padded
    index = f"tl.broadcast_to(tl.minimum({lanes}, {padded - 1})[None, :], [R * K, {taken}])"
    return f"tl.where({inside}[None, :], {gather(rows, padded, index, taken, (_POSITIONS,))}, 0.0)"


def _loaded(scope: Scope, place: Place, at: str, lanes: str, inside: str) -> str:
    assert isinstance(place, Rows)
    width = scope.arrays[place.buffer].numel
    address = f"{scope.names.of(place.buffer)} + {at}[:, None] * {width} + {lanes}"
    return f"tl.load({address}, mask={_edges()}[:, None] & {inside}, other=0.0)"
