"""Kernels as text (GRAMMAR.md); `parse` reads it back to an equal kernel."""

from __future__ import annotations

import graphweave.ir.loop.values as _values  # noqa: F401  declares how values are written
from graphweave.ir.loop.nodes import LOOP, Kernel


def show(kernel: Kernel) -> str:
    """The kernel's text, one statement on each line, ending in a newline."""
    return LOOP.write(kernel) + "\n"
