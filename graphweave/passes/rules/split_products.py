"""sum([a ; b] * c) -> sum(a * c1) + sum(b * c2), and push([a ; b] * c) -> [push(a * c1) ; push(b * c2)].

Legal for sums. It pays where a part then is a pull: the attention score of GAT as its paper writes it (Velickovic et
al., section 2.1), `(cat([z[src], z[dst]], -1) * att).sum(-1)`, is a sum of two values of nodes, and the gradient of
`att` is one total for each end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate

from graphweave.core.types import Fold, Op
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.passes.factors import Factor, Product, multiplied, negated, product, shaped, value_type, viewed
from graphweave.passes.rules.rule import Rule


@dataclass(frozen=True, slots=True)
class Cut:
    """A product one of whose factors is the concatenation `parts`, along the product's dim `dim`."""

    whole: Product
    parts: ir.Concat
    dim: int


def split_products(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """sum([a ; b] * c) -> sum(a * c1) + sum(b * c2), push([a ; b] * c) -> [push(a * c1) ; push(b * c2)]"""
    node, loc = build.nodes[ref], build.locs[ref]
    match node:
        case ir.Reduce(x, Fold.sum, dims) if (cut := cut_of(build, x)) is not None and cut.dim in dims:
            parts = [build.add(replace(node, x=r), loc) for r in _values(build, x, cut)]
            out = reduce(lambda a, b: build.add(ir.Pointwise(Op.add, (a, b)), loc), parts)
        case ir.Push(x) if node.is_plain_sum and (cut := cut_of(build, x)) is not None:
            parts = [build.add(replace(node, x=r), loc) for r in _values(build, x, cut)]
            out = build.add(ir.Concat(tuple(parts), cut.dim), loc)
        case _:
            return None
    return negated(build, out, cut.whole.sign, loc)


def cut_of(build: Builder, ref: ir.Ref) -> Cut | None:
    """The value `ref` as a product with a concatenation, the first of its factors; None where it has no such factor."""
    whole = product(build, ref)
    if len(whole.factors) < 2:
        return None
    for f in whole.factors:
        node = build.nodes[f.ref]
        if isinstance(node, ir.Concat) and (dim := _seen_at(build, f, node.dim)) is not None:
            return Cut(whole, node, dim)
    return None


def _seen_at(build: Builder, f: Factor, dim: int) -> int | None:
    """Where dim `dim` of the factor's value is in the factor's view, which differs in dims of size 1."""
    own = value_type(build, f.ref).shape
    return None if own[dim] == 1 else [d for d, n in enumerate(f.shape) if n != 1][sum(n != 1 for n in own[:dim])]


def _values(build: Builder, ref: ir.Ref, cut: Cut) -> Iterator[ir.Ref]:
    """The columns of the product `ref` that each part has, without its sign."""
    loc, t, widths = build.locs[ref], value_type(build, ref), _widths(build, cut.parts)
    for at, stop in enumerate(accumulate(widths)):
        taken = ir.Slice(ref, cut.dim, stop - widths[at], stop)
        factors = [_part(build, f, cut, at, taken) for f in cut.whole.factors]
        value = multiplied(build, factors, t.dtype, t.space, loc)
        yield shaped(build, value, _with(cut.whole.shape, cut.dim, widths[at]), loc)


def _part(build: Builder, f: Factor, cut: Cut, at: int, taken: ir.Slice) -> Factor:
    """The factor `f` in the columns `taken` of part `at`: a part of its own, if it is cut where the product is."""
    node = build.nodes[f.ref]
    if not isinstance(node, ir.Concat) or _seen_at(build, f, node.dim) != cut.dim:
        return sliced(build, f, cut.dim, taken)
    widths = _widths(build, node)
    if widths != _widths(build, cut.parts):
        return sliced(build, f, cut.dim, taken)
    return replace(f, ref=node.xs[at], shape=_with(f.shape, cut.dim, widths[at]))


def _widths(build: Builder, parts: ir.Concat) -> list[int]:
    return [value_type(build, r).shape[parts.dim] for r in parts.xs]


def sliced(build: Builder, f: Factor, dim: int, taken: ir.Slice) -> Factor:
    """The factor `f` in the columns that `taken` takes of dim `dim` of a product; itself where it has size 1 there."""
    if f.shape[dim] == 1:
        return f
    loc = build.locs[f.ref]
    value = viewed(build, f, loc)
    out = build.add(replace(taken, x=value, dim=dim - len(f.shape) + len(value_type(build, value).shape)), loc)
    return replace(f, ref=out, shape=_with(f.shape, dim, len(range(taken.start, taken.stop, taken.step))))


def _with(shape: tuple[int, ...], dim: int, size: int) -> tuple[int, ...]:
    return (*shape[:dim], size, *shape[dim + 1 :])


RULE = Rule(
    "split-products",
    "sum([a ; b] * c), push([a ; b] * c)",
    "sum(a * c1) + sum(b * c2), [push(a * c1) ; push(b * c2)]",
    split_products,
)
