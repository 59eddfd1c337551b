"""Rewrites a function so that one of its loops runs as Python, with the code in and around the loop in functions.

PyTorch cannot trace a loop whose end data decides, nor a loop with a graph break inside, and leaves the whole function
to Python. In the rewritten function only the loop's head, and what may leave the loop, is Python's. Everything else
stands in nested functions, which PyTorch traces one by one:

    while error > 1e-3:                          def step_from_line_2():
        new = step(old)                              nonlocal new, error, old
        error = (new - old).norm()                   new = step(old)
        old = new                                    error = (new - old).norm()
                                                     old = new
                                                     _decided_1_ = error > 1e-3
                                                 ...
                                                 while _decided_1_:
                                                     step_from_line_2()

This file knows Python's syntax only; `dropped_frames.py` puts the rewritten function in the place of the original.
"""

from __future__ import annotations

import ast
import symtable
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any, TypeGuard

Loop = ast.For | ast.While
Function = ast.FunctionDef

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_ITERATED_IN_PLACE = frozenset({"items", "values", "keys"})
"""Methods whose results a compiled function cannot return."""
_SEE_THE_FRAME = frozenset({"locals", "vars", "dir", "eval", "exec"})
"""Functions that see the local variables of the frame that calls them."""


_ASK_DATA = frozenset({"int", "item", "tolist", "max", "amax", "sum", "unique", "nonzero"})
"""Functions and methods whose results, in the head of a loop, depend on data."""


class CannotRewrite(Exception):
    """A function has something that would mean something else in a nested function."""


def loops_at(function: Function, line: int) -> list[Loop]:
    """The loops of `function` that contain `line` in head or body, outermost first. Those of `with_loops_for_lists`
    count."""
    return [n for n in _of_this_scope(function) if _is_loop(n) and _contains(n, line)]


def is_in_a_loop(function: Function, line: int) -> bool:
    """Whether `line` stands in the body of a loop, or in the condition of a `while`."""
    return any(isinstance(n, ast.While) or line >= n.body[0].lineno for n in loops_at(function, line))


def decides_a_loop(function: Function, line: int) -> bool:
    """Whether `line` makes what a `for` loop runs over: it stands in the head of the loop, or assigns a name that the
    head mentions."""
    heads = [n.iter for n in _of_this_scope(function) if isinstance(n, ast.For)]
    return any(_contains(head, line) for head in heads) or bool(_loops_decided_at(function, line))


def loops_behind(function: Function, line: int) -> list[int]:
    """The lines of loops behind `line` whose end data seems to decide."""
    loops = [n for n in _of_this_scope(function) if _is_loop(n) and n.lineno > line]
    return [n.lineno for n in loops if isinstance(n, ast.While) or _called_in(n.iter) & _ASK_DATA]


def rewritten(function: Function, lines: Sequence[int]) -> tuple[Function, list[Function]]:
    """`function` with the outermost loops at `lines` run as Python, and the nested functions of it. Its parameters are
    those of `function` in the order of its local variables, all of them plain. Raises CannotRewrite.
    """
    function = deepcopy(function)
    wanted = [found[0] for line in lines if (found := loops_at(function, line) or _loops_decided_at(function, line))]
    if not wanted:
        raise CannotRewrite("there is no loop at these lines")
    seen = {n.func.id for n in ast.walk(function) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    if seen & _SEE_THE_FRAME or any(isinstance(n, ast.Yield | ast.YieldFrom | ast.Await) for n in ast.walk(function)):
        raise CannotRewrite("the function is a generator or looks at its own local variables")
    work = _LoopRewriting(function, wanted)
    body = work.block(function.body)
    parameters = [*parameters_of(function)]
    bound = sorted({*_bound(function.name, function.body)} - {*parameters} | {*work.decided})
    binding = [ast.If(ast.Constant(False), [_assign(name, ast.Constant(None)) for name in bound], [])] if bound else []
    arguments = ast.arguments([], [ast.arg(p) for p in parameters], None, [], [], None, [])
    made = function_of(function.name, arguments, [*work.outer, *binding, *work.parts, *body])
    return ast.fix_missing_locations(ast.copy_location(made, function)), work.parts


def parameters_of(function: Function) -> Iterator[str]:
    """The names of all parameters in the order in which Python numbers local variables."""
    a = function.args
    yield from (p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))))


