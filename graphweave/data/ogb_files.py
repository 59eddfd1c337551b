"""The files of a data set in OGB's folder: tables in `.csv.gz` or arrays in `.npz`, and splits in `.csv.gz` or `.pt`.

OGB's own data sets have both kinds; whoever saves a data set with OGB's `DatasetSaver` gets arrays and `.pt`.
"""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from graphweave.core.errors import DataError
from graphweave.data.archive import read_arrays

Triplet: TypeAlias = tuple[str, str, str]
"""(type of heads, relation, type of tails)"""

NODE = "node"
_EDGE: Triplet = (NODE, "edge", NODE)
"""The only type, and the only relation, of graphs without types."""

_PARTS = ("train", "valid", "test")


@dataclass(frozen=True, slots=True, eq=False)
class RawGraphs:
    """The graphs of a data set, one after the other. Each type has the numbers of nodes [graphs] and, where there are
    some, features [nodes, F]; each relation the numbers of edges [graphs] and their ends [2, edges], which count nodes
    within each graph."""

    num_nodes: dict[str, np.ndarray]
    num_edges: dict[Triplet, np.ndarray]
    ends: dict[Triplet, np.ndarray]
    features: dict[str, np.ndarray]

    @property
    def is_typed(self) -> bool:
        return list(self.ends) != [_EDGE]


def is_ogb(folder: Path) -> bool:
    """Whether a folder has one of OGB's layouts."""
    return any((folder / "raw" / name).is_file() for name in _READERS)


def read_graphs(folder: Path) -> RawGraphs:
    """The graphs of a data set. DataError if the folder has another layout."""
    for name, read in _READERS.items():
        if (folder / "raw" / name).is_file():
            return read(folder / "raw")
    raise DataError(
        f"{folder}: expected OGB's layout, with one of {', '.join(_READERS)} in raw/ (got a folder without them)."
        " Name the folder that has raw/ and split/."
    )


def read_labels(folder: Path, kind: str) -> dict[str, np.ndarray]:
    """The labels [rows, targets] of `kind`, "node" or "graph", by type of node; those of graphs as of `NODE`."""
    raw = folder / "raw"
    if (raw / f"{kind}-label.npz").is_file():
        found = _arrays(raw / f"{kind}-label.npz")
        return {NODE if name == f"{kind}_label" else name: _table(array) for name, array in found.items()}
    if (raw / f"{kind}-label.csv.gz").is_file():
        return {NODE: _numbers(raw / f"{kind}-label.csv.gz")}
    files = sorted(raw.glob(f"{kind}-label/*/{kind}-label.csv.gz"))
    return {file.parent.name: _numbers(file) for file in files}


RawSplit: TypeAlias = Mapping[str, Any]
""" "train", "valid" and "test" -> rows, type of node -> rows, or the arrays of links or triples."""


def read_split(folder: Path) -> RawSplit:
    """ "train", "valid" and "test" -> numbers of rows, or such by type, or what a split of links has; empty if there is
    no split. DataError if there are several."""
    schemes = sorted(path for path in (folder / "split").glob("*") if path.is_dir())
    if len(schemes) > 1:
        names = ", ".join(path.name for path in schemes)
        raise DataError(f"{folder}: expected one split (got {names}). Move the others elsewhere.")
    if not schemes:
        return {}
    (scheme,) = schemes
    if (scheme / "split_dict.pt").is_file():
        found = _saved(scheme / "split_dict.pt")
        if not isinstance(found, Mapping) or not found.keys() >= {*_PARTS}:
            raise DataError(f"{scheme / 'split_dict.pt'}: expected {', '.join(_PARTS)} (got others). Save it again.")
        return {part: found[part] for part in _PARTS}
    if (scheme / "train.pt").is_file():
        return {part: _saved(scheme / f"{part}.pt") for part in _PARTS}
    kinds = sorted(path.parent.name for path in scheme.glob("*/train.csv.gz"))
    if kinds:
        return {part: {kind: _rows(scheme / kind / f"{part}.csv.gz") for kind in kinds} for part in _PARTS}
    return {part: _rows(scheme / f"{part}.csv.gz") for part in _PARTS}


def _plain_tables(raw: Path) -> RawGraphs:
    return RawGraphs(
        {NODE: _rows(raw / "num-node-list.csv.gz")}, {_EDGE: _rows(raw / "num-edge-list.csv.gz")},
        {_EDGE: _ends(raw / "edge.csv.gz")}, _features({NODE: raw / "node-feat.csv.gz"}),
    )  # fmt: skip


