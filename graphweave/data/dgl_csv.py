"""Reads the folders that DGL's `CSVDataset` reads, without DGL: `meta.yaml`, and tables of nodes, edges and graphs.

Nodes have identifiers, numbers or text, which count within a graph and a type; they are numbered in the order of these.
Every other column is a field: numbers, or in each cell a list of them ("0.1, 0.2").
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.core.json_values import JsonObject
from graphweave.data.dgl_file import Fields, StoredGraph

_VERSION = "1.0.0"
_TYPE, _RELATION = "_V", ["_V", "_E", "_V"]
"""The only type of nodes, and the only relation, where none is named."""

_SETTINGS: dict[str, dict[str, Any]] = {
    "": {"dataset_name": None, "version": _VERSION, "separator": ",", "node_data": None, "edge_data": None,
         "graph_data": {}},
    "node_data": {"file_name": None, "ntype": _TYPE, "node_id_field": "node_id", "graph_id_field": "graph_id"},
    "edge_data": {"file_name": None, "etype": _RELATION, "src_id_field": "src_id", "dst_id_field": "dst_id",
                  "graph_id_field": "graph_id"},
    "graph_data": {"file_name": None, "graph_id_field": "graph_id"},
}  # fmt: skip
"""Part of `meta.yaml` ("" is the whole) -> its settings with their defaults; None for those that it must have."""


@dataclass(frozen=True, slots=True, eq=False)
class _Nodes:
    """The nodes of a type, sorted by graph and identifier: the distinct identifiers, for each node the key graph *
    len(identifiers) + the place of its identifier, where each graph begins [graphs + 1], and the fields."""

    file: Path
    identifiers: pd.Index
    keys: np.ndarray
    begins: np.ndarray
    fields: Fields

    def places(self, table: pd.DataFrame, column: str, graph: np.ndarray) -> np.ndarray:
        """The numbers, within their graphs, of the nodes that a column of another table names."""
        named = table[column]
        if pd.api.types.is_object_dtype(self.identifiers.dtype) or pd.api.types.is_string_dtype(self.identifiers.dtype):
            named = named.astype(str)
        code = self.identifiers.get_indexer(pd.Index(named))
        keys = graph * len(self.identifiers) + code
        found = np.searchsorted(self.keys, keys)
        there = (code >= 0) & (found < len(self.keys))
        there[there] = self.keys[found[there]] == keys[there]
        if not there.all():
            row = int(np.flatnonzero(~there)[0])
            raise DataError(f"{self.file}: expected the node {table[column].iloc[row]}, which {column} in row {row + 1}"
                            " of the edges names, in the same graph (got none). Add it.")  # fmt: skip
        return found - self.begins[graph]


def read_dgl_csv(file: Path) -> tuple[list[StoredGraph], Fields]:
    """The graphs that a `meta.yaml` describes, and the fields of its table of graphs, in whose order the graphs are.
    DataError for anything else."""
    meta, folder = _read_meta(file), file.parent
    separator = meta["separator"]
    numbers, labels = pd.Index([0]), {}
    if meta["graph_data"]:
        table, own = _read_table(folder, meta["graph_data"], separator, "graph_id_field")
        numbers = pd.Index(table[own["graph_id_field"]])
        if numbers.has_duplicates:
            raise DataError(f"{folder / own['file_name']}: expected each graph once (got"
                            f" {numbers[numbers.duplicated()][0]} twice). Remove one.")  # fmt: skip
        labels = _fields(table, {own["graph_id_field"]}, folder / own["file_name"])
    nodes = {own["ntype"]: _read_nodes(folder, own, separator, numbers) for own in meta["node_data"]}
    graphs = [StoredGraph({}, {}, {}, {}) for _ in numbers]
    for kind, found in nodes.items():
        for graph, begin, end in zip(graphs, found.begins[:-1], found.begins[1:], strict=True):
            graph.num_nodes[kind] = int(end - begin)
            graph.node_fields[kind] = {name: values[begin:end] for name, values in found.fields.items()}
    for own in meta["edge_data"]:
        relation = tuple(own["etype"])
        begins, ends, fields = _read_edges(folder, own, separator, numbers, nodes)
        for graph, begin, end in zip(graphs, begins[:-1], begins[1:], strict=True):
            graph.ends[relation] = ends[:, begin:end]
            graph.edge_fields[relation] = {name: values[begin:end] for name, values in fields.items()}
    return graphs, labels


def _read_meta(file: Path) -> JsonObject:
    """The settings of `meta.yaml`, checked and complete."""
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        raise DataError(f"{file}: not readable YAML ({' '.join(str(error).split())}). Correct the file.") from error
    meta = _settings(found, "", file)
    if meta["version"] != _VERSION:
        raise DataError(f"{file}: expected the version {_VERSION} (got {meta['version']}). Write it anew.")
    if meta["graph_data"]:
        meta["graph_data"] = _settings(meta["graph_data"], "graph_data", file)
    for part, name in (("node_data", "ntype"), ("edge_data", "etype")):
        if not isinstance(meta[part], list):
            raise DataError(f"{file}: {part} must be a list (got {type(meta[part]).__name__}). Correct the file.")
        meta[part] = [_settings(own, part, file) for own in meta[part]]
        names = [str(own[name]) for own in meta[part]]
        if len({*names}) < len(names):
            raise DataError(f"{file}: expected one entry of {part} for each {name} (got {', '.join(names)})."
                            " Correct the file.")  # fmt: skip
    kinds = {own["ntype"] for own in meta["node_data"]}
    for own in meta["edge_data"]:
        relation = own["etype"]
        if not isinstance(relation, list) or len(relation) != 3 or not {relation[0], relation[2]} <= kinds:
            raise DataError(f"{file}: etype must be [source type, relation, destination type] with types of node_data"
                            f" (got {relation}). Correct the file.")  # fmt: skip
    return meta


def _settings(found: object, part: str, file: Path) -> JsonObject:
    """A part of `meta.yaml` with the defaults of what is not there."""
    known = _SETTINGS[part]
    needed = {name for name, default in known.items() if default is None}
    if not isinstance(found, Mapping) or not needed <= found.keys() <= known.keys():
        got = ", ".join(map(str, found)) if isinstance(found, Mapping) else type(found).__name__
        raise DataError(f"{file}: expected {', '.join(known)} in {part or 'the file'}, of which it needs"
                        f" {', '.join(sorted(needed))} (got {got}). Correct the file.")  # fmt: skip
    given = {name: value for name, value in found.items() if value is not None}
    return {
        **known,
        **{name: value if isinstance(value, (list, dict)) else str(value) for name, value in given.items()},
    }


def _read_table(folder: Path, own: JsonObject, separator: str, *needed: str) -> tuple[pd.DataFrame, JsonObject]:
    """A table, which must have the columns that these settings name, and the settings."""
    file = folder / own["file_name"]
    try:
        table = pd.read_csv(file, sep=separator, low_memory=False)
    except (OSError, ValueError, pd.errors.ParserError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{file}: not a readable table ({reason}). Correct the file, or meta.yaml.") from error
    columns = [own[name] for name in needed]
    for column in columns:
        if column not in table:
            raise DataError(f"{file}: expected a column {column} (got {', '.join(map(str, table.columns))})."
                            f" Add it, or name another in meta.yaml.")  # fmt: skip
    if table[columns].isna().any(axis=None):
        raise DataError(
            f"{file}: expected values everywhere in {', '.join(columns)} (got empty cells). Correct the file."
        )
    return table, own


def _graph_of_rows(table: pd.DataFrame, own: dict[str, object], numbers: pd.Index, file: Path) -> np.ndarray:
    """The place in `numbers` of each row's graph."""
    column = own["graph_id_field"]
    named = table[column] if column in table else pd.Series(np.zeros(len(table), dtype=np.int64))
    graph = numbers.get_indexer(pd.Index(named))
    if (graph < 0).any():
        raise DataError(f"{file}: expected graphs that the table of graphs has, or 0 without one (got"
                        f" {named[graph < 0].iloc[0]} in {column}). Add it to graph_data in meta.yaml.")  # fmt: skip
    return graph