class _LoopRewriting:
    """Collects the nested functions `parts`, and the names `decided` of values that Python looks at."""

    def __init__(self, function: Function, wanted: Sequence[Loop]) -> None:
        self._name = function.name
        self._first = next(parameters_of(function), None)
        self._wanted = {id(n) for n in wanted}
        self._globals = [n for n in _of_this_scope(function) if isinstance(n, ast.Global)]
        self.outer = [n for n in _of_this_scope(function) if isinstance(n, ast.Nonlocal)]
        self._nonlocals = {name for n in self.outer for name in n.names}
        self.parts: list[Function] = []
        self.decided: list[str] = []
        self._grown = {name for loop in wanted for name in _grown_in(loop, function)}

    def block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The statements with every run of them that need not be Python's replaced by a call of a nested function."""
        out: list[ast.stmt] = []
        run: list[ast.stmt] = []
        grows: list[ast.stmt] = []  # stores into lists and dicts, made after the run: traces depend on their lengths
        for s in statements:
            if grows and _names(s) & {name for call in grows for name in _names(call)}:
                out += [*self._part(run), *grows]
                run, grows = [], []
            if isinstance(s, ast.Nonlocal | ast.Global | ast.Pass):
                continue
            if read := self._reads_of_lists(s):
                out += [*self._part(run), *grows, *read]
                run, grows = [], []
            if (value := _stored(s, self._grown)) is not None:
                run.append(self._decide(value, name := self._new()))
                grows.append(_storing(s, _read(name)))
            elif not self._is_pythons(s):
                run.append(s)
            else:
                opened = self._opened(s, run)
                out += [*self._part(run), *grows, *opened]
                run, grows = [], []
        return [*out, *self._part(run), *grows] or [ast.Pass()]

    def _reads_of_lists(self, s: ast.stmt) -> list[ast.stmt]:
        """The reads of `s` from lists and dicts that a loop has grown: an item, or one tensor made of all items. Python
        reads these, since a trace would fit one length only. In `s`, names of the results take their place."""
        if not isinstance(s, ast.Assign | ast.Return | ast.Expr | ast.AugAssign) or not _names(s) & self._grown:
            return []
        reads = _Reads(self._grown, self._new)
        reads.visit(s)
        return reads.made

    def _is_pythons(self, s: ast.stmt) -> bool:
        holds = any(id(n) in self._wanted for n in ast.walk(s))
        return holds or _has_as_many_as_rows(s) or (not isinstance(s, ast.Return) and _may_leave(s))

    def _opened(self, s: ast.stmt, run: list[ast.stmt]) -> list[ast.stmt]:
        """The statements in place of `s`. What has to be computed before them is added to `run`."""
        new: ast.stmt
        match s:
            case ast.Break() | ast.Continue():
                return [s]
            case ast.Assign():
                new = ast.Assign(s.targets, self._iterable(s.value, run))
            case ast.If():
                test = self._test(s.test, run)
                new = ast.If(test, self.block(s.body), self.block(s.orelse) if s.orelse else [])
            case ast.While():
                before: list[ast.stmt] = []
                test = self._test(s.test, before)
                rest = self.block(s.orelse) if s.orelse else []
                if any(isinstance(n, ast.Continue) for n in _of_this_loop(s)):
                    if rest:
                        raise CannotRewrite("a while loop has both `continue` and `else`")
                    leave = [ast.If(ast.UnaryOp(ast.Not(), test), [ast.Break()], [])]
                    new = ast.While(ast.Constant(True), [*self._part(before), *leave, *self.block(s.body)], [])
                else:
                    run += before
                    new = ast.While(test, self.block([*s.body, *deepcopy(before)]), rest)
            case ast.For():
                over = self._iterable(s.iter, run)
                new = ast.For(s.target, over, self.block(s.body), self.block(s.orelse) if s.orelse else [])
            case ast.With():
                new = ast.With(s.items, self.block(s.body))
            case ast.Try():
                handlers = [ast.ExceptHandler(h.type, h.name, self.block(h.body)) for h in s.handlers]
                rest, last = (self.block(b) if b else [] for b in (s.orelse, s.finalbody))
                new = ast.Try(self.block(s.body), handlers, rest, last)
            case _:
                raise CannotRewrite(f"a loop stands in a statement of the kind {type(s).__name__}")
        return [ast.copy_location(new, s)]

    def _test(self, test: ast.expr, run: list[ast.stmt]) -> ast.expr:
        """The condition as Python evaluates it. Calls in it are made in `run`; `not`, `and`, `or` stay Python's, since
        they ask a tensor for its truth."""
        match test:
            case ast.UnaryOp(ast.Not(), operand):
                return ast.copy_location(ast.UnaryOp(ast.Not(), self._test(operand, run)), test)
            case ast.BoolOp(op, [first, *others]):  # the others may not be evaluated at all
                return ast.copy_location(ast.BoolOp(op, [self._test(first, run), *others]), test)
            case ast.Name() | ast.Constant():
                return test
        run.append(self._decide(test, name := self._new()))
        return ast.copy_location(_read(name), test)

    def _iterable(self, over: ast.expr, run: list[ast.stmt]) -> ast.expr:
        """The expression that a loop runs over, as Python evaluates it: the bounds of a range, or a tensor, are
        computed in `run`."""
        match over:
            case ast.Call(ast.Name("range" | "enumerate" | "zip" | "reversed"), args, []):
                return ast.copy_location(ast.Call(over.func, [self._iterable(a, run) for a in args], []), over)
            case ast.Call(ast.Attribute(attr=name)) if name in _ITERATED_IN_PLACE:
                return over
            case ast.Call(ast.Attribute(rows, "tolist"), []):  # a trace would fit one length of the list only
                listed = ast.Attribute(self._iterable(rows, run), "tolist", ast.Load())
                return ast.copy_location(ast.Call(listed, [], []), over)
            case ast.Call(func, args, []) if any(map(_is_list_of_rows, args)):  # rows split by such a list
                return ast.copy_location(ast.Call(func, [self._iterable(a, run) for a in args], []), over)
        if not any(isinstance(n, ast.Call) for n in ast.walk(over)):
            return over
        run.append(self._decide(over, name := self._new()))
        return ast.copy_location(_read(name), over)

    def _new(self) -> str:
        self.decided.append(f"_decided_{len(self.decided) + 1}_")
        return self.decided[-1]

    def _decide(self, value: ast.expr, name: str) -> ast.stmt:
        return ast.copy_location(_assign(name, value), value)

    def _part(self, run: list[ast.stmt]) -> list[ast.stmt]:
        """The call of a new nested function with the statements of `run`, or these themselves if they compute
        nothing."""
        if not run or all(map(_computes_nothing, run)):
            return run
        name = f"{self._name}_from_line_{run[0].lineno}"
        taken = sum(p.name.startswith(name) for p in self.parts)
        name += f"_{taken + 1}" if taken else ""
        written = sorted(
            {*_bound(name, run)} - {n for g in self._globals for n in g.names} | self._written_outside(run)
        )
        head = [deepcopy(g) for g in self._globals] + ([ast.Nonlocal(written)] if written else [])
        body = [_Super(self._first).visit(deepcopy(s)) for s in run]
        nothing = ast.arguments([], [], None, [], [], None, [])
        self.parts.append(ast.copy_location(function_of(name, nothing, [*head, *body]), run[0]))
        call = ast.Call(_read(name), [], [])
        made = ast.Return(call) if isinstance(run[-1], ast.Return) else ast.Expr(call)
        return [ast.copy_location(made, run[0])]

    def _written_outside(self, run: Sequence[ast.stmt]) -> set[str]:
        names = (n for s in run for n in ast.walk(s) if isinstance(n, ast.Name))
        return {n.id for n in names if n.id in self._nonlocals and not isinstance(n.ctx, ast.Load)}


