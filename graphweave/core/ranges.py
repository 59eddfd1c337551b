"""The message for an index out of range, the same wherever it is found: value, position, range, and what to do."""

from __future__ import annotations

from typing import Any

from graphweave.core.errors import IndexRangeError


def range_error(
    index: Any, rows: int, *, first: int = 0, at: int | None = None, what: str = "", of: str = "rows",
    where: str = "", do: str = "",
) -> IndexRangeError:  # fmt: skip
    """The error about a tensor `index` with a value that is not in first..rows-1: the value at flat position `at`, or
    the first one out of range.

    `what` is the index in the user's words ("edge_index[1]"), `of` says what it counts, `where` is the line that uses
    it, and `do` tells the user what to do.
    """
    if at is None:
        found = position(index, rows, first)
        assert found is not None, "every index is in range"
        at = found
    value = int(index.reshape(-1)[at])
    place = _place(at, tuple(int(n) for n in index.shape))
    low = f"-{-first}" if first or not rows else "0"
    message = f"index {value} at position {place} is out of range for {rows} {of}; expected {low} <= index < {rows}."
    return IndexRangeError(
        message, index=index, what=what, where=where, do=do or f"Correct it, or give what it indexes more {of}."
    )


def position(index: Any, rows: int, first: int = 0) -> int | None:
    """The flat position of the first value that is not in first..rows-1; None if all are."""
    bad = ((index < first) | (index >= rows)).reshape(-1)
    return int(bad.nonzero()[0]) if bool(bad.any()) else None


def _place(at: int, shape: tuple[int, ...]) -> str:
    """The flat position `at` as one into `shape`, without dims of size 1: "7", "[7, 3]"."""
    shape = tuple(size for size in shape if size != 1)
    if len(shape) < 2:
        return str(at)
    out = []
    for size in reversed(shape):
        at, rest = divmod(at, size)
        out.append(rest)
    return f"[{', '.join(map(str, reversed(out)))}]"
