"""A case over the parts of a graph: the function as ranks call it, the whole graph's data, and what each rank gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from graphweave.distributed.part import GraphPart
from graphweave.distributed.parts import EdgeType, parts_of
from tests.fuzz.case import Call, Case, namespace, parameters
from tests.fuzz.growing import ARGUMENTS, GIVEN

EDGES: dict[str, EdgeType] = {
    "ei": ("N", "e", "N"),
    "bi": ("N", "b", "M"),
    "pi": ("N", "p", "N"),
    "qi": ("N", "q", "N"),
}
"""Arguments that are indices of the parts' edges, with their types. The last two lead into each node once."""

_ENDS = {
    "src": "ei[0]", "dst": "ei[1]", "sdst": "ei[1]", "dst32": "ei[1].int()", "bsrc": "bi[0]", "bdst": "bi[1]",
    "parent": "pi[0]", "perm": "qi[0]",
}  # fmt: skip
"""Maps of programs, which a rank has only as an end of its part's edges."""

LETTERS = "NMEB"
"""Rows that ranks divide among them. All else is the same on every rank."""

_ROWS = {v.name: v.rows for v in GIVEN if v.rows in LETTERS} | {"buf": "N"}

KINDS = ("random", "random", "by turns", "one node", "empty part", "no halo", "all halo")
"""How nodes lie on the ranks. `kind_of` draws one."""


def over_parts(source: str) -> str:
    """The function with arguments that ranks can have: `ei` and its like in place of the ends of edges."""
    names = parameters(source)
    given = list(dict.fromkeys(_ENDS[name].split("[")[0] if name in _ENDS else name for name in names))
    ends = "".join(f"    {name} = {_ENDS[name]}\n" for name in names if name in _ENDS)
    return f"def f({', '.join(given)}):\n{ends}" + source.split("\n", 1)[1]


@dataclass(frozen=True, slots=True)
class Whole:
    """The arguments of one call on the whole graph, by name, the owner of each node, and the numbers of rows."""

    values: Mapping[str, Any]
    owners: Mapping[str, Tensor]
    counts: Mapping[str, int]
    sorted: bool
    """Whether edges lie by destination."""


def whole_of(case: Case, call: Call, size: int) -> Whole:
    """The data of a call and the owners of its nodes, a function of the call's seed. The case is that of `over_parts`.

    Differentiable arguments ask for gradients, unless the mode is inference.
    """
    sizes = dict(call.sizes)
    found: dict[str, Any] = {**namespace(), **sizes}
    torch.manual_seed(call.seed)
    for argument in ARGUMENTS:
        found[argument.name] = eval(argument.text, found)
    kind = KINDS[int(torch.randint(len(KINDS), ()))]
    owners = {letter: _owners(kind, sizes[letter], size) for letter in "NM"}
    nodes = torch.arange(sizes["N"])
    ends = {
        "ei": found["ei"], "bi": torch.stack([found["bsrc"], found["bdst"]]),
        "pi": torch.stack([found["parent"], nodes]), "qi": torch.stack([found["perm"], nodes]),
    }  # fmt: skip
    by_destination = any("sdst = ei[1]" in line for line in case.source.splitlines())
    for name, (_, _, target) in EDGES.items():
        src, dst = ends[name]
        if kind in ("no halo", "all halo"):
            src = _sources_on(src, owners["N"], (owners[target][dst] + (kind == "all halo")) % size)
        if name == "ei" and by_destination:
            order = dst.argsort(stable=True)
            src, dst = src[order], dst[order]
        found[name] = torch.stack([src, dst])
    asks = {a.name for a in case.arguments if a.differentiable} if case.mode != "inference" else set()
    for name in asks:
        found[name].requires_grad_()
    return Whole({name: found[name] for name in parameters(case.source)}, owners, sizes, by_destination)


