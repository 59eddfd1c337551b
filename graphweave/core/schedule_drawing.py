"""Draws how a schedule walks a small graph: which thread visits which edges in which order, which features it computes
at a time, and the loops in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from graphweave.core.svg import DARK, LIGHT, DrawingColours, SvgDrawing

_DEGREES = (2, 3, 1, 9, 2, 3, 2, 4, 1, 3, 2, 3)
"""Incoming edges of the nodes of the graph that is drawn. One node has many."""
_NODES = len(_DEGREES)
_EDGES = tuple((row, (5 * row + 1 + 7 * k) % _NODES) for row, count in enumerate(_DEGREES) for k in range(count))
"""(row, source) of each edge in the user's order."""
_CELL = 17
_LEFT, _TOP = 60, 74
_STRIP, _STRIP_WIDTH = 330, 430
"""Where the features of a row begin, and how wide they are drawn."""
_MOST_THREADS = 4
"""More threads than this are not told apart."""

Edge = tuple[int, int]


def draw_schedule(given: Mapping[str, object], features: int, *, dark: bool = False) -> str:
    """SVG of a schedule with the fields `given`, for rows of so many features."""
    lines = loops(given, features)
    name = ", ".join(f"{field}={value!r}" for field, value in given.items())
    title = f"How Schedule({name}) walks a graph: {'; '.join(line.strip() for line in lines)}."
    bottom = max(_TOP + _NODES * _CELL + 26, 184 + 22 * len(lines))
    drawing = SvgDrawing(_STRIP + _STRIP_WIDTH + 20, bottom, DARK if dark else LIGHT, title)
    drawing.words(20, 24, f"Schedule({name})", size=14, code=True, bold=True)
    _draw_edges(drawing, given)
    _draw_features(drawing, given, features)
    drawing.words(_STRIP, 168, "the loops, from the outermost", size=12, colour=drawing.colours.faint)
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        drawing.words(_STRIP + 8 * indent, 190 + 22 * number, line.strip(), size=13)
    return drawing.svg()


def loops(given: Mapping[str, Any], features: int) -> list[str]:
    """The loops of a kernel that gathers rows of `features` numbers along edges, from the outermost on, two spaces of
    indentation for each."""
    if any(name.startswith("gpu_") for name in given):
        return _gpu_loops(given)
    found: list[str] = []

    def enter(text: str) -> None:
        found.append("  " * len(found) + text)

    width = _width(given, features)
    if width < features:
        enter(f"each of {math.ceil(features / width)} tiles of {width} features")
    if (ranges := given.get("source_partitions")) is not None:
        enter(f"each of {ranges} ranges of sources")
    enter(_rows_text(given))
    if (tile := given.get("register_tile")) is not None:
        enter(f"each of {math.ceil(width / tile)} tiles of {tile} features, summed in registers")
        width = tile
    enter(_edges_text(given))
    vectors = f", in vectors of at most {given['vector_bytes']} bytes" if "vector_bytes" in given else ""
    enter(f"{width} features{vectors}")
    if "product_tile" in given:
        found.append(f"products with matrices: at most {given['product_tile']} rows at a time")
    if "source_partitions" in given:
        found.append("at the end: add the partial results of each row")
    return found


def _gpu_loops(given: Mapping[str, Any]) -> list[str]:
    rows, edges = given.get("gpu_rows"), given.get("gpu_edges")
    warps, stages = given.get("gpu_warps"), given.get("gpu_stages")
    return [
        f"each program: {_counted(rows, 'row')}" + ("" if warps is None else f", on {_counted(warps, 'warp')}"),
        "  steps through its rows' edges" + ("" if stages is None else f", in a pipeline of {stages} stages"),
        f"    {_counted(edges, 'edge')} of each row at once, with all features",
    ]


def _counted(count: int | None, what: str) -> str:
    return f"some {what}s" if count is None else f"{count} {what}" + ("s" if count != 1 else "")


