"""A fused push as a C++ kernel: its formats, and the rows and pieces that it adds products to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from graphweave.compiler.cpp_step import CppStep
from graphweave.compiler.range_errors import of_map
from graphweave.core.errors import IndexRangeError
from graphweave.core.types import Space
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import Ref
from graphweave.lower.fused_push import CSRS
from graphweave.lower.parameters import Column, Flat, Perm, Table
from graphweave.runtime import arena, formats
from graphweave.runtime.index import Index
from graphweave.runtime.threads import num_threads
from graphweave.runtime.typed_blocks import TypedBlocks, column, num_blocks, typed_blocks


class CppPushStep(CppStep):
    """See `RegionStep`. The kernel's rows are blocks of the result's, and it counts its own rows, groups and pairs."""

    def __call__(self, rows: tuple[int, ...], indices: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
        held = [t if t.is_contiguous() else t.contiguous() for t in inputs]
        kernel, heads, found, chunks, sizes, pieces, _ = self._formats_for(rows, indices)
        ((shape, dtype, _),) = self._made
        out = arena.empty((pieces.num_all, *shape), dtype)
        kernel(self._addresses(heads, found, held, [out]), sizes, chunks, num_threads())
        return [pieces.folded(out)]

    def _bound(self, rows: tuple[int, ...], indices: Sequence[Tensor]) -> tuple[Any, ...]:
        counts = dict(zip(self.spaces, rows, strict=True))
        index = dict(zip(self.maps, indices, strict=True))
        try:
            return self._walked(rows, index, counts)
        except IndexRangeError as error:
            raise of_map(error, self._program, index) from None

    def _walked(
        self, rows: tuple[int, ...], index: Mapping[Ref, Tensor], counts: Mapping[Space, int]
    ) -> tuple[Any, ...]:
        lowered = self.plan.lowered
        assert lowered.map is not None and lowered.types is not None
        every = {m: Index(values, self._rows_of(m, counts), self._wraps(m)) for m, values in index.items()}
        along, types = every[lowered.map], every[lowered.types]
        ((shape, dtype, _),) = self._made
        most = num_blocks(along.values.numel(), along.rows, numel(shape) * dtype.itemsize)
        wide = self._is_wide(rows, list(index.values())) or most * types.rows > formats.INT32_MAX
        found = typed_blocks(types, along, most, wide)

        def table(binding: Perm | Column | Flat | Table) -> Tensor:
            match binding:
                case Table(name):
                    tensor: Tensor = getattr(found, name)
                    return tensor
                case Perm():
                    return found.order
                case Column(_, other):
                    return column(types, along, every[other], most, wide)
            raise AssertionError(f"a fused push walks no {binding}")

        arrays = [table(binding) for binding in self._formats]
        walked = [getattr(found, csr) for csr in CSRS[:-1]] + [found.edges]
        heads = tuple(t.data_ptr() for t in walked)
        sizes = (*_own_sizes(found), *rows, *(0 for _ in CSRS))
        chunks = torch.arange(found.block.numel())
        return self._kernel(wide), heads, [a.data_ptr() for a in arrays], chunks, sizes, found.pieces, (found, arrays)

    def counts(self, rows: tuple[int, ...], indices: Sequence[Tensor]) -> tuple[dict[str, int], dict[str, int]]:
        found, _ = self._formats_for(rows, indices)[-1]
        own = _own_sizes(found)
        positions = found.pieces.num_all, own[1], own[2], found.order.numel()
        sizes = dict(zip(self.plan.lowered.kernel.sizes, (*own, *rows), strict=True))
        return sizes, dict(zip(CSRS, positions, strict=True))


def _own_sizes(found: TypedBlocks) -> tuple[int, int, int]:
    return found.block.numel() - 1, found.group_type.numel(), found.pair_target.numel()