def _owners(kind: str, count: int, size: int) -> Tensor:
    nodes = torch.arange(count)
    chosen = int(torch.randint(size, ()))
    if kind == "by turns":
        return nodes % size
    if kind == "empty part":
        return torch.full((count,), chosen)
    if kind == "one node":
        return (chosen + (nodes == count // 2)) % size
    return torch.randint(size, (count,))


def _sources_on(src: Tensor, owner: Tensor, wanted: Tensor) -> Tensor:
    """Sources that the wanted ranks own, where these own any."""
    out = src.clone()
    for rank in wanted.unique().tolist():
        pool, here = (owner == rank).nonzero().flatten(), wanted == rank
        if len(pool):
            out[here] = pool[src[here] % len(pool)]
    return out


# ------------------------------------------------------------ parts


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank has: its part, whose edges are those that the function takes, and the numbers of its rows."""

    part: GraphPart
    rows: Mapping[str, Tensor]


def shares_of(whole: Whole, size: int) -> list[Share]:
    """Each rank's share. Numbers of rows are those of the whole graph, by letter."""
    values, counts = whole.values, whole.counts
    edges = {EDGES[name]: values[name] for name in EDGES if name in values}
    for name, rows in (("ei", "E"), ("bi", "B")):  # rows of edges whose index the function does not take
        if name not in values:
            target = counts[EDGES[name][2]]
            edges[EDGES[name]] = torch.stack([torch.arange(counts[rows]) % max(n, 1) for n in (counts["N"], target)])
    shares = []
    for part in parts_of(edges, {letter: counts[letter] for letter in "NM"}, whole.owners, size):
        rows = {letter: part.nodes[letter].own for letter in "NM"}
        rows |= {letter: part.edges[EDGES[name]].ids for name, letter in (("ei", "E"), ("bi", "B"))}
        given = {kind: of for kind, of in part.edges.items() if any(EDGES[n] == kind for n in values if n in EDGES)}
        shares.append(Share(replace(part, edges=given), rows))
    return shares


def arguments(whole: Whole, share: Share) -> list[Any]:
    """The arguments of a rank: its own rows, its part's edges, and parameters, which all ranks have."""
    return [_of_share(name, value, share) for name, value in whole.values.items()]


def _of_share(name: str, value: Any, share: Share) -> Any:
    if name in EDGES:
        return share.part.edges[EDGES[name]].edge_index
    if name in _ROWS:
        return value.detach()[share.rows[_ROWS[name]]].requires_grad_(value.requires_grad)
    if isinstance(value, Tensor):
        return torch.nn.Parameter(value.detach().clone(), requires_grad=value.requires_grad)
    return value


def rows_of(name: str) -> str:
    """The letter of the rows of an argument; "" for what all ranks have."""
    return _ROWS.get(name, "")


# ------------------------------------------------------------ results


@dataclass(frozen=True, slots=True)
class Layout:
    """How a result lies on the ranks. `rows` is the letter that dimension `dim` counts; "" for a result that all ranks
    have; "some" for rows of which only the values are known, such as those of a mask."""

    rows: str
    dim: int = 0


_PROBES = (
    {"N": 7, "M": 5, "E": 19, "B": 13},
    {"N": 12, "M": 10, "E": 37, "B": 23},
    {"N": 9, "M": 8, "E": 31, "B": 11},
)
"""Sizes at which a function's results are looked at."""


def layouts(case: Case, function: Callable[..., Any], size: int) -> list[Layout]:
    """How the results lie, from eager mode alone: by their sizes, and by whether their rows move as the graph's do."""
    widths = {letter: dict(case.calls[0].sizes)[letter] for letter in "GD"}
    wholes = [whole_of(case, Call(tuple({**sizes, **widths}.items()), 0), size) for sizes in _PROBES]
    shapes = [[getattr(v, "shape", ()) for v in results_of(function(*w.values.values()))] for w in wholes]
    by_size = [_layout(each) for each in zip(*shapes, strict=True)]
    orders = _orders(wholes[0])
    straight = results_of(function(*wholes[0].values.values()))
    moved = results_of(function(*_reordered(wholes[0], orders)))
    return [_confirmed(*each, orders) for each in zip(by_size, straight, moved, strict=True)]


def _layout(shapes: tuple[Any, ...]) -> Layout:
    for dim, lengths in enumerate(zip(*shapes, strict=True)):
        for letter in LETTERS:
            if lengths == tuple(sizes[letter] for sizes in _PROBES):
                return Layout(letter, dim)
        if len(set(lengths)) > 1:
            return Layout("some", dim)
    return Layout("")


def _confirmed(layout: Layout, straight: Any, moved: Any, orders: Mapping[str, Tensor]) -> Layout:
    if layout.rows not in LETTERS or not layout.rows:
        return layout
    there = straight.index_select(layout.dim, orders[layout.rows])
    alike = there.shape == moved.shape and torch.allclose(there.double(), moved.double(), equal_nan=True)
    return layout if alike else replace(layout, rows="some")


def _orders(whole: Whole) -> dict[str, Tensor]:
    """Another order of all rows: position -> old number."""
    orders = {letter: torch.randperm(whole.counts[letter]) for letter in LETTERS}
    if "batch" in whole.values:  # nodes of a graph stay together
        orders["N"] = orders["N"][whole.values["batch"][orders["N"]].argsort(stable=True)]
    if whole.sorted:
        orders["E"] = orders["E"][orders["N"].argsort()[whole.values["ei"][1]][orders["E"]].argsort(stable=True)]
    return orders


def _reordered(whole: Whole, orders: Mapping[str, Tensor]) -> list[Any]:
    out = []
    places = {letter: order.argsort() for letter, order in orders.items()}
    of_index = {"ei": "E", "bi": "B", "pi": "N", "qi": "N"}
    for name, value in whole.values.items():
        if name in EDGES:
            src, dst = value[:, orders[of_index[name]]]
            out.append(torch.stack([places["N"][src], places[EDGES[name][2]][dst]]))
        else:
            out.append(value[orders[_ROWS[name]]] if name in _ROWS else value)
    return out


def results_of(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def functional(outputs: list[Any], lie: list[Layout], counts: Mapping[str, int], share: Share | None) -> Tensor | None:
    """A random linear functional of the results. Those of own rows add up over the ranks to that of the whole graph
    (`share` is None), so that their gradients are the whole graph's."""
    total = None
    for position, (value, layout) in enumerate(zip(outputs, lie, strict=True)):
        if not isinstance(value, Tensor) or not value.is_floating_point() or not value.requires_grad:
            continue
        shape = list(value.shape)
        if layout.rows == "some":
            shape[layout.dim] = 1
        elif layout.rows:
            shape[layout.dim] = counts[layout.rows]
        draw = torch.Generator().manual_seed(position)
        factor = torch.randn(shape, generator=draw, dtype=torch.float64)
        if share is not None and layout.rows in LETTERS and layout.rows:
            factor = factor.index_select(layout.dim, share.rows[layout.rows])
        term = (value.double() * factor).sum()
        total = term if total is None else total + term
    return total


def joined(parts: list[Tensor], layout: Layout, shares: list[Share], counts: Mapping[str, int]) -> Tensor:
    """The results of all ranks in the whole graph's order; rows of which only the values are known, one after another.

    Of a result that all ranks have, the first one's.
    """
    if not layout.rows:
        return parts[0]
    if layout.rows == "some":
        return torch.cat(parts, layout.dim)
    shape = list(parts[0].shape)
    shape[layout.dim] = counts[layout.rows]
    out = parts[0].new_empty(shape)
    for part, share in zip(parts, shares, strict=True):
        out.index_copy_(layout.dim, share.rows[layout.rows], part)
    return out


def sorted_rows(rows: Tensor, dim: int) -> Tensor:
    """Projections of rows on random vectors, each sorted: [rows, 3]. Equal for the same rows in any order."""
    flat = (
        rows.double().nan_to_num(1e3, 2e3, -2e3).movedim(dim, 0).flatten(1)
        if rows.dim() > 1
        else rows.double()[:, None]
    )
    onto = torch.randn(flat.shape[1], 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return (flat @ onto).sort(0).values
