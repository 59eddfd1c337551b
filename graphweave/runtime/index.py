"""An index tensor together with the number of rows that it indexes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from graphweave.runtime.tracked import Key, place

INT32_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Index:
    """int32 or int64 `values` [num_edges], of any stride, each of which names one of `rows` rows. With `wrap`, -1 is
    the last row."""

    values: Tensor
    rows: int
    wrap: bool = False

    @property
    def num_edges(self) -> int:
        return self.values.numel()

    @property
    def wide(self) -> bool:
        """Whether its formats need 64 bits."""
        return max(self.rows, self.num_edges) > INT32_MAX

    @property
    def key(self) -> Key:
        """A key for caches, equal for equal values with equal meaning."""
        return place(self.values), self.rows, self.wrap
