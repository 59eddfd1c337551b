"""Forgets graphs between the cases of a benchmark."""

from __future__ import annotations

import gc

from graphweave.execute.cpp_step import CppStep
from graphweave.execute.cpp_stretch import CppStretch
from graphweave.runtime import arena, formats
from graphweave.runtime.last_graph import LastGraph
from graphweave.runtime.memo import memo


def forget_graphs() -> None:
    """Drops all that graphweave keeps for graphs, and frees buffers."""
    for thing in gc.get_objects():
        if type(thing) in (CppStep, CppStretch, LastGraph):  # isinstance would ask dead proxies for their class
            thing.forget()
    formats.clear()
    memo.clear()
    arena.trim()
