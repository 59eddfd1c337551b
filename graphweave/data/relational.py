"""Relational graphs from `.npz` files: knowledge graphs, RDF, typed graphs (docs/data.md)."""

from __future__ import annotations

import re
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.data.archive import Archive, read_archive
from graphweave.data.knowledge_graph import KnowledgeGraph
from graphweave.data.machine_memory import check_fits
from graphweave.data.node_data import NO_LABEL
from graphweave.data.split import mask_of, random_split
from graphweave.data.typed_node_data import TypedNodeData

LAYOUT = (
    "{train,valid,test}_{head,rel,tail} of a knowledge graph, head, rel, tail and y of RDF, or node_type_names, "
    "node_counts, edge_type_names, edge_NAME_src, edge_NAME_dst, target and y of a typed graph"
)
_SPLITS = ("train", "valid", "test")
_SPLIT_SIZE = re.compile(r"train_(\d+)_idx")
OTHER_SIZES = re.compile(r"(train|val|test)_\d+_idx")
"""Splits in several sizes, of which the largest is taken."""


def relational(path: str | Path, *, seed: int = 0) -> KnowledgeGraph | TypedNodeData:
    """The relational graph in a file of named arrays, read without pickle. The arrays' names tell which of three kinds.

    A knowledge graph: `num_nodes`, `num_relations`, and `{train,valid,test}_{head,rel,tail}`.

    RDF: `head`, `rel`, `tail`, `num_nodes`, `num_relations`; labels `y` (-1 for none). For each edge of relation r, the
    reverse edge is added with relation r + num_relations. There is one node type, without features.

    A typed graph: `node_type_names`, `node_counts`, `edge_type_names` as "source|relation|target", for each relation
    `edge_RELATION_src` and `_dst` (numbers within the type; reverse edges are added as relations of their own);
    features of a type in `feat_TYPE`, or CSR in `feat_TYPE_{indptr,indices,data,shape}`; `target`, the labelled type,
    with labels `y`. Nodes of the result are grouped by type, in the file's order.

    The last two may have splits: `train_idx`, `test_idx` and optionally `val_idx`, or else `{train,val,test}_N_idx`,
    of which the largest N is taken. By default the labelled nodes are split 60/20/20 at random, seeded by `seed`.
    """
    file = read_archive(path, LAYOUT)
    data = relational_data(file, seed)
    file.tell_unused(key for key in file.arrays if OTHER_SIZES.fullmatch(key))
    return data


def relational_data(file: Archive, seed: int) -> KnowledgeGraph | TypedNodeData:
    """The relational graph of named arrays, as `relational` reads it."""
    if any(f"{part}_head" in file for part in _SPLITS):
        return _knowledge_graph(file)
    if "head" in file:
        return _rdf(file, seed)
    if "node_type_names" in file:
        return _typed(file, seed)
    if "dst" in file:
        raise DataError(f"{file.name}: a graph without relations (expected {LAYOUT}). Correct the file.")
    raise DataError(f"{file.name}: no relational graph (expected {LAYOUT}). Correct the file.")


def _knowledge_graph(file: Archive) -> KnowledgeGraph:
    nodes, rels = file.count("num_nodes"), file.count("num_relations")
    train, valid, test = (_triples(file, f"{part}_") for part in _SPLITS)
    return KnowledgeGraph(train, valid, test, nodes, rels, file.name)


def _triples(file: Archive, prefix: str) -> Tensor:
    columns = [file.integers(prefix + key) for key in ("head", "rel", "tail")]
    lengths = [column.numel() for column in columns]
    if len(set(lengths)) > 1:
        raise DataError(f"{file.name}: '{prefix}head', '{prefix}rel' and '{prefix}tail' must have one length (got "
                        f"{lengths[0]}, {lengths[1]} and {lengths[2]})." " Correct the file.")  # fmt: skip
    return torch.stack(columns, 1)


