"""`to_homogeneous` joins all types of a graph into one, and `to_heterogeneous` splits them again."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.core.homogeneous import HOMOGENEOUS_ETYPE, HOMOGENEOUS_NTYPE
from graphweave.graph.assemble import assemble, counts
from graphweave.graph.frame import EID, ETYPE, NID, NTYPE, Frame
from graphweave.graph.relation import CanonicalEtype, Relation
from graphweave.graph.structure import G, Structure


def to_homogeneous(
    g: Structure,
    ndata: Sequence[str] | None = None,
    edata: Sequence[str] | None = None,
    store_type: bool = True,
    return_count: bool = False,
) -> Any:
    """A graph in which all nodes have one type and all edges one relation, ordered by type, then by number.

    Its ndata and edata hold '_ID', the number within the type, in the graph's idtype. With `store_type` they also hold
    '_TYPE', int64, the position of the type in `g.ntypes` or `g.canonical_etypes`. Fields named in `ndata` and `edata`
    are joined: DataError if a type with rows lacks one, or if rows differ in shape or dtype. With `return_count` the
    result is (graph, number of nodes of each type, number of edges of each relation).
    """
    sizes = counts(g)
    offset = dict(zip(sizes, itertools.accumulate(sizes.values(), initial=0), strict=False))
    every = list(g.relations.values())
    src = torch.cat([r.src + offset[r.srctype] for r in every])
    dst = torch.cat([r.dst + offset[r.dsttype] for r in every])
    num_edges = [r.num_edges for r in every]
    nodes = {**_joined(g.node_frames, ndata or ()), **_places(g, list(sizes.values()), NID, NTYPE, store_type)}
    edges = {**_joined(g.edge_frames, edata or ()), **_places(g, num_edges, EID, ETYPE, store_type)}
    relation = Relation(HOMOGENEOUS_NTYPE, HOMOGENEOUS_ETYPE, HOMOGENEOUS_NTYPE, src, dst)
    out = assemble(
        type(g),
        {HOMOGENEOUS_NTYPE: sum(sizes.values())},
        {relation.key: relation},
        {HOMOGENEOUS_NTYPE: nodes},
        {relation.key: edges},
    )
    return (out, list(sizes.values()), num_edges) if return_count else out


def to_heterogeneous(
    g: G, ntypes: Sequence[str], etypes: Sequence[str], metagraph: Sequence[CanonicalEtype] | None = None
) -> G:
    """The graph with the types that a homogeneous graph g stores as ndata['_TYPE'] and edata['_TYPE'], which are
    positions in `ntypes` and `etypes`.

    Relations are the (source type, name, destination type) that occur among the edges, or those of `metagraph`, which
    may have no edges. Nodes and edges keep their order within a type, and '_ID' holds the numbers that they have in g.
    DataError if g lacks these fields, a type is out of range, or an edge has a relation that is not in `metagraph`.
    """
    node_type = _types(g, g.node_frame(), NTYPE, len(ntypes), "ndata")
    edge_type = _types(g, g.edge_frame(), ETYPE, len(etypes), "edata")
    relation = g.relation()
    ids = {name: (node_type == i).nonzero().squeeze(1) for i, name in enumerate(ntypes)}
    place = torch.empty_like(node_type)
    for rows in ids.values():
        place[rows] = torch.arange(rows.shape[0], device=g.device)
    n, m = len(ntypes), len(etypes)
    kind = (node_type[relation.src] * m + edge_type) * n + node_type[relation.dst]
    named = {(k // n // m, k // n % m, k % n): k for k in torch.unique(kind).tolist()}
    edges = {(ntypes[s], etypes[e], ntypes[d]): (kind == k).nonzero().squeeze(1) for (s, e, d), k in named.items()}
    edges = _by_metagraph(edges, metagraph, relation)
    ndata = {t: {**_without(g.node_frame(), rows, NTYPE), NID: rows.to(g.idtype)} for t, rows in ids.items()}
    edata = {key: {**_without(g.edge_frame(), rows, ETYPE), EID: rows.to(g.idtype)} for key, rows in edges.items()}
    relations = {
        key: Relation(*key, place[relation.src[rows]].to(g.idtype), place[relation.dst[rows]].to(g.idtype))
        for key, rows in edges.items()
    }
    order = sorted(ids)
    return assemble(
        type(g), {t: ids[t].shape[0] for t in order}, {key: relations[key] for key in sorted(relations)}, ndata, edata
    )


def _by_metagraph(
    edges: dict[CanonicalEtype, Tensor], metagraph: Sequence[CanonicalEtype] | None, relation: Relation
) -> dict[CanonicalEtype, Tensor]:
    if metagraph is None:
        if not edges:
            raise DataError(
                "to_heterogeneous: the graph has no edges, so its relations are not known. Pass metagraph=."
            )
        return edges
    unknown = [key for key in edges if key not in metagraph]
    if unknown:
        raise DataError(
            f"to_heterogeneous: there are edges of {unknown[0]}, which is not in metagraph {list(metagraph)}."
            " Add it there."
        )
    none = torch.empty(0, dtype=torch.int64, device=relation.src.device)
    return {key: edges.get(key, none) for key in metagraph}


def _types(g: Structure, frame: Frame, name: str, num_types: int, where: str) -> Tensor:
    if name not in frame:
        raise DataError(
            f"to_heterogeneous: {where}[{name!r}] must hold types (there is no such field; {g!r}). Set the field first."
        )
    types = frame[name].long()
    if types.dim() != 1 or (types.numel() and not 0 <= int(types.min()) <= int(types.max()) < num_types):
        raise DataError(
            f"to_heterogeneous: {where}[{name!r}] must be 1-d and in 0..{num_types}, positions in the names."
            " Correct the field."
        )
    return types


def _without(frame: Frame, rows: Tensor, name: str) -> dict[str, Tensor]:
    return {field: value for field, value in frame.take(rows).items() if field != name}


def _places(g: Structure, sizes: Sequence[int], number: str, kind: str, store_type: bool) -> dict[str, Tensor]:
    like = g.any_index()
    fields = {number: torch.cat([torch.arange(n, dtype=like.dtype, device=like.device) for n in sizes])}
    if store_type:
        num = torch.tensor(sizes, device=like.device)
        types = torch.arange(len(sizes), device=like.device)
        fields[kind] = torch.repeat_interleave(types, num)
    return fields


def _joined(frames: Mapping[Any, Frame], names: Sequence[str]) -> dict[str, Tensor]:
    """The named fields, concatenated over all types. A type without rows may lack them, or have them in another
    shape."""
    out: dict[str, Tensor] = {}
    for name in names:
        having = {key: frame for key, frame in frames.items() if name in frame}
        if not having:
            raise DataError(f"to_homogeneous: no type has a field {name!r}. Name another field.")
        filled = {key: frame for key, frame in frames.items() if frame.num_rows}
        lacking = [str(key) for key in filled if key not in having]
        if lacking:
            raise DataError(
                f"to_homogeneous: field {name!r} is joined over all types, but {', '.join(lacking)} lack it "
                f"(those that have it: {', '.join(map(str, having))}). Set it there, or leave it out of the names."
            )
        schemes = {key: frame.schemes()[name] for key, frame in (filled or having).items()}
        if len(set(schemes.values())) > 1:
            raise DataError(
                f"to_homogeneous: field {name!r} differs from type to type (got {schemes})."
                " Make the fields alike, or leave it out."
            )
        out[name] = torch.cat([frame[name] for frame in (filled or having).values()])
    return out