def _typed_tables(raw: Path) -> RawGraphs:
    kinds, *counts = _texts(raw / "num-node-dict.csv.gz") or [[]]
    if not counts or any(len(row) != len(kinds) or not all(map(str.isdigit, row)) for row in counts):
        raise DataError(f"{raw / 'num-node-dict.csv.gz'}: expected names of types, then their numbers of nodes (got"
                        f" {[kinds, *counts][:3]}). Correct the file.")  # fmt: skip
    names = ("___".join(row) for row in _texts(raw / "triplet-type-list.csv.gz"))
    folders = {_triplet(name, raw): raw / "relations" / name for name in sorted(names)}
    numbers = np.array(counts, dtype=np.int64).T
    return RawGraphs(
        dict(sorted(zip(kinds, numbers, strict=True))),
        {triplet: _rows(at / "num-edge-list.csv.gz") for triplet, at in folders.items()},
        {triplet: _ends(at / "edge.csv.gz") for triplet, at in folders.items()},
        _features({kind: raw / "node-feat" / kind / "node-feat.csv.gz" for kind in kinds}),
    )


def _plain_arrays(raw: Path) -> RawGraphs:
    needed = {"edge_index", "num_nodes_list", "num_edges_list"}
    found = read_arrays(raw / "data.npz", (needed | {"node_feat"}).__contains__)[0]
    missing = needed - found.keys()
    if missing:
        raise DataError(f"{raw / 'data.npz'}: expected the array {min(missing)} (got none). Add it.")
    features = {NODE: found["node_feat"]} if "node_feat" in found else {}
    return RawGraphs({NODE: found["num_nodes_list"]}, {_EDGE: found["num_edges_list"]},
                     {_EDGE: found["edge_index"]}, features)  # fmt: skip


def _typed_arrays(raw: Path) -> RawGraphs:
    ends, num_edges = (_by_triplet(raw / f"{name}_dict.npz") for name in ("edge_index", "num_edges"))
    features = _arrays(raw / "node_feat.npz") if (raw / "node_feat.npz").is_file() else {}
    return RawGraphs(dict(sorted(_arrays(raw / "num_nodes_dict.npz").items())), num_edges, ends, features)


_READERS = {
    "edge.csv.gz": _plain_tables, "triplet-type-list.csv.gz": _typed_tables, "data.npz": _plain_arrays,
    "edge_index_dict.npz": _typed_arrays,
}  # fmt: skip
"""File of `raw/` that tells the layout -> its reader."""


def _arrays(file: Path) -> dict[str, np.ndarray]:
    return read_arrays(file, lambda key: True)[0]


def _by_triplet(file: Path) -> dict[Triplet, np.ndarray]:
    return {_triplet(name, file): array for name, array in sorted(_arrays(file).items())}


def _triplet(name: str, file: Path) -> Triplet:
    parts = name.split("___")
    if len(parts) != 3:
        raise DataError(f"{file}: relations must be named HEAD___RELATION___TAIL (got {name}). Rename it.")
    return parts[0], parts[1], parts[2]


def _features(files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    return {kind: _numbers(file) for kind, file in files.items() if file.is_file()}


def _ends(file: Path) -> np.ndarray:
    return _numbers(file).astype(np.int64).T.reshape(2, -1)


def _rows(file: Path) -> np.ndarray:
    return _numbers(file).astype(np.int64).reshape(-1)


def _table(array: np.ndarray) -> np.ndarray:
    """[rows, columns] float64."""
    return array.reshape(len(array), -1).astype(np.float64)


def _texts(file: Path) -> list[list[str]]:
    _check_there(file)
    try:
        with gzip.open(file, "rt", encoding="utf-8") as stream:
            return [line.rstrip("\r\n").split(",") for line in stream]
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{file}: not a table ({error}). Correct the file.") from error


def _numbers(file: Path) -> np.ndarray:
    """[rows, columns] float64, NaN where a number is missing."""
    _check_there(file)
    try:
        try:
            return np.loadtxt(file, delimiter=",", ndmin=2)
        except ValueError:  # empty cells, which a converter reads ten times as slowly
            return np.loadtxt(file, delimiter=",", ndmin=2, converters=lambda text: float(text or "nan"))
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{file}: not a table of numbers ({error}). Correct the file.") from error


def _check_there(file: Path) -> None:
    if not file.is_file():
        raise DataError(f"{file}: no such file, which OGB's layout has. Check the folder.")


def _saved(file: Path) -> object:
    """The object that `torch.save` wrote, read without running what a pickle says, apart from arrays of NumPy."""
    _check_there(file)
    rebuild = np.empty(0).__reduce__()[0]
    # NumPy 2 has another name for the function that every pickle of an array calls.
    rebuilds: list[Any] = [(rebuild, f"{core}.multiarray._reconstruct") for core in ("numpy.core", "numpy._core")]
    kinds = {type(np.dtype(kind)) for kind in ("bool", "int32", "int64", "float32", "float64")}
    try:
        with torch.serialization.safe_globals([*rebuilds, np.ndarray, np.dtype, *kinds]):
            return torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise DataError(
            f"{file}: not a split that torch.save wrote ({str(error).splitlines()[0]}). Save it again."
        ) from error
