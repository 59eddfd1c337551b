"""The syntax of code: the tree of its file, if the file still compiles to that code."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator
from types import CodeType


@functools.lru_cache(maxsize=256)
def file_of(code: CodeType) -> ast.Module | None:
    """The tree of the file in which `code` stands; None if there is no such file, or one that compiles to other code.
    Do not change the tree."""
    tree, compiled = _parsed("".join(linecache.getlines(code.co_filename)), code.co_filename)
    return tree if code in compiled else None


@functools.lru_cache(maxsize=16)
def _parsed(text: str, name: str) -> tuple[ast.Module | None, frozenset[CodeType]]:
    try:
        return ast.parse(text, name), frozenset(codes_in(compile(text, name, "exec", dont_inherit=True)))
    except (SyntaxError, ValueError):  # a cell of a notebook with commands in it, or code without a file
        return None, frozenset()


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """`code` and the code of all functions and classes in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_in(constant)
