"""A smaller case that fails in the same way: statements, operands, calls and sizes are taken away one at a time."""

from __future__ import annotations

import ast
import contextlib
import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.fuzz.case import Call, Case
from tests.fuzz.grow import with_parameters, without_unread

MAX_OPERANDS = 6
"""Operands of an expression that are tried in its place."""

SMALL = {"N": 3, "M": 3, "E": 4, "B": 4, "G": 2, "D": 2, "P": 2, "K": 2}


def shrink(case: Case, fails: Callable[[Case], bool], seconds: float = 60.0) -> Case:
    """The smallest case found in that time for which `fails` is true, as it is for `case`."""
    end = time.monotonic() + seconds
    for candidates in (_fewer_calls, _simpler_sources, _fewer_calls, _smaller_calls, _simpler_sources):
        progress = True
        while progress and time.monotonic() < end:
            progress = False
            for smaller in candidates(case):
                if time.monotonic() > end:
                    break
                if fails(smaller):
                    case, progress = smaller, True
                    break
    named = {n.id for c in case.calls for n in ast.walk(ast.parse(c.edit)) if isinstance(n, ast.Name)}
    alone = replace(case, arguments=tuple(a for a in case.arguments if a in case.needed or a.name in named))
    return alone if alone == case or fails(alone) else case


def _fewer_calls(case: Case) -> Iterator[Case]:
    if len(case.calls) > 1:
        for position in range(len(case.calls)):
            yield replace(case, calls=case.calls[:position] + case.calls[position + 1 :])
    for position, call in enumerate(case.calls):
        if call.edit:
            unedited = replace(call, edit="")
            yield replace(case, calls=(*case.calls[:position], unedited, *case.calls[position + 1 :]))
    if case.left_out:
        yield replace(case, left_out=())
    if case.second:
        yield replace(case, second=False)
    if case.mode != "train":
        yield replace(case, mode="train")


def _smaller_calls(case: Case) -> Iterator[Case]:
    for position, call in enumerate(case.calls):
        for letter, size in call.sizes:
            for less in {SMALL[letter], size // 2, size - 1}:
                if 0 < less < size:
                    smaller = Call(tuple({**dict(call.sizes), letter: less}.items()), call.seed, call.edit)
                    yield replace(case, calls=(*case.calls[:position], smaller, *case.calls[position + 1 :]))


def _simpler_sources(case: Case) -> Iterator[Case]:
    """Simpler sources, those that take most away first."""
    seen = {case.source}
    tried = [*_without_outputs(case.source), *_without_statements(case.source), *_with_operands_alone(case.source)]
    for source in sorted(tried, key=len):
        try:
            source = with_parameters(source)
            compile(source, "smaller", "exec")
        except SyntaxError:
            continue
        if source not in seen:
            seen.add(source)
            yield replace(case, source=source)


def _body(tree: ast.Module) -> list[ast.stmt]:
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    return function.body


def _text(tree: ast.Module) -> str:
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _without_outputs(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    last = _body(tree)[-1]
    if isinstance(last, ast.Return) and isinstance(last.value, ast.Tuple) and len(last.value.elts) > 1:
        every = last.value.elts
        for position in range(len(every)):
            last.value.elts = [every[position]]
            yield without_unread(_text(tree))
        for position in range(len(every)):
            last.value.elts = every[:position] + every[position + 1 :]
            yield without_unread(_text(tree))


def _without_statements(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    body = _body(tree)
    for position in range(len(body) - 1):
        statement = body.pop(position)
        yield _text(tree)
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            yield without_unread(_with_name_for(_text(tree), statement.targets[0].id, statement.value))
        body.insert(position, statement)


def _with_name_for(source: str, name: str, value: ast.expr) -> str:
    """The source in which `value` takes the place of every read of the variable."""

    class Inline(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return copy.deepcopy(value) if node.id == name and isinstance(node.ctx, ast.Load) else node

    return _text(Inline().visit(ast.parse(source)))


def _with_operands_alone(source: str) -> Iterator[str]:
    """For each expression, the text with one of its operands in its place."""
    count = sum(isinstance(node, ast.expr) for node in ast.walk(ast.parse(source)))
    for position in range(count):
        for part in range(MAX_OPERANDS):
            with contextlib.suppress(SyntaxError):  # `*x` stands for itself alone in few places
                changed = _replaced(source, position, part)
                if changed is None:
                    break
                yield changed


def _replaced(source: str, position: int, part: int) -> str | None:
    """The text with the expression at `position` replaced by its operand number `part`; None where there is none."""
    tree = ast.parse(source)
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.expr)]
    target = nodes[position]
    operands = _operands(target)
    if part >= len(operands):
        return None
    chosen = operands[part]

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return chosen if node is target else super().visit(node)

    return without_unread(_text(Replace().visit(tree)))


def _operands(node: ast.expr) -> list[ast.expr]:
    match node:
        case ast.BinOp():
            return [node.left, node.right]
        case ast.UnaryOp():
            return [node.operand]
        case ast.Call(func=ast.Attribute(value=receiver)):
            return [*([receiver] if not isinstance(receiver, ast.Name) or receiver.id not in _MODULES else []),
                    *node.args]  # fmt: skip
        case ast.Call():
            return list(node.args)
        case ast.Subscript() if isinstance(node.ctx, ast.Load):
            return [node.value]
        case ast.IfExp():
            return [node.body, node.orelse]
        case ast.Compare():
            return [node.left]
        case ast.List(elts=elements) if len(elements) > 1:
            return [ast.List([element], ast.Load()) for element in elements]
    return []


_MODULES = {"torch", "F", "pyg", "math", "random"}
