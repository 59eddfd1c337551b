"""The same model on many processes: parts of a graph, exchange of rows, and training on ranks (docs/distributed.md)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphweave.distributed.full_graph import shard
    from graphweave.distributed.load import load_part
    from graphweave.distributed.part import GraphPart
    from graphweave.distributed.parts import parts_of

__all__ = ["GraphPart", "load_part", "parts_of", "shard"]

_MODULE_OF = {
    "GraphPart": "part",
    "load_part": "load",
    "parts_of": "parts",
    "shard": "full_graph",
}
"""Name -> the module that defines it, loaded when the name is first asked for: the compiler takes seconds to load."""


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
