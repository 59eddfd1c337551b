"""An index tensor together with what it names."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from graphweave.runtime import formats
from graphweave.runtime.tracked import Key, place


@dataclass(frozen=True, slots=True)
class Index:
    """int32 or int64 `values` [S] that name one of `rows` rows each; with `wrap`, -1 is the last."""

    values: Tensor
    rows: int
    wrap: bool = False

    def flat(self, wide: bool = False) -> Tensor:
        """The rows, int32 or int64 if wide, checked: IndexRangeError."""
        return formats.flat(self.values, self.rows, self.wrap, wide or self.wide)

    @property
    def wide(self) -> bool:
        """Whether it needs formats of 64 bits."""
        return max(self.rows, self.values.numel()) > formats.INT32_MAX

    @property
    def key(self) -> Key:
        """For caches: the same values, meant in the same way."""
        return place(self.values), self.rows, self.wrap
