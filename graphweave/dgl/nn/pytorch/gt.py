"""`dgl.nn.pytorch.gt`: names of `dgl.nn`."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(import_module("graphweave.dgl.nn"), name)
