"""Random well-typed message programs, and inputs for them.

Programs are grown by moves: each picks operands among the values so far and adds a few nodes. Values stay below
`_LARGE` (bounds are tracked, and what could exceed it is scaled down), and divisors above 1. Operators that amplify
rounding (exp, sin) get operands below `_MODEST`. Comparisons see only values that every correct execution computes
to the last bit (inputs, and what moves or selects them), so that two executions never take different branches for
rounding's sake.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from graphweave.core.lines import Location
from graphweave.core.operators import ANY, MODEST
from graphweave.core.sizes import Symbol
from graphweave.core.types import UNIT, DType, Fold, Op, Space
from graphweave.ir.message.aten import TORCH_DTYPE
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import broadcast_shapes, common_space, numel
from graphweave.ir.message.nodes import (
    Broadcast,
    Cast,
    Concat,
    Const,
    Gram,
    Input,
    MapOf,
    MatMul,
    Node,
    Pad,
    Permute,
    Pointwise,
    Program,
    Pull,
    Push,
    Reduce,
    Ref,
    Reshape,
    Slice,
    ToUnit,
    Type,
)
from tests.programs.graphs import MAX_ROWS, EdgeList

V, W, E = Space("V"), Space("W"), Space("E")
_LARGE = 1000.0
_MODEST = MODEST[1]
_SHAPES = ((), (1,), (4,), (31,), (33,), (2, 3), (1, 4), (4, 1), (2, 1, 3))
_T = TypeVar("_T")


class Choose(Protocol):
    """Chooses one of the options, by a seeded generator or by hypothesis, which can then shrink programs."""

    def __call__(self, options: Sequence[_T]) -> _T: ...


def random_program(seed: int, dtype: DType = DType.f32) -> Program:
    """Program number `seed`, in `dtype`. It is the same on every machine."""
    source = random.Random(seed)

    def choose(options: Sequence[_T]) -> _T:
        return options[source.randrange(len(options))]

    return grow(choose, dtype)


def inputs(program: Program, graph: EdgeList, seed: int = 0) -> dict[str, Tensor]:
    """Inputs of `program` on `graph`: signed, of size about 1. On a program of one node space, bipartite graphs have
    as many nodes as their larger side."""
    generator = torch.Generator().manual_seed(seed)
    rows = {V: graph.num_src, W: graph.num_dst, E: len(graph.src)}
    if W not in dict(program.spaces):
        rows[V] = max(graph.num_src, graph.num_dst)
    return draw_inputs(program, rows, {"src": graph.src, "dst": graph.dst}, generator)


def draw_inputs(
    program: Program, rows: Mapping[Space, int], index: Mapping[str, Tensor], generator: torch.Generator
) -> dict[str, Tensor]:
    """Values of every input: `index` by its name, negative at every other row where the map wraps; small integers for
    one that `index` does not name; the rest normally distributed."""
    wraps = {program.nodes[n.index]: n.cod for n in program.nodes if isinstance(n, MapOf) and n.wrap}
    found: dict[str, Tensor] = {}
    for node in program.nodes:
        if not isinstance(node, Input) or not isinstance(node.type, Type):
            continue
        t = node.type
        sizes = [*t.shape] if t.space == UNIT else [rows[t.space], *t.shape]
        if t.dtype.is_float:
            value = torch.randn(sizes, generator=generator, dtype=torch.float64)
        elif node.name in index:
            value = index[node.name]
        else:
            value = torch.randint(-4, 5, sizes, generator=generator)
        if node in wraps:
            value = value - rows[wraps[node]] * (torch.arange(len(value)) % 2)
        found[node.name] = value.to(TORCH_DTYPE[t.dtype])
    return found


def grow(choose: Choose, dtype: DType = DType.f32) -> Program:
    """Grows a program by `choose`, with maps src: E -> V and dst: E -> W (or V), 2 to 12 moves and 1 to 4 outputs."""
    state = Growing(choose, dtype)
    for _ in range(choose(range(2, 13))):
        choose(MOVES)(state)
    outputs: list[Ref | None] = [state.pool[-1], *(choose(state.pool) for _ in range(choose(range(4))))]
    if choose((False, False, True)):
        outputs.append(None)
    spaces = [(s, Symbol(n)) for s, n in ((V, "s0"), (W, "s1"), (E, "s2")) if s != W or state.dst_space == W]
    return state.builder.program(outputs, spaces)


@dataclass(slots=True)
class Growing:
    choose: Choose
    dtype: DType
    builder: Builder = field(default_factory=Builder)
    pool: list[Ref] = field(default_factory=list)
    """Float values of `dtype`, from which moves choose operands."""
    bound: dict[Ref, float] = field(default_factory=dict)
    exact: set[Ref] = field(default_factory=set)
    maps: list[Ref] = field(default_factory=list)
    dst_space: Space = W

    def __post_init__(self) -> None:
        self.dst_space = self.choose((V, W))
        index_type = Type(E, (), self.choose((DType.i64, DType.i32)))
        for name, cod in (("src", V), ("dst", self.dst_space)):
            index = self.builder.add(Input(name, index_type), Location("model.py", 1, name))
            self.maps.append(self.builder.add(MapOf(index, cod, self.choose((False, False, False, True)))))
        for space in {V: 0, self.dst_space: 0, self.choose((E, UNIT)): 0}:
            self.input(Type(space, self.choose(_SHAPES), self.dtype))

    def type(self, ref: Ref) -> Type:
        t = self.builder.types[ref]
        assert isinstance(t, Type)
        return t

    def input(self, t: Type) -> Ref:
        return self.keep(Input(f"{t.space}_{len(self.builder.nodes)}", t), 5.0, exact=True)

    def add(self, node: Node) -> Ref:
        return self.builder.add(node, Location("model.py", len(self.builder.nodes), "step"))

    def op(self, op: Op, *args: Ref) -> Ref:
        return self.add(Pointwise(op, args))

    def number(self, value: float) -> Ref:
        return self.add(Const(value, Type(UNIT, (), self.dtype)))

    def keep(self, node: Node, bound: float, exact: bool = False) -> Ref:
        """Adds `node`, scaled down if it may be large, and offers it to later moves."""
        ref = self.add(node)
        if bound > _LARGE:
            ref, bound, exact = self.op(Op.mul, ref, self.number(_MODEST / bound)), _MODEST, False
        self.pool.append(ref)
        self.bound[ref] = min(bound, self.bound.get(ref, bound))
        if exact:
            self.exact.add(ref)
        return ref

    def some(self, good: Callable[[Type], bool] = lambda t: True, exact: bool = False) -> Ref | None:
        """A value for which `good` holds; None if there is none."""
        options = [r for r in self.pool if good(self.type(r)) and (r in self.exact or not exact)]
        return self.choose(options) if options else None

    def on_edges(self) -> Ref:
        """A value on edges, which is pulled there or becomes an input if there is none."""
        ref = self.some(lambda t: t.space == E)
        if ref is not None:
            return ref
        pull(self)
        found = self.some(lambda t: t.space == E)
        return found if found is not None else self.input(Type(E, self.choose(_SHAPES), self.dtype))

    def partner(self, ref: Ref) -> Ref:
        """A value that can be combined with `ref` in a pointwise operation."""
        t = self.type(ref)
        found = self.some(
            lambda u: common_space([t, u]) is not None and broadcast_shapes([t.shape, u.shape]) is not None
        )
        assert found is not None  # ref itself qualifies
        return found

    def modest(self, ref: Ref) -> Ref:
        bound = self.bound[ref]
        return ref if bound <= _MODEST else self.op(Op.mul, ref, self.number(_MODEST / bound))

    def small(self, ref: Ref) -> Ref:
        """`ref` limited to -1..1."""
        return ref if self.bound[ref] <= 1.0 else self.op(Op.tanh, self.modest(ref))


# ---------------------------------------------------------------- moves


def pull(s: Growing) -> None:
    """Pulls a node value to the edges, or a unit value to any rows."""
    ref = s.choose(s.pool)
    t = s.type(ref)
    ways = [m for m, cod in zip(s.maps, (V, s.dst_space), strict=True) if cod == t.space]
    if t.space == UNIT:
        ways = [s.add(ToUnit(s.choose((V, E))))]
    if ways:
        s.keep(Pull(ref, s.choose(ways)), s.bound[ref], ref in s.exact)


def push(s: Growing) -> None:
    """Pushes an edge value to nodes, by any fold."""
    fold_rows(s, s.on_edges(), s.choose(s.maps))


def total(s: Growing) -> None:
    """Pushes all rows of a space to one unit value."""
    ref = s.some(lambda t: t.space != UNIT)
    if ref is not None:
        fold_rows(s, ref, s.add(ToUnit(s.type(ref).space)))


def fold_rows(s: Growing, ref: Ref, m: Ref) -> None:
    fold = s.choose(tuple(Fold))
    empty = s.choose((0.0, 0.0, 1.0, -2.5))
    if fold is Fold.mul:
        s.keep(Push(s.small(ref), m, fold, empty), 2.5)
    elif fold is Fold.sum:
        s.keep(Push(ref, m, fold, empty), MAX_ROWS * s.bound[ref] + 2.5)
    else:
        s.keep(Push(ref, m, fold, empty), s.bound[ref] + 2.5, ref in s.exact)


def mean(s: Growing) -> None:
    """A sum over max(degree, 1), where degrees are floats or integers."""
    ref, m = s.on_edges(), s.choose(s.maps)
    one = s.add(Const(1, Type(E, (), s.choose((s.dtype, DType.i64)))))
    count = s.add(Cast(s.add(Push(one, m, Fold.sum)), s.dtype))
    rank = len(s.type(ref).shape)
    degree = s.add(Reshape(s.op(Op.maximum, count, s.number(1.0)), (1,) * rank))
    s.keep(Pointwise(Op.div, (s.add(Push(ref, m, Fold.sum)), degree)), s.bound[ref])


def softmax(s: Growing) -> None:
    """PyG's softmax over the edges of each node."""
    ref, m = s.modest(s.on_edges()), s.choose(s.maps)
    top = s.add(Push(ref, m, Fold.max))
    weight = s.op(Op.exp, s.op(Op.sub, ref, s.add(Pull(top, m))))
    whole = s.op(Op.add, s.add(Push(weight, m, Fold.sum)), s.number(1e-16))
    s.keep(Pointwise(Op.div, (weight, s.add(Pull(whole, m)))), 1.0)