class _Super(ast.NodeTransformer):
    """`super()` in a nested function: with the class and object that Python finds in the method itself."""

    def __init__(self, first: str | None) -> None:
        self._first = first

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args and self._first is not None:
            node.args = [_read("__class__"), _read(self._first)]
        return node


class _Reads(ast.NodeTransformer):
    """Replaces `rows[-1]`, `torch.stack(rows)` and the like by a name, for the lists `grown`. `made` assigns these
    names."""

    def __init__(self, grown: set[str], new: Callable[[], str]) -> None:
        self._grown, self._new = grown, new
        self.made: list[ast.stmt] = []

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node:
            case ast.Call(ast.Attribute(ast.Name("torch")) | ast.Name("len"), [ast.Name(rows), *_]):
                return self._read(node) if rows in self._grown else self.generic_visit(node)
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        match node:
            case ast.Subscript(ast.Name(rows), where, ast.Load()) if rows in self._grown:
                return (
                    node if any(isinstance(n, ast.Call | ast.Subscript) for n in ast.walk(where)) else self._read(node)
                )
        return self.generic_visit(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node  # called later

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_IfExp = visit_Lambda  # type: ignore

    def _read(self, node: ast.expr) -> ast.expr:
        self.made.append(ast.copy_location(_assign(name := self._new(), node), node))
        return ast.copy_location(_read(name), node)


class Unannotated(ast.NodeTransformer):
    """Assignments of the function itself without annotations, which variables shared by functions cannot have."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if not isinstance(node.target, ast.Name):
            return node
        value = ast.Constant(None) if node.value is None else node.value
        made = ast.copy_location(ast.Assign([node.target], value), node)
        return made if node.value is not None else ast.copy_location(ast.If(ast.Constant(False), [made], []), node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return node


class Mangled(ast.NodeTransformer):
    """Private names of a class (`__x`) as Python writes them outside of the class (`_Layer__x`)."""

    def __init__(self, class_name: str) -> None:
        self._prefix = f"_{class_name.lstrip('_')}"

    def visit(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        for field in ("id", "attr", "arg", "name"):
            name = getattr(node, field, None)
            if isinstance(name, str) and name.startswith("__") and not name.endswith("__"):
                setattr(node, field, self._prefix + name)
        return node


def _loops_decided_at(function: Function, line: int) -> list[Loop]:
    """The `for` loops over what `line` assigns."""
    loops = [n for n in _of_this_scope(function) if isinstance(n, ast.For)]
    named = {
        name.id
        for n in _of_this_scope(function) if isinstance(n, ast.Assign) and _contains(n, line)
        for target in n.targets for name in ast.walk(target) if isinstance(name, ast.Name)
    }  # fmt: skip
    return [n for n in loops if named & _names(n.iter)]


def _bound(name: str, statements: Sequence[ast.stmt]) -> Iterator[str]:
    """The names that are local to a function with these statements."""
    body = [s for s in statements if not isinstance(s, ast.Nonlocal)]
    empty = ast.arguments([], [], None, [], [], None, [])
    text = ast.unparse(ast.fix_missing_locations(function_of(name, empty, list(body) or [ast.Pass()])))
    (table,) = symtable.symtable(text, "<rewritten>", "exec").get_children()
    yield from (s.get_name() for s in table.get_symbols() if s.is_local())


def function_of(name: str, arguments: ast.arguments, body: list[ast.stmt]) -> Function:
    more: Any = {"type_params": []} if "type_params" in Function._fields else {}
    return Function(name=name, args=arguments, body=body, decorator_list=[], returns=None, type_comment=None, **more)


def _assign(name: str, value: ast.expr) -> ast.Assign:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _read(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _is_loop(node: ast.AST) -> TypeGuard[Loop]:
    return isinstance(node, ast.For | ast.While)


def _contains(node: ast.stmt | ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _of_this_scope(function: Function) -> Iterator[ast.AST]:
    """The nodes in a function's body, outer ones first, without those of functions and classes inside."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, _SCOPES):
            waiting += ast.iter_child_nodes(node)


def _of_this_loop(loop: Loop) -> Iterator[ast.AST]:
    """The nodes in a loop's body without those of loops and functions inside."""
    waiting: list[ast.AST] = list(loop.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if _is_loop(node):
            waiting += node.orelse
        elif not isinstance(node, _SCOPES):
            waiting += ast.iter_child_nodes(node)


def _may_leave(s: ast.stmt) -> bool:
    """Whether `s` may end otherwise than at its end: by a return, or by `break` or `continue` of a loop around it."""
    if isinstance(s, _SCOPES):
        return False
    nested = function_of("f", ast.arguments([], [], None, [], [], None, []), [s])
    if any(isinstance(n, ast.Return) for n in _of_this_scope(nested)):
        return True
    around = ast.While(test=ast.Constant(True), body=[s], orelse=[])
    return any(isinstance(n, ast.Break | ast.Continue) for n in _of_this_loop(around))


def _grown_in(loop: Loop, function: Function) -> Iterator[str]:
    """The lists and dicts of `function` to which `loop` adds items, and which have no other name."""
    made = {
        target.id
        for n in _of_this_scope(function) if isinstance(n, ast.Assign)
        for target in n.targets if isinstance(target, ast.Name) and _is_container(n.value)
    }  # fmt: skip
    made -= _with_other_names(function)
    for s in ast.walk(loop):
        match s:
            case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "append"), [_], [])) if name in made:
                yield name
            case ast.Assign([ast.Subscript(ast.Name(name))]) if name in made:
                yield name


