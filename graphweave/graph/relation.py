"""One relation of a graph: its name and its two maps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from torch import Tensor

T = TypeVar("T")

CanonicalEtype: TypeAlias = tuple[str, str, str]
"""(source type, name, destination type)"""

Etype: TypeAlias = str | CanonicalEtype
"""A relation: its name, if no other relation has it, or (source type, name, destination type)."""

ByRelation: TypeAlias = Mapping[Any, T]
"""Relation -> value, where keys are any that `Etype` allows: the type of a mapping's keys does not vary."""


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
