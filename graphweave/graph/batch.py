"""`batch` joins many graphs into one, and `unbatch` splits them again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph.assemble import assemble
from graphweave.graph.frame import Frame
from graphweave.graph.query import ALL
from graphweave.graph.relation import CanonicalEtype, Relation
from graphweave.graph.structure import G


def batch(graphs: Sequence[G], ndata: object = ALL, edata: object = ALL) -> G:
    """One graph in which the nodes and edges of graph i follow those of graph i - 1. Its `batch_num_nodes` and
    `batch_num_edges` say where each graph ends. A batch among `graphs` counts as the graphs that it consists of.

    `ndata`, `edata`: names of the fields to join, all by default, None for none. DataError for an empty list, or for
    graphs that differ in types, idtype, device or the names, dtypes and row shapes of fields. A graph without nodes of
    a type, or without edges of a relation, need not have its fields.
    """
    graphs = list(graphs)
    if not graphs:
        raise DataError("batch: expected one graph at least (got none). Pass a list of graphs.")
    first = graphs[0]
    for i, g in enumerate(graphs):
        if (g.ntypes, g.canonical_etypes, g.idtype, g.device) != (
            first.ntypes, first.canonical_etypes, first.idtype, first.device,
        ):  # fmt: skip
            raise DataError(
                f"batch: graphs must agree in types, idtype and device; graph {i} is {g!r}, {g.idtype} on {g.device}, "
                f"graph 0 is {first!r}, {first.idtype} on {first.device}."
                " Convert them first."
            )
    sizes = {t: [g.num_nodes(t) for g in graphs] for t in first.ntypes}
    starts = {t: _starts(num) for t, num in sizes.items()}
    relations = {
        key: Relation(
            *key,
            torch.cat([g.relations[key].src + at for g, at in zip(graphs, starts[key[0]], strict=True)]),
            torch.cat([g.relations[key].dst + at for g, at in zip(graphs, starts[key[2]], strict=True)]),
        )
        for key in first.canonical_etypes
    }
    largest = torch.iinfo(first.idtype).max
    if any(sum(num) > largest for num in sizes.values()):
        raise DataError(f"batch: more than {largest} nodes do not fit {first.idtype}. Convert the graphs with .long().")
    return assemble(
        type(first),
        {t: sum(num) for t, num in sizes.items()},
        relations,
        {t: _joined([g.node_frames[t] for g in graphs], ndata) for t in first.ntypes},
        {key: _joined([g.edge_frames[key] for g in graphs], edata) for key in relations},
        (
            {t: torch.cat([g.batch_num_nodes(t) for g in graphs]) for t in first.ntypes},
            {key: torch.cat([g.batch_num_edges(key) for g in graphs]) for key in relations},
        ),
    )


def unbatch(g: G, node_split: object = None, edge_split: object = None) -> list[G]:
    """The graphs of a batch. Their fields are views of the batch's.

    `node_split`, `edge_split`: numbers of nodes and edges of each graph, int [batch_size], in place of the batch's own;
    with several types a dict, type -> numbers. DataError if they do not add up to the nodes and edges of g, or if an
    edge joins nodes of two graphs.
    """
    nodes = _splits(node_split, tuple(g.node_frames), g.batch_num_nodes, g.to_ntype)
    edges = _splits(edge_split, tuple(g.relations), g.batch_num_edges, g.to_canonical_etype)
    size = len(next(iter(nodes.values())))
    for what, splits, total in (("nodes", nodes, g.num_nodes), ("edges", edges, g.num_edges)):
        for key, split in splits.items():
            if sum(split) != total(key) or len(split) != size:
                raise DataError(
                    f"unbatch: {what} of {key!r} are split into {len(split)} graphs of {sum(split)} in all, expected "
                    f"{size} graphs of {total(key)}."
                    " Choose other counts."
                )
    starts = {t: _starts(num) for t, num in nodes.items()}
    ndata = {t: _divided(g.node_frames[t], nodes[t]) for t in nodes}
    edata = {key: _divided(g.edge_frames[key], edges[key]) for key in edges}
    ends = {key: (r.src.split(edges[key]), r.dst.split(edges[key])) for key, r in g.relations.items()}
    out: list[G] = []
    for i in range(size):
        num_nodes = {t: num[i] for t, num in nodes.items()}
        relations: dict[CanonicalEtype, Relation] = {}
        for key, (src, dst) in ends.items():
            moved = Relation(*key, src[i] - starts[key[0]][i], dst[i] - starts[key[2]][i])
            _check_inside(moved, num_nodes, i)
            relations[key] = moved
        fields = {t: parts[i] for t, parts in ndata.items()}, {key: parts[i] for key, parts in edata.items()}
        out.append(assemble(type(g), num_nodes, relations, *fields))
    return out


def _check_inside(relation: Relation, num_nodes: Mapping[str, int], i: int) -> None:
    for ids, ntype in ((relation.src, relation.srctype), (relation.dst, relation.dsttype)):
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < num_nodes[ntype]:
            raise DataError(
                f"unbatch: an edge of {relation.key} in graph {i} ends in a node of another graph. Choose other counts."
            )


def _splits(
    given: object, keys: Sequence[object], stored: Callable[[Any], Tensor], name: Callable[[Any], Any]
) -> dict[Any, list[int]]:
    if given is None:
        return {key: stored(key).tolist() for key in keys}
    if not isinstance(given, Mapping):
        if len(keys) != 1:
            raise DataError(
                f"unbatch: the graph has several types, {', '.join(map(str, keys))}; give a dict of counts."
                " Give one for each type."
            )
        given = {keys[0]: given}
    named = {name(key): torch.as_tensor(value).tolist() for key, value in given.items()}
    if set(named) != set(keys):
        raise DataError(
            f"unbatch: expected counts of {', '.join(map(str, keys))} (got {', '.join(map(str, named))})."
            " Name each of these."
        )
    return named


def _starts(sizes: Sequence[int]) -> list[int]:
    return list(itertools.accumulate(sizes, initial=0))[:-1]


def _divided(frame: Frame, sizes: list[int]) -> list[dict[str, Tensor]]:
    parts: list[dict[str, Tensor]] = [{} for _ in sizes]
    for name, value in frame.items():
        for part, rows in zip(parts, value.split(sizes), strict=True):
            part[name] = rows
    return parts


def _joined(frames: Sequence[Frame], names: Any) -> dict[str, Tensor]:
    if names is None:
        return {}
    if any(frame.num_rows for frame in frames):  # a graph without rows need not have the fields
        frames = [frame for frame in frames if frame.num_rows]
    wanted = [{n: s for n, s in f.schemes().items() if names == ALL or n in names} for f in frames]
    for i, scheme in enumerate(wanted):
        if scheme != wanted[0] or (names != ALL and len(scheme) != len(set(names))):
            raise DataError(
                f"batch: {frames[0]._where} must have the same fields in all graphs; graph {i} has {scheme}, graph 0 "
                f"{wanted[0]}. Name those to join with ndata= and edata=."
            )
    return {name: torch.cat([frame[name] for frame in frames]) for name in wanted[0]}
