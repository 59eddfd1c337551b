"""Functions that PyTorch leaves to Python because of a loop: the loop runs as Python and what is in it is compiled.

PyTorch gives up a whole function if its trace breaks within a loop, or if a loop runs over what data decides. Such a
function is traced again as a call of its rewritten form (`loops_in_python.py`), which is Python's and whose parts are
traced one by one. A function that cannot be rewritten is counted and reported.
"""

from __future__ import annotations
import __future__

import ast
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

import torch._dynamo
from torch._dynamo import bytecode_transformation, resume_execution, symbolic_convert
from torch._dynamo.exc import TorchDynamoException, Unsupported, UserError
from torch._dynamo.utils import ExactWeakKeyDictionary

from graphweave.core.log import logger
from graphweave.frontends.tracing.lists_as_loops import with_loops_for_lists
from graphweave.frontends.tracing.loops_in_python import (
    CannotRewrite,
    Function,
    Mangled,
    Unannotated,
    decides_a_loop,
    function_of,
    is_in_a_loop,
    loops_behind,
    parameters_of,
    rewritten,
)
from graphweave.frontends.tracing.reasons import one_line
from graphweave.frontends.tracing.syntax import codes_in, file_of

_log = logger(__name__)

_OF_DATA = frozenset(
    {
        "Data dependent operator",
        "Dynamic shape operator",
        "Dynamic shape operator (no meta kernel)",
        "Data-dependent branching",
        "Unsupported Tensor.item() call with capture_scalar_outputs=False",
    }
)
"""PyTorch's kinds of graph breaks at what data decides."""


LOOP_IN_PYTHON = "a loop runs as Python, and what is in it is compiled"
"""The beginning of the reason for a graph break at a rewritten function."""
_ANOTHER = "*** While handling this graph break"
"""The line of PyTorch's before the second of two reasons, which only says that the first arose in a loop."""


@dataclass(slots=True)
class _Known:
    """Facts about a function: its syntax (None if it has no source), the lines whose loops run as Python, and the
    code that PyTorch traces instead of it (None until it is needed)."""

    syntax: Function | None
    lines: list[int] = field(default_factory=list)
    caller: CodeType | None = None


_bytecode: Any = bytecode_transformation
_eval_frame: Any = torch._dynamo.eval_frame
_known: Any = ExactWeakKeyDictionary()
"""Code of functions in which a trace broke -> `_Known`."""
_numbers = itertools.count()
_replaced: set[CodeType] = set()
"""The code in whose place other code is being traced."""
_FUTURE = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})
"""The bits of a code's flags that are imports from `__future__`."""


def traced_instead(code: CodeType) -> CodeType | None:
    """The code that calls the rewritten form of a function, None if the function is traced as it is."""
    known = _known.get(code)
    return None if known is None else known.caller


def rewrite(code: CodeType, error: TorchDynamoException, scope: dict[str, object]) -> bool:
    """Rewrite the function in whose loop a trace broke with `error`, whose global names are in `scope`. Returns whether
    that was possible."""
    known = _of(code)
    if known.syntax is None:
        return False
    line = _line_in(code, error)
    new = {line, *loops_behind(known.syntax, line)} - {*known.lines}
    if not new:
        return False
    try:
        known.caller = _caller(code, known.syntax, [*known.lines, *new], line, _why(error), scope)
    except CannotRewrite as why:
        _log.info("%s cannot be rewritten: %s", code.co_name, why)
        return False
    known.lines += new
    return True


def rewrite_from_next_call(code: CodeType, error: TorchDynamoException, scope: dict[str, object]) -> bool:
    """Like `rewrite`, for code that PyTorch made of the rest of a function behind an earlier graph break. The function
    has begun, so it is traced anew when it is called next."""
    original = _original(code)
    if original is code or not rewrite(original, error, scope):
        return False
    _eval_frame.reset_code(original)
    return True


def _of(code: CodeType) -> _Known:
    found = _known.get(code)
    if found is None:
        found = _known[code] = _Known(_syntax(code))
    return found


