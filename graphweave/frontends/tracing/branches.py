"""Branches on data that need not be followed: those that only raise, those that only filter, and those that ask whether
a sum of row counts is zero (`sums_of_sizes.py`).

    if (graph.in_degrees() == 0).any():      becomes a check in the program, which raises what the
        raise DGLError("no messages")        user's line raises

    if not mask.all():                       is taken always: a mask that is true everywhere
        edges = edges[:, mask]               picks every row

Any other branch on the contents of a tensor breaks the graph, as in PyTorch. The tracer calls `way_at` at each branch
(`tracer_gaps.py`). It reads the statement in the source of the function, and so does nothing where there is no source,
or another one than was compiled.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.bytecode_transformation import Instruction
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables import TensorVariable
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.tensor import SymNodeVariable
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from graphweave.core.lines import shown_path
from graphweave.frontends.tracing.sums_of_sizes import truth_of
from graphweave.frontends.tracing.syntax import file_of

_library = torch.library.Library("graphweave", "FRAGMENT")
_library.define("_assert_is(Tensor condition, bool expected, str where) -> ()")
_library.define("_assert_is.number(Scalar condition, bool expected, str where) -> ()")
_errors: dict[str, Callable[[], Exception]] = {}
"""Where a statement raises ("file:line:column") -> a function that makes the exception."""


def _assert_is(condition: object, expected: bool, where: str) -> None:
    """Raise the exception of the statement at `where` unless the condition is as expected."""
    if bool(condition) != expected:
        raise _errors[where]()


def _assumed(condition: object, expected: bool, where: str) -> None:
    """The check as a trace sees it, where it does nothing."""


for _overload in ("_assert_is", "_assert_is.number"):
    _library.impl(_overload, _assert_is, "CompositeExplicitAutograd")
    torch.library.register_fake(f"graphweave::{_overload}", _assumed, lib=_library)
_OF_TENSOR, _OF_NUMBER = torch.ops.graphweave._assert_is.default, torch.ops.graphweave._assert_is.number
torch.fx.node.has_side_effect(_OF_TENSOR)
torch.fx.node.has_side_effect(_OF_NUMBER)


def way_at(tracer: InstructionTranslatorBase, jump: Instruction) -> bool | None:
    """Whether the conditional `jump`, whose condition is on top of the stack, is taken; None where PyTorch decides."""
    value = tracer.stack[-1]
    known = isinstance(value, TensorVariable) or (
        isinstance(value, SymNodeVariable) and bool(free_unbacked_symbols(value.sym_num))
    )
    if not known or jump.target is None or not isinstance(tracer.instruction_pointer, int):
        return None
    if_true = "IF_TRUE" in jump.opname
    if isinstance(value, SymNodeVariable) and isinstance(value.sym_num, torch.SymBool):
        decided = truth_of(value.sym_num)
        if decided is not None:
            return decided == if_true
    branch = _statement(tracer.f_code, jump)
    if not isinstance(branch, ast.If):
        return None
    following = tracer.instructions[tracer.instruction_pointer]
    for goes, instruction in ((True, jump.target), (False, following)):
        statement = _statement(tracer.f_code, instruction)
        truth = goes == if_true  # of the condition, on this way
        if isinstance(statement, ast.Raise) and not _caught(tracer):
            _check(tracer, value, not truth, statement)
            return not goes
        if statement is branch.body[0] and _only_filters(tracer, value, truth, branch):
            return goes
    return None


# ---------------------------------------------------------------- statements


def _statement(code: CodeType, instruction: object) -> ast.stmt | None:
    """The innermost statement of the source in which an instruction stands."""
    at = getattr(instruction, "positions", None)
    tree = file_of(code)
    if tree is None or at is None or at.lineno is None or at.col_offset is None:
        return None
    place, found = (at.lineno, at.col_offset), None
    body: list[Any] = [tree]
    while body:
        node = body.pop()
        for child in ast.iter_child_nodes(node):
            if hasattr(child, "lineno") and not _begins(child) <= place < _ends(child):
                continue
            body.append(child)
            found = child if isinstance(child, ast.stmt) else found
    return found


def _begins(node: Any) -> tuple[int, int]:
    return min([(node.lineno, node.col_offset), *((d.lineno, 0) for d in getattr(node, "decorator_list", ()))])


def _ends(node: Any) -> tuple[int, int]:
    return node.end_lineno, node.end_col_offset


# ---------------------------------------------------------------- raises


def _caught(tracer: InstructionTranslatorBase | None) -> bool:
    """Whether an exception that is raised here may be caught by code that is being traced."""
    while tracer is not None:
        instruction = tracer.current_instruction
        while (entry := instruction.exn_tab_entry) is not None:
            instruction = entry.target
            after = tracer.instructions[tracer.indexof[instruction] + 1]
            if instruction.opname == "PUSH_EXC_INFO" and after.opname != "WITH_EXCEPT_START":
                return True
        tracer = tracer.parent
    return False


def _check(tracer: InstructionTranslatorBase, value: VariableTracker, expected: bool, statement: ast.Raise) -> None:
    name = tracer.f_code.co_filename
    line = f"{shown_path(name)}:{statement.lineno}"
    where = f"{line}:{statement.col_offset}"
    _errors[where] = _error(statement, {**vars(builtins), **tracer.f_globals}, line)
    op = _OF_TENSOR if isinstance(value, TensorVariable) else _OF_NUMBER
    tracer.output.create_proxy("call_function", op, (value.as_proxy(), expected, where), {})


def _error(statement: ast.Raise, names: dict[str, object], line: str) -> Callable[[], Exception]:
    """Makes the exception that the statement raises. A message that is computed is replaced by its source."""
    raised = statement.exc
    called = raised.func if isinstance(raised, ast.Call) else raised
    kind: Any = RuntimeError
    if isinstance(called, ast.Name | ast.Attribute):
        found = _value(called, names)
        kind = found if isinstance(found, type) and issubclass(found, Exception) else RuntimeError
    args: list[Any] = []
    if isinstance(raised, ast.Call):
        constant = all(isinstance(a, ast.Constant) for a in raised.args) and not raised.keywords
        text = f"{ast.unparse(statement)} ({line})"
        args = [a.value for a in raised.args if isinstance(a, ast.Constant)] if constant else [text]
    try:
        kind(*args)
    except TypeError:  # it takes other arguments
        kind, args = RuntimeError, [f"{ast.unparse(statement)} ({line})"]
    return lambda: kind(*args)


def _value(expression: ast.expr, names: dict[str, object]) -> object:
    match expression:
        case ast.Name(id=name):
            return names.get(name)
        case ast.Attribute(value=owner, attr=name):
            return getattr(_value(owner, names), name, None)
        case _:
            return None


# ---------------------------------------------------------------- filters


def _only_filters(tracer: InstructionTranslatorBase, value: object, truth: bool, branch: ast.If) -> bool:
    """Whether the body of `branch` picks rows by a mask, and is left out only where the mask picks every row."""
    if branch.orelse or not isinstance(value, TensorVariable):
        return False
    filtered: set[str] = set()
    masks: set[str] = set()
    for statement in branch.body:
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return False
        for target, source in _assigned(statement.targets[0], statement.value):
            if not isinstance(target, ast.Name) or not isinstance(source, ast.Subscript):
                return False
            mask = _mask(source.slice)
            if mask is None or not isinstance(source.value, ast.Name) or source.value.id != target.id:
                return False
            filtered.add(target.id)
            masks.add(mask)
    if len(masks) != 1 or masks & filtered:
        return False
    chosen = _tensor(tracer, masks.pop())
    if chosen is None or val(chosen).dtype is not torch.bool or val(chosen).dim() != 1:
        return False
    if not _asks(value, chosen, truth):
        return False
    if any(_tensor(tracer, name) is None for name in filtered):
        return False
    return not any(_writes(node, filtered) for node in ast.walk(_around(file_of(tracer.f_code), branch)))


def _around(tree: Any, statement: ast.stmt) -> ast.AST:
    """The innermost function in which a statement stands."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    holding = [f for f in functions if _begins(f) <= _begins(statement) and _ends(statement) <= _ends(f)]
    return max(holding, key=_begins, default=tree)


