"""Declares operators that work element by element, by their body in C++."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence

from torch import Tensor

from graphweave.core.declared import declare, withdraw
from graphweave.core.formulas import evaluate
from graphweave.core.operators import DEAR, Op, Operator, Spelling
from graphweave.extend.checks import check_captured, check_slopes
from graphweave.extend.cpp_check import check_cpp
from graphweave.extend.handle import Handle, entered, known
from graphweave.extend.subject import FEATURES, ROWS, Subject, drawn, example_of, subject_of, with_other_floats
from graphweave.frontends.calls.declared import Declared, add, discard, with_derivative

_OPERANDS = "xyz"
_RESERVED = ("g", "out")
_CALL = re.compile(r"(\w+)::(\w+)(?:\.(\w+))?(?=\s*\()")


def pointwise(
    operator: str, cpp: str, *, derivative: str | Mapping[str, str] | None = None, cost: int = DEAR,
    example: Sequence[object] | None = None,
) -> Handle:  # fmt: skip
    """Declare that `operator` ("mylib::op") works element by element, and define it in C++.

    `out[r, i] = op(x[r, i], y[r, i], ...)`, where operands broadcast as in PyTorch. It takes one to three arguments:
    tensors of one floating type, and floats. `cpp` is an expression in the arguments' names, or the body of a function
    that returns one. It is a template: `V` is float, double, or a vector of these, so the only branch is
    `gw_select(condition, a, b)`, and numbers that are not whole are written as `gw_const<V>(0.1)`. It may call what the
    headers `elementary.h` and `pointwise.h` of `runtime/native/graphweave/` define: `gw_exp`, `gw_log`, `gw_tanh`,
    `gw_sqrt`, `gw_abs`, `gw_max`, ... (half precision is computed in float).

    `derivative` gives the gradient of each argument that is a tensor, as a formula of the gradient `g` of the result,
    the arguments, and the result `out`, with + - * /, comparisons, the operators of docs/design/operators.md, and other
    operators that were declared pointwise: `"g * (1 - out * out)"`, `{"x": "mylib::op_backward(g, x)", "y": ""}` (no
    derivative). A single text is the formula of the first tensor. If `derivative` is left out, the operator's own
    autograd formula is used; without one the operator has no derivative, as in eager mode.

    `cost` is the cost of one element, in vector additions. The declaration is tried at once: the body is compiled and
    compared with the operator on numbers, zeros, infinities and NaN, in float64 and float32; the derivative is compared
    with the operator's own, or with finite differences, on `example` (arguments; if it is left out, drawn tensors and
    default numbers). Triton kernels have no body for the operator: there, what would be one kernel runs as PyTorch
    calls, and `rowwise` is the better choice. Graphs that were compiled before are not affected.

    Raises ValueError (DeclarationError) with the reason.
    """
    subject = subject_of("pointwise", operator)
    _check_arguments(subject)
    if not isinstance(cost, int) or cost < 1:
        raise subject.wrong(f"cost must be a number of vector additions, 1 at least (got {cost!r}). Pass one")
    slopes = _derivative(subject, derivative)
    key = ("pointwise", cpp, slopes, cost)
    found = known(subject.name, key)
    if found is not None:
        return found
    given = {n: drawn(ROWS, FEATURES, seed=seed) for seed, n in enumerate(subject.tensors)}
    args = example_of(subject, example, given)
    op = declare(_ir_name(subject), _row(subject, cpp, slopes, cost))
    try:
        _check(subject, op, args)
    except BaseException:
        withdraw(op)
        raise
    own = slopes is None or subject.own_derivative
    declared = Declared(subject.call, op=op, differentiable=None if own else with_derivative(op))
    add(declared)

    def undo() -> None:
        discard(declared)
        withdraw(op)

    return entered(subject.name, key, undo)


def _check_arguments(subject: Subject) -> None:
    schema = subject.call._schema
    kinds = [a.type.kind() for a in schema.arguments]
    if not 1 <= len(kinds) <= len(_OPERANDS) or len(schema.returns) != 1 or not subject.tensors:
        raise subject.wrong(
            f"expected one to three arguments, a tensor among them, and one result (got {schema}). Use rowwise"
        )
    other = [a for a, kind in zip(schema.arguments, kinds, strict=True) if kind not in _KINDS or a.kwarg_only]
    if other:
        raise subject.wrong(
            f"argument {other[0].name!r} is {other[0].type}; expected tensors and floats by position. Use rowwise"
        )


_KINDS = ("TensorType", "FloatType", "NumberType")


def _check(subject: Subject, op: Op, args: Sequence[object]) -> None:
    check_captured(subject, args)
    (out,) = subject.run(args)
    floats = {a.dtype for a in args if isinstance(a, Tensor)}
    if floats != {out.dtype} or not out.is_floating_point():
        raise subject.wrong(
            f"expected tensors of one floating type, and a result of it (got {floats} -> {out.dtype}). Use rowwise"
        )
    tries = with_other_floats(subject, args)
    check_cpp(subject, op, tries)
    for some in () if op.facts.derivative is None else tries:
        check_slopes(subject, with_derivative(op), some)


def _row(subject: Subject, cpp: str, slopes: tuple[str, ...] | None, cost: int) -> Operator:
    """The operator as a row of `core/operators.py`."""
    function = f"gw_op_{_ir_name(subject)}"
    body = cpp.strip() if re.search(r"\breturn\b", cpp) else f"return {cpp.strip()};"
    parameters = ", ".join(f"V {name}" for name in subject.arguments)
    lines = "\n".join(f"  {line}" for line in body.splitlines())
    operands = ", ".join(f"{{{x}}}" for x in _OPERANDS[: len(subject.arguments)])
    numbers = tuple(i for i, name in enumerate(subject.arguments) if name not in subject.tensors)
    return Operator(
        arity=len(subject.arguments), cost=cost, finite=False, derivative=slopes, aten=(subject.qualified,),
        numbers=numbers, cpp=Spelling(
            floats=f"{function}({operands})", header="elementary",
            function=f"template <class V>\nGW_INLINE V {function}({parameters}) {{\n{lines}\n}}\n",
        ),
    )  # fmt: skip


def _ir_name(subject: Subject) -> str:
    return _joined(*re.split("::|[.]", subject.qualified))


def _joined(library: str, name: str, overload: str) -> str:
    """The name of an operator in the text of programs, in formulas and in C++."""
    return f"{library}__{name}" if overload == "default" else f"{library}__{name}__{overload}"


# ---------------------------------------------------------------- derivatives


def _derivative(subject: Subject, derivative: str | Mapping[str, str] | None) -> tuple[str, ...] | None:
    """The formulas of all operands, written in x, y and z."""
    if derivative is None:
        return None
    by_name = {subject.tensors[0]: derivative} if isinstance(derivative, str) else dict(derivative)
    for name in by_name:
        if name not in subject.tensors:
            raise subject.wrong(
                f"derivative speaks of {name!r}; its tensors are {', '.join(subject.tensors)}. Name these"
            )
    missing = [name for name in subject.tensors if name not in by_name]
    if missing:
        raise subject.wrong(f"derivative says nothing of {missing[0]!r}. Give its formula, or '' for none")
    clash = [name for name in subject.arguments if name in _RESERVED]
    if clash:
        raise subject.wrong(
            f"in a derivative {clash[0]!r} is not the argument of that name. Call the argument otherwise"
        )
    return tuple(_formula(subject, by_name.get(name, "")) for name in subject.arguments)


def _formula(subject: Subject, text: str) -> str:
    """`text` with operands replaced by their letters, and operators by their names in programs."""
    if not text.strip():
        return ""
    text = _CALL.sub(lambda m: _joined(m[1], m[2], m[3] or "default"), text.strip())
    letters = dict(zip(subject.arguments, _OPERANDS, strict=False)) | {name: name for name in _RESERVED}
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError as error:
        raise subject.wrong(f"derivative {text!r} is no formula: {error.msg}. Correct it") from error
    functions = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and id(node) not in functions:
            if node.id not in letters:
                raise subject.wrong(
                    f"derivative {text!r} speaks of {node.id!r}; there are {', '.join(letters)}. Use these"
                )
            node.id = letters[node.id]
    formula = ast.unparse(tree)

    def apply(op: Op, operands: tuple[int, ...]) -> int:
        if len(operands) != op.facts.arity:
            raise subject.wrong(
                f"derivative {text!r}: {op.value} takes {op.facts.arity} operands (got {len(operands)}). Correct it"
            )
        return 0

    try:
        evaluate(formula, dict.fromkeys([*letters.values()], 0), apply, lambda number: 0)
    except (AssertionError, KeyError) as error:
        raise subject.wrong(
            f"derivative {text!r}: {error}. Write + - * /, comparisons and operators by name"
        ) from error
    except ValueError as error:
        if type(error) is not ValueError:
            raise
        raise subject.wrong(f"derivative {text!r}: {error}. Use those that docs/design/operators.md lists") from error
    return formula
