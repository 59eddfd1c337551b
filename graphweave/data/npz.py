"""Graphs from `.npz` files (docs/design.md, "Data files")."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.data.edges import symmetrise
from graphweave.data.node_data import NO_LABEL, NodeData
from graphweave.data.split import mask_of, random_split

Arrays: TypeAlias = dict[str, np.ndarray]

_RANDOM_FEATURES = 64
"""Width of the features drawn for a file that has none."""

_WANTED = (
    "src", "dst", "indptr", "num_nodes", "feat", "feat_indptr", "feat_indices", "feat_data", "feat_shape", "y",
    "num_classes", "train_idx", "val_idx", "test_idx",
)  # fmt: skip


def npz(path: str | Path, *, symmetric: bool = False, seed: int = 0) -> NodeData:
    """One homogeneous graph from a file of named arrays, read without pickle.

    Edges: `src`, `dst`, or `indptr`, `dst` grouped by source; `num_nodes`. Features: dense `feat` [N, F], or CSR in
    `feat_indptr`, `feat_indices`, `feat_data` (length 1 = that value everywhere), `feat_shape`; absent: 64 drawn from
    a normal distribution. Labels: `y` (-1 = none) and `num_classes`; absent: every node unlabelled. Split:
    `train_idx`, `val_idx`, `test_idx` (ignored without labels); absent: random 60/20/20 of the labelled nodes.
    `symmetric` adds reverse edges and drops duplicates and self-loops. `seed` serves whatever is drawn.
    """
    name = Path(path).name
    arrays = _read(Path(path), name)
    num_nodes = _scalar(arrays, "num_nodes", name)
    edge_index = _edges(arrays, num_nodes, name)
    x = _features(arrays, num_nodes, seed, name)
    y = _labels(arrays, num_nodes, name)
    if "num_classes" in arrays:
        num_classes = _scalar(arrays, "num_classes", name)
    else:
        num_classes = int(y.max()) + 1 if y.numel() else 0
    data = NodeData(x, edge_index, y, *_masks(arrays, y, num_nodes, seed, name), num_classes, name)
    if not symmetric:
        return data
    both = symmetrise(edge_index[0], edge_index[1], num_nodes)
    return NodeData(x, both, y, data.train_mask, data.val_mask, data.test_mask, num_classes, name)


def _read(path: Path, name: str) -> Arrays:
    if not path.is_file():
        raise DataError(f"{path}: no such file.")
    try:
        # Opened here: np.load leaves a file that is no archive open.
        with path.open("rb") as stream:
            file = np.load(stream, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise DataError(f"{name}: expected an .npz archive of named arrays (got a single array).")
            return {key: file[key] for key in _WANTED if key in file.files}
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{name}: not a readable .npz file ({str(error).splitlines()[0]}).") from error


def _need(arrays: Arrays, key: str, name: str) -> np.ndarray:
    if key not in arrays:
        raise DataError(f"{name}: array '{key}' is missing (expected src, dst or indptr, dst, and num_nodes).")
    return arrays[key]


def _scalar(arrays: Arrays, key: str, name: str) -> int:
    value = _need(arrays, key, name)
    if value.size != 1 or value.dtype.kind not in "iu" or int(value.reshape(())) < 0:
        raise DataError(f"{name}: '{key}' must be one non-negative integer (got {value.dtype} {list(value.shape)}).")
    return int(value.reshape(()))


def _integers(arrays: Arrays, key: str, name: str) -> Tensor:
    """A one-dimensional integer array as int64."""
    array = _need(arrays, key, name)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(
            f"{name}: '{key}' must be a one-dimensional integer array (got {array.dtype} {list(array.shape)})."
        )
    return torch.from_numpy(array.astype(np.int64))


def _edges(arrays: Arrays, num_nodes: int, name: str) -> Tensor:
    dst = _integers(arrays, "dst", name)
    if "src" in arrays:
        src = _integers(arrays, "src", name)
    else:
        counts = _row_lengths(_integers(arrays, "indptr", name), num_nodes, dst.numel(), "indptr", name)
        src = torch.repeat_interleave(torch.arange(num_nodes), counts)
    if src.numel() != dst.numel():
        raise DataError(f"{name}: 'src' and 'dst' must have one length (got {src.numel()} and {dst.numel()}).")
    return torch.stack([src, dst])


def _row_lengths(indptr: Tensor, rows: int, entries: int, key: str, name: str) -> Tensor:
    """Entries of each row of a CSR array [rows], after checking that `indptr` [rows + 1] rises from 0 to `entries`."""
    if indptr.numel() != rows + 1:
        raise DataError(f"{name}: '{key}' must have length {rows + 1}, nodes + 1 (got {indptr.numel()}).")
    lengths = indptr.diff()
    if int(indptr[0]) != 0 or int(indptr[-1]) != entries or bool((lengths < 0).any()):
        raise DataError(f"{name}: '{key}' must rise from 0 to {entries} without a step back.")
    return lengths


def _features(arrays: Arrays, num_nodes: int, seed: int, name: str) -> Tensor:
    if "feat" in arrays:
        x = torch.from_numpy(_real(arrays["feat"], "feat", name))
    elif "feat_indptr" in arrays:
        x = _csr_features(arrays, num_nodes, name)
    else:
        return torch.randn(num_nodes, _RANDOM_FEATURES, generator=torch.Generator().manual_seed(seed))
    if x.dim() != 2 or x.size(0) != num_nodes:
        raise DataError(f"{name}: features must have shape [{num_nodes}, features] (got {list(x.shape)}).")
    return x


def _real(array: np.ndarray, key: str, name: str) -> np.ndarray:
    if array.dtype.kind not in "fiub":
        raise DataError(f"{name}: '{key}' must be numeric (got {array.dtype}).")
    return array.astype(np.float32)


def _csr_features(arrays: Arrays, num_nodes: int, name: str) -> Tensor:
    shape = _integers(arrays, "feat_shape", name).tolist()
    if len(shape) != 2 or shape[0] != num_nodes or shape[1] < 0:
        raise DataError(f"{name}: 'feat_shape' must be [{num_nodes}, features] (got {shape}).")
    columns = _integers(arrays, "feat_indices", name)
    indptr = _integers(arrays, "feat_indptr", name)
    lengths = _row_lengths(indptr, num_nodes, columns.numel(), "feat_indptr", name)
    values = torch.from_numpy(_real(_need(arrays, "feat_data", name), "feat_data", name))
    if values.dim() != 1 or values.numel() not in (1, columns.numel()):
        raise DataError(f"{name}: 'feat_data' must have length {columns.numel()} or 1 (got {list(values.shape)}).")
    bad = (columns < 0) | (columns >= shape[1])
    if bool(bad.any()):
        raise DataError(
            f"{name}: feature column {int(columns[bad][0])} is out of range: there are {shape[1]} features."
        )
    x = torch.zeros(shape)
    x[torch.repeat_interleave(torch.arange(num_nodes), lengths), columns] = values
    return x


def _labels(arrays: Arrays, num_nodes: int, name: str) -> Tensor:
    """Labels as int64; a float array is accepted if every value is a whole number."""
    if "y" not in arrays:
        return torch.full((num_nodes,), NO_LABEL, dtype=torch.int64)
    y = arrays["y"]
    if y.shape != (num_nodes,):
        raise DataError(f"{name}: labels 'y' must have shape [{num_nodes}], one for each node (got {list(y.shape)}).")
    if y.dtype.kind not in "fiub":
        raise DataError(f"{name}: labels 'y' must be integers (got {y.dtype}).")
    if y.dtype.kind == "f":
        whole = np.isfinite(y) & (np.floor(y) == y)
        if not whole.all():
            raise DataError(f"{name}: labels 'y' must be whole numbers (got {y[~whole].flat[0]}).")
    return torch.from_numpy(y.astype(np.int64))


def _masks(arrays: Arrays, y: Tensor, num_nodes: int, seed: int, name: str) -> tuple[Tensor, Tensor, Tensor]:
    keys = ("train_idx", "val_idx", "test_idx")
    present = [key for key in keys if key in arrays]
    if "y" not in arrays or not present:
        return random_split(y, seed)
    if len(present) < len(keys):
        raise DataError(f"{name}: a split needs train_idx, val_idx and test_idx (got only {', '.join(present)}).")
    train, val, test = (_index_mask(arrays, key, num_nodes, name) for key in keys)
    return train, val, test


def _index_mask(arrays: Arrays, key: str, num_nodes: int, name: str) -> Tensor:
    index = _integers(arrays, key, name)
    bad = (index < 0) | (index >= num_nodes)
    if bool(bad.any()):
        raise DataError(
            f"{name}: node {int(index[bad][0])} in '{key}' is out of range: the graph has {num_nodes} nodes."
        )
    return mask_of(index, num_nodes)
