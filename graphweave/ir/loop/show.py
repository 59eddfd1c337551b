"""Loop IR as text (GRAMMAR.md); `parse` reads it back to an equal kernel."""

from __future__ import annotations

import json
import math

from graphweave.ir.loop.nodes import (
    Accum,
    Alloc,
    Buffer,
    Call,
    CastTo,
    Comment,
    Degree,
    Edges,
    Expr,
    FoldLanes,
    IndexSum,
    Kernel,
    Lanes,
    Let,
    Lit,
    Load,
    Place,
    Raise,
    Rescaled,
    Stash,
    Stmt,
    Store,
    TileArray,
    TileGram,
    TileMatMul,
    TileRows,
    Tiles,
    Uniform,
    Var,
)


def show(kernel: Kernel) -> str:
    """The kernel's text, one statement a line, ending in a newline."""
    lines = [f"kernel {kernel.name}({kernel.row} < {', '.join(kernel.sizes)}; {kernel.index.value}) {{"]
    lines += [f"  header {json.dumps(line)}" for line in kernel.header]
    lines += [f"  csr {csr.name}" for csr in kernel.csrs]
    lines += [f"  {_buffer(buffer)}" for buffer in kernel.buffers]
    lines += [f"  {_stash(stash)}" for stash in kernel.stashes]
    tile = "" if kernel.tile is None else f" tile {kernel.tile[0]} < {kernel.tile[1]}"
    lines += [f"  do{tile}", *(f"  {line}" for line in _body(kernel.body)), "}"]
    return "\n".join(lines) + "\n"


def _buffer(buffer: Buffer) -> str:
    rows = "" if buffer.rows is None else buffer.rows
    fold = "" if buffer.fold is None else f" {buffer.fold.value}"
    return f"{buffer.role.value} {buffer.name}: {buffer.dtype.value}[{rows}; {_extents(buffer.shape)}]{fold}"


def _stash(stash: Stash) -> str:
    return f"stash {stash.name}: {stash.dtype.value}[{stash.csr}; {_extents(stash.shape)}]"


def _extents(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape))


# ---------------------------------------------------------------- statements


def _body(body: tuple[Stmt, ...]) -> list[str]:
    return [f"  {line}" for stmt in body for line in show_stmt(stmt)]


def show_stmt(stmt: Stmt) -> list[str]:
    """The lines of one statement, its body indented."""
    match stmt:
        case Let(name, dtype, value):
            return [f"let {name}: {dtype.value} = {show_expr(value)}"]
        case Alloc(name, dtype, shape, fill):
            text = f"alloc {name}: {dtype.value}[{_extents(shape)}]"
            return [text if fill is None else f"{text} = {_number(fill)}"]
        case Store(buffer, index, value):
            return [f"{_element(buffer, index)} = {show_expr(value)}"]
        case Accum(buffer, index, fold, value):
            return [f"{_element(buffer, index)} {fold.value}= {show_expr(value)}"]
        case Raise(tile, reference, lane, value, sums):
            head = f"raise {reference}[{lane[0]} < {lane[1]}] to {show_expr(value)} of {tile} {{"
            return [head, *(f"  {_rescaled(s)}" for s in sums), "}"]
        case FoldLanes(name, dtype, fold, lanes, body, value):
            head = f"fold {name}: {dtype.value} = {fold.value} {_lanes(lanes)}{{"
            return [head, *_body(body), f"  yield {show_expr(value)}", "}"]
        case Lanes(lanes, body):
            return [f"lanes {_lanes(lanes)}{{", *_body(body), "}"]
        case Edges(k, csr, row, prefetch, body, tile):
            of = "" if tile is None else f"of {tile} "
            hints = "".join(
                f"prefetch {p.buffer}[{p.column}[{k} + {f'{p.shift} + ' if p.shift else ''}{p.distance}]] "
                for p in prefetch
            )
            return [f"edges {k} in {csr}[{row}] {of}{hints}{{", *_body(body), "}"]
        case Tiles(tile, size, csr, row, body):
            return [f"tiles {tile} < {size} in {csr}[{row}] {{", *_body(body), "}"]
        case TileArray(name, tile, dtype, shape):
            return [f"array {name}: {dtype.value}[{tile}; {_extents(shape)}]"]
        case TileRows(tile, body):
            return [f"rows of {tile} {{", *_body(body), "}"]
        case TileMatMul(tile, out, x, w, add, row, transposed, blocks):
            matrix = f"{'transposed ' * transposed}{w}{'' if row is None else f'[{row}]'}"
            begun = "" if add is None else f"{_place(add)} + "
            return [f"matmul {_blocks(blocks)}{_place(out)} = {begun}{_place(x)}, {matrix} of {tile}"]
        case TileGram(tile, out, x, y, blocks):
            return [f"gram {_blocks(blocks)}{out} = {_place(x)}, {_place(y)} of {tile}"]
        case Comment(text):
            return [f"# {json.dumps(text)}"]


def _place(place: Place) -> str:
    if isinstance(place, str):
        return place
    return f"{place.buffer}[{place.column}{'' if place.shift is None else f' + {place.shift}'}]"


def _blocks(blocks: int) -> str:
    return "" if blocks == 1 else f"{blocks} "


def _rescaled(sum_: Rescaled) -> str:
    element = _element(sum_.buffer, sum_.index)
    return f"rescale {_lanes(sum_.lanes)}{{ {element} by {_index_sum(sum_.of)} }}"


def _lanes(lanes: tuple[tuple[str, int], ...]) -> str:
    return "".join(f"{name} < {extent}, " for name, extent in lanes)[:-2] + " " * bool(lanes)


# ---------------------------------------------------------------- expressions


def show_expr(expr: Expr) -> str:
    match expr:
        case Var(name):
            return name
        case Lit(value, dtype):
            return f"{_number(value)}:{dtype.value}"
        case Load(buffer, index):
            return _element(buffer, index)
        case Call(op, args):
            return f"{op.value}({', '.join(map(show_expr, args))})"
        case CastTo(x, dtype):
            return f"cast({show_expr(x)}, {dtype.value})"
        case IndexSum():
            return _index_sum(expr)
        case Degree(csr, row):
            return f"degree({csr}, {show_expr(row)})"
        case Uniform(seed, row, size, index, dtype):
            return f"uniform({show_expr(seed)}, {show_expr(row)}, {size}, {show_expr(index)}, {dtype.value})"


def _element(buffer: str, index: tuple[Expr, ...]) -> str:
    return f"{buffer}[{', '.join(map(show_expr, index))}]"


def _index_sum(index: IndexSum) -> str:
    text = " + ".join([*(f"{coefficient}*{name}" for name, coefficient in index.terms), str(index.offset)])
    div = "" if index.div == 1 else f" // {index.div}"
    mod = "" if index.mod is None else f" % {index.mod}"
    return f"{{{text}{div}{mod}}}"


def _number(value: float | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return repr(value)
