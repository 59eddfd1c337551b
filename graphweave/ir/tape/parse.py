"""Text of the tape IR (GRAMMAR.md) back to a tape: `parse(show(tape)) == tape`."""

from __future__ import annotations

from typing import Any

import graphweave.ir.tape.values as _values  # noqa: F401  declares how values are read
from graphweave.ir.reader import Reader
from graphweave.ir.tape.nodes import TAPE, Tape


def parse(text: str) -> Tape:
    """The tape that `text` shows. Raises ParseError with the line, if the text does not follow the grammar."""
    return Reader(text).parse(_tape)


def _tape(reader: Reader) -> Any:
    tape = TAPE.read("Tape", reader, {})
    reader.end()
    return tape
