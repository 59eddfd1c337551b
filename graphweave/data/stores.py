"""Tensors under PyG's names, of a graph or of each of its types, as the arrays of docs/data.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.data.archive import Archive
from graphweave.data.relational import LAYOUT, relational_data
from graphweave.data.typed_node_data import TypedNodeData

MASKS = ("train_mask", "val_mask", "test_mask")
_ARRAYS = ("x", "edge_index", "y", *MASKS)


Store: TypeAlias = Mapping[str, Any]
"""Name of an attribute, as PyG has it -> tensor, or number of nodes."""

TypedStores: TypeAlias = Mapping[Any, Store]
"""Type of nodes, or canonical relation -> its attributes."""


def plain_arrays(store: Store) -> dict[str, np.ndarray]:
    """The arrays of one store: `x`, `edge_index`, `y`, the masks (the first column of those that have several) and
    `num_nodes`. Others are left out."""
    arrays = {key: store[key] for key in _ARRAYS if isinstance(store.get(key), Tensor)}
    for key in MASKS:
        if key in arrays and arrays[key].dim() == 2:
            arrays[key] = arrays[key][:, 0]
    if isinstance(store.get("num_nodes"), int):
        arrays["num_nodes"] = torch.tensor(store["num_nodes"])
    y = arrays.get("y")
    if y is not None and y.dim() == 2 and y.size(1) == 1:
        arrays["y"] = y[:, 0]
    return {key: value.numpy() for key, value in arrays.items()}


def typed_data(stores: TypedStores, name: str, seed: int) -> TypedNodeData:
    """A graph with a store for each node type, by its name, and for each relation, by its three names. The labelled
    type is the only one with `y`."""
    data = relational_data(Archive.of(_typed_arrays(stores, name), name, LAYOUT), seed)
    assert isinstance(data, TypedNodeData)  # node_type_names are there
    return data


def _typed_arrays(stores: TypedStores, name: str) -> dict[str, np.ndarray]:
    nodes = {key: store for key, store in stores.items() if isinstance(key, str)}
    labelled = [key for key, store in nodes.items() if "y" in store]
    if len(labelled) != 1:
        got = ", ".join(labelled) or "none"
        raise DataError(f"{name}: expected labels y of one node type (got {got}). Leave the others out.")
    counts = [_count(store, name) for store in nodes.values()]
    plain = plain_arrays(nodes[labelled[0]])
    arrays = {
        "node_type_names": np.array(list(nodes)), "node_counts": np.array(counts), "target": np.array(labelled[0]),
        **{key: plain[key] for key in ("y", *MASKS) if key in plain},
    }  # fmt: skip
    names = []
    for key, store in stores.items():
        if isinstance(key, tuple):
            relation = "-".join(key)  # names of relations may occur between several types
            names.append(f"{key[0]}|{relation}|{key[2]}")
            ends = store["edge_index"].numpy()
            arrays[f"edge_{relation}_src"], arrays[f"edge_{relation}_dst"] = ends[0], ends[1]
    features = {f"feat_{key}": store["x"].numpy() for key, store in nodes.items() if "x" in store}
    return arrays | features | {"edge_type_names": np.array(names)}


def _count(store: Store, name: str) -> int:
    if "num_nodes" in store:
        return int(store["num_nodes"])
    for key in ("x", "y"):
        if key in store:
            return int(store[key].size(0))
    raise DataError(f"{name}: expected x or num_nodes of each node type (got neither). Give each type one.")