def _rows_text(given: Mapping[str, Any]) -> str:
    if given.get("edge_order") == "hilbert":
        return "each piece of a row, along the Hilbert curve"
    order = {"degree": ", those of most edges first", "locality": ", in an order that keeps neighbours near"}
    shares = {
        "rows": ", equally many a thread", "edges": ", equally many rows and edges a thread",
        "divided": ", equally many edges a thread, long rows cut",
    }  # fmt: skip
    return f"each row{order.get(given.get('row_order', ''), '')}{shares.get(given.get('walk', ''), '')}"


def _edges_text(given: Mapping[str, Any]) -> str:
    order = {
        "source": ", by source", "degree": ", sources of most edges first", "locality": ", sources that are near first",
    }  # fmt: skip
    text = f"each edge of it{order.get(given.get('edge_order', ''), '')}"
    if "unroll" in given:
        text += f", {given['unroll']} written out"
    if "prefetch" in given:
        ahead = given["prefetch"]
        text += f", rows fetched {ahead} edges ahead" if ahead else ", nothing fetched ahead"
    return text


def _width(given: Mapping[str, Any], features: int) -> int:
    """Features of a tile."""
    tile = given.get("feature_tile")
    size = math.prod(tile) if isinstance(tile, tuple) else tile
    return min(size or features, features)


# ------------------------------------------------------------ edges


def _draw_edges(drawing: SvgDrawing, given: Mapping[str, Any]) -> None:
    """The edges as dots, a row of dots for each node, and for each thread a line through its edges in their order."""
    colours, side = drawing.colours, _NODES * _CELL
    drawing.words(_LEFT + side / 2, _TOP - 24, "sources", size=12, colour=colours.faint, anchor="middle")
    drawing.words(_LEFT - 26, _TOP + side / 2, "rows", size=12, colour=colours.faint, anchor="middle")
    drawing.box(_LEFT, _TOP, side, side, edge=colours.faint, radius=2)
    ranges = given.get("source_partitions", 1)
    drawn = min(ranges, _NODES)
    for number in range(drawn):
        at, width = _LEFT + side * number / drawn, side / drawn
        if number % 2:
            drawing.box(at, _TOP, width, side, fill=colours.box, radius=0)
        if ranges > 1:
            drawing.words(at + width / 2, _TOP - 7, str(number + 1), size=11, colour=colours.accent, anchor="middle")
    if "gpu_rows" in given:
        for top in range(0, _NODES, min(given["gpu_rows"], _NODES)):
            height = min(given["gpu_rows"], _NODES - top) * _CELL
            drawing.box(_LEFT - 4, _TOP + top * _CELL + 1, side + 8, height - 2, edge=colours.accent)
    threads = _shared(_visited(given, drawn), given)
    for number, edges in enumerate(threads):
        colour = (colours.accent, *colours.series)[number % _MOST_THREADS] if len(threads) > 1 else colours.accent
        points = [(_LEFT + (source + 0.5) * _CELL, _TOP + (row + 0.5) * _CELL) for row, source in edges]
        if len(points) > 1 and not any(name.startswith("gpu_") for name in given):
            drawing.line(points, colour, width=1.1, arrow=True, opacity=0.65)
        for x, y in points:
            drawing.dot(x, y, 3.4, colour)
    if len(threads) > 1 or "gpu_rows" in given:
        words = "a frame for each program" if len(threads) == 1 else f"a colour for each of {len(threads)} threads"
        drawing.words(_LEFT + side / 2, _TOP + side + 18, words, size=11, colour=colours.faint, anchor="middle")


def _visited(given: Mapping[str, object], ranges: int) -> list[Edge]:
    """All edges in the order in which one thread would visit them."""
    rows, sources = _row_places(given), _source_places(given)
    within = {edge: number for number, edge in enumerate(_EDGES)}

    def place(edge: Edge) -> tuple[float, ...]:
        row, source = edge
        part = source * ranges // _NODES
        if given.get("edge_order") == "hilbert":
            return part, _hilbert_place(row, source)
        return part, rows[row], sources[source] if sources else within[edge]

    return sorted(_EDGES, key=place)


def _row_places(given: Mapping[str, object]) -> list[int]:
    match given.get("row_order"):
        case "degree":
            return _places(sorted(range(_NODES), key=lambda row: -_DEGREES[row]))
        case "locality":
            return _places(_near_order())
    return list(range(_NODES))


