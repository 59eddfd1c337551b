"""One relation of a graph: its name and its two maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

CanonicalEtype: TypeAlias = tuple[str, str, str]
"""(source type, name, destination type)"""


@dataclass(frozen=True, eq=False)
class Relation:
    """Edges src[e] -> dst[e] from nodes of one type to nodes of another, or of the same.

    The index tensors are shared with the compiler's caches: never write into them.
    """

    srctype: str
    etype: str
    dsttype: str
    src: Tensor
    """[num_edges], int32 or int64, contiguous: the row of each edge's source among the nodes of `srctype`."""
    dst: Tensor
    """[num_edges], same dtype: the row of each edge's destination among the nodes of `dsttype`."""

    @property
    def key(self) -> CanonicalEtype:
        return (self.srctype, self.etype, self.dsttype)

    @property
    def num_edges(self) -> int:
        return self.src.shape[0]
