"""Text of the tape IR (GRAMMAR.md) back to a tape: `parse(show(tape)) == tape`."""

from __future__ import annotations

import graphweave.ir.tape.values as _values  # noqa: F401  declares how values are read
from graphweave.ir.reader import Reader
from graphweave.ir.tape.nodes import Tape
from graphweave.ir.tape.types import TAPE


def parse(text: str) -> Tape:
    """The tape that `text` shows. Raises ParseError with the line, if the text does not follow the grammar."""
    return Reader(text).parse(_tape)


def _tape(reader: Reader) -> Tape:
    tape = TAPE.read("Tape", reader, {})
    reader.end()
    return tape
