"""Tapes as text (GRAMMAR.md); `parse` reads it back to an equal tape."""

from __future__ import annotations

import graphweave.ir.tape.values as _values  # noqa: F401  declares how values are written
from graphweave.ir.tape.nodes import TAPE, Step, Tape


def show(tape: Tape) -> str:
    """The tape's text, a line for most steps, ending in a newline."""
    return TAPE.write(tape) + "\n"


def show_step(step: Step) -> str:
    """The first line of a step's text."""
    return TAPE.write(step).partition("\n")[0]