def _with_other_names(function: Function) -> set[str]:
    """The variables whose values may be known by another name: all that are read but for an item, a method, a loop,
    the result, or a call of a function that keeps no list."""
    plain: set[int] = set()
    for n in ast.walk(function):
        match n:
            case ast.Attribute(ast.Name() as read) | ast.Subscript(ast.Name() as read) | ast.Return(ast.Name() as read):
                plain.add(id(read))
            case ast.For(_, ast.Name() as read) | ast.comprehension(_, ast.Name() as read):
                plain.add(id(read))
            case ast.Call(ast.Attribute(ast.Name("torch")) | ast.Name("len" | "sum" | "zip" | "enumerate"), args):
                plain |= {id(a) for a in args if isinstance(a, ast.Name)}
    reads = (n for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
    return {n.id for n in reads if id(n) not in plain}


def _is_container(value: ast.expr) -> bool:
    match value:
        case ast.List() | ast.Dict() | ast.ListComp() | ast.DictComp() | ast.Call(ast.Name("list" | "dict")):
            return True
        case ast.BinOp(left, ast.Mult(), right):
            return isinstance(left, ast.List) or isinstance(right, ast.List)
    return False


def _stored(s: ast.stmt, grown: set[str]) -> ast.expr | None:
    """The value that `s` adds to one of the lists and dicts `grown`; None if it adds none."""
    match s:
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "append"), [value], [])):
            return value if name in grown and not isinstance(value, ast.Starred) else None
        case ast.Assign([ast.Subscript(ast.Name(name), where)], value) if name in grown:
            return None if _is_computed(where) else value
    return None


