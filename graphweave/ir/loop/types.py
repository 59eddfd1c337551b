"""Element types of loop-IR expressions, and which operators exist on which types."""

from __future__ import annotations

from collections.abc import Mapping

from graphweave.core.errors import IRError
from graphweave.core.numbers import neutral
from graphweave.core.types import AnyFold, DType, Fold, Op, belongs
from graphweave.ir.loop.nodes import Call, CastTo, Degree, Expr, IndexSum, Kernel, Lit, Load, Uniform, Var

POSITION = DType.i64
"""Type of rows, positions, lane indices, index sums and degrees in an expression."""


def supports(op: Op, dtype: DType) -> bool:
    """Whether kernels compute `op` on operands of `dtype`.

    Every operator takes floats, those that give integers on integers take integers, and few take bool. Torch's implicit
    promotions (exp of an integer, true division) are written as casts before the operator.
    """
    return belongs(dtype, op.facts.in_kernels)


def result_type(op: Op, operand: DType) -> DType:
    """Type of `op` on operands of type `operand` (for `where`: the type of its branches)."""
    return DType.bool if op.facts.gives_bool else operand


def parameter_types(kernel: Kernel) -> dict[str, DType]:
    """Types of the names that a kernel's body may use from its first statement on."""
    types = {buffer.name: buffer.dtype for buffer in kernel.buffers}
    types |= {stash.name: stash.dtype for stash in kernel.stashes}
    return types if kernel.tile is not None else types | {kernel.row: POSITION}


def dtype_of(expr: Expr, scope: Mapping[str, DType]) -> DType:
    """Type of `expr`; `scope` has the type of each variable and of the elements of each buffer, alloc and stash."""
    match expr:
        case Var(name) | Load(name, _):
            if name not in scope:
                raise IRError(f"'{name}' is not defined here.")
            return scope[name]
        case Lit(_, dtype) | CastTo(_, dtype) | Uniform(dtype=dtype):
            return dtype
        case Call(op, args):
            return DType.bool if op.facts.gives_bool else dtype_of(args[op.facts.condition], scope)
        case IndexSum() | Degree():
            return POSITION


def identity(fold: AnyFold, dtype: DType) -> Lit:
    """The neutral element of `fold` on `dtype`, which is the result of a reduction over nothing."""
    value = neutral(fold, dtype)
    return Lit(int(value) if fold in (Fold.sum, Fold.mul) and dtype.is_float else value, dtype)
