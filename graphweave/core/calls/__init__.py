"""Facts that the compiler knows of PyTorch's calls, one row for each overload, one file for each family.

A row serves every room: the importer finds spaces by it, the passes find maps that lead to no row twice, a program over
ranks refuses what has no row. A call without a row is left to PyTorch, and nothing is assumed of it. How a call is
translated stands in `frontends/importing/ops_*.py`. `named.py` has the names of calls that the compiler writes itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphweave.core.calls.choices import CHOICES
from graphweave.core.calls.facts import ByRank, CallFacts, Elements, IndexUse, Lead
from graphweave.core.calls.indexing import INDEXING
from graphweave.core.calls.layout import LAYOUT
from graphweave.core.calls.reductions import REDUCTIONS
from graphweave.core.calls.row_by_row import ROWWISE
from graphweave.core.calls.sizes import SIZES

CALLS: Mapping[str, CallFacts] = {**INDEXING, **LAYOUT, **CHOICES, **REDUCTIONS, **ROWWISE, **SIZES}
"""Overload ("aten.index_select.default"), or operator with all its overloads ("aten.median") -> what is known of it."""

UNKNOWN = CallFacts()
"""The facts of a call without a row."""


def facts_of(name: str) -> CallFacts:
    """The facts of the overload `name`."""
    found = CALLS.get(name)
    if found is None:
        found = CALLS.get(name.rpartition(".")[0], UNKNOWN)
    return found


__all__ = ["CALLS", "UNKNOWN", "ByRank", "CallFacts", "Elements", "IndexUse", "Lead", "facts_of"]
