"""The language of tapes, and what fields of steps name."""

from __future__ import annotations

from typing import TypeAlias

from graphweave.ir.message.types import Ref
from graphweave.ir.syntax import Language

TAPE = Language()
"""The text of tapes; `values.py` adds how values of each annotation are written."""

Made: TypeAlias = Ref
"""A value that a step makes."""

Given: TypeAlias = "Ref | None"
"""An operand; None for one that is no value: the map to the unit space, or the result of a check."""

Begun: TypeAlias = Ref
"""A value whose rows begin to move."""

Freed: TypeAlias = Ref
"""A value that nobody reads any more."""

Mapped: TypeAlias = Ref
"""A map, which is a node of the program but no value."""
