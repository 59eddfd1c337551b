"""Parts that steps of a fused push share on every target: indices that its kernel walks, and tables made of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from graphweave.execute.region_step import Format, RegionStep
from graphweave.ir.message.nodes import Ref
from graphweave.lower.fused_push import CSRS
from graphweave.lower.parameters import Column, Perm, Table
from graphweave.runtime.index import Index
from graphweave.runtime.push_tables import PushTables, column


@dataclass(frozen=True, slots=True)
class Walked:
    """The indices of a call: those of `every` map, of the map `along` which it pushes, and of the map that gives
    `types`."""

    every: Mapping[Ref, Index]
    along: Index
    types: Index


class PushStep(RegionStep):
    """The `RegionStep` of a fused push. The kernel's rows are row blocks of the result; its sizes count blocks, groups
    and pairs."""

    @contextmanager
    def _walked(self, rows: tuple[int, ...], indices: Sequence[Tensor]) -> Iterator[Walked]:
        """The indices of the call. Inside the block, an error about an index out of range gets the index's name."""
        lowered = self.plan.lowered
        assert lowered.map is not None and lowered.types is not None
        with self._indices(rows, indices) as every:
            yield Walked(every, every[lowered.map], every[lowered.types])

    def _tables(
        self, walked: Walked, found: PushTables, how: Hashable, wide: bool
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The indptr of the CSRs, and the other formats. `how` is the key of the way in which `found` divides rows into
        blocks."""

        def table(binding: Format) -> Tensor:
            match binding:
                case Table(name):
                    tensor: Tensor = getattr(found, name)
                    return tensor
                case Perm():
                    return found.order
                case Column(_, other):
                    return column(found, walked.types, walked.along, walked.every[other], how, wide)
            raise AssertionError(f"a fused push walks no {binding}")

        csrs = [getattr(found, csr) for csr in CSRS[:-1]]
        return [*csrs, found.edges], [table(binding) for binding in self._formats]
