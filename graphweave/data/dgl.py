"""Graphs of DGL's data sets, read without DGL: files that `save_graphs` wrote, and tables that `CSVDataset` reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.data.archive import Archive
from graphweave.data.dgl_file import Fields, StoredGraph, read_dgl_graphs
from graphweave.data.graph_set import LAYOUT as SET_LAYOUT
from graphweave.data.graph_set import GraphSet, graph_set_of
from graphweave.data.knowledge_graph import KnowledgeGraph
from graphweave.data.node_data import NodeData
from graphweave.data.npz import LAYOUT, node_data
from graphweave.data.stores import MASKS, plain_arrays, typed_data
from graphweave.data.typed_node_data import TypedNodeData

_FEATURES = ("feat", "features", "feature", "x", "attr", "node_attr")
_LABELS = ("label", "labels", "y", "glabel")
_CATEGORIES = ("node_labels", "node_label", "label", "labels")
"""Names that fields have in DGL's data sets. Of several that are there, the first counts."""

_META = "meta.yaml"
"""File that tells how the tables of a `CSVDataset` are laid out."""

_TRIPLES = {"etype": "", "train_edge_mask": "train", "valid_edge_mask": "valid", "test_edge_mask": "test"}
"""Fields of a knowledge graph's edges: the relation, and whether an edge is one of the triples of each split. Inverse
edges are in none of them."""


def dgl(path: str | Path, *, seed: int = 0) -> NodeData | GraphSet | TypedNodeData | KnowledgeGraph:
    """The graphs in a file of DGL's `save_graphs`, or in the folder of a data set: of tables, if it has the `meta.yaml`
    of a `CSVDataset`, else in its only file `.bin`.

    One graph is classification of nodes, by the fields `label`, `feat` and the masks. Several are a set of graphs,
    whose targets and masks are the labels of the file, or columns of the table of graphs. A graph with types is
    classification of the type that has labels, and one whose edges have `etype` and a mask of each split is a knowledge
    graph. Other fields of edges are left out. What is absent is drawn as in `npz`.
    """
    file, graphs, labels = _read(Path(path))
    if not graphs:
        raise DataError(f"{file}: expected a graph (got none). Save one with save_graphs.")
    if any(len(graph.num_nodes) > 1 or len(graph.ends) > 1 for graph in graphs):
        if len(graphs) > 1:
            raise DataError(f"{file}: sets of graphs with types are not read (got {len(graphs)}). Save one of them.")
        return typed_data(_stores(graphs[0]), file.name, seed)
    if len(graphs) > 1:
        return _graph_set(graphs, labels, file, seed)
    if _TRIPLES.keys() <= next(iter(graphs[0].edge_fields.values())).keys():
        return _knowledge_graph(graphs[0], file)
    nodes, edges = _stores(graphs[0]).values()
    return node_data(Archive.of(plain_arrays(nodes | edges), file.name, LAYOUT), seed=seed)


def is_dgl(path: Path) -> bool:
    """Whether a path looks like a file or a folder of DGL's."""
    return path.suffix == ".bin" or (path / _META).is_file() or any(path.glob("*.bin"))


def _read(path: Path) -> tuple[Path, list[StoredGraph], Fields]:
    """The file or folder that has the graphs, the graphs, and the labels of graphs."""
    if (path / _META).is_file():
        try:
            from graphweave.data.dgl_csv import read_dgl_csv
        except ImportError as error:
            raise DataError(
                f"{path / _META}: tables need pandas and PyYAML ({error}). Run: pip install 'graphweave[tables]'"
            ) from error
        return path, *read_dgl_csv(path / _META)
    file = path
    if path.is_dir():
        found = sorted(path.glob("*.bin"))
        if len(found) != 1:
            got = ", ".join(other.name for other in found) or "none"
            raise DataError(f"{path}: expected {_META}, or one file .bin (got {got}). Name the file.")
        file = found[0]
    return file, *read_dgl_graphs(file)


def _first(fields: Fields, names: Iterable[str]) -> Tensor | None:
    return next((fields[name] for name in names if name in fields), None)


def _features(fields: Fields) -> Tensor | None:
    """[nodes, F], also of a field [nodes]."""
    found = _first(fields, _FEATURES)
    return found.unsqueeze(1) if found is not None and found.dim() == 1 else found


def _stores(graph: StoredGraph) -> dict[str | tuple[str, str, str], dict[str, Tensor | int]]:
    """The stores that PyG would have for the graph."""
    stores: dict[str | tuple[str, str, str], dict[str, Tensor | int]] = {}
    for kind, fields in graph.node_fields.items():
        named = {"x": _features(fields), "y": _first(fields, _LABELS)} | {key: fields.get(key) for key in MASKS}
        store: dict[str, Tensor | int] = {key: value for key, value in named.items() if value is not None}
        stores[kind] = store | {"num_nodes": graph.num_nodes[kind]}
    return stores | {key: {"edge_index": ends} for key, ends in graph.ends.items()}


def _knowledge_graph(graph: StoredGraph, file: Path) -> KnowledgeGraph:
    (ends,), (fields,), (num_nodes,) = graph.ends.values(), graph.edge_fields.values(), graph.num_nodes.values()
    triples = torch.stack([ends[0], fields["etype"], ends[1]], 1).long()
    parts = {part: triples[fields[mask].bool()] for mask, part in _TRIPLES.items() if part}
    num_rels = 1 + max((int(part[:, 1].max()) for part in parts.values() if len(part)), default=-1)
    return KnowledgeGraph(parts["train"], parts["valid"], parts["test"], num_nodes, num_rels, file.name)


def _graph_set(graphs: Sequence[StoredGraph], labels: Fields, file: Path, seed: int) -> GraphSet:
    y = _first(labels, _LABELS) if len(labels) != 1 else next(iter(labels.values()))
    if y is None or y.dim() not in (1, 2) or y.size(0) != len(graphs):
        got = ", ".join(f"{name} {list(value.shape)}" for name, value in labels.items()) or "none"
        raise DataError(
            f"{file}: expected a label of each of {len(graphs)} graphs, named label (got {got})."
            " Give save_graphs its labels, or the table of graphs this column."
        )
    sizes = torch.tensor([next(iter(graph.num_nodes.values())) for graph in graphs])
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    ends = [next(iter(graph.ends.values())) + int(first) for graph, first in zip(graphs, ptr, strict=False)]
    fields = [next(iter(graph.node_fields.values())) for graph in graphs]
    y = y.squeeze(1) if y.dim() == 2 and y.size(1) == 1 else y
    arrays = {"edge_index": torch.cat(ends, 1), "graph_ptr": ptr, "num_nodes": ptr[-1], "y": y}
    arrays |= {key: labels[key].flatten() for key in MASKS if key in labels}
    found = {"feat": [_features(own) for own in fields], "node_label": [_first(own, _CATEGORIES) for own in fields]}
    for name, parts in found.items():
        if all(part is not None for part in parts):
            arrays[name] = torch.cat([part for part in parts if part is not None])
    return graph_set_of(
        Archive.of({name: value.numpy() for name, value in arrays.items()}, file.name, SET_LAYOUT), seed=seed
    )
