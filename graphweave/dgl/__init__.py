"""DGL's package under DGL's names: `import graphweave.dgl as dgl` runs DGL scripts unchanged (docs/dgl.md)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_NAMES: dict[str, str] = {
    "DGLGraph": "graph",
}
"""Name -> the module of this package that defines it. A module is loaded when one of its names is first asked for."""

_MODULES = ()
"""Modules that are names of the package themselves: `dgl.nn`, `dgl.transforms`."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in _NAMES:
        raise AttributeError(f"graphweave.dgl has no {name!r}: docs/dgl.md lists what DGL has and it lacks.")
    found = getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES, *_MODULES})