def _assigned(target: ast.expr, source: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(source, ast.Tuple) and len(target.elts) == len(source.elts):
        return list(zip(target.elts, source.elts, strict=True))
    return [(target, source)]


def _mask(index: ast.expr) -> str | None:
    """`mask`, `:, mask` or `..., mask` -> the name of the mask."""
    *before, last = index.elts if isinstance(index, ast.Tuple) else [index]
    whole = all(
        (isinstance(i, ast.Slice) and (i.lower, i.upper, i.step) == (None, None, None))
        or (isinstance(i, ast.Constant) and i.value is ...)
        for i in before
    )
    return last.id if whole and isinstance(last, ast.Name) else None


def _tensor(tracer: InstructionTranslatorBase, name: str) -> fx.Node | None:
    """The FX node of a local variable that is a tensor; None for other variables."""
    value = tracer.symbolic_locals.get(name)
    value = None if value is None else value.realize()
    return value.as_proxy().node if isinstance(value, TensorVariable) else None


def val(node: fx.Node) -> Tensor:
    example: Tensor = node.meta["example_value"]
    return example


def _asks(value: VariableTracker, mask: object, truth: bool) -> bool:
    """Whether the condition has this truth exactly where some row of `mask` is not picked."""
    node = value.as_proxy().node
    name = getattr(node.target, "__name__", node.target)
    if name == "all" and not truth:
        return bool(node.args == (mask,) and not node.kwargs)
    if name != "any" or not truth or len(node.args) != 1 or node.kwargs:
        return False
    inverse = node.args[0]
    inverts = getattr(inverse.target, "__name__", inverse.target) in ("invert", "logical_not", "bitwise_not")
    return inverts and inverse.args == (mask,)


def _writes(node: ast.AST, names: set[str]) -> bool:
    """Whether a node writes into one of these variables in place, which would show whether it was copied."""
    match node:
        case ast.AugAssign(target=ast.Name(id=name)) | ast.Subscript(value=ast.Name(id=name), ctx=ast.Store()):
            return name in names
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)):
            return name in names and method.endswith("_") and not method.endswith("__")
        case _:
            return False
