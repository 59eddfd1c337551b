"""`dgl.nn.pytorch`: `dgl.nn` by its other name, and the modules below it from which scripts import."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = ("conv", "explain", "factory", "glob", "gt", "hetero", "link", "network_emb", "softmax", "utils")


def __getattr__(name: str) -> Any:
    return (
        import_module(f"{__name__}.{name}") if name in _MODULES else getattr(import_module("graphweave.dgl.nn"), name)
    )
