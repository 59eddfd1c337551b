"""The drawings of the design book, and of schedules: boxes, lines and words. `python -m docs.pictures` writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphweave.core.schedule import Schedule
from graphweave.core.svg import DARK, LIGHT, DrawingColours, SvgDrawing
from tests.house.test_layers import MAY_IMPORT, rooms_of

WIDTH = 760


def _labelled(
    d: SvgDrawing, x: float, y: float, width: float, height: float, text: str, *, fill: str = "", dashed: bool = False,
    size: float = 13, note: str = "",
) -> None:  # fmt: skip
    """A box with words in its middle, and perhaps a note in a second line."""
    d.box(x, y, width, height, fill=fill or "none", edge=d.colours.faint, dashed=dashed)
    middle = y + height / 2 + size / 3 - (8 if note else 0)
    d.words(x + width / 2, middle, text, size=size, anchor="middle")
    if note:
        d.words(x + width / 2, middle + 16, note, size=11, colour=d.colours.faint, anchor="middle")


# ------------------------------------------------------------ push and pull

_GRAPH = (("a", "b"), ("c", "b"), ("d", "b"), ("b", "a"), ("d", "c"))
_GRAPH_NODES = "abcd"


def push_pull(colours: DrawingColours) -> SvgDrawing:
    """What the two operations along a map do."""
    d = SvgDrawing(
        WIDTH, 330, colours,
        "Left: rows of the nodes a, b, c and d. Middle: pull copies to each of five edges the row of its source. Right:"
        " push adds up, for each node, the rows of the edges that lead to it: b gets a + c + d.",
    )  # fmt: skip
    own = dict(zip(_GRAPH_NODES, colours.series, strict=True))
    heads = ((90, "x"), (385, "m = pull(x, src)"), (675, "push(m, dst, sum)"))
    for x, text in heads:
        d.words(x, 24, text, code=True, bold=True, anchor="middle")
    for x, text in ((90, "a row for each node"), (385, "a row for each edge"), (675, "a row for each node")):
        d.words(x, 44, text, size=12, colour=colours.faint, anchor="middle")
    nodes = {name: 76 + 62 * number for number, name in enumerate(_GRAPH_NODES)}
    edges = [64 + 52 * number for number in range(len(_GRAPH))]
    for name, y in nodes.items():
        _row(d, 50, y, 80, name, own[name])
        incoming = [src for src, dst in _GRAPH if dst == name]
        _row(d, 625, y, 100, " + ".join(incoming) or "0", colours.text if incoming else colours.faint)
        d.words(736, y + 20, name, colour=colours.faint)
    for (src, dst), y in zip(_GRAPH, edges, strict=True):
        _row(d, 345, y, 80, src, own[src])
        d.words(385, y + 42, f"{src} → {dst}", size=11, colour=colours.faint, anchor="middle")
        d.line([(132, nodes[src] + 15), (341, y + 15)], own[src], arrow=True, opacity=0.8)
        d.line([(427, y + 15), (621, nodes[dst] + 15)], own[src], arrow=True, opacity=0.8)
    return d


def _row(d: SvgDrawing, x: float, y: float, width: float, text: str, colour: str) -> None:
    d.box(x, y, width, 30, fill=colour, opacity=0.16, edge=colour)
    d.words(x + width / 2, y + 20, text, code=True, anchor="middle")


# ------------------------------------------------------------ rooms


def rooms(colours: DrawingColours) -> SvgDrawing:
    """The rooms in layers: each imports only what stands below it."""
    layers = _layers()
    d = SvgDrawing(
        WIDTH, 34 + 40 * len(layers), colours,
        "The rooms of the package in layers, from the command line at the top to core at the bottom. A room imports"
        " only rooms of layers below it.",
    )  # fmt: skip
    d.line([(24, 34), (24, 30 + 40 * len(layers))], colours.accent, arrow=True)
    d.words(44, 22, "a room imports only rooms of layers below it", size=12, colour=colours.accent)
    for row, names in enumerate(reversed(layers)):
        y, x = 34 + 40 * row, 60.0
        d.box(44, y, WIDTH - 54, 36, fill=colours.box, radius=6)
        for name in names:
            d.words(x, y + 23, name, size=12, code=True)
            x += 7.3 * len(name) + 28
    return d


def _layers() -> list[list[str]]:
    """Rooms that import nothing, those that import only these, and so on. The package itself is "graphweave"."""
    left = {room: set().union(*map(rooms_of, others)) - {room} for room, others in MAY_IMPORT.items()}
    layers: list[list[str]] = []
    while left:
        free = sorted(room for room, others in left.items() if not others & left.keys())
        layers.append([room or "graphweave" for room in free])
        left = {room: others for room, others in left.items() if room not in free}
    return layers


# ------------------------------------------------------------ the layer of attention


def kernels_of_gat(colours: DrawingColours) -> SvgDrawing:
    """The forward of the example as kernels and calls."""
    d = SvgDrawing(
        WIDTH, 346, colours,
        "The forward of the attention layer. Three matrix products are calls of PyTorch. All else is one kernel that"
        " walks the edges into each node: first for the maximum of the scores, then for the sum of their exponentials"
        " and the weighted sum of rows; it ends with a division. Scores and exponentials are computed for an edge when"
        " they are needed and never stored.",
    )  # fmt: skip
    d.words(20, 22, "calls of PyTorch", size=12, colour=colours.faint)
    _labelled(d, 20, 32, 150, 40, "z = x W")
    _labelled(d, 20, 92, 150, 40, "s = z a₁")
    _labelled(d, 20, 152, 150, 40, "t = z a₂")
    d.line([(95, 72), (95, 90)], colours.accent, arrow=True)
    d.line([(12, 52), (6, 52), (6, 172), (18, 172)], colours.accent, arrow=True)
    d.words(228, 22, "one kernel: for each node", size=12, colour=colours.accent)
    d.box(220, 32, 520, 298, edge=colours.accent, radius=8)
    for y in (112, 172):
        d.line([(170, y), (218, y)], colours.accent, arrow=True)
    d.line([(170, 44), (218, 44)], colours.accent, arrow=True)
    _pass(d, 48, "first walk over its edges", "score = leaky_relu(s[src] + t[dst])", "top = max of score")
    _pass(d, 146, "second walk over its edges", "e = exp(score - top)", "total = sum of e", "wide = sum of e · z[src]")
    d.line([(480, 122), (480, 144)], colours.accent, arrow=True)
    d.line([(480, 258), (480, 280)], colours.accent, arrow=True)
    _labelled(d, 330, 282, 300, 36, "out = wide / total", fill=colours.box)
    d.words(20, 250, "dashed: a value of an edge,", size=12, colour=colours.faint)
    d.words(20, 267, "in registers, never stored", size=12, colour=colours.faint)
    d.words(20, 300, "filled: a value of a node,", size=12, colour=colours.faint)
    d.words(20, 317, "one row at a time", size=12, colour=colours.faint)
    return d


def _pass(d: SvgDrawing, y: float, title: str, edge: str, *node: str) -> None:
    """A walk over the edges of a node: a value of an edge, and the values of the node that are made of it."""
    d.box(232, y, 496, 36 + 38 * len(node), edge=d.colours.faint, radius=6)
    d.words(242, y + 18, title, size=12, colour=d.colours.faint)
    _labelled(d, 244, y + 32, 232, 30, edge, dashed=True, size=12.5)
    for number, text in enumerate(node):
        at = y + 32 + 38 * number
        _labelled(d, 536, at, 180, 30, text, fill=d.colours.box, size=12.5)
        d.line([(478, y + 47), (532, at + 15)], d.colours.accent, arrow=True)


def halves(colours: DrawingColours) -> SvgDrawing:
    """Forward and backward, and what lies between them."""
    d = SvgDrawing(
        WIDTH, 330, colours,
        "The forward of the attention layer saves values of nodes: z, s, t, the maximum, the reciprocal of the total"
        " and the sums, besides the two indices. The backward computes the scores and exponentials of edges again."
        " Eager mode keeps scores, weights and gathered rows of 1, 16 and 32 numbers for each of 9,000 edges.",
    )  # fmt: skip
    columns = (
        (20, "forward", ("z = x W", "score", "e = exp(score - top)", "out = Σ e · z[src] / total"), (1, 2)),
        (540, "backward", ("score, again", "e, again", "gradients of z, s, t", "gradients of the weights"), (0, 1)),
    )  # fmt: skip
    for x, title, steps, of_edges in columns:
        d.box(x, 34, 200, 230, edge=colours.accent, radius=8)
        d.words(x + 100, 24, title, bold=True, anchor="middle")
        for number, text in enumerate(steps):
            filled = "" if number in of_edges else colours.box
            _labelled(d, x + 12, 48 + 53 * number, 176, 36, text, fill=filled, dashed=number in of_edges, size=12.5)
    saved = ("z  [16]", "s, t, top, 1 / total  [1]", "the two sums  [16] and [1]", "src, dst")
    d.words(380, 24, "saved, on 1,000 nodes", bold=True, anchor="middle")
    for number, text in enumerate(saved):
        y = 60 + 53 * number
        d.box(270, y, 220, 30, fill=colours.series[0], opacity=0.16, edge=colours.series[0])
        d.words(380, y + 20, text, size=12.5, anchor="middle")
        d.line([(222, y + 15), (266, y + 15)], colours.series[0], arrow=True)
        d.line([(492, y + 15), (536, y + 15)], colours.series[0], arrow=True)
    d.words(20, 296, "dashed: a value of an edge, computed again where it is needed and never stored", size=12,
            colour=colours.faint)  # fmt: skip
    d.words(20, 316, "Eager mode keeps rows of 1, 16 and 32 numbers for each of 9,000 edges instead.", size=12,
            colour=colours.faint)  # fmt: skip
    return d


# ------------------------------------------------------------ running

_STEPS = ("once a graph", "call z", "call s", "call t", "native call", "return")
_LIVES = (
    ("x, W, a", 0, 6), ("checked indices", 0.5, 6), ("halves of a", 0.6, 3.6), ("z", 1.5, 6), ("s", 2.5, 6),
    ("t", 3.5, 6), ("scores, exponentials", 4.15, 4.85), ("out", 4.5, 6),
)  # fmt: skip
"""Value, where it begins and where it ends among the steps. Those that live to the end are handed on."""


def tape(colours: DrawingColours) -> SvgDrawing:
    """The steps of a call in time, and how long each value lives."""
    d = SvgDrawing(
        WIDTH, 96 + 34 * len(_LIVES), colours,
        "The forward of the attention layer as a tape: what depends on the graph is made once, three matrix products"
        " are calls of PyTorch, then one native call runs the kernel. Bars show from which step to which each value"
        " lives; what the backward needs lives on.",
    )  # fmt: skip
    left, step = 170, 95

    def at(number: float) -> float:
        return left + step * number

    for number, text in enumerate(_STEPS):
        filled = colours.accent if text == "native call" else colours.box
        d.box(at(number) + 3, 16, step - 6, 34, fill=filled, opacity=0.3 if filled == colours.accent else 1,
              edge=colours.faint)  # fmt: skip
        d.words(at(number) + step / 2, 38, text, size=12, anchor="middle")
        d.line([(at(number), 58), (at(number), 66 + 34 * len(_LIVES))], colours.faint, width=0.6, dashed=True)
    for row, (name, made, freed) in enumerate(_LIVES):
        y, handed = 68 + 34 * row, freed == len(_STEPS)
        d.words(left - 12, y + 16, name, size=12.5, anchor="end")
        colour = colours.accent if handed else colours.series[0]
        d.box(at(made), y + 4, at(freed) - at(made) - 3, 16, fill=colour, opacity=0.45, radius=3)
        if not handed:
            d.words(at(freed) + 5, y + 17, "free", size=11, colour=colours.faint)
    d.words(left, 88 + 34 * len(_LIVES), "green: handed to the caller or to the backward", size=12,
            colour=colours.faint)  # fmt: skip
    return d


def formats(colours: DrawingColours) -> SvgDrawing:
    """How a call finds the formats of an index."""
    d = SvgDrawing(
        WIDTH, 304, colours,
        "A call with an index tensor asks whether it was seen: by its memory, version and layout. If so, the record of"
        " the index has its formats. If not, the index is checked and the formats are made: where each row's edges"
        " begin, the node at the other end of each edge, and the permutation. An edit in place is another version.",
    )  # fmt: skip
    _labelled(d, 20, 40, 180, 56, "index of the call", note="e.g. edge_index[1]")
    _labelled(d, 290, 40, 190, 56, "seen before?", note="memory, version, layout")
    d.line([(202, 68), (286, 68)], colours.accent, arrow=True)
    _labelled(d, 570, 40, 170, 56, "kernel runs", fill=colours.box, note="on checked copies")
    d.line([(482, 68), (566, 68)], colours.accent, arrow=True)
    d.words(524, 58, "yes", size=12, colour=colours.accent, anchor="middle")
    d.line([(385, 98), (385, 146)], colours.series[1], arrow=True)
    d.words(394, 126, "no", size=12, colour=colours.series[1])
    _labelled(d, 290, 150, 190, 56, "check, then sort", note="by all threads")
    d.line([(482, 178), (566, 178)], colours.accent, arrow=True)
    d.box(570, 130, 170, 162, edge=colours.accent, radius=8)
    d.words(655, 148, "record of the index", size=12, colour=colours.accent, anchor="middle")
    parts = (("begins", "0 2 3 6"), ("others", "5 1 4 0 2 7"), ("perm", "3 0 5 1 2 4"))
    for number, (name, numbers) in enumerate(parts):
        y = 154 + 45 * number
        d.words(582, y + 10, name, size=11, colour=colours.faint)
        d.box(582, y + 14, 146, 20, fill=colours.box, radius=2)
        d.words(655, y + 29, numbers, size=12, code=True, anchor="middle")
    d.line([(655, 128), (655, 98)], colours.accent, arrow=True)
    _labelled(d, 20, 150, 180, 56, "index edited in place", note="its version counts up", dashed=True)
    d.line([(110, 148), (110, 98)], colours.series[1], arrow=True)
    d.words(20, 252, "Records end with their tensors,", size=12, colour=colours.faint)
    d.words(20, 269, "or when GRAPHWEAVE_FORMAT_BYTES are full.", size=12, colour=colours.faint)
    return d


# ------------------------------------------------------------ ranks


def halo(colours: DrawingColours) -> SvgDrawing:
    """Two ranks, the rows they own, and the rows they read of each other."""
    d = SvgDrawing(
        WIDTH, 320, colours,
        "Two ranks. Rank 0 owns the nodes a, b and c, rank 1 the nodes d, e and f. Each has behind its own rows the"
        " halo rows that its edges read: rank 0 the row of d, rank 1 those of b and c. The forward sends own rows to"
        " the halos of others; the backward sends the gradients of halo rows back, and owners add them up.",
    )  # fmt: skip
    ranks: Sequence[tuple[str, str, str, str]] = (
        ("rank 0", "abc", "d", "a→b  b→c  d→c"), ("rank 1", "def", "bc", "b→d  c→e  d→f"),
    )  # fmt: skip
    places: dict[tuple[int, str], float] = {}
    for number, (name, owned, read, edges) in enumerate(ranks):
        y, colour = 36 + 150 * number, colours.series[number]
        d.box(20, y, WIDTH - 40, 96, edge=colour, radius=8)
        d.words(34, y + 28, name, bold=True, colour=colour)
        d.words(34, y + 56, f"edges {edges}", size=11.5, colour=colours.faint)
        for place, node in enumerate(owned + read):
            x = 270 + 82 * place + (40 if place >= len(owned) else 0)
            mine = node in owned
            d.box(x, y + 36, 68, 36, fill=colour if mine else "none", opacity=0.18, edge=colours.series[number if mine
                  else 1 - number], dashed=not mine)  # fmt: skip
            d.words(x + 34, y + 59, node, code=True, anchor="middle")
            places[number, node] = x + 34
        d.words(270, y + 24, "own rows", size=12, colour=colours.faint)
        d.words(WIDTH - 34, y + 24, "halo", size=12, colour=colours.faint, anchor="end")
    for node in "bc":
        d.line([(places[0, node], 110), (places[1, node], 218)], colours.series[0], arrow=True)
    d.line([(places[1, "d"], 220), (places[0, "d"], 112)], colours.series[1], arrow=True)
    d.words(34, 164, "forward: own rows to the halos", size=12, colour=colours.faint)
    d.words(34, 310, "backward: the gradients of halo rows go back the same way, and the owner adds them up", size=12,
            colour=colours.faint)  # fmt: skip
    return d


DRAWINGS: dict[str, Callable[[DrawingColours], SvgDrawing]] = {
    "push_pull": push_pull, "rooms": rooms, "kernels_of_gat": kernels_of_gat, "halves": halves, "tape": tape,
    "formats": formats, "halo": halo,
}  # fmt: skip
SCHEDULES = {
    "schedule_partitions": Schedule(source_partitions=4, feature_tile=16, unroll=2),
    "schedule_hilbert": Schedule(edge_order="hilbert", source_partitions=2),
    "schedule_registers": Schedule(feature_tile=32, register_tile=16, vector_bytes=32, prefetch=8),
    "schedule_gpu": Schedule(gpu_rows=4, gpu_edges=16, gpu_warps=4, gpu_stages=2),
}
"""The schedules that docs/schedules.md draws."""


def drawn() -> dict[str, str]:
    """The text of each drawing and each schedule, by its file's name."""
    found: dict[str, str] = {}
    for ending, colours in {"": LIGHT, "_dark": DARK}.items():
        found |= {f"{name}{ending}.svg": draw(colours).svg() for name, draw in DRAWINGS.items()}
        found |= {f"{name}{ending}.svg": one.draw(dark=ending == "_dark") for name, one in SCHEDULES.items()}
    return found
