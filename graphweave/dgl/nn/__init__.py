"""`dgl.nn`: the layers of `graphweave.nn`, which have DGL's names, arguments and parameters."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = ("functional", "pytorch")

_HERE: dict[str, str] = {
    "DeepWalk": "walk_embeddings",
    "GNNExplainer": "explain",
    "HeteroGNNExplainer": "explain",
    "HeteroPGExplainer": "explain",
    "HeteroSubgraphX": "explain",
    "KNNGraph": "point_graphs",
    "MetaPath2Vec": "walk_embeddings",
    "PGExplainer": "explain",
    "RadiusGraph": "point_graphs",
    "SegmentedKNNGraph": "point_graphs",
    "SubgraphX": "explain",
}
"""Name -> the module here that defines it, because it needs samplers or methods of DGL's graphs."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name == "edge_softmax":
        return import_module("graphweave.dgl.ops").edge_softmax
    if name in _HERE:
        return getattr(import_module(f"{__name__}.{_HERE[name]}"), name)
    found = getattr(import_module("graphweave.nn"), name, None)
    if found is None or name.startswith("_"):
        raise AttributeError(f"graphweave.dgl.nn has no {name!r}: docs/dgl.md lists what DGL has and it lacks.")
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_HERE, "edge_softmax", *import_module("graphweave.nn").__all__})
