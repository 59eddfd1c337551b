"""Data sets of the Open Graph Benchmark as they lie on disk, read without the package `ogb`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from graphweave.core.errors import DataError
from graphweave.data.archive import Archive
from graphweave.data.graph_set import LAYOUT as SET_LAYOUT
from graphweave.data.graph_set import GraphSet, graph_set_of
from graphweave.data.node_data import NodeData
from graphweave.data.npz import LAYOUT, node_data

EDGES = Path("raw", "edge.csv.gz")
"""File that every folder of this layout has."""
_PARTS = {"train": "train_idx", "valid": "val_idx", "test": "test_idx"}


def ogb(folder: str | Path, *, symmetric: bool = False, seed: int = 0) -> NodeData | GraphSet:
    """A data set in OGB's folder: `raw/edge.csv.gz`, `raw/num-node-list.csv.gz`, `raw/num-edge-list.csv.gz`, optionally
    `raw/node-feat.csv.gz`, and `split/NAME/{train,valid,test}.csv.gz`.

    With `raw/node-label.csv.gz` it is one graph with classes of nodes; with `raw/graph-label.csv.gz`, a set of graphs,
    whose whole-numbered features are categories. `symmetric` adds the reverse of each edge, as `ogb` does for
    molecules. DataError for data sets in other layouts (links, several node types, binary files).
    """
    folder = Path(folder)
    if not (folder / EDGES).is_file():
        raise DataError(
            f"{folder}: expected OGB's layout of a graph or of graphs, with {EDGES} (got a folder without it). Name the"
            " folder that has raw/ and split/."
        )
    arrays = _arrays(folder, symmetric)
    if "graph_ptr" in arrays:
        return graph_set_of(Archive.of(arrays, folder.name, SET_LAYOUT), seed=seed)
    return node_data(Archive.of(arrays, folder.name, LAYOUT), symmetric=symmetric, seed=seed)


def _arrays(folder: Path, symmetric: bool) -> dict[str, np.ndarray]:
    """The arrays of docs/data.md that the files hold."""
    raw = folder / "raw"
    src, dst = _read(folder / EDGES).astype(np.int64).T.reshape(2, -1)
    nodes = _read(raw / "num-node-list.csv.gz").astype(np.int64).reshape(-1)
    features = _read(raw / "node-feat.csv.gz") if (raw / "node-feat.csv.gz").is_file() else None
    arrays = {"num_nodes": np.array(nodes.sum())}
    if (raw / "graph-label.csv.gz").is_file():
        edges = _read(raw / "num-edge-list.csv.gz").astype(np.int64).reshape(-1)
        begins = np.concatenate([[0], nodes.cumsum()])
        shift = begins[:-1].repeat(edges)
        if shift.size != src.size:
            raise DataError(f"{folder}: raw/num-edge-list.csv.gz must have the sum {src.size} (got {shift.size})."
                            " Correct the file.")  # fmt: skip
        src, dst = src + shift, dst + shift
        if symmetric:
            src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
        arrays |= {"graph_ptr": begins, "y": _labels(_read(raw / "graph-label.csv.gz"))}
        if features is not None:
            arrays["atom_feat" if (features % 1 == 0).all() else "feat"] = features
    else:
        if not (raw / "node-label.csv.gz").is_file():
            raise DataError(
                f"{folder}: expected raw/node-label.csv.gz or raw/graph-label.csv.gz (got neither, as links have)."
                " Name a data set with labels."
            )
        arrays["y"] = _labels(_read(raw / "node-label.csv.gz"), missing=-1)
        if features is not None:
            arrays["feat"] = features.astype(np.float32)
    return arrays | {"src": src, "dst": dst} | _split(folder / "split")


def _labels(values: np.ndarray, missing: float = np.nan) -> np.ndarray:
    """[rows] whole numbers of classes where there is one column of such, else [rows, targets]."""
    if values.shape[1] == 1:
        column = np.where(np.isnan(values[:, 0]), missing, values[:, 0])
        return column.astype(np.int64) if (column % 1 == 0).all() else column
    return values


def _split(folder: Path) -> dict[str, np.ndarray]:
    schemes = sorted(path for path in folder.glob("*") if (path / "train.csv.gz").is_file())
    if len(schemes) > 1:
        raise DataError(f"{folder}: expected one split (got {', '.join(p.name for p in schemes)}). Move the others.")
    files = {key: schemes[0] / f"{part}.csv.gz" for part, key in _PARTS.items() if schemes}
    return {key: _read(file).astype(np.int64).reshape(-1) for key, file in files.items()}


def _read(file: Path) -> np.ndarray:
    """[rows, columns] float64, NaN where a number is missing."""
    if not file.is_file():
        raise DataError(f"{file}: no such file, which OGB's layout has. Check the folder.")
    try:
        return np.loadtxt(file, delimiter=",", ndmin=2, converters=lambda text: float(text or "nan"))
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{file}: not a table of numbers ({error}). Correct the file.") from error
