"""Tables with keys, from data frames, files and databases, as one graph (docs/tables.md)."""

from graphweave.data.tables.build import from_tables
from graphweave.data.tables.graph import TableGraph, Target

__all__ = ["TableGraph", "Target", "from_tables"]
