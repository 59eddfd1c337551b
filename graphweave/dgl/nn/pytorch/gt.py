"""`dgl.nn.pytorch.gt`: names of `dgl.nn`."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if f"{__name__}.{name}" in sys.modules:
        return sys.modules[f"{__name__}.{name}"]
    return getattr(import_module("graphweave.dgl.nn"), name)
