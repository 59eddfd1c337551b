"""The words every room shares: element types, row spaces, pointwise operators."""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from graphweave.core.exact import Exact
from graphweave.core.operators import Domain
from graphweave.core.operators import Op as Op


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
"""Types that values are stored in but not computed in: kernels compute with them in float32."""


def computed(dtype: DType) -> DType:
    """The type in which kernels compute values of `dtype`."""
    return DType.f32 if dtype in HALF else dtype


def belongs(dtype: DType, domain: Domain) -> bool:
    """Whether operators of `domain` take operands of `dtype`."""
    return dtype.is_float or domain == "all" or (domain == "numbers" and dtype is not DType.bool)


@dataclass(frozen=True, slots=True)
class FoldFacts:
    """The names of one fold in the languages that compute it."""

    op: Op
    """The binary operator that the fold repeats."""
    aten: str
    """PyTorch's reduction, in `torch` and as that of `scatter_reduce`."""
    jax: str
    """JAX's reduction, in `jax.numpy`; also "reduce_" and "segment_" before it name a primitive and a function. It is
    what users call the fold in `graphweave.ops` and `graphweave.jax`, too."""
    cpp: str
    """The function object of `folds.h` for numbers."""


class Fold(Enum):
    """Associative reductions, used along maps (push), along features (reduce) and in accumulators."""

    sum = "sum"
    mul = "mul"
    max = "max"  # NaN if an operand is NaN
    min = "min"

    @property
    def facts(self) -> FoldFacts:
        return _FOLDS[self]

    @property
    def op(self) -> Op:
        """The binary operator that the fold repeats."""
        return self.facts.op


_FOLDS = {
    Fold.sum: FoldFacts(Op.add, "sum", "sum", "gw_fold_sum()"),
    Fold.mul: FoldFacts(Op.mul, "prod", "prod", "gw_fold_product()"),
    Fold.max: FoldFacts(Op.maximum, "amax", "max", "gw_fold_max()"),
    Fold.min: FoldFacts(Op.minimum, "amin", "min", "gw_fold_min()"),
}


@dataclass(frozen=True, slots=True, eq=False)
class OwnFold(Exact):
    """A user's associative and commutative fold of floats.

    `combine` is a formula (`core/formulas.py`) of x, what has been folded so far, and y, the next value. A fold begins
    with `identity`, which is also what it gives for no values at all.
    """

    combine: str
    identity: float

    @property
    def value(self) -> str:
        """The fold in a sentence about a kernel."""
        return "own fold"


AnyFold: TypeAlias = Fold | OwnFold
"""A fold along a map. Folds over features and over all rows are members of `Fold`."""
