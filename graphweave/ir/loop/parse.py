"""Text of the loop IR (GRAMMAR.md) back to a kernel: `parse(show(kernel)) == kernel`."""

from __future__ import annotations

import graphweave.ir.loop.values as _values  # noqa: F401  declares how values are read
from graphweave.ir.loop.nodes import LOOP, Kernel
from graphweave.ir.reader import Reader


def parse(text: str) -> Kernel:
    """The kernel that `text` shows.

    Raises:
        ParseError: with the line, if the text does not follow the grammar.
    """
    return Reader(text).parse(_kernel)


def _kernel(reader: Reader) -> Kernel:
    kernel = LOOP.read("Kernel", reader, {})
    reader.end()
    return kernel
