"""`dgl.transforms`: functions that make a graph from a graph, and classes of these with their options.

Each name is that of `graphweave.dgl` or of a module of this folder, and is loaded when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_BY_MODULE: dict[str, tuple[str, ...]] = {
    "base": ("BaseTransform", "Compose"),
    "chance": ("AddEdge", "DropEdge", "DropNode", "FeatMask", "NodeShuffle"),
    "diffusion": ("GCNNorm", "GDC", "HeatKernel", "PPR", "SIGNDiffusion"),
    "positions": ("LapPE", "LaplacianPE", "RandomWalkPE", "RowFeatNormalizer", "SVDPE"),
    "structure": (
        "AddMetaPaths", "AddReverse", "AddSelfLoop", "KHopGraph", "LineGraph", "RemoveSelfLoop", "ToLevi", "ToSimple",
    ),
}  # fmt: skip
"""Module of this folder -> its classes."""

CLASSES: dict[str, str] = {name: module for module, names in _BY_MODULE.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in CLASSES:
        found = getattr(import_module(f"{__name__}.{CLASSES[name]}"), name)
        globals()[name] = found
        return found
    if name == "functional":
        return import_module(f"{__name__}.functional")
    package = import_module("graphweave.dgl")
    if name in package._NAMES:
        return getattr(package, name)
    raise AttributeError(f"graphweave.dgl.transforms has no {name!r}: docs/dgl.md lists what DGL has and it lacks.")


def __dir__() -> list[str]:
    return sorted({*globals(), *CLASSES})
