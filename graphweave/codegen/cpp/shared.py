"""The C++ text that is compiled for a kernel: that of all kernels which do the same."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import NamedTuple

from graphweave.codegen.cpp.kernel import print_kernel
from graphweave.ir.loop.canonical import canonical
from graphweave.ir.loop.nodes import Kernel

_NAME = "shared_kernel"
"""Name of a kernel until its text is known."""


class SharedText(NamedTuple):
    """A C++ text, and the name of the kernel in it."""

    text: str
    symbol: str


def shared_text(kernel: Kernel) -> SharedText:
    """The text of a well-formed kernel in canonical names, without the user's lines.

    The kernel is named by the text, so equal layers, both halves, training and evaluation, and other programs have one
    text for equal kernels, which is printed once in a process and compiled once. Raises IRError as `print_kernel` does.
    """
    return _printed(canonical(kernel, _NAME))


@lru_cache(maxsize=1024)
def _printed(kernel: Kernel) -> SharedText:
    text = print_kernel(kernel)
    symbol = f"kernel_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return SharedText(text.replace(_NAME, symbol), symbol)
