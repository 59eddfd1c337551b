"""`dgl.nn.pytorch`: `dgl.nn` by its other name. `dgl/submodules.py` has the modules below it."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    below = sys.modules.get(f"{__name__}.{name}")
    return getattr(import_module("graphweave.dgl.nn"), name) if below is None else below
