"""The functions of the user's and of libraries in which given lines stand."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator

from graphweave.core.lines import Location, is_library, shown_path
from graphweave.pages.explained.data import ShownSource

_AROUND = 3
"""Lines that are shown before and after a line that stands in no function."""


def sources_of(locations: Iterable[Location]) -> tuple[ShownSource, ...]:
    """The source of each function with a line of `locations`, the user's own first. Files that cannot be read are left
    out."""
    wanted: dict[str, set[int]] = {}
    for loc in locations:
        for one in (loc.called_from, loc):
            if one is not None and one.path and one.number > 0:
                wanted.setdefault(one.path, set()).add(one.number)
    found = [source for path, numbers in wanted.items() for source in _of_file(path, numbers)]
    return tuple(sorted(found, key=lambda source: not source.own))


def _of_file(path: str, numbers: set[int]) -> Iterator[ShownSource]:
    lines = [line.rstrip("\n") for line in linecache.getlines(path)]
    left = sorted(n for n in numbers if n <= len(lines))
    functions = _functions("\n".join(lines))
    while left:
        at = left[0]
        around = ("", max(1, at - _AROUND), min(len(lines), at + _AROUND))
        name, first, last = next((f for f in functions if f[1] <= at <= f[2]), around)
        yield ShownSource(shown_path(path), name, first, tuple(lines[first - 1 : last]), not is_library(path))
        left = [n for n in left if n > last]


def _functions(text: str) -> list[tuple[str, int, int]]:
    """(name, first line, last line) of the functions that stand in no other function, those of classes included."""
    try:
        tree = ast.parse(text)
    except SyntaxError:  # a cell of a notebook with magics, for example
        return []
    found, todo = list[tuple[str, int, int]](), [("", node) for node in tree.body]
    while todo:
        inside, node = todo.pop(0)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            found.append((inside + node.name, first, node.end_lineno or node.lineno))
        elif isinstance(node, ast.ClassDef):
            todo += [(f"{inside}{node.name}.", child) for child in node.body]
    return found
