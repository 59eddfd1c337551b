"""Products of a program as calls: the tensors that they take, and the function that multiplies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

from graphweave.analysis.cones import map_type, type_of
from graphweave.analysis.typed import call_operands, gathered, matrices
from graphweave.core.options import Options
from graphweave.core.types import UNIT, DType, Space
from graphweave.execute import shared_products
from graphweave.execute.typed_products import TypedGram, TypedProduct
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.infer import numel
from graphweave.runtime import arena
from graphweave.runtime.index import Index

_Run: TypeAlias = Callable[[Mapping[ir.Ref, Tensor], Mapping[Space, int]], Tensor]


def product_call(
    program: ir.Program, ref: ir.Ref, spaces: Sequence[Space], options: Options
) -> Callable[..., object] | None:
    """The function `run(*rows, *values)` that computes a product, of the row counts of `spaces` and the values that
    `call_operands` lists, each once. None if PyTorch's own calls compute it."""
    node = program.nodes[ref]
    if isinstance(node, ir.MatMul | ir.AddMatMul | ir.Gram) and node.map is None:
        return _shared(program, ref, node, options)
    if isinstance(node, ir.MatMul) and node.map is not None:
        run = _typed(program, ref, node, node.map)
    elif isinstance(node, ir.Gram) and node.map is not None:
        run = _typed_gram(program, ref, node, node.map)
    else:
        return None
    names, count = call_operands(program, ref), len(spaces)

    def call(*args: Any) -> Tensor:
        rows = {UNIT: 1, **dict(zip(spaces, args, strict=False))}
        return run(dict(zip(names, args[count:], strict=True)), rows)

    return call


def _shared(
    program: ir.Program, ref: ir.Ref, node: ir.MatMul | ir.AddMatMul | ir.Gram, options: Options
) -> Callable[..., object] | None:
    """The function of a product with shared weights and f32 or f64 rows on the CPU; None for any other product."""
    rows, t = type_of(program, node.x), type_of(program, ref)
    if options.device != "cpu" or rows.space == UNIT or t.dtype not in (DType.f32, DType.f64) or len(rows.shape) != 1:
        return None
    if isinstance(node, ir.Gram):
        return (lambda x: shared_products.gram(x, x)) if node.y == node.x else shared_products.gram
    if isinstance(node, ir.MatMul):
        return shared_products.multiply
    # The result may overwrite a product that nobody else reads, but not a value that is saved or returned.
    into = isinstance(program.nodes[node.a], ir.MatMul | ir.AddMatMul)
    return shared_products.add if into else lambda a, x, w: shared_products.add(_copy(a), x, w)


def _typed(program: ir.Program, ref: ir.Ref, node: ir.MatMul, m: ir.Ref) -> _Run:
    rows, types, matrix = _Rows.of(program, node.x), _Map.of(program, m), matrices(program, node.w)
    *blocks, k, j = type_of(program, node.w).shape
    product = TypedProduct(numel(blocks), k, j, type_of(program, ref).dtype, matrix.transposed)

    def run(given: Mapping[ir.Ref, Tensor], counts: Mapping[Space, int]) -> Tensor:
        value, gather = rows.read(given)
        return product(value, given[matrix.w], types.index(given, counts), gather)

    return run


def _typed_gram(program: ir.Program, ref: ir.Ref, node: ir.Gram, m: ir.Ref) -> _Run:
    first, second, types = _Rows.of(program, node.x), _Rows.of(program, node.y), _Map.of(program, m)
    *blocks, k, j = type_of(program, ref).shape
    gram = TypedGram(numel(blocks), k, j, type_of(program, ref).dtype)

    def run(given: Mapping[ir.Ref, Tensor], counts: Mapping[Space, int]) -> Tensor:
        (a, gather_a), (b, gather_b) = first.read(given), second.read(given)
        return gram(a, b, types.index(given, counts), gather_a, gather_b)

    return run


def _copy(a: Tensor) -> Tensor:
    return arena.empty(a.shape, a.dtype).copy_(a)


@dataclass(frozen=True, slots=True)
class _Map:
    """The index tensor of a map. `rows` is the space that it indexes into; None if it indexes the value that it
    gathers."""

    values: ir.Ref
    wrap: bool
    rows: Space | None

    @classmethod
    def of(cls, program: ir.Program, m: ir.Ref, *, gathers: bool = False) -> _Map:
        node = program.nodes[m]
        assert isinstance(node, ir.MapOf)
        return cls(node.index, node.wrap, None if gathers else map_type(program, m).cod)

    def index(self, given: Mapping[ir.Ref, Tensor], counts: Mapping[Space, int], rows: int = 0) -> Index:
        return Index(given[self.values], rows if self.rows is None else counts[self.rows], self.wrap)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of an operand, of feature shape `shape`: all rows of `x`, or the rows of `x` that `gather` names."""

    x: ir.Ref
    shape: tuple[int, ...]
    gather: _Map | None

    @classmethod
    def of(cls, program: ir.Program, ref: ir.Ref) -> _Rows:
        rows = gathered(program, ref)
        gather = None if rows.map is None else _Map.of(program, rows.map, gathers=True)
        return cls(rows.x, type_of(program, ref).shape, gather)

    def read(self, given: Mapping[ir.Ref, Tensor]) -> tuple[Tensor, Index | None]:
        x = given[self.x]
        index = None if self.gather is None else self.gather.index(given, {}, x.shape[0])
        return x.reshape(x.shape[0], *self.shape), index
