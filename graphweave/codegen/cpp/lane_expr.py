"""Expressions of the loop IR as C++ expressions over vectors of lanes (`lanes.h`).

An expression that does not differ from lane to lane is computed as a number, and spread over a vector where it meets
one. A vector's element has the bits that the number would have, since the functions are the same templates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from graphweave.codegen.arrays import flatten, strides
from graphweave.codegen.cpp.expr import (
    CppScope,
    address,
    constant_power,
    expression,
    filled,
    offset_text,
    row_offset,
)
from graphweave.codegen.cpp.names import ctype, literal
from graphweave.codegen.cpp.native import HALVES
from graphweave.codegen.spelling import template
from graphweave.core.errors import IRError
from graphweave.core.types import DType, Fold, Op, computed
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.types import dtype_of
from graphweave.ir.loop.walk import subexpressions


@dataclass(slots=True)
class Vector:
    """The lanes of a loop that is printed over vectors.

    `lanes`: the lane of the loop and those that it also covers. `variable` and `width` are the C++ names of the first
    lane of a vector and of the number of its lanes. `rest` is the name of the number of lanes in a last vector that is
    not full, None if all are full. `values` are the variables computed so far that differ from lane to lane. `padded`
    says whether an array has room for the rest of a vector behind its last element. `extent` is the number of lanes.
    `constants` are the lanes of a fold that is written out, with their values.
    """

    scope: CppScope
    lanes: frozenset[str]
    variable: str
    width: str
    values: set[str]
    padded: Callable[[str], bool]
    extent: int
    rest: str | None = None
    constants: dict[str, int] = field(default_factory=dict)

    # ------------------------------------------------------------ what differs

    def differs(self, expr: loop.Expr) -> bool:
        """Whether `expr` differs from lane to lane."""
        return any(self._names(part) & (self.lanes | self.values) for part in subexpressions(expr))

    def _names(self, expr: loop.Expr) -> set[str]:
        match expr:
            case loop.Var(name):
                return {name}
            case loop.IndexSum(terms) | loop.Uniform(index=loop.IndexSum(terms)):
                return {name for name, coefficient in terms if coefficient}
        return set()

    def _computed(self, expr: loop.Expr) -> bool:
        """Whether `expr` depends on values that lanes have computed or loaded, and not only on their positions."""
        parts = list(subexpressions(expr))
        if any(self._names(part) & self.values for part in parts):
            return True
        return any(isinstance(part, loop.Load) and self.differs(part) for part in parts)

    # ------------------------------------------------------------ values

    def value(self, expr: loop.Expr) -> str:
        """`expr` as a vector: a mask for truths, float32 for half precision."""
        if not self.differs(expr):
            return self.spread(expression(expr, self.scope), dtype_of(expr, self.scope.types))
        match expr:
            case loop.Var(name) if name in self.values:
                return self.scope.names.of(name)
            case loop.Var() | loop.IndexSum():
                return self._position(expr)
            case loop.Load(array, index):
                return self.loaded(array, index)
            case loop.CastTo(x, dtype):
                return self._cast(x, dtype)
            case loop.Uniform():
                return self._uniform(expr)
            case loop.Call(op, args):
                return self._call(op, args)
        raise IRError(f"'{type(expr).__name__}' cannot differ from lane to lane.")

    def spread(self, number: str, dtype: DType) -> str:
        type_ = ctype(computed(dtype))
        return f"gw_all<{self.width}, {type_}>({number})"

    def _position(self, expr: loop.Var | loop.IndexSum) -> str:
        if isinstance(expr, loop.Var):
            return f"gw_from<{self.width}>({self.variable})"
        linear = loop.IndexSum(expr.terms, expr.offset)
        coefficients = [coefficient for name, coefficient in expr.terms if name in self.lanes]
        (coefficient,) = coefficients or (0,)
        text = f"gw_from<{self.width}, {coefficient}>({expression(linear, self.scope)})"
        text = text if expr.div == 1 else f"({text} / {expr.div})"
        return text if expr.mod is None else f"({text} % {expr.mod})"

    # ------------------------------------------------------------ memory

    def _template(self, array: str, index: tuple[loop.Expr, ...]) -> str:
        """Template arguments for the lanes to load or store. In a whole padded array these are always full vectors: a
        partly stored vector would have to reach the cache before it could be loaded again."""
        return self.width if self.rest is None or self.is_whole(array, index) else f"{self.width}, {self.rest}"

    def is_whole(self, array: str, index: tuple[loop.Expr, ...]) -> bool:
        """Whether the loop goes over all elements of a padded array that do not fill vectors of 16 bytes."""
        info = self.scope.arrays[array]
        if info.has_rows or info.numel != self.extent or not self.padded(array):
            return False
        if info.numel * info.dtype.itemsize % 16 == 0:
            return False  # it is stored in shorter vectors that are full (`lanes.vector_loop`)
        affine, rest = flatten(index, info.shape)
        return not rest and affine.offset == 0 and {name for name, c in affine.terms.items() if c} <= self.lanes

    def _place(self, array: str, index: tuple[loop.Expr, ...]) -> tuple[str, int]:
        """Arguments that say where the lanes find `array[index]`, and the step between them. If that is not constant,
        it is given as 0, and the last argument is a function from lanes to offsets."""
        info = self.scope.arrays[array]
        base, offset = address(array, index, self.scope)
        affine, rest = flatten(index[1:] if info.has_rows else index, info.shape)
        step = sum(c for name, c in affine.terms.items() if name in self.lanes and name not in self.scope.fused)
        by_row = info.has_rows and self.differs(index[0])
        step = 1 if self.extent == 1 else step
        if step > 0 and not by_row and not any(self.differs(expr) for expr, _ in rest):
            return base if offset == "0" else f"{base} + {offset}", step
        if by_row:
            base, offset = self.scope.names.of(array), f"{row_offset(index[0], info.numel, self.scope)} + {offset}"
        return f"{base}, {self.variable}, [&](int64_t {self.variable}) {{ return {offset}; }}", 0

    def _computed_place(self, array: str, index: tuple[loop.Expr, ...]) -> str | None:
        """The place that `_place` gives, with a vector of offsets; None unless lanes have computed them."""
        if not any(self._computed(part) for part in index):
            return None
        info = self.scope.arrays[array]
        parts = [(index[0], info.numel)] if info.has_rows else []
        parts += zip(index[1:] if info.has_rows else index, strides(info.shape), strict=True)
        offsets = " + ".join(f"gw_converted<int64_t>({self.value(part)}) * {stride}" for part, stride in parts)
        return f"{self.scope.names.of(array)}, {offsets}"

    def loaded(self, array: str, index: tuple[loop.Expr, ...]) -> str:
        template, computed_ = self._template(array, index), self._computed_place(array, index)
        if computed_ is not None:
            return f"gw_gather_at<{template}>({computed_})"
        place, step = self._place(array, index)
        if step > 1:
            within = self._within_step(array, index, step)
            first = f"{place} - {within}" if within else place
            return f"gw_load_steps<{step}, {within}, {template}>({first})"
        return f"{'gw_load' if step else 'gw_gather'}<{template}>({place})"

    def _within_step(self, array: str, index: tuple[loop.Expr, ...], step: int) -> int:
        """How far `constants` move a place within a step. Loads begin that much earlier, so that neighbours load the
        same vectors."""
        info = self.scope.arrays[array]
        affine, _ = flatten(index[1:] if info.has_rows else index, info.shape)
        return sum(c * self.constants.get(name, 0) for name, c in affine.terms.items() if c > 0) % step

    def stored(self, array: str, index: tuple[loop.Expr, ...], value: str) -> str:
        """The statement that stores the vector `value`, without its semicolon."""
        template, computed_ = self._template(array, index), self._computed_place(array, index)
        if computed_ is not None:
            return f"gw_scatter_at<{template}>({computed_}, {value})"
        place, step = self._place(array, index)
        if step > 1:
            return f"gw_store_steps<{step}, {template}>({place}, {value})"
        return f"{'gw_store' if step else 'gw_scatter'}<{template}>({place}, {value})"

    # ------------------------------------------------------------ operators

    def _cast(self, x: loop.Expr, dtype: DType) -> str:
        source, text = dtype_of(x, self.scope.types), self.value(x)
        if dtype in HALVES:
            self.scope.headers.add(HALVES[dtype])
            text = text if computed(source) is DType.f32 else self._converted(text, source, DType.f32)
            return f"gw_rounded<{ctype(dtype)}>({text})"
        return self._converted(text, computed(source), dtype)

    def _converted(self, text: str, source: DType, dtype: DType) -> str:
        if source is dtype:
            return text
        if dtype is DType.bool:
            return f"({text} != {self.spread(literal(0, source), source)})"
        if source is DType.bool:
            return f"gw_ones<{ctype(dtype)}>({text})"
        if source.is_float and dtype in (DType.u8, DType.i8, DType.i16):
            text = f"gw_converted<int64_t>({text})"  # wraps, where the direct conversion is undefined
        return f"gw_converted<{ctype(dtype)}>({text})"

    def _uniform(self, expr: loop.Uniform) -> str:
        self.scope.headers.add("random")
        if self._computed(expr.row) or self.differs(expr.seed):
            raise IRError("a random number's seed and row must not depend on values that lanes compute.")
        affine, rest = flatten((expr.index,), (expr.size,))
        step = sum(c for name, c in affine.terms.items() if name in self.lanes and name not in self.scope.fused)
        seed = expression(expr.seed, self.scope)
        if rest or self.differs(expr.row):
            row = self.value(expr.row)
            index = self.value(expr.index)
            return f"gw_uniform_{expr.dtype.value}({seed}, {row} * {expr.size} + {index})"
        first = (
            f"{row_offset(expr.row, expr.size, self.scope)} + {offset_text((expr.index,), (expr.size,), self.scope)}"
        )
        return f"gw_uniform_{expr.dtype.value}({seed}, gw_from<{self.width}, {step}>({first}))"

    def _call(self, op: Op, args: tuple[loop.Expr, ...]) -> str:
        dtype = dtype_of(args[-1], self.scope.types)
        if op is Op.where:
            self.scope.headers.add("lanes")
            condition = self.value(args[0]) if self.differs(args[0]) else expression(args[0], self.scope)
            function = "gw_select_truth" if dtype is DType.bool else "gw_select"
            return f"{function}({condition}, {self.value(args[1])}, {self.value(args[2])})"
        return self._written(op, dtype, [self.value(arg) for arg in args], constant_power(op, args))

    def _written(self, op: Op, dtype: DType, texts: list[str], power: str | None = None) -> str:
        text, header = template(op, "C++", dtype, op.facts.lanes, op.facts.cpp)
        self.scope.uses(op, header)
        truths = {f"{name}?": self._truth(t, dtype) for name, t in zip("xyz", texts, strict=False)}
        one, zero = (self.spread(literal(n, dtype), dtype) for n in (1, 0))
        return filled(power or text, texts, one=one, zero=zero, **truths, **{"<type>": ""})

    def _truth(self, text: str, dtype: DType) -> str:
        return text if dtype is DType.bool else f"({text} != {self.spread(literal(0, dtype), dtype)})"

    def fold_into(self, fold: Fold, dtype: DType, old: str, new: str) -> str:
        """fold(old, new) of vectors."""
        if dtype.is_float and fold in (Fold.sum, Fold.mul):
            return f"({old} {'+' if fold is Fold.sum else '*'} {new})"
        if dtype is DType.bool:
            return self._written(fold.op, dtype, [old, new])
        self.scope.headers.add("folds")
        return f"{functor(fold, dtype)}({old}, {new})"

    def widest(self, exprs: list[loop.Expr]) -> int:
        """Bytes of the widest value that differs from lane to lane, at least 4."""
        return max([4, *(size for expr in exprs for size in self._sizes(expr))])

    def _sizes(self, expr: loop.Expr) -> list[int]:
        if not self.differs(expr):
            return []
        match expr:
            case loop.Load(_, index):
                inner = [8] if any(self._computed(part) for part in index) else []
            case loop.CastTo(x, _):
                inner = self._sizes(x)
                if dtype_of(x, self.scope.types).is_float and expr.dtype in (DType.u8, DType.i8, DType.i16):
                    inner = [8]
            case loop.Call(_, args):
                inner = [size for arg in args for size in self._sizes(arg)]
            case loop.Uniform():
                inner = [8]
            case _:
                inner = []
        return [*inner, computed(dtype_of(expr, self.scope.types)).itemsize]


def functor(fold: Fold, dtype: DType) -> str:
    """The fold as a function object of `folds.h`."""
    if dtype is DType.bool:
        return "gw_fold_any()" if fold in (Fold.sum, Fold.max) else "gw_fold_all()"
    return fold.facts.cpp
