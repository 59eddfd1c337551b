"""An index tensor together with the number of rows that it indexes."""

from __future__ import annotations

from dataclasses import dataclass, field

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
    _key: Key | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def num_edges(self) -> int:
        return self.values.numel()

    @property
    def wide(self) -> bool:
        """Whether its formats need 64 bits."""
        return max(self.rows, self.num_edges) > INT32_MAX

    @property
    def key(self) -> Key:
        """A key for caches, equal for the same values with the same meaning."""
        if self._key is None:
            object.__setattr__(self, "_key", (place(self.values), self.rows, self.wrap))
        assert self._key is not None
        return self._key