def share_of_max(s: Growing) -> None:
    """The values that amax's gradient needs: which edges equal the maximum, and how many do."""
    ref = s.some(lambda t: t.space == E, exact=True)
    if ref is None:
        return
    m = s.choose(s.maps)
    reached = s.op(Op.eq, ref, s.add(Pull(s.add(Push(ref, m, Fold.max)), m)))
    one = s.add(Cast(reached, s.dtype))
    ties = s.add(Pull(s.add(Push(one, m, Fold.sum)), m))
    s.keep(Pointwise(Op.div, (one, s.op(Op.maximum, ties, s.number(1.0)))), 1.0)


def _drawn(arity: int) -> list[Op]:
    return [op for op in Op if op.facts.arity == arity and op.facts.sampled is not None]


def unary(s: Growing) -> None:
    """Operators that are defined for all numbers, or all modest ones."""
    ref = s.choose(s.pool)
    op = s.choose([op for op in _drawn(1) if op.facts.sampled in (ANY, MODEST)])
    operand = s.modest(ref) if op.facts.sampled == MODEST else ref
    s.keep(Pointwise(op, (operand,)), max(s.bound[ref], 1.0), ref in s.exact and op.facts.exact)


def guarded_unary(s: Growing) -> None:
    """Operators with a narrow domain, on operands inside it: the larger `ref` is, the further from the domain's end."""
    ref = s.choose(s.pool)
    size = s.op(Op.abs, s.modest(ref))
    op = s.choose([op for op in _drawn(1) if op.facts.sampled not in (ANY, MODEST)])
    low, high = op.facts.sampled or ANY
    if high - low != _MODEST:
        size = s.op(Op.mul, size, s.number((high - low) / _MODEST))
    operand = s.op(Op.neg, size) if high == 0 else s.op(Op.add, size, s.number(low))
    s.keep(Pointwise(op, (operand,)), s.bound[ref] + 1.0)


