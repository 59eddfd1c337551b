"""A fused push as a Triton kernel: its tables, and the rows and pieces to which it adds products.

The host does not ask the device how many pairs and groups there are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from graphweave.analysis.cones import type_of
from graphweave.codegen.triton.axes import power_of_two
from graphweave.execute.push_step import PushStep, Walked
from graphweave.execute.triton_folds import fold_parts
from graphweave.execute.triton_launch import TritonJob, run
from graphweave.execute.triton_step import TritonStep
from graphweave.lower.fused_push import CSRS
from graphweave.runtime.typed_pairs import PairSizes, typed_pairs

BLOCK = 256
"""A row block has at least about this many edges. In smaller blocks hardly two edges share a type; with larger ones, a
small graph has few blocks."""

BLOCKS = 1024
"""Limit on the row blocks of a push."""

PIECE = 256
"""Minimum number of edges of a piece of a divided row, except for the last piece."""

PIECES = 4096
"""Limit on the pieces of a push. It is one for every eight rows if that is more."""


class TritonPushStep(PushStep, TritonStep):
    """The `PushStep` of a Triton kernel."""

    def __call__(self, rows: tuple[int, ...], indices: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
        device = next((t.device for t in (*indices, *inputs) if t.device.type != "cpu"), torch.device("cpu"))
        with self._walked(rows, indices) as walked:
            if indices[0].numel() == 0:
                ((shape, dtype, _),) = self._made
                return [torch.zeros((walked.along.rows, *shape), dtype=dtype, device=device)]
            return [self._added(walked, rows, indices, [t.to(device, non_blocking=True) for t in inputs])]

    def _added(
        self, walked: Walked, rows: tuple[int, ...], indices: Sequence[Tensor], inputs: Sequence[Tensor]
    ) -> Tensor:
        ((shape, dtype, _),) = self._made
        types, along, wide = walked.types, walked.along, self._is_wide(rows, indices)
        sizes = sizes_of(along.values.numel(), along.rows)
        found = typed_pairs(types, along, sizes, wide)
        csrs, arrays = self._tables(walked, found, sizes, wide)
        # Products are added to zeros. The kernel itself clears no rows, since several blocks may add to one row.
        sums = torch.zeros((along.rows + found.folds.slots, *shape), dtype=dtype, device=found.order.device)
        given = {"format": arrays, "in": [t.contiguous() for t in inputs], "out": [sums]}
        loaded = self._kernel(wide)
        slots = zip(loaded.kernel.buffers, self._slots, strict=True)
        tensors = {**dict(zip(CSRS, csrs, strict=True)), **{b.name: given[kind][i] for b, (kind, i) in slots}}
        run(
            [TritonJob(loaded.kernel, loaded.function, tensors, None, 0, found.groups.numel() - 1, self._how.short)], ()
        )
        (written,) = self.writes
        return fold_parts(sums, found.folds, along.rows, type_of(self._program, written).dtype)


def sizes_of(edges: int, rows: int) -> PairSizes:
    """The edges of a block and of a piece. They are powers of two, so that graphs of similar size share compiled
    kernels."""
    block = power_of_two(-(-edges // BLOCKS))
    piece = power_of_two(-(-2 * edges // max(rows // 8, PIECES)))
    return PairSizes(max(block, BLOCK), max(piece, PIECE))
