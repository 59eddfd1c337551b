"""`g["follows"]`, `g["user", :, "game"]`: one relation, or several joined, as a graph of one relation."""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph import transform
from graphweave.graph.assemble import assemble
from graphweave.graph.frame import EID, ETYPE, NID, NTYPE, Frame
from graphweave.graph.relation import CanonicalEtype, Relation
from graphweave.graph.structure import G


def take_relations(g: G, etype: object) -> G:
    """The relation that a slice names, sharing the graph's fields, or several relations joined.

    `etype`: a name, or (source type, name, destination type), where ":" stands for any. DataError if it names none.
    """
    parts = etype if isinstance(etype, tuple) else (slice(None), etype, slice(None))
    if len(parts) != 3:
        raise DataError(f"expected g[name] or g[source type, name, destination type] (got {etype!r}). Pass one.")
    named = dict(zip(g.canonical_etypes, g.relations, strict=True))
    found = [key for key in named if all(want in (slice(None), have) for want, have in zip(parts, key, strict=True))]
    if not found:
        raise DataError(f"{etype!r} names no relation; the graph has {', '.join(map(str, named))}. Name one of these.")
    keys = [named[key] for key in found]
    return transform.relation_slice(g, keys[0]) if len(keys) == 1 else join_relations(g, keys)


def join_relations(g: G, keys: list[CanonicalEtype]) -> G:
    """One relation with the edges of several, one after the other, from all their source types to all their destination
    types, which become one type each (one in all, if they are the same).

    Names are joined by "+". Fields that all of these types or relations have with the same rows are joined, and '_TYPE'
    and '_ID' hold where a node or edge comes from, as positions in `g.ntypes` and `g.etypes` and numbers.
    """
    places = {t: i for i, t in enumerate(g.node_frames)}
    sides = [sorted({g.relations[key].key[side] for key in keys}, key=places.__getitem__) for side in (0, 2)]
    same = sides[0] == sides[1]
    names = ["+".join(sorted(side)) for side in sides]
    offset: list[dict[str, int]] = []
    for side in sides:
        sizes = [g.node_frames[t].num_rows for t in side]
        offset.append({t: sum(sizes[:i]) for i, t in enumerate(side)})
    src = torch.cat([g.relations[key].src + offset[0][g.relations[key].srctype] for key in keys])
    dst = torch.cat([g.relations[key].dst + offset[1][g.relations[key].dsttype] for key in keys])
    key = (names[0], "+".join(sorted(k[1] for k in keys)), names[0] if same else names[1])
    every = list(g.relations)
    edges = _common([g.edge_frames[k] for k in keys])
    edges |= _origins([g.relations[k].num_edges for k in keys], [every.index(k) for k in keys], ETYPE, EID, src)
    ndata, num_nodes = {}, {}
    for name, side in list(zip(names, sides, strict=True))[: 1 if same else 2]:
        frames = [g.node_frames[t] for t in side]
        sizes = [frame.num_rows for frame in frames]
        ndata[name] = _common(frames) | _origins(sizes, [places[t] for t in side], NTYPE, NID, src)
        num_nodes[name] = sum(sizes)
    if len(num_nodes) < len(names) and not same:
        raise DataError(f"the source and destination types would both be called {names[0]!r}. Name fewer relations.")
    return assemble(type(g), num_nodes, {key: Relation(*key, src, dst)}, ndata, {key: edges})


def _common(frames: list[Frame]) -> dict[str, Tensor]:
    """The fields of all frames, concatenated; fields that some lack, or whose rows differ, are left out."""
    schemes = [frame.schemes() for frame in frames]
    names = [name for name in schemes[0] if all(name in s for s in schemes)]
    for name in names:
        if any(scheme[name] != schemes[0][name] for scheme in schemes):
            raise DataError(
                f"field {name!r} has other rows in another type (got {[scheme[name] for scheme in schemes]})."
                " Rename it in one of them."
            )
    return {name: torch.cat([frame[name] for frame in frames]) for name in names}


def _origins(sizes: list[int], types: list[int], kind: str, number: str, like: Tensor) -> dict[str, Tensor]:
    count = torch.tensor(sizes, device=like.device)
    kinds = torch.tensor(types, dtype=like.dtype, device=like.device)
    ids = [torch.arange(n, dtype=like.dtype, device=like.device) for n in sizes]
    return {kind: kinds.repeat_interleave(count), number: torch.cat(ids)}