def binary(s: Growing) -> None:
    ref = s.choose(s.pool)
    other = s.partner(ref)
    bound = s.bound[ref] + s.bound[other]
    match s.choose(_drawn(2)):
        case Op.mul:
            s.keep(Pointwise(Op.mul, (ref, s.small(other))), s.bound[ref])
        case Op.div:
            square = s.op(Op.mul, other, other)
            s.keep(Pointwise(Op.div, (ref, s.op(Op.add, square, s.number(1.0)))), s.bound[ref])
        case op:
            selects = op.facts.exact and {ref, other} <= s.exact
            s.keep(Pointwise(op, (ref, other)), bound, selects)


def select(s: Growing) -> None:
    """where(x < y, a, b), where x and y are exact."""
    ref = s.some(exact=True)
    if ref is None:
        return
    op = s.choose(tuple(op for op in Op if op.facts.compares))
    condition = s.op(op, ref, s.number(s.choose((0.0, 0.25, -0.5))))
    if s.choose((False, True)):
        condition = s.op(Op.logical_not, condition)
    a = s.partner(ref)
    s.keep(Pointwise(Op.where, (condition, a, s.number(-1.0))), max(s.bound[a], 1.0), a in s.exact)


def reduce(s: Growing) -> None:
    ref = s.some(lambda t: t.shape != ())
    if ref is None:
        return
    shape = s.type(ref).shape
    dims = s.choose([(d,) for d in range(len(shape))] + [tuple(range(len(shape)))])
    keepdim = s.choose((False, True))
    fold = s.choose(tuple(Fold))
    if fold is Fold.mul:
        s.keep(Reduce(s.small(ref), fold, dims, keepdim), 1.0)
        return
    times = numel([shape[d] for d in dims]) if fold is Fold.sum else 1
    s.keep(Reduce(ref, fold, dims, keepdim), times * s.bound[ref], fold is not Fold.sum and ref in s.exact)