def _source_places(given: Mapping[str, object]) -> list[int] | None:
    """The places of sources in the order of a row's edges; None for the user's order of edges."""
    match given.get("edge_order"):
        case "source":
            return list(range(_NODES))
        case "degree":
            return _places(sorted(range(_NODES), key=lambda node: -_DEGREES[node]))
        case "locality":
            return _places(_near_order())
    return None


def _places(order: Sequence[int]) -> list[int]:
    return [order.index(node) for node in range(_NODES)]


def _near_order() -> list[int]:
    """The reverse Cuthill-McKee order of the graph: breadth first from a node of few edges, then reversed."""
    near = {n: {s for r, s in _EDGES if r == n} | {r for r, s in _EDGES if s == n} for n in range(_NODES)}
    order = [min(near, key=lambda n: len(near[n]))]
    for node in order:
        order += sorted(near[node] - set(order), key=lambda n: len(near[n]))
    return order[::-1]


def _hilbert_place(row: int, source: int) -> int:
    """The place of an edge on a Hilbert curve over 16 x 16 places."""
    x, y, place, side = source, row, 0, 8
    while side:
        right, low = int(x & side > 0), int(y & side > 0)
        place += side * side * ((3 * right) ^ low)
        if not low:
            if right:
                x, y = 15 - x, 15 - y
            x, y = y, x
        side //= 2
    return place


def _shared(visited: list[Edge], given: Mapping[str, Any]) -> list[list[Edge]]:
    """The edges of each thread."""
    if any(name.startswith("gpu_") for name in given):
        return [visited]
    threads = min(given.get("threads", 2), _MOST_THREADS)
    pieces = given.get("edge_order") == "hilbert" or "source_partitions" in given or given.get("walk") == "divided"
    if pieces:
        size = math.ceil(len(visited) / threads)
        return [visited[i : i + size] for i in range(0, len(visited), size)]
    rows = list(dict.fromkeys(row for row, _ in visited))
    cost = [1.0 if given.get("walk") == "rows" else 1.0 + _DEGREES[row] for row in rows]
    passed = [sum(cost[:i]) + cost[i] / 2 for i in range(len(rows))]
    owner = {row: int(threads * at / sum(cost)) for row, at in zip(rows, passed, strict=True)}
    return [[edge for edge in visited if owner[edge[0]] == number] for number in range(threads)]


# ------------------------------------------------------------ features


def _draw_features(drawing: SvgDrawing, given: Mapping[str, object], features: int) -> None:
    """The features of one row as a strip that is cut into tiles."""
    colours, width = drawing.colours, _width(given, features)
    drawing.words(_STRIP, _TOP - 6, f"{features} features of a row", size=12, colour=colours.faint)
    count, scale = math.ceil(features / width), _STRIP_WIDTH / features
    for number in range(count):
        at, wide = _STRIP + scale * width * number, scale * min(width, features - width * number)
        filled = {"fill": colours.accent, "opacity": 0.3} if number == 0 else {"fill": colours.box}
        drawing.box(at, _TOP + 4, wide, 30, edge=colours.faint, radius=2, **filled)
        if wide > 14 and count > 1:
            drawing.words(at + wide / 2, _TOP + 24, str(number + 1), size=12, anchor="middle")
    _draw_marks(drawing, given, width, scale)


def _draw_marks(drawing: SvgDrawing, given: Mapping[str, Any], width: int, scale: float) -> None:
    """Marks below the first tile: the tiles of registers in it, and the vectors."""
    colours: DrawingColours = drawing.colours
    marks = {"register tile": given.get("register_tile"), "vector": given.get("vector_bytes", 0) // 4 or None}
    for row, (name, size) in enumerate((name, size) for name, size in marks.items() if size is not None):
        y = _TOP + 44 + 16 * row
        for begin in range(0, width, size):
            left, right = _STRIP + scale * begin + 1, _STRIP + scale * min(begin + size, width) - 1
            drawing.line([(left, y - 3), (left, y), (right, y), (right, y - 3)], colours.series[row], width=1.4)
        words = f"{name}s" if width > size else name
        drawing.words(_STRIP + scale * width + 8, y + 3, words, size=11, colour=colours.series[row])
