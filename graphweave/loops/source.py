"""Checks the user's source for loops whose iterations depend on each other through variables, and finds lines for
errors."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
import weakref
from collections.abc import Iterator
from pathlib import Path

import torch

from graphweave.core.errors import GraphweaveError, LoopError
from graphweave.core.lines import raised_at

LOOPS = ("edges", "nodes", "dst_nodes", "src_nodes", "incoming_edges", "outgoing_edges")
"""Methods whose results a loop over edges or nodes iterates over."""
_PACKAGE = Path(__file__).parent.parent
_FOLDERS_OF_OPERATIONS = tuple(str(_PACKAGE / room) for room in ("loops", "tensorlike"))
"""A PyTorch error that is raised through these folders is about an operation on values of edges or nodes."""
_FOLDERS_NOT_OF_USERS = (str(_PACKAGE), str(Path(torch.__file__).parent))
"""Lines in these folders are skipped when an error is traced to one of the user's lines."""

_checked: weakref.WeakSet[types.CodeType] = weakref.WeakSet()
"""Code that has been checked and accepted, or has no source."""


def check_code(code: types.CodeType) -> None:
    """Raise LoopError for a loop over edges or nodes that is left early, or that passes a variable from one row to the
    next.

    Code without source, such as code typed at a prompt, is not checked.
    """
    if code in _checked:
        return
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        _checked.add(code)
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and _is_loop(node):
            for line, why in _troubles(node):
                number = first + line - 1
                raise LoopError(f"{why}\n  {_at(code.co_filename, number, lines[line - 1])}")
    _checked.add(code)


def _is_loop(node: ast.For) -> bool:
    call = node.iter
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in LOOPS


def _troubles(loop: ast.For) -> Iterator[tuple[int, str]]:
    yield from _exits(loop.body)
    carried = _Carried(loop)
    carried.block(loop.body)
    for name, line in carried.found:
        yield (
            line,
            f"the variable {name!r} goes from one edge or node to the next: it is read in the loop before it is set "
            f"there. The loop is run once, for all of them. Gather values of edges in a field: n[{name!r}] += ...",
        )


def _exits(body: list[ast.stmt], inner: bool = False) -> Iterator[tuple[int, str]]:
    """Statements that leave the loop. With `inner`, `body` is inside a Python loop, and a break leaves only that
    loop."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if isinstance(node, ast.Return) or (isinstance(node, ast.Break) and not inner):
            what = "return" if isinstance(node, ast.Return) else "break"
            yield node.lineno, f"{what} inside a loop over edges or nodes: the loop is run once, for all of them."
        own = inner or isinstance(node, (ast.For, ast.While))
        for _, child in ast.iter_fields(node):
            if isinstance(child, list):
                yield from _exits([c for c in child if isinstance(c, ast.stmt)], own)
                for c in child:
                    if isinstance(c, (ast.ExceptHandler, ast.match_case)):
                        yield from _exits(c.body, own)


class _Carried(ast.NodeVisitor):
    """Finds variables that the body of a loop sets but reads at a place where they may not be set yet."""

    def __init__(self, loop: ast.For) -> None:
        self._set = {n.id for s in loop.body for n in ast.walk(s) if isinstance(n, ast.Name) and _stores(n)}
        self._set -= {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
        self._set -= {n.id for s in loop.body for c in ast.walk(s) if isinstance(c, ast.comprehension)
                      for n in ast.walk(c.target) if isinstance(n, ast.Name)}  # fmt: skip
        self._known: set[str] = set()
        self.found: list[tuple[str, int]] = []

    def block(self, body: list[ast.stmt]) -> None:
        for node in body:
            self.visit(node)

    def _branches(self, *bodies: list[ast.stmt]) -> None:
        """Visit the branches. Afterwards, the variables that all of them set are known."""
        before, after = self._known, []
        for body in bodies:
            self._known = set(before)
            self.block(body)
            after.append(self._known)
        self._known = set.intersection(*after)

    def visit_Name(self, node: ast.Name) -> None:
        if _stores(node):
            self._known.add(node.id)
        elif node.id in self._set and node.id not in self._known:
            self.found.append((node.id, node.lineno))

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self.visit(node.target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        if isinstance(node.target, ast.Name) and node.target.id not in self._known:
            self.found.append((node.target.id, node.lineno))
        self.visit(node.target)

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        self._branches(node.body, node.orelse)

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        before = set(self._known)
        self.visit(node.target)
        self.block(node.body)
        self._known = before
        self.block(node.orelse)

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        self._branches(node.body, [])

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Not visited, since a lambda has its own names."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._known.add(node.name)


def _stores(node: ast.Name) -> bool:
    return isinstance(node.ctx, (ast.Store, ast.Del))


# ---------------------------------------------------------------- lines of errors


def located(error: Exception) -> Exception:
    """`error` with the user's line at the end of its message, if it is one of our errors and has no line yet.

    A PyTorch error about an operation on values of edges or nodes becomes a LoopError.
    """
    at = raised_at(error, _FOLDERS_NOT_OF_USERS)
    if at is None or "\n  at " in str(error):
        return error
    where = _at(at.path, at.line, at.text)
    if isinstance(error, GraphweaveError):
        error.args = (f"{error}\n  {where}",)
        return error
    in_operation = any(path.startswith(_FOLDERS_OF_OPERATIONS) for path in at.inside)
    return LoopError(f"{error}\n  {where}") if in_operation else error


def _at(file: str, line: int, text: str) -> str:
    return f"at {file}:{line}: {text.strip()}"
