"""A reader of text that tries alternatives. If none fits, the error says what was expected at the furthest position."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn, TypeVar

from graphweave.core.errors import ParseError

_BLANK = re.compile(r"\s*", re.ASCII)
_T = TypeVar("_T")


class Miss(Exception):
    """Raised if the text does not fit. A caller with another alternative moves the reader back and tries that."""


class Reader:
    """A position in `text`. Errors count lines from `line`, and call the end of the text "the end of the `what`"."""

    def __init__(self, text: str, line: int = 1, what: str = "text") -> None:
        self.text, self.at = text, 0
        self._line, self._what = line, what
        self._furthest = 0
        self._wanted: dict[str, None] = {}

    def parse(self, read: Callable[[Reader], _T]) -> _T:
        """The result of `read`. Raises ParseError with line, column, what was expected and what came instead."""
        try:
            return read(self)
        except Miss:
            raise self._error() from None

    def skip(self) -> int:
        """Moves past the next blanks and returns the position."""
        blank = _BLANK.match(self.text, self.at)
        assert blank is not None
        self.at = blank.end()
        return self.at

    def take(self, pattern: re.Pattern[str], wanted: str) -> str:
        found = pattern.match(self.text, self.skip())
        if found is None:
            self.miss(wanted)
        self.at = found.end()
        return found[0]

    def sees(self, pattern: re.Pattern[str]) -> bool:
        return pattern.match(self.text, self.skip()) is not None

    def rest(self) -> str:
        """Takes the text up to the end and returns it without blanks around it."""
        start, self.at = self.at, len(self.text)
        return self.text[start:].strip()

    def end(self) -> None:
        if self.skip() < len(self.text):
            self.miss(f"the end of the {self._what}")

    def miss(self, wanted: str) -> NoReturn:
        if self.at > self._furthest:
            self._furthest, self._wanted = self.at, {}
        if self.at == self._furthest:
            self._wanted[wanted] = None
        raise Miss

    def _error(self) -> ParseError:
        before = self.text[: self._furthest]
        line, column = self._line + before.count("\n"), self._furthest - before.rfind("\n")
        got = self.text[self._furthest :].partition("\n")[0].strip() or f"the end of the {self._what}"
        return ParseError(f"line {line}, column {column}: expected {' or '.join(self._wanted)}, got {got[:60]!r}")
