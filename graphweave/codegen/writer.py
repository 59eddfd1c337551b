"""Collects generated text line by line, indented by blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Writer:
    def __init__(self, indent: str = "  ", *, braces: bool = True) -> None:
        """`braces`: whether blocks stand in braces, as in C, or behind a colon, as in Python."""
        self._indent, self._braces = indent, braces
        self._depth = 0
        self._lines: list[str] = []
        self._gaps: dict[int, list[str]] = {}  # number of lines before a gap -> the lines in it

    def line(self, text: str = "") -> None:
        self._lines.append(self._indent * self._depth + text if text else "")

    def flush_left(self, text: str) -> None:
        """Adds a line at column zero, whatever the depth; for preprocessor lines."""
        self._lines.append(text)

    @contextmanager
    def block(self, head: str, tail: str = "}") -> Iterator[None]:
        """Adds `head {`, the lines written inside, indented, then `tail`; without braces `head:` and the lines."""
        if self._braces:
            self.line(f"{head} {{" if head else "{")
        else:
            self.line(f"{head}:")
        self._depth += 1
        yield
        self._depth -= 1
        if self._braces:
            self.line(tail)

    def gap(self) -> Callable[[str], None]:
        """Leaves a gap, and gives a function that adds a line there later, at the depth of the gap."""
        lines, indent = self._gaps.setdefault(len(self._lines), []), self._indent * self._depth
        return lambda text: lines.append(indent + text)

    def text(self) -> str:
        lines: list[str] = []
        for i, line in enumerate(self._lines):
            lines += [*self._gaps.get(i, ()), line]
        return "\n".join(lines) + "\n"
