"""Graphs of NetworkX and igraph, and GraphML files, as node classification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphweave.core.errors import DataError
from graphweave.data.archive import Archive
from graphweave.data.node_data import NodeData
from graphweave.data.npz import LAYOUT, node_data

if TYPE_CHECKING:
    import igraph as ig
    import networkx as nx

_PARTS = ("train", "val", "test")


def networkx(
    graph: nx.Graph, *, features: Sequence[str] | None = None, label: str = "y", split: str = "split", seed: int = 0
) -> NodeData:
    """A NetworkX graph, whose nodes are numbered in its own order. An undirected edge becomes two, a self-loop one.

    `features` name attributes of nodes, numbers or lists of numbers; by default all that every node has, apart from
    the `label` and the `split`. Labels are numbers of classes, or any values, whose sorted texts are the classes; a
    node without one has none. `split` names an attribute with "train", "val" or "test". What is absent is drawn as in
    `npz`.
    """
    nodes = list(graph.nodes)
    place = {node: number for number, node in enumerate(nodes)}
    directed = graph if graph.is_directed() else graph.to_directed()
    ends = np.array([(place[u], place[v]) for u, v in directed.edges()], dtype=np.int64).reshape(-1, 2)
    rows = [graph.nodes[node] for node in nodes]
    return _node_data("a NetworkX graph", ends, rows, features, label, split, seed)


def igraph(
    graph: ig.Graph, *, features: Sequence[str] | None = None, label: str = "y", split: str = "split", seed: int = 0
) -> NodeData:
    """An igraph graph; attributes of vertices are read as `networkx` reads those of nodes."""
    ends = np.array(graph.get_edgelist(), dtype=np.int64).reshape(-1, 2)
    if not graph.is_directed():
        back = ends[ends[:, 0] != ends[:, 1]][:, ::-1]
        ends = np.concatenate([ends, back])
    rows = [{key: value for key, value in v.attributes().items() if value is not None} for v in graph.vs]
    return _node_data("an igraph graph", ends, rows, features, label, split, seed)


def graphml(
    path: str | Path, *, features: Sequence[str] | None = None, label: str = "y", split: str = "split", seed: int = 0
) -> NodeData:
    """A GraphML file, through NetworkX; attributes of nodes are read as `networkx` reads them."""
    try:
        # Imported here, since NetworkX is an optional dependency.
        import networkx as nx
    except ImportError as error:
        raise DataError("graphml: networkx is missing. Run: pip install networkx") from error
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file. Check the path.")
    try:
        graph = nx.read_graphml(path)
    except (nx.NetworkXError, SyntaxError, ValueError, KeyError, OSError) as error:
        raise DataError(f"{path}: not readable GraphML ({error}). Write it with networkx.write_graphml.") from error
    return networkx(graph, features=features, label=label, split=split, seed=seed)


def _node_data(
    name: str, ends: np.ndarray, rows: Sequence[Mapping[str, object]], features: Sequence[str] | None, label: str,
    split: str, seed: int,
) -> NodeData:  # fmt: skip
    arrays = {"src": ends[:, 0], "dst": ends[:, 1], "num_nodes": np.array(len(rows))}
    chosen = _numeric(rows, {label, split}) if features is None else features
    if chosen:
        columns = [_column(rows, attribute, name) for attribute in chosen]
        arrays["feat"] = np.concatenate([column.reshape(len(rows), -1) for column in columns], 1)
    labels = [row.get(label) for row in rows]
    if any(value is not None for value in labels):
        arrays["y"] = _classes(labels)
    parts = [row.get(split) for row in rows]
    if any(part is not None for part in parts):
        if unknown := {part for part in parts if part is not None} - {*_PARTS}:
            raise DataError(f"{name}: {split} must be train, val or test (got {min(map(repr, unknown))}). Correct it.")
        for part in _PARTS:
            arrays[f"{part}_idx"] = np.array([i for i, own in enumerate(parts) if own == part], dtype=np.int64)
    return node_data(Archive.of(arrays, name, LAYOUT), seed=seed)


def _numeric(rows: Sequence[Mapping[str, object]], others: set[str]) -> list[str]:
    """Attributes that every node has, as numbers or lists of numbers of one length."""
    found = []
    for attribute in rows[0] if rows else ():
        shapes = {_shape(row.get(attribute)) for row in rows}
        if attribute not in others and len(shapes) == 1 and None not in shapes:
            found.append(attribute)
    return found


def _shape(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, (bool, int, float, list, tuple, np.ndarray, np.number)):
        return None
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        return None
    return array.shape if array.dtype.kind in "biuf" else None


def _column(rows: Sequence[Mapping[str, object]], attribute: str, name: str) -> np.ndarray:
    shapes = {_shape(row.get(attribute)) for row in rows}
    if len(shapes) != 1 or None in shapes:
        raise DataError(f"{name}: {attribute} must be numbers of one length at each node. Set it, or leave it out.")
    return np.array([row[attribute] for row in rows], dtype=np.float32)


def _classes(labels: Sequence[Any]) -> np.ndarray:
    whole = all(value is None or (isinstance(value, (int, np.integer)) and value >= -1) for value in labels)
    if whole:
        return np.array([-1 if value is None else int(value) for value in labels])
    names = sorted({str(value) for value in labels if value is not None})
    place = {text: number for number, text in enumerate(names)}
    return np.array([-1 if value is None else place[str(value)] for value in labels])
