"""Random programs on graphs of many maps: types of nodes and edges, batches, maps of a space to itself.

They grow as those of `random_programs` do, from more moves: over any map, on integers and masks, and through operators
that the others leave out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from graphweave.core.sizes import Symbol
from graphweave.core.types import UNIT, DType, Fold, Op, Space
from graphweave.ir.message.infer import broadcast_shapes, common_space
from graphweave.ir.message.nodes import Cast, Const, Input, MapOf, Pointwise, Program, Pull, Push, Ref, Type
from tests.programs.graphs import MAX_ROWS, EdgeList
from tests.programs.random_programs import MOVES, E, Growing, V, W, draw_inputs, fold_rows

G, R = Space("G"), Space("R")
_GRAPHS, _RELATIONS = 3, 4
_EXTRA = {"batch": (V, G), "etype": (E, R), "reverse": (E, E), "parent": (V, V), "again": (E, V)}
_T = TypeVar("_T")


def many_maps_program(seed: int, dtype: DType = DType.f32) -> Program:
    """Program number `seed`, with the maps src, dst, batch: V -> G, etype: E -> R, reverse: E -> E, parent: V -> V."""
    source = random.Random(seed)

    def choose(options: Sequence[_T]) -> _T:
        return options[source.randrange(len(options))]

    state = _Many(choose, dtype)
    for _ in range(choose(range(4, 20))):
        choose(_MOVES)(state)
    outputs: list[Ref | None] = [state.pool[-1], *(choose(state.pool) for _ in range(choose(range(4))))]
    outputs += [choose(state.integers), *state.masks[-1:]]
    names = {V: "s0", E: "s2", G: "s3", R: "s4"} | ({W: "s1"} if state.dst_space == W else {})
    spaces = [(space, Symbol(name)) for space, name in names.items()]
    return state.builder.program(outputs, spaces)


def many_maps_inputs(program: Program, graph: EdgeList, seed: int = 0) -> dict[str, Tensor]:
    """Inputs of `program` on `graph`, as `random_programs.inputs` gives them. There are 3 graphs in the batch and
    4 relations; the last of each is empty."""
    gen = torch.Generator().manual_seed(seed)
    two = W in dict(program.spaces)
    nodes, edges = graph.num_src if two else max(graph.num_src, graph.num_dst), len(graph.src)
    rows = {V: nodes, W: graph.num_dst, E: edges, G: _GRAPHS, R: _RELATIONS}
    index = {"src": graph.src, "dst": graph.dst}
    for name, (dom, cod) in _EXTRA.items():
        index[name] = torch.randint(max(rows[cod] - 1, 1), (rows[dom],), generator=gen)
    return draw_inputs(program, rows, index, gen)


@dataclass(slots=True)
class _Many(Growing):
    along: list[tuple[Ref, Space, Space]] = field(default_factory=list)
    """Every map, its domain and its codomain."""
    integers: list[Ref] = field(default_factory=list)
    """i64 values that have the same bits in every correct execution. So have `masks`, which are bool."""
    masks: list[Ref] = field(default_factory=list)

    def __post_init__(self) -> None:
        Growing.__post_init__(self)
        self.along = [(m, E, cod) for m, cod in zip(self.maps, (V, self.dst_space), strict=True)]
        for name, (dom, cod) in _EXTRA.items():
            index = self.builder.add(Input(name, Type(dom, (), self.choose((DType.i64, DType.i32)))))
            self.along.append((self.builder.add(MapOf(index, cod, self.choose((False, False, True)))), dom, cod))
        for space in (G, R):
            self.input(Type(space, self.choose(((), (1,), (4,), (2, 3))), self.dtype))
        self.integers.append(self.add(Input("integers", Type(self.choose((V, E)), (), DType.i64))))

    def integer(self, value: int) -> Ref:
        return self.add(Const(value, Type(UNIT, (), DType.i64)))

    def mate(self, ref: Ref, options: Sequence[Ref]) -> Ref:
        """One of `options` that can be combined with `ref` in a pointwise operation; `ref` itself is one of them."""
        return self.choose([r for r in options if _meet(self, ref, r)])


def _meet(s: Growing, *refs: Ref) -> bool:
    types = [s.type(r) for r in refs]
    return common_space(types) is not None and broadcast_shapes([t.shape for t in types]) is not None


# ---------------------------------------------------------------- moves


def pull_along(s: _Many) -> None:
    m, _, cod = s.choose(s.along)
    ref = s.some(lambda t: t.space == cod)
    if ref is not None:
        s.keep(Pull(ref, m), s.bound[ref], ref in s.exact)


def push_along(s: _Many) -> None:
    m, dom, _ = s.choose(s.along)
    ref = s.some(lambda t: t.space == dom)
    if ref is not None:
        fold_rows(s, ref, m)


def wide_sum(s: _Many) -> None:
    """Sums in float64."""
    m, dom, _ = s.choose(s.along)
    ref = s.some(lambda t: t.space == dom)
    if ref is not None:
        total = s.add(Push(s.add(Cast(ref, DType.f64)), m, s.choose((Fold.sum, Fold.max))))
        s.keep(Cast(total, s.dtype), MAX_ROWS * s.bound[ref])


def arithmetic(s: _Many) -> None:
    ref = s.choose(s.integers)
    op = s.choose((Op.add, Op.sub, Op.mul, Op.maximum, Op.minimum))
    other = s.integer(s.choose((0, 1, 2, -3))) if op is Op.mul else s.mate(ref, s.integers)
    s.integers.append(s.op(s.choose((Op.abs, Op.neg, Op.sign)), s.op(op, ref, other)))


def move_integers(s: _Many) -> None:
    ref = s.choose(s.integers)
    m, dom, cod = s.choose(s.along)
    if s.type(ref).space == cod:
        s.integers.append(s.add(Pull(ref, m)))
    elif s.type(ref).space == dom:
        s.integers.append(s.add(Push(ref, m, s.choose((Fold.sum, Fold.max, Fold.min)), s.choose((0, 1)))))


def to_integer(s: _Many) -> None:
    ref = s.some(exact=True)
    if ref is not None:
        whole = s.add(Cast(s.op(s.choose((Op.floor, Op.ceil)), ref), s.choose((DType.i64, DType.i32))))
        s.integers.append(s.add(Cast(whole, DType.i64)))


def to_float(s: _Many) -> None:
    ref = s.choose((*s.integers, *s.masks))
    if ref in s.integers:
        ref = s.op(Op.minimum, s.op(Op.maximum, ref, s.integer(-50)), s.integer(50))
    s.keep(Cast(ref, s.dtype), 50.0, exact=True)


def mask(s: _Many) -> None:
    ref = s.some(exact=True)
    if ref is None or s.choose((False, True)):
        s.masks.append(s.op(s.choose((Op.eq, Op.lt, Op.ge, Op.ne)), s.choose(s.integers), s.integer(s.choose((0, 1)))))
    else:
        s.masks.append(s.op(s.choose((Op.lt, Op.ge)), ref, s.number(0.25)))


def combine_masks(s: _Many) -> None:
    if s.masks:
        ref = s.choose(s.masks)
        both = s.op(s.choose((Op.logical_and, Op.logical_or)), ref, s.mate(ref, s.masks))
        s.masks.append(s.op(Op.logical_not, both))


def choose_by_mask(s: _Many) -> None:
    if not s.masks:
        return
    by, a = s.choose(s.masks), s.choose(s.pool)
    b = s.partner(a)
    if _meet(s, by, a, b):
        s.keep(Pointwise(Op.where, (by, a, b)), max(s.bound[a], s.bound[b]), {a, b} <= s.exact)


def rounded(s: _Many) -> None:
    ref = s.some(exact=True)
    if ref is not None:
        s.keep(Pointwise(s.choose((Op.sign, Op.floor, Op.ceil)), (ref,)), s.bound[ref] + 1.0, exact=True)


def power(s: _Many) -> None:
    base = s.op(Op.add, s.op(Op.abs, s.small(s.choose(s.pool))), s.number(0.5))
    s.keep(Pointwise(Op.pow, (base, s.number(s.choose((2.0, 0.5, -1.0, 3.0, 1.5))))), 8.0)


def angle(s: _Many) -> None:
    ref = s.choose(s.pool)
    s.keep(Pointwise(Op.atan2, (s.op(Op.add, s.op(Op.abs, ref), s.number(1.0)), s.partner(ref))), 4.0)


_MOVES: tuple[Callable[[_Many], None], ...] = (
    pull_along, pull_along, pull_along, push_along, push_along, push_along, wide_sum, arithmetic, move_integers,
    to_integer, to_float, mask, combine_masks, choose_by_mask, rounded, power, angle, *MOVES,
)  # fmt: skip
