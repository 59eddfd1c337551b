"""The words every room shares: element types, row spaces, pointwise operators."""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from enum import Enum


class DType(Enum):
    """Element type of a value; the value of each member is its name in IR text."""

    f64 = "f64"
    f32 = "f32"
    f16 = "f16"
    bf16 = "bf16"
    i64 = "i64"
    i32 = "i32"
    i16 = "i16"
    i8 = "i8"
    u8 = "u8"
    bool = "bool"

    @property
    def is_float(self) -> builtins.bool:
        return self in (DType.f64, DType.f32, DType.f16, DType.bf16)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEMSIZE[self]


_ITEMSIZE = {
    DType.f64: 8, DType.f32: 4, DType.f16: 2, DType.bf16: 2, DType.i64: 8,
    DType.i32: 4, DType.i16: 2, DType.i8: 1, DType.u8: 1, DType.bool: 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Space:
    """A set of rows: nodes, edges, types, graphs of a batch. Two values on one space have the same rows."""

    name: str

    def __str__(self) -> str:
        return self.name


UNIT = Space("unit")
"""The space of shared data (weights, scalars): one row, broadcast against every other space."""


HALF = (DType.f16, DType.bf16)
"""Types for storage: kernels compute with them in float32."""


def computed(dtype: DType) -> DType:
    """The type in which kernels compute values of `dtype`."""
    return DType.f32 if dtype in HALF else dtype


class Op(Enum):
    """Row-wise scalar operators, the same in both IRs. Arity in `ARITY`; semantics are torch's."""

    neg = "neg"
    exp = "exp"
    log = "log"
    log1p = "log1p"
    expm1 = "expm1"
    sqrt = "sqrt"
    rsqrt = "rsqrt"
    reciprocal = "reciprocal"
    abs = "abs"
    sign = "sign"
    tanh = "tanh"
    sigmoid = "sigmoid"
    erf = "erf"
    sin = "sin"
    cos = "cos"
    floor = "floor"
    ceil = "ceil"
    relu = "relu"
    logical_not = "logical_not"
    isnan = "isnan"
    add = "add"
    sub = "sub"
    mul = "mul"
    div = "div"
    pow = "pow"
    maximum = "maximum"  # NaN wins, as torch.maximum
    minimum = "minimum"
    atan2 = "atan2"
    eq = "eq"
    ne = "ne"
    lt = "lt"
    le = "le"
    gt = "gt"
    ge = "ge"
    logical_and = "logical_and"
    logical_or = "logical_or"
    where = "where"  # where(cond, a, b)

    @property
    def gives_bool(self) -> bool:
        return self in _PREDICATES


_PREDICATES = frozenset(
    {Op.eq, Op.ne, Op.lt, Op.le, Op.gt, Op.ge, Op.logical_and, Op.logical_or, Op.logical_not, Op.isnan}
)
_UNARY = (
    Op.neg, Op.exp, Op.log, Op.log1p, Op.expm1, Op.sqrt, Op.rsqrt, Op.reciprocal, Op.abs, Op.sign, Op.tanh,
    Op.sigmoid, Op.erf, Op.sin, Op.cos, Op.floor, Op.ceil, Op.relu, Op.logical_not, Op.isnan,
)  # fmt: skip
ARITY: dict[Op, int] = {op: 1 if op in _UNARY else 3 if op is Op.where else 2 for op in Op}
"""Number of operands of each operator."""


EXPENSIVE = frozenset({
    Op.exp, Op.log, Op.log1p, Op.expm1, Op.sqrt, Op.rsqrt, Op.reciprocal, Op.tanh, Op.sigmoid, Op.erf, Op.sin, Op.cos,
    Op.div, Op.pow, Op.atan2,
})  # fmt: skip
"""Operators worth computing once and keeping."""


class Fold(Enum):
    """Associative reductions, used along maps (push), along features (reduce) and in accumulators."""

    sum = "sum"
    mul = "mul"
    max = "max"  # NaN wins
    min = "min"