def _rdf(file: Archive, seed: int) -> TypedNodeData:
    nodes, rels = file.count("num_nodes"), file.count("num_relations")
    none = torch.empty((0, 3), dtype=torch.int64)
    graph = KnowledgeGraph(_triples(file, ""), none, none, nodes, rels, file.name)
    src, etype, dst = graph.both_ways(graph.train).unbind(1)
    y = file.labels(nodes)
    masks = _masks(file, y, nodes, 0, seed)
    edges = torch.stack([src, dst])
    return TypedNodeData((nodes,), (None,), edges, etype, 2 * rels, y, *masks, file.num_classes(y), file.name)


def _typed(file: Archive, seed: int) -> TypedNodeData:
    names, counts = file.texts("node_type_names"), file.integers("node_counts").tolist()
    if len(names) != len(counts) or min(counts, default=-1) < 0:
        raise DataError(
            f"{file.name}: 'node_counts' must be {len(names)} numbers of nodes, one a type (got {counts})."
            " Correct the file."
        )
    check_fits(8 * sum(counts), f"{file.name}: 'node_counts' = {counts}")
    first = dict(zip(names, accumulate(counts, initial=0), strict=False))
    count = dict(zip(names, counts, strict=True))
    target = file.texts("target")[0]
    if target not in count:
        raise DataError(f"{file.name}: 'target' must be one of {', '.join(names)} (got {target!r}). Correct the file.")
    edges, etype, rels = _typed_edges(file, count, first)
    nodes, begin = sum(counts), first[target]
    y = torch.full((nodes,), NO_LABEL, dtype=torch.int64)
    y[begin : begin + count[target]] = file.labels(count[target])
    masks = _masks(file, y, count[target], begin, seed)
    features = tuple(file.features(f"feat_{kind}", count[kind]) for kind in names)
    return TypedNodeData(tuple(counts), features, edges, etype, rels, y, *masks, file.num_classes(y), file.name)


def _typed_edges(file: Archive, count: dict[str, int], first: dict[str, int]) -> tuple[Tensor, Tensor, int]:
    """Edges [2, E] among all nodes, their relations [E], and the number of relations.

    Relation 2 i is the file's i-th relation, and 2 i + 1 is its reverse.
    """
    ends, types = [torch.empty((2, 0), dtype=torch.int64)], [torch.empty(0, dtype=torch.int64)]
    for text in file.texts("edge_type_names"):
        parts = text.split("|")
        if len(parts) != 3 or parts[0] not in count or parts[2] not in count:
            raise DataError(f"{file.name}: 'edge_type_names' must be source|relation|target, of types "
                            f"{', '.join(count)} (got {text!r})." " Correct the file.")  # fmt: skip
        source, relation, target = parts
        src = file.numbers(f"edge_{relation}_src", count[source], "node", f"type {source}")
        dst = file.numbers(f"edge_{relation}_dst", count[target], "node", f"type {target}")
        if src.numel() != dst.numel():
            raise DataError(f"{file.name}: 'edge_{relation}_src' and '_dst' must have one length (got {src.numel()} "
                            f"and {dst.numel()})." " Correct the file.")  # fmt: skip
        src, dst = src + first[source], dst + first[target]
        for one in (torch.stack([src, dst]), torch.stack([dst, src])):
            types.append(torch.full((src.numel(),), len(ends) - 1))
            ends.append(one)
    return torch.cat(ends, 1), torch.cat(types), len(ends) - 1


def _masks(file: Archive, y: Tensor, count: int, begin: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Masks of the file's split, which numbers the `count` nodes of the labelled type from 0. `begin` is the first of
    these nodes."""
    sizes = [int(found[1]) for key in file.arrays if (found := _SPLIT_SIZE.fullmatch(key))]
    middle = "" if "train_idx" in file or not sizes else f"{max(sizes)}_"
    if f"train_{middle}idx" not in file:
        return random_split(y, seed)
    masks = []
    for part in ("train", "val", "test"):
        key = f"{part}_{middle}idx"
        if part == "val" and key not in file:
            masks.append(torch.zeros_like(y, dtype=torch.bool))
        else:
            masks.append(mask_of(file.numbers(key, count, "node", "the labelled type") + begin, y.numel()))
    train, val, test = masks
    return train, val, test
