"""List comprehensions of a function written as loops: `y = stack([f(g) for g in over])` becomes

rows = []
for g in over:
    rows.append(f(g))
y = stack(rows)
"""

from __future__ import annotations

import ast
from copy import deepcopy


def with_loops_for_lists(function: ast.FunctionDef) -> ast.FunctionDef:
    """A copy of `function` in which list comprehensions are loops wherever that changes no order of evaluation."""
    copy = deepcopy(function)
    _Lists().visit_body(copy)
    return ast.fix_missing_locations(copy)


class _Lists:
    def __init__(self) -> None:
        self._count = 0

    def visit_body(self, node: ast.AST) -> None:
        """Rewrite all blocks of statements in `node`, but none of a function or class inside."""
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                setattr(node, field, [new for s in block for new in self._statement(s)])

    def _statement(self, s: ast.AST) -> list[ast.AST]:
        if isinstance(s, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return [s]
        if not isinstance(s, ast.Assign | ast.Return | ast.Expr) or s.value is None:
            self.visit_body(s)
            return [s]
        found, before = s.value, None
        while isinstance(found, ast.Call) and found.args and _is_path(found.func):
            before, found = found, found.args[0]
        if not isinstance(found, ast.ListComp) or not _can_be_a_loop(found):
            return [s]
        self._count += 1
        rows, loop = self._loop(found)
        read = ast.copy_location(ast.Name(rows, ast.Load()), found)
        if before is None:
            s.value = read
        else:
            before.args[0] = read
        empty = ast.Assign([ast.Name(rows, ast.Store())], ast.List([], ast.Load()))
        return [ast.copy_location(empty, s), loop, s]

    def _loop(self, comp: ast.ListComp) -> tuple[str, ast.stmt]:
        """The name of the list, and the loop that fills it. The variables of the comprehension, which nothing outside
        of it sees, get names of their own."""
        rows = f"_rows_{self._count}_"
        own = {n.id for g in comp.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}
        first = comp.generators[0].iter  # the only part that is evaluated outside
        comp = deepcopy(comp)
        for n in ast.walk(comp):
            if isinstance(n, ast.Name) and n.id in own:
                n.id = f"{rows}{n.id}"
        comp.generators[0].iter = first
        append = ast.Attribute(ast.Name(rows, ast.Load()), "append", ast.Load())
        body: ast.stmt = ast.copy_location(ast.Expr(ast.Call(append, [comp.elt], [])), comp.elt)
        for g in reversed(comp.generators):
            for test in reversed(g.ifs):
                body = ast.copy_location(ast.If(test, [body], []), test)
            body = ast.copy_location(ast.For(g.target, g.iter, [body], []), g.iter)
        return rows, body


def _is_path(node: ast.expr) -> bool:
    """Whether `node` is a name, or an attribute of one."""
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and _is_path(node.value))


def _can_be_a_loop(comp: ast.ListComp) -> bool:
    inner = (ast.Lambda, ast.NamedExpr, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    parts = [comp.elt, *comp.generators]
    return not any(isinstance(n, inner) for part in parts for n in ast.walk(part)) and not any(
        g.is_async for g in comp.generators
    )