def _is_computed(where: ast.expr) -> bool:
    """Whether an index or key is more than names, numbers and their sums."""
    return any(isinstance(n, ast.Call | ast.Subscript) for n in ast.walk(where))


def _storing(s: ast.stmt, value: ast.expr) -> ast.stmt:
    """`s`, which adds something to a list or dict, adding `value`."""
    match s:
        case ast.Expr(ast.Call(function)):
            new: ast.stmt = ast.Expr(ast.Call(function, [value], []))
        case ast.Assign(targets):
            new = ast.Assign(targets, value)
    return ast.copy_location(new, s)


def _called_in(node: ast.AST) -> set[str]:
    """The names of functions and methods that are called in `node`."""
    called = [n.func for n in ast.walk(node) if isinstance(n, ast.Call)]
    return {f.attr if isinstance(f, ast.Attribute) else f.id for f in called if isinstance(f, ast.Attribute | ast.Name)}


def _has_as_many_as_rows(s: ast.stmt) -> bool:
    """Whether `s` names the list of a tensor's rows, or rows that are split by such a list."""
    if not isinstance(s, ast.Assign) or not isinstance(s.value, ast.Call):
        return False
    return any(map(_is_list_of_rows, [s.value, *s.value.args]))


def _is_list_of_rows(value: ast.expr) -> bool:
    match value:
        case ast.Call(ast.Attribute(_, "tolist"), []):
            return True
    return False


def _computes_nothing(s: ast.stmt) -> bool:
    """Whether `s` only gives names to values that are there."""
    match s:
        case ast.Assign(targets=targets, value=value) if all(isinstance(t, ast.Name) for t in targets):
            kinds = ast.Name | ast.Constant | ast.List | ast.Dict | ast.Tuple | ast.Load
            return all(isinstance(n, kinds) for n in ast.walk(value))
        case ast.AugAssign(target=ast.Name(), value=ast.Constant()):
            return True
        case ast.Expr(ast.Constant()) | ast.Return(None | ast.Name() | ast.Constant()):
            return True
    return False
