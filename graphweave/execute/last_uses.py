"""Frees each value of a text after its last use, which returns its buffer to the arena."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from graphweave.ir.message.nodes import Ref


def with_dels(lines: Sequence[tuple[str, tuple[Ref, ...]]], freed: Collection[Ref]) -> Iterator[str]:
    """The lines, each with the values that it reads, and a `del` after the last line that reads one of `freed`."""
    last: dict[Ref, int] = {}
    for i, (_, reads) in enumerate(lines):
        last.update((r, i) for r in reads)
    for i, (line, reads) in enumerate(lines):
        yield line
        dead = [f"v{r}" for r in dict.fromkeys(reads) if last[r] == i and r in freed]
        if dead:
            yield f"del {', '.join(dead)}"
