"""Loop-IR kernels and message programs by Triton's interpreter: everything here asks for TRITON_INTERPRET=1."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graphweave.core.errors import ToolchainError
from graphweave.core.types import DType
from graphweave.execute.triton_launch import Launches, run
from graphweave.execute.triton_step import Loaded
from graphweave.ir.loop.nodes import Role
from graphweave.runtime import device_formats
from graphweave.runtime.index import Index
from graphweave.runtime.row_pieces import row_pieces
from graphweave.runtime.triton_kernel import interpreted, require_triton
from tests.loop_support import Case


def _missing() -> str:
    try:
        require_triton()
    except ToolchainError as error:
        return str(error)
    return ""


_HOW = "runs in Triton's interpreter: TRITON_INTERPRET=1 (make test-triton)"

needs_triton = pytest.mark.skipif(bool(_missing()), reason=_missing() or "-")
needs_interpreter = pytest.mark.skipif(bool(_missing()) or not interpreted(), reason=_missing() or _HOW)


def by_triton(case: Case, how: Launches, ordered: bool = True) -> dict[str, Tensor]:
    """The case's results."""
    done = case.copy()
    kernel = done.kernel
    indptrs = [done.indptr[csr.name] for csr in kernel.csrs]
    order = device_formats.by_degree(indptrs[0]) if indptrs and ordered else None
    num_rows, wide = done.sizes[kernel.sizes[0]], kernel.index is DType.i64
    edges = torch.arange(num_rows).repeat_interleave(indptrs[0].diff()) if indptrs else torch.empty(0)
    jobs = Loaded.of(kernel).jobs(
        {**done.indptr, **done.buffers}, order, num_rows, edges.numel(), how,
        lambda cut: row_pieces(Index(edges, num_rows), wide, cut, how.size),
    )  # fmt: skip
    run(jobs, [(b, done.buffers[b.name]) for b in kernel.buffers if b.role is Role.total])
    return done.results