def reshape(s: Growing) -> None:
    """Every way of moving elements within a row."""
    ref = s.some(lambda t: t.shape != ())
    if ref is None:
        return
    shape = s.type(ref).shape
    dim = s.choose(range(len(shape)))
    n = shape[dim]
    start = s.choose(range(n))
    rows = tuple(range(len(shape)))
    options: list[Node] = [
        Reshape(ref, (numel(shape),)),
        Reshape(ref, (1, *shape)),
        Permute(ref, (*rows[dim:], *rows[:dim])),
        Slice(ref, dim, start, n, s.choose((1, 1, 2, 3))),
        Pad(ref, dim, s.choose((0, 1, 2)), s.choose((0, 1))),
        Broadcast(ref, (2, *(3 if size == 1 else size for size in shape))),
    ]
    if numel(shape) % 2 == 0:
        options.append(Reshape(ref, (2, numel(shape) // 2)))
    node = s.choose(options)
    if len(shape) < 4:
        s.keep(node, s.bound[ref], ref in s.exact)


def concat(s: Growing) -> None:
    ref = s.some(lambda t: t.shape != ())
    if ref is None:
        return
    t = s.type(ref)
    dim = s.choose(range(len(t.shape)))

    def fits(u: Type) -> bool:
        alike = [a == b for i, (a, b) in enumerate(zip(t.shape, u.shape, strict=False)) if i != dim]
        return common_space([t, u]) is not None and len(t.shape) == len(u.shape) and all(alike)

    others = [r for r in (s.some(fits), s.some(fits)) if r is not None]
    if common_space([t, *map(s.type, others)]) is None or sum(s.type(r).shape[dim] for r in (ref, *others)) > 99:
        return
    parts = (ref, *others)
    s.keep(Concat(parts, dim), max(s.bound[r] for r in parts), s.exact.issuperset(parts))


def matmul(s: Growing) -> None:
    ref = s.some(lambda t: len(t.shape) in (1, 2))
    if ref is None:
        return
    shape = s.type(ref).shape
    w = s.input(Type(UNIT, (*shape, s.choose((1, 4, 31, 33))), s.dtype))
    s.keep(MatMul(ref, w), shape[-1] * s.bound[ref] * s.bound[w])


def gram(s: Growing) -> None:
    ref = s.some(lambda t: len(t.shape) in (1, 2))
    if ref is None:
        return
    space, blocks = s.type(ref).space, s.type(ref).shape[:-1]
    other = s.some(lambda t: t.space == space and len(t.shape) == len(blocks) + 1 and t.shape[:-1] == blocks)
    assert other is not None  # ref itself qualifies
    s.keep(Gram(ref, other), MAX_ROWS * s.bound[ref] * s.bound[other])


def typed_matmul(s: Growing) -> None:
    """Multiplies rows of edges by a matrix for each row that a map leads to, which is their type."""
    ref = s.some(lambda t: t.space == E and len(t.shape) in (1, 2))
    if ref is None:
        return
    m = s.choose(range(2))
    shape = s.type(ref).shape
    w = s.input(Type((V, s.dst_space)[m], (*shape, s.choose((1, 4, 33))), s.dtype))
    s.keep(MatMul(ref, w, s.maps[m]), shape[-1] * s.bound[ref] * s.bound[w])


def typed_gram(s: Growing) -> None:
    ref = s.some(lambda t: t.space == E and len(t.shape) in (1, 2))
    if ref is None:
        return
    blocks = s.type(ref).shape[:-1]
    other = s.some(lambda t: t.space == E and len(t.shape) == len(blocks) + 1 and t.shape[:-1] == blocks)
    assert other is not None  # ref itself qualifies
    s.keep(Gram(ref, other, s.choose(s.maps)), MAX_ROWS * s.bound[ref] * s.bound[other])


def detour(s: Growing) -> None:
    """Converts a value to float64 and back."""
    ref = s.choose(s.pool)
    wide = s.op(Op.sigmoid, s.add(Cast(ref, DType.f64)))
    s.keep(Cast(wide, s.dtype), 1.0)


def bring(s: Growing) -> None:
    """Adds an input to the program."""
    space = s.choose((V, s.dst_space, E, UNIT))
    s.input(Type(space, s.choose(_SHAPES), s.dtype))


MOVES: tuple[Callable[[Growing], None], ...] = (
    pull, pull, pull, push, push, push, total, mean, softmax, share_of_max, unary, guarded_unary, binary, binary,
    select, reduce, reshape, concat, matmul, gram, typed_matmul, typed_gram, detour, bring,
)  # fmt: skip