def _read_nodes(folder: Path, settings: dict[str, object], separator: str, numbers: pd.Index) -> _Nodes:
    table, own = _read_table(folder, settings, separator, "node_id_field")
    file, column = folder / own["file_name"], own["node_id_field"]
    graph = _graph_of_rows(table, own, numbers, file)
    identifiers, code = np.unique(table[column].to_numpy(), return_inverse=True)
    keys = graph * len(identifiers) + code
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    if (keys[1:] == keys[:-1]).any():
        twice = identifiers[keys[1:][keys[1:] == keys[:-1]][0] % len(identifiers)]
        raise DataError(f"{file}: expected each node of a graph once (got {twice} twice). Remove one.")
    fields = _fields(table, {column, own["graph_id_field"]}, file)
    begins = np.searchsorted(graph[order], np.arange(len(numbers) + 1))
    return _Nodes(file, pd.Index(identifiers), keys, begins, _sorted(fields, order))


def _read_edges(
    folder: Path, settings: dict[str, object], separator: str, numbers: pd.Index, nodes: Mapping[str, _Nodes]
) -> tuple[np.ndarray, Tensor, Fields]:
    """Where the edges of each graph begin [graphs + 1], the ends [2, E] within the graphs, and the fields."""
    table, own = _read_table(folder, settings, separator, "src_id_field", "dst_id_field")
    file = folder / own["file_name"]
    graph = _graph_of_rows(table, own, numbers, file)
    source, _, destination = own["etype"]
    columns = (own["src_id_field"], own["dst_id_field"])
    ends = [nodes[kind].places(table, end, graph) for kind, end in zip((source, destination), columns, strict=True)]
    order = np.argsort(graph, kind="stable")
    fields = _fields(table, {*columns, own["graph_id_field"]}, file)
    begins = np.searchsorted(graph[order], np.arange(len(numbers) + 1))
    return begins, torch.from_numpy(np.stack(ends)[:, order].astype(np.int64)), _sorted(fields, order)


def _sorted(fields: Fields, order: np.ndarray) -> Fields:
    rows = torch.from_numpy(order)
    return {name: values[rows] for name, values in fields.items()}


def _fields(table: pd.DataFrame, identifiers: set[str], file: Path) -> Fields:
    """The columns that are no identifiers and have a name. float64 becomes float32, like in DGL."""
    named = [name for name in table if name not in identifiers and not str(name).startswith("Unnamed:")]
    found = {name: torch.from_numpy(_numbers(table[name], file)) for name in named}
    return {name: values.float() if values.dtype == torch.float64 else values for name, values in found.items()}


def _numbers(column: pd.Series, file: Path) -> np.ndarray:
    """[rows] numbers, or [rows, length] where cells hold lists."""
    if pd.api.types.is_bool_dtype(column.dtype) or pd.api.types.is_numeric_dtype(column.dtype):
        return column.to_numpy().copy()
    rows = [str(cell).strip(" []()").rstrip(",").split(",") for cell in column]
    if len({*map(len, rows)}) == 1:
        for kind in (np.int64, np.float64):
            with suppress(ValueError):
                return np.array(rows, dtype=kind)
    raise DataError(f"{file}: expected numbers, or lists of one length, in the column {column.name} (got"
                    f" {str(column.iloc[0])!r} first). Convert it, or leave it out.")  # fmt: skip
