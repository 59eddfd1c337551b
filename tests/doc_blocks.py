"""The blocks of code in the documents, and how each of them is meant to be run.

Every Python block is a program by itself, with three exceptions, each of which the page says where a reader sees it:

- A page with the sentence `TOP_TO_BOTTOM` above its first block is one program: a block may use what those above made.
- `*Runs on several ranks: COMMAND.*` right above a block: each rank of a job runs it.
- `*Not run: REASON.*` right above a block: it is an excerpt, or it needs what a test does not have.

Blocks between the marks of `docs/made.py` are excerpts that the compiler has printed, and are checked there. A block
"text" or "cpp" under a paragraph with the word "prints" is what the Python block above it prints. A block without a
language has commands.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

from docs import made

PAGES = [*made.PAGES, *sorted((made.ROOT / "graphweave").rglob("*.md"))]

TOP_TO_BOTTOM = "The code on this page runs from top to bottom"

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"\*(Runs on several ranks|Not run): (.+)\.\*$", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """The block of code `number` of a page, from 1 on. `above` is the paragraph before it."""

    page: Path
    number: int
    language: str
    text: str
    above: str
    printed: str | None = None
    """What a Python block prints by the page, if the page says it."""

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(made.ROOT).as_posix()}#{self.number}"

    @property
    def mark(self) -> tuple[str, str] | None:
        """("Not run", the reason), ("Runs on several ranks", the command), or None."""
        found = _MARK.search(self.above)
        return (found[1], found[2]) if found else None

    @property
    def made(self) -> bool:
        """Whether `docs/made.py` has written it."""
        return self.above.startswith("<!-- made:")


def blocks(page: Path) -> list[Block]:
    """All blocks of a page, in order. Those that are outputs stand with their program, too."""
    found: list[Block] = []
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        before = text[: match.start()].rstrip("\n")
        above = before.rpartition("\n\n")[2]
        code = "".join(line.removeprefix(match[1]) for line in match[3].splitlines(keepends=True))
        found.append(Block(page, len(found) + 1, match[2], code, above))
        if match[2] in ("text", "cpp") and re.search(r"\bprints\b", above):
            assert len(found) > 1 and found[-2].language == "python", f"{found[-1].name}: nothing above it is a program"
            found[-2] = replace(found[-2], printed=code)
    return found


def is_one_program(page: Path) -> bool:
    """Whether the page says above its first block that its code runs from top to bottom."""
    return TOP_TO_BOTTOM in page.read_text(encoding="utf-8").partition("```")[0]


@cache
def programs() -> dict[str, tuple[Block, ...]]:
    """Name -> the blocks that one process runs one after the other."""
    found: dict[str, tuple[Block, ...]] = {}
    for page in PAGES:
        mine = [b for b in blocks(page) if b.language == "python" and not b.made and b.mark is None]
        if is_one_program(page):
            found[page.relative_to(made.ROOT).as_posix()] = tuple(mine)
        else:
            found |= {block.name: (block,) for block in mine}
    return found


def skip_without_compiler() -> None:
    """Skips a test of a program that runs the C++ compiler itself, where there is none."""
    command = shlex.split(os.environ.get("CXX", "g++"))
    if shutil.which(command[0]) is None:
        pytest.skip(f"needs a C++ compiler, and there is no {command[0]} (CXX may name another)")


@cache
def marked(mark: str) -> dict[str, Block]:
    """Name -> the Python block with such a mark."""
    every = (b for page in PAGES for b in blocks(page))
    return {b.name: b for b in every if b.language == "python" and b.mark is not None and b.mark[0] == mark}


def commands() -> Iterator[tuple[str, str]]:
    """(page, command) for each command in blocks without a language. Deeply indented lines continue the line before."""
    for page in PAGES:
        for block in blocks(page):
            if not block.language:
                text = re.sub(r"\s*\n {8,}", " ", block.text)
                yield from ((block.name, line) for line in text.splitlines() if line)
