"""Loop-IR kernels and message programs by Triton's interpreter: everything here asks for TRITON_INTERPRET=1."""

from __future__ import annotations

import pytest
from torch import Tensor

from graphweave.codegen.triton import print_kernel
from graphweave.compiler.triton_step import Launches, launch
from graphweave.core.errors import ToolchainError
from graphweave.runtime import device_formats
from graphweave.runtime.triton_kernel import interpreted, load, require_triton
from tests.loop_support import Case


def _why_not() -> str:
    if not interpreted():
        return "runs in Triton's interpreter: TRITON_INTERPRET=1 (make test-triton)"
    try:
        require_triton()
    except ToolchainError as error:
        return str(error)
    return ""


needs_interpreter = pytest.mark.skipif(bool(_why_not()), reason=_why_not() or "-")


def by_triton(case: Case, how: Launches, ordered: bool = True) -> dict[str, Tensor]:
    """The case's results."""
    done = case.copy()
    kernel = done.kernel
    heads = [done.indptr[csr.name] for csr in kernel.csrs]
    order = device_formats.by_degree(heads[0]) if heads and ordered else None
    tensors = [done.buffers[b.name] for b in kernel.buffers]
    function = load(print_kernel(kernel), kernel.name)
    launch(function, kernel, heads, tensors, order, done.sizes[kernel.sizes[0]], how)
    return done.results
