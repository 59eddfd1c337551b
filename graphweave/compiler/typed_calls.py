"""Typed products of a program as calls: which tensors they take, and the runner behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from graphweave.analysis.cones import map_type, type_of
from graphweave.analysis.typed import call_operands, gathered, matrices
from graphweave.compiler.triton_typed import TritonGram, TritonProduct, TritonScatter
from graphweave.compiler.typed import TypedGram, TypedProduct
from graphweave.compiler.typed_scatter import TypedScatter
from graphweave.core.types import Space
from graphweave.ir.message import nodes
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import MapOf, Program, Ref
from graphweave.runtime.index import Index
from graphweave.schedule.options import Options, Target

_CALLS: dict[Target, tuple[type[TypedProduct], type[TypedGram], type[TypedScatter]]] = {
    "cpp": (TypedProduct, TypedGram, TypedScatter),
    "triton": (TritonProduct, TritonGram, TritonScatter),
}


def typed_step(program: Program, ref: Ref, options: Options) -> Callable[..., Any] | None:
    """`step(rows, *values)` of a typed product, its values as `call_operands` lists them; None for any other node."""
    node = program.nodes[ref]
    product_of, gram_of, scatter_of = _CALLS[options.target]
    names = call_operands(program, ref)
    match node:
        case nodes.TypedMatMul(x, w, m):
            rows, types, matrix = _Rows.of(program, x), _Map.of(program, m), matrices(program, w)
            *blocks, k, j = type_of(program, w).shape
            product = product_of(numel(blocks), k, j, type_of(program, ref).dtype, matrix.transposed)

            def multiply(counts: Mapping[Space, int], *values: Tensor) -> Tensor:
                given = dict(zip(names, values, strict=True))
                value, gather = rows.read(given)
                return product(value, given[matrix.w], types.index(given, counts), gather)

            return multiply
        case nodes.TypedGram(x, y, m):
            first, second, types = _Rows.of(program, x), _Rows.of(program, y), _Map.of(program, m)
            *blocks, k, j = type_of(program, ref).shape
            gram = gram_of(numel(blocks), k, j, type_of(program, ref).dtype)

            def outer(counts: Mapping[Space, int], *values: Tensor) -> Tensor:
                given = dict(zip(names, values, strict=True))
                (a, gather_a), (b, gather_b) = first.read(given), second.read(given)
                return gram(a, b, types.index(given, counts), gather_a, gather_b)

            return outer
        case nodes.TypedPush(x, w, scale, t, m):
            rows, matrix = _Rows.of(program, x), matrices(program, w)
            types, along = _Map.of(program, t), _Map.of(program, m)
            *blocks, k, j = type_of(program, w).shape
            scatter = scatter_of(numel(blocks), k, j, type_of(program, ref).dtype, matrix.transposed)

            def push(counts: Mapping[Space, int], *values: Tensor) -> Tensor:
                given = dict(zip(names, values, strict=True))
                value, gather = rows.read(given)
                ends = types.index(given, counts), along.index(given, counts)
                return scatter(value, given[matrix.w], *ends, gather, given.get(scale))

            return push
        case _:
            return None


@dataclass(frozen=True, slots=True)
class _Map:
    """The index tensor of a map; `rows` None where it counts the rows of the value that it gathers from."""

    values: Ref
    wrap: bool
    rows: Space | None

    @classmethod
    def of(cls, program: Program, m: Ref, *, gathers: bool = False) -> _Map:
        node = program.nodes[m]
        assert isinstance(node, MapOf)
        return cls(node.index, node.wrap, None if gathers else map_type(program, m).cod)

    def index(self, given: Mapping[Ref, Tensor], counts: Mapping[Space, int], rows: int = 0) -> Index:
        return Index(given[self.values], rows if self.rows is None else counts[self.rows], self.wrap)


@dataclass(frozen=True, slots=True)
class _Rows:
    """An operand's rows, of features `shape`: those of `x`, or those that `gather` names."""

    x: Ref
    shape: tuple[int, ...]
    gather: _Map | None

    @classmethod
    def of(cls, program: Program, ref: Ref) -> _Rows:
        rows = gathered(program, ref)
        gather = None if rows.map is None else _Map.of(program, rows.map, gathers=True)
        return cls(rows.x, type_of(program, ref).shape, gather)

    def read(self, given: Mapping[Ref, Tensor]) -> tuple[Tensor, Index | None]:
        x = given[self.x]
        index = None if self.gather is None else self.gather.index(given, {}, x.shape[0])
        return x.reshape(x.shape[0], *self.shape), index
