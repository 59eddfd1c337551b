"""Names that DGL keeps in `dgl.base`: its error, and the names of the fields that it sets itself."""

from __future__ import annotations

import warnings

from graphweave.core.errors import GraphweaveError
from graphweave.graph.frame import EID, ETYPE, NID, NTYPE

__all__ = [
    "ALL",
    "EID",
    "ETYPE",
    "NID",
    "NTYPE",
    "DGLError",
    "DGLWarning",
    "dgl_warning",
    "is_all",
    "is_internal_column",
]

ALL = "__ALL__"
"""Stands for all nodes, all edges, or all fields."""

DGLError = GraphweaveError
"""Every error that this package raises on purpose is one."""


class DGLWarning(UserWarning):
    """A warning that DGL gives, too."""


def dgl_warning(message: str, category: type[Warning] = DGLWarning, stacklevel: int = 2) -> None:
    """Warn the caller of the function that calls this."""
    warnings.warn(message, category, stacklevel=stacklevel + 1)


_SET_BY_THE_PACKAGE = (NID, NTYPE)


def is_all(value: object) -> bool:
    """Whether `value` stands for all nodes, edges or fields."""
    return isinstance(value, str) and value == ALL


def is_internal_column(name: str) -> bool:
    """Whether a field is one that the package sets itself: '_ID' or '_TYPE'."""
    return name in _SET_BY_THE_PACKAGE
