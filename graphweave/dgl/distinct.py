"""Edges counted once, or both ways: `to_simple`, `to_simple_graph`, `add_reverse_edges`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph import transform
from graphweave.graph.frame import EID
from graphweave.graph.relation import CanonicalEtype, Relation
from graphweave.graph.structure import G

_REDUCTIONS = {"sum": "sum", "mean": "mean"}


def to_simple(
    g: G,
    return_counts: str | None = "count",
    writeback_mapping: bool = False,
    copy_ndata: bool = True,
    copy_edata: bool = False,
    aggregator: str = "arbitrary",
) -> Any:
    """The graph with one edge for all edges with the same ends, sorted by source, then by destination.

    `return_counts`: the edge field that says how many edges one stands for, or None. `writeback_mapping`: also return
    the new number of each edge, int [num_edges], by relation if there are several. With `copy_edata`, fields of edges
    are kept: those of the first edge ("arbitrary"), or their "sum" or "mean". DataError for another aggregator.
    """
    if aggregator != "arbitrary" and aggregator not in _REDUCTIONS:
        raise DataError(
            f"to_simple: expected 'arbitrary', 'sum' or 'mean' as aggregator (got {aggregator!r}). Pass one of these."
        )
    relations: dict[CanonicalEtype, Relation] = {}
    edata: dict[CanonicalEtype, dict[str, Tensor]] = {}
    mapping: dict[CanonicalEtype, Tensor] = {}
    for key, r in g.relations.items():
        src, dst, place = distinct_edges(r.src, r.dst, g.num_destinations(r))
        relations[key] = Relation(*key, src, dst)
        mapping[key], edata[key] = place.to(g.idtype), {}
        if copy_edata:
            edata[key] = {name: _joined(x, place, len(src), aggregator) for name, x in g.edge_frames[key].items()}
        if return_counts is not None:
            edata[key][return_counts] = torch.bincount(place, minlength=len(src)).to(g.idtype)
    out = transform.replace_edges(g, relations, edata, ndata=None if copy_ndata else {})
    if not writeback_mapping:
        return out
    return out, mapping if len(mapping) > 1 else next(iter(mapping.values()))


def to_simple_graph(g: G) -> G:
    """`to_simple(g)` without counts."""
    out: G = to_simple(g, return_counts=None)
    return out


def distinct_edges(src: Tensor, dst: Tensor, num_dst: int) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct pairs (src, dst), sorted, and for each edge the position of its pair."""
    keys, place = torch.unique(src.long() * max(num_dst, 1) + dst.long(), return_inverse=True)
    ends = torch.div(keys, max(num_dst, 1), rounding_mode="floor"), keys % max(num_dst, 1)
    return ends[0].to(src.dtype), ends[1].to(dst.dtype), place


def _joined(x: Tensor, place: Tensor, num: int, how: str) -> Tensor:
    if how == "arbitrary":
        first = torch.full((num,), len(place), device=x.device)
        first = first.scatter_reduce(0, place, torch.arange(len(place), device=x.device), "amin")
        return x[first]
    total = x.new_zeros((num, *x.shape[1:])).index_add(0, place, x)
    if how == "sum":
        return total
    share = torch.bincount(place, minlength=num).reshape(-1, *[1] * (x.dim() - 1))
    return (total / share).to(x.dtype)


def add_reverse_edges(
    g: G,
    readonly: object = None,
    copy_ndata: bool = True,
    copy_edata: bool = False,
    ignore_bipartite: bool = False,
    exclude_self: bool = True,
) -> G:
    """The graph with an edge v -> u after the other edges for each edge u -> v, but for self-loops (`exclude_self`).

    With `copy_edata` the added edges have the fields of the edges that they reverse, and the field '_ID' holds the
    number of that edge. DataError for a relation that joins two node types, unless `ignore_bipartite` keeps it as it
    is.
    """
    relations: dict[CanonicalEtype, Relation] = {}
    edata: dict[CanonicalEtype, dict[str, Tensor]] = {}
    for key, r in g.relations.items():
        every = torch.arange(r.num_edges, dtype=g.idtype, device=g.device)
        if key[0] != key[2]:
            if not ignore_bipartite:
                raise DataError(
                    f"add_reverse_edges: relation {key} joins two node types. Pass ignore_bipartite=True to keep it."
                )
            relations[key], numbers = r, every
        else:
            reversed_edges = every[r.src != r.dst] if exclude_self else every
            rows = reversed_edges.long()
            ends = torch.cat([r.src, r.dst[rows]]), torch.cat([r.dst, r.src[rows]])
            relations[key], numbers = Relation(*key, *ends), torch.cat([every, reversed_edges])
        if copy_edata:
            edata[key] = {**g.edge_frames[key].take(numbers.long()), EID: numbers}
    return transform.replace_edges(g, relations, edata, ndata=None if copy_ndata else {})
