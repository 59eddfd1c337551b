"""Words that a stranger stumbles over, and marks that hide a fault from a tool: counts that may only fall.

Each row has the number of today, a little above the count. Lower it when the words become fewer.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import graphweave

PACKAGE = Path(graphweave.__file__).parent
TEXTS = frozenset({".py", ".md", ".h", ".cpp", ".js", ".css", ".html"})

OPENING = re.compile(r'"""\s*(?:What|As)\b')
"""A docstring that begins with one of these words, or a text that looks like one: files without it are not parsed."""

SIGNATURE = re.compile(r"\bdef \w+(?:\[[^\n]*\])?\(.*?\) -> .*?:(?=\n| \.\.\.|  #)", re.DOTALL)
"""From the name of a function to the end of its result's type, as Ruff formats it."""


@cache
def _sources() -> tuple[str, ...]:
    """The texts of the package's files in Python."""
    return tuple(path.read_text() for path in PACKAGE.rglob("*.py"))


@cache
def _prose() -> str:
    """All that a reader of the package and its documents may read."""
    root = PACKAGE.parent
    documents = [*(root / "docs").rglob("*.md"), root / "README.md", root / "CONTRIBUTING.md"]
    others = [path for path in PACKAGE.rglob("*") if path.suffix in TEXTS - {".py"}]
    return "\n".join((*_sources(), *(path.read_text() for path in (*others, *documents))))


def _in_prose(pattern: str) -> int:
    return len(re.findall(pattern, _prose(), re.IGNORECASE))


def _docstrings() -> int:
    """Docstrings, also those of constants and fields, that begin with "What" or "As"."""
    trees = (ast.parse(text) for text in _sources() if OPENING.search(text))
    nodes = (node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Expr))
    texts = (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return sum(text.split()[:1] in (["What"], ["As"]) for text in texts)


def _any() -> int:
    signatures = (found[0] for text in _sources() for found in SIGNATURE.finditer(text))
    return sum(len(re.findall(r"\bAny\b", text)) for text in signatures)


def _in_sources(words: str) -> int:
    return sum(text.count(words) for text in _sources())


class CountedWords(NamedTuple):
    """Words that are counted, the largest count that is allowed, and what to write instead."""

    words: str
    count: Callable[[], int]
    largest: int
    instead: str


COUNTED = (
    CountedWords("beside", lambda: _in_prose(r"\bbeside\b"), 20, 'Write "next to", "as well as", "besides" or "and".'),
    CountedWords(
        "behind each other",
        lambda: _in_prose(r"\bbehind\s+each\s+other\b"),
        0,
        'Write "concatenated" or "one after the other".',
    ),
    CountedWords(
        "turned",
        lambda: _in_prose(r"\bturned\b(?! o(?:n|ff)\b)"),
        5,
        'Write "transposed", "converted", "reversed" or "rotated", whichever is meant.',
    ),
    CountedWords(
        "docstrings that begin with What or As",
        _docstrings,
        0,
        'Begin with the noun ("The rows that ...") or the verb; for "As `f`, but ..." write "Like `f`, but ...".',
    ),
    CountedWords("Any in signatures", _any, 845, "Write the type of the parameter or result, a TypeVar, or `object`."),
    CountedWords("fmt: skip", lambda: _in_sources("fmt: skip"), 596, "Let Ruff format the lines, or shorten them."),
    CountedWords(
        "type: ignore", lambda: _in_sources("type: ignore"), 177, "Give the value a type that holds, or narrow it."
    ),
)


@pytest.mark.parametrize("counted", COUNTED, ids=[counted.words for counted in COUNTED])
def test_words_to_avoid_become_fewer(counted: CountedWords) -> None:
    count = counted.count()
    assert count <= counted.largest, f"{counted.words}: {count} times, {counted.largest} are allowed. {counted.instead}"
    slack = max(5, counted.largest // 20)
    assert count >= counted.largest - slack, (
        f"{counted.words}: {count} times only. Lower the number {counted.largest} to {count}."
    )
