"""Names that PyTorch Geometric and DGL give to the arrays of a graph, and the names of docs/data.md for them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from graphweave.core.errors import DataError

_SAME = {"x": "feat", "features": "feat", "label": "y", "labels": "y", "ptr": "graph_ptr"}
"""Usual name -> name in docs/data.md, for arrays that hold the same."""

FEATURES = ("feat", *(usual for usual, own in _SAME.items() if own == "feat"))
"""Names under which dense features are looked for."""

_PARTS = ("train", "val", "test")


@dataclass(slots=True)
class Renamed:
    """Arrays under the names of docs/data.md. `called` has the file's name for those that it calls otherwise;
    `mask_lengths` the lengths of the masks that became the numbers of their true entries; `inferred` the arrays that
    the file does not have, but others tell."""

    arrays: dict[str, np.ndarray]
    called: dict[str, str] = field(default_factory=dict)
    mask_lengths: dict[str, int] = field(default_factory=dict)
    inferred: set[str] = field(default_factory=set)

    def _rename(self, usual: str, own: dict[str, np.ndarray]) -> None:
        del self.arrays[usual]
        self.arrays.update(own)
        self.called.update(dict.fromkeys(own, usual))


def own_names(usual: str) -> tuple[str, ...]:
    """The names in docs/data.md of what an array of this usual name may become."""
    if usual == "edge_index":
        return ("src", "dst")
    if usual == "batch":
        return ("graph_ptr",)
    if usual.startswith("x_"):  # of a type, or a part of a CSR matrix
        return (f"feat_{usual.removeprefix('x_')}",)
    part, _, kind = usual.rpartition("_")
    if kind == "mask" and part in _PARTS:
        return (f"{part}_idx",)
    return (_SAME[usual],) if usual in _SAME else ()


def renamed(arrays: dict[str, np.ndarray], name: str) -> Renamed:
    """`arrays` of the file `name` under the names of docs/data.md. An array whose own name is taken by another, or that
    does not have the usual form, keeps its name. DataError for an `edge_index` that is not [2, edges]."""
    found = Renamed(dict(arrays))
    for usual, array in arrays.items():
        own = own_names(usual)
        if not own or any(key in found.arrays for key in own):
            continue
        if usual == "edge_index":
            if not {"indptr", "head", "train_head", "node_type_names"} & arrays.keys():
                found._rename(usual, _ends(array, name))
        elif usual == "batch":
            ptr = _graph_ptr(array)
            if ptr is not None:
                found._rename(usual, {"graph_ptr": ptr})
        elif own[0].endswith("_idx"):
            if array.ndim == 1 and array.dtype.kind in "biu" and ((array == 0) | (array == 1)).all():
                found._rename(usual, {own[0]: np.flatnonzero(array)})
                found.mask_lengths[own[0]] = array.size
        else:
            found._rename(usual, {own[0]: array})
    rows = None if "num_nodes" in found.arrays else _rows(arrays, found.arrays)
    if rows is not None:
        found.arrays["num_nodes"] = np.array(rows)
        found.inferred.add("num_nodes")
    return found


def _ends(edge_index: np.ndarray, name: str) -> dict[str, np.ndarray]:
    if edge_index.ndim != 2 or edge_index.shape[0] != 2 or edge_index.dtype.kind not in "iu":
        raise DataError(
            f"{name}: 'edge_index' must be integers [2, edges], sources and destinations (got {edge_index.dtype}"
            f" {list(edge_index.shape)}). Correct the file."
        )
    return {"src": edge_index[0], "dst": edge_index[1]}


def _graph_ptr(batch: np.ndarray) -> np.ndarray | None:
    """Where each graph begins, from the number of each node's graph; None where nodes are not sorted by graph."""
    if batch.ndim != 1 or batch.dtype.kind not in "iu" or not batch.size:
        return None
    steps = np.diff(batch.astype(np.int64))
    if int(batch[0]) != 0 or int(steps.min(initial=0)) < 0 or int(steps.max(initial=0)) > 1:
        return None
    return np.concatenate([[0], np.flatnonzero(steps) + 1, [batch.size]])


def _rows(usual: dict[str, np.ndarray], own: dict[str, np.ndarray]) -> int | None:
    """The number of nodes of a graph without types that does not tell it, from arrays with a row for each node; None
    if there are none."""
    if "src" not in own and "indptr" not in own:
        return None
    for key in ("feat", "node_attr", "node_label", "atom_feat"):
        if key in own and own[key].ndim:
            return own[key].shape[0]
    if own.get("feat_shape") is not None and own["feat_shape"].shape == (2,):
        return max(int(own["feat_shape"][0]), 0)
    if "batch" in usual and usual["batch"].ndim == 1:
        return usual["batch"].size
    if "indptr" in own and own["indptr"].ndim == 1 and own["indptr"].size:
        return own["indptr"].size - 1
    if "graph_ptr" not in own and "y" in own and own["y"].ndim == 1:
        return own["y"].size
    return None
