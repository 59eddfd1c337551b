"""Data sets of PyTorch Geometric as they lie on disk, and files of one `Data` or `HeteroData`."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphweave.core.errors import DataError
from graphweave.data.archive import Archive
from graphweave.data.graph_set import LAYOUT as SET_LAYOUT
from graphweave.data.graph_set import GraphSet, graph_set_of
from graphweave.data.node_data import NodeData
from graphweave.data.npz import LAYOUT, node_data
from graphweave.data.stores import Store, plain_arrays, typed_data
from graphweave.data.typed_node_data import TypedNodeData

_NOT_DATA = ("pre_filter.pt", "pre_transform.pt")


def pyg(path: str | Path, *, seed: int = 0) -> NodeData | GraphSet | TypedNodeData:
    """The data that PyG keeps in `path`: the folder of a data set (with `processed/`), a file `processed/data.pt`, or a
    file to which `torch.save` wrote a `Data` or `HeteroData`. It is read without running what a pickle says.

    One graph is classification of nodes, several are a set of graphs, and a graph with types is classification of the
    type that has `y`. Of masks in several columns, one for each split, the first counts. Attributes other than `x`,
    `edge_index`, `y` and the masks are left out.
    """
    try:
        # PyG is optional and takes seconds to load.
        from torch_geometric.data import Data, HeteroData, storage
        from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    except ImportError as error:
        raise DataError("pyg: torch_geometric is missing. Run: pip install 'graphweave[pyg]'") from error
    file = _file(Path(path))
    classes = [getattr(storage, f"{kind}Storage") for kind in ("Base", "Node", "Edge", "Global")]
    try:
        with torch.serialization.safe_globals([*classes, Data, HeteroData, DataEdgeAttr, DataTensorAttr]):
            found = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        unknown = re.search(r"Unsupported global: GLOBAL (\S+)", str(error))
        reason = f"it holds {unknown[1]}" if unknown else (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{file}: not a file that PyG wrote ({reason}). Write a Data with torch.save.") from error
    stores, slices = _stores(found, file)
    if any(isinstance(key, tuple) for key in stores):
        if slices:
            raise DataError(f"{file}: sets of graphs with types are not read. Name a file of one graph.")
        return typed_data({key: store for key, store in stores.items() if key != "_global_store"}, file.name, seed)
    if slices and len(slices.get("edge_index", ())) > 2:
        return graph_set_of(Archive.of(_set(stores, slices, file), file.name, SET_LAYOUT), seed=seed)
    return node_data(Archive.of(plain_arrays(stores), file.name, LAYOUT), seed=seed)


def _file(path: Path) -> Path:
    if path.is_file():
        return path
    folder = path / "processed" if (path / "processed").is_dir() else path
    found = sorted(file for file in folder.glob("*.pt") if file.name not in _NOT_DATA)
    if len(found) != 1:
        got = ", ".join(file.name for file in found) or "none"
        raise DataError(f"{path}: expected one file .pt in processed/ (got {got}). Name the file.")
    return found[0]


def _stores(found: object, file: Path) -> tuple[dict[Any, Any], Store | None]:
    """The attributes of `Data`, or type -> attributes of `HeteroData`; and where each graph of a set begins."""
    data, slices = (found[0], found[1]) if isinstance(found, tuple) and len(found) in (2, 3) else (found, None)
    if not isinstance(data, dict) and hasattr(data, "to_dict"):
        data = data.to_dict()
    if not isinstance(data, dict):
        raise DataError(
            f"{file}: expected a Data or HeteroData (got {type(data).__name__}). Write one with torch.save."
        )
    return data, slices


def _set(store: Store, slices: Store, file: Path) -> dict[str, np.ndarray]:
    arrays = plain_arrays(store)
    sizes = store.get("_num_nodes")  # of each graph, where PyG keeps them
    if "x" in slices:
        ptr = torch.as_tensor(slices["x"])
    elif isinstance(sizes, list):
        ptr = torch.cat([torch.zeros(1, dtype=torch.int64), torch.tensor(sizes).cumsum(0)])
    else:
        raise DataError(f"{file}: expected x or num_nodes of each graph (got neither). Give each graph one.")
    counts = torch.as_tensor(slices["edge_index"]).diff()
    edge_index = store["edge_index"] + ptr[:-1].repeat_interleave(counts)
    return arrays | {"edge_index": edge_index.numpy(), "graph_ptr": ptr.numpy(), "num_nodes": np.array(int(ptr[-1]))}