def _original(code: CodeType) -> CodeType:
    made = resume_execution.ContinueExecutionCache.generated_code_metadata
    while (meta := made.get(code)) is not None:
        code = meta.code
    return code


def _line_in(code: CodeType, error: TorchDynamoException) -> int:
    """The line of a function at which a trace of it broke, -1 if unknown. The call inside may have broken it."""
    outermost = next(iter(getattr(error, "real_stack", None) or ()), None)
    return outermost.lineno if outermost is not None and outermost.filename == code.co_filename else -1


def _why(error: TorchDynamoException) -> str:
    first = error.__cause__ or error
    return f"{LOOP_IN_PYTHON}: {one_line(str(first).partition(_ANOTHER)[0])}"


def _syntax(code: CodeType) -> Function | None:
    """The syntax of a function if its file is as it was when it was compiled, else None."""
    tree = deepcopy(file_of(code))
    for node, owner in _functions(tree, "") if tree is not None else ():
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        if node.name == code.co_name and first == code.co_firstlineno:
            named: Any = Mangled(owner).visit(node) if owner else node
            return with_loops_for_lists(Unannotated().visit(named))
    return None


def _functions(node: ast.AST, owner: str) -> Iterator[tuple[Function, str]]:
    """The functions in `node`, each with the innermost class around it ("" if there is none)."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield child, owner
        yield from _functions(child, child.name if isinstance(child, ast.ClassDef) else owner)


def _caller(
    code: CodeType, syntax: Function, lines: list[int], line: int, why: str, scope: dict[str, object]
) -> CodeType:  # fmt: skip
    """Code with the parameters and variables of `code` that calls the rewritten function."""
    made, parts = rewritten(syntax, lines)
    free = code.co_freevars
    body = _compiled_within(made, free, code)
    if not set(body.co_freevars) <= set(free):
        raise CannotRewrite("the rewritten function has other variables of functions around it")
    by_name = {p.name: p for p in parts}
    for part in codes_in(body):
        if part.co_name in by_name:
            _known[part] = _Known(by_name[part.co_name])
    _trace_only_what_it_calls(body)

    def run(cells: Callable[[], object] | None, *args: object) -> object:
        closure = dict(zip(cells.__code__.co_freevars, cells.__closure__ or (), strict=True)) if cells else {}
        function = FunctionType(body, scope, body.co_name, None, tuple(closure[name] for name in body.co_freevars))
        return function(*args)

    _trace_only_what_it_calls(run.__code__)
    run._torchdynamo_disable = True  # type: ignore[attr-defined]
    run._torchdynamo_disable_msg = why  # type: ignore[attr-defined]
    name = f"__graphweave_rewritten_{next(_numbers)}"
    scope[name] = run  # PyTorch, too, keeps what compiled code calls among the global names of the code's module
    cells = f"lambda: ({''.join(f'{v}, ' for v in free)})" if free else "None"
    called = f"{name}({', '.join([cells, *parameters_of(syntax)])})"
    return _compiled_within(_returning(called, syntax, code, line), free, code)


def _returning(value: str, syntax: Function, code: CodeType, line: int) -> Function:
    """The syntax of a function with the signature of `syntax` that returns an expression.

    Behind the return stand variables that only make its cells those of `code`, as PyTorch expects.
    """
    arguments = ast.arguments(
        [ast.arg(a.arg) for a in syntax.args.posonlyargs], [ast.arg(a.arg) for a in syntax.args.args],
        syntax.args.vararg and ast.arg(syntax.args.vararg.arg), [ast.arg(a.arg) for a in syntax.args.kwonlyargs],
        [None for _ in syntax.args.kwonlyargs], syntax.args.kwarg and ast.arg(syntax.args.kwarg.arg), [],
    )  # fmt: skip
    others = [v for v in code.co_cellvars if v not in set(parameters_of(syntax))]
    text = f"return {value}\n" + "".join(f"{v} = None\n" for v in others)
    if code.co_cellvars:
        text += f"lambda: ({''.join(f'{v}, ' for v in code.co_cellvars)})\n"
    body = ast.parse(text).body
    made = function_of(syntax.name, arguments, body)
    for node in ast.walk(made):
        if "lineno" in node._attributes:
            node.lineno = node.end_lineno = line  # type: ignore[attr-defined]
            node.col_offset = node.end_col_offset = 0  # type: ignore[attr-defined]
    return made


def _compiled_within(function: Function, free: tuple[str, ...], code: CodeType) -> CodeType:
    """The code of a function that stands in a function with the variables `free`."""
    if free:
        outer = ast.parse(f"def outer({', '.join(free)}):\n  pass").body[0]
        assert isinstance(outer, ast.FunctionDef)
        outer.body = [function]
        tree = ast.Module([outer], [])
    else:
        tree = ast.Module([function], [])
    flags = code.co_flags & _FUTURE
    try:
        compiled = compile(ast.fix_missing_locations(tree), code.co_filename, "exec", flags, dont_inherit=True)
    except SyntaxError as error:
        raise CannotRewrite("the rewritten function is no valid Python") from error
    return next(c for c in codes_in(compiled) if c.co_name == function.name and c is not compiled)


def _trace_only_what_it_calls(code: CodeType) -> None:
    _eval_frame.skip_code(code)


@lru_cache(maxsize=256)
def caller_of(formula: Callable[..., object], function: FunctionType) -> CodeType | None:
    """Code with the parameters and variables of `function` that calls `formula` with the parameters. None for a
    function without source, and for one whose arguments do not all have positions."""
    code = function.__code__
    syntax = _of(code).syntax
    if syntax is None or syntax.args.vararg or syntax.args.kwarg or syntax.args.kwonlyargs:
        return None
    name = f"__graphweave_formula_{next(_numbers)}"
    function.__globals__[name] = formula
    called = f"{name}({', '.join(parameters_of(syntax))})"
    return _compiled_within(_returning(called, syntax, code, code.co_firstlineno), code.co_freevars, code)


def in_place_of(caller: CodeType, given: Mapping[str, Any]) -> None:
    """Let a trace under way, whose arguments are `given`, trace `caller` instead."""
    _replaced.add(given["code"])
    instructions = _bytecode.cleaned_instructions(caller)
    _bytecode.propagate_line_nums(instructions)
    given["instructions"][:] = instructions
    options = given["code_options"]
    for key in options:
        if key not in ("co_name", "co_qualname", "co_filename", "co_firstlineno"):
            options[key] = getattr(caller, key)


_may_loop: Any = getattr(symbolic_convert.InstructionTranslatorBase, "maybe_has_backedge", None)


def _in_a_loop(translator: Any) -> bool:
    """Whether the trace breaks within a loop, or before a loop whose end data decides.

    PyTorch's own answer overlooks some loops. It would then call the rest of the function anew at each turn, one call
    within the other. If a graph ended where it is decided what a loop runs over, it would be followed by one with all
    turns of the loop, compiled anew for each number of them.
    """
    code, line, error = translator.f_code, translator.lineno, sys.exc_info()[1]
    if code in _replaced:
        return False
    if _may_loop(translator):
        return True
    syntax = _of(_original(code)).syntax
    if syntax is None:
        return _is_jumped_over(translator)
    of_data = isinstance(error, UserError) or (isinstance(error, Unsupported) and error.gb_type in _OF_DATA)
    if is_in_a_loop(syntax, line) or (of_data and decides_a_loop(syntax, line)):
        return True
    return _original(code) is code and bool(loops_behind(syntax, line))


def _is_jumped_over(translator: Any) -> bool:
    """Whether some instruction behind the present one jumps back to it or before it."""
    here = translator.current_instruction.offset
    jumps = (i for i in translator.instructions if i.target is not None and i.offset is not None and i.offset >= here)
    return any(i.target.offset is not None and i.target.offset <= here for i in jumps)


@contextmanager
def watching_loops() -> Iterator[None]:
    """Within the block, in which PyTorch traces a function, it takes what decides a loop for a part of the loop."""
    _replaced.clear()
    if _may_loop is None:
        yield
        return
    translator: Any = symbolic_convert.InstructionTranslatorBase
    translator.maybe_has_backedge = _in_a_loop
    try:
        yield
    finally:
        translator.maybe_has_backedge = _may_loop
