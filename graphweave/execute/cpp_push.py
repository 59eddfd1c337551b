"""A fused push as a C++ kernel: its formats, and the rows and pieces to which it adds products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from graphweave.core.ranks import LinkName
from graphweave.execute.cpp_step import NONE_SENT, CppStep, OnGraph
from graphweave.execute.push_step import PushStep
from graphweave.execute.row_bounds import Within
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import Ref
from graphweave.lower.fused_push import CSRS
from graphweave.runtime import arena
from graphweave.runtime.index import INT32_MAX
from graphweave.runtime.threads import num_threads
from graphweave.runtime.typed_blocks import TypedBlocks, num_blocks, typed_blocks


class CppPushStep(PushStep, CppStep):
    """See `PushStep` and `CppStep`."""

    drivable = False

    def __call__(
        self, rows: tuple[int, ...], indices: Sequence[Tensor], inputs: Sequence[Tensor], within: Within | None = None,
        sent: Mapping[Ref, LinkName] = NONE_SENT,
    ) -> list[Tensor]:  # fmt: skip
        assert within is None and not sent, "a fused push computes all rows, and sends none"
        held = [t if t.is_contiguous() else t.contiguous() for t in inputs]
        there = self.on_graph(rows, indices)
        pieces = there.alive[0].pieces
        ((shape, dtype, _),) = self._made
        out = arena.empty((pieces.num_all, *shape), dtype)
        threads = num_threads(self.plan.scheduled.taken.threads)
        there.kernel(self.addresses(there, held, [out]), there.sizes, there.chunks, threads)
        return [pieces.folded(out)]

    def new_graph(self, rows: tuple[int, ...], indices: Sequence[Tensor]) -> OnGraph:
        ((shape, dtype, _),) = self._made
        with self._walked(rows, indices) as walked:
            along, types = walked.along, walked.types
            most = num_blocks(along.values.numel(), along.rows, numel(shape) * dtype.itemsize)
            wide = self._is_wide(rows, indices) or most * types.rows > INT32_MAX
            found = typed_blocks(types, along, most, wide)
            csrs, arrays = self._tables(walked, found, most, wide)
        heads = tuple(t.data_ptr() for t in csrs)
        sizes = (*_own_sizes(found), *rows, *(0 for _ in csrs))
        chunks = torch.arange(found.block.numel(), device="cpu")
        places = [a.data_ptr() for a in arrays]
        return OnGraph(self._kernel(wide), heads, places, chunks, sizes, (found, arrays))

    def counts(self, rows: tuple[int, ...], indices: Sequence[Tensor]) -> tuple[dict[str, int], dict[str, int]]:
        found, _ = self.on_graph(rows, indices).alive
        own = _own_sizes(found)
        positions = found.pieces.num_all, own[1], own[2], found.order.numel()
        sizes = dict(zip(self.plan.lowered.kernel.sizes, (*own, *rows), strict=True))
        return sizes, dict(zip(CSRS, positions, strict=True))


def _own_sizes(found: TypedBlocks) -> tuple[int, int, int]:
    return found.block.numel() - 1, found.group_type.numel(), found.pair_target.numel()
