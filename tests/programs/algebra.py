"""Random programs like layers of graph networks: several maps, linear layers, attention, means, gates, readouts.

They grow as those of `random_programs` do, and can be differentiated: what has a kink (leaky ReLU, a maximum over
edges) gets an operand moved by random numbers of its own, so that no two ways to compute it fall on different sides.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from graphweave.core.sizes import Symbol
from graphweave.core.types import UNIT, DType, Fold, Op, Space
from graphweave.ir.message.infer import broadcast_shapes, numel
from graphweave.ir.message.nodes import (
    Aten,
    Broadcast,
    Cast,
    Concat,
    Const,
    Input,
    MapOf,
    Operand,
    Permute,
    Program,
    Pull,
    Push,
    Reduce,
    Ref,
    Reshape,
    ToUnit,
    Type,
)
from tests.programs.graphs import MAX_ROWS, EdgeList
from tests.programs.joint import TANGENT, Joint, joint
from tests.programs.layering import WIDTHS, G, Layering, M, R
from tests.programs.random_programs import E, V, W, draw_inputs
from tests.programs.typed_layers import KINDS, TYPED_MOVES

_GRAPHS = 3
_HEADS = ((1, 4), (4, 1), (2, 3), (1, 1), (2, 2))
_ODD = ((), (1,), (4,), (4, 1), (1, 4), (2, 1, 3), (2, 4), (1, 1))
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Layers:
    """A program `forward`, and its values through which no gradient passes (the maximum within a softmax)."""

    forward: Program
    constants: frozenset[Ref]

    def joint(self) -> Joint:
        return joint(self.forward, self.constants)


def random_layers(seed: int, dtype: DType = DType.f64, moves: int = 6) -> Layers:
    """Program number `seed`, of 1 to `moves` moves.

    Its maps are src: E -> V, dst: E -> V or W, batch: V -> G and etype: E -> R.
    """
    source = random.Random(seed)

    def choose(options: Sequence[_T]) -> _T:
        return options[source.randrange(len(options))]

    s = Layering(choose, dtype)
    for _ in range(choose(range(1, moves + 1))):
        choose(MOVES)(s)
    fresh = [r for r in s.pool if not isinstance(s.builder.nodes[r], Input)] or s.pool
    outputs: list[Ref | None] = [fresh[-1], *(choose(fresh) for _ in range(choose(range(3))))]
    used = {t.space for t in s.builder.types if isinstance(t, Type)}
    spaces = [(space, Symbol(f"s{i}")) for i, space in enumerate((V, W, E, G, M, R)) if space in used]
    return Layers(s.builder.program(outputs, spaces), frozenset(s.constants))


def layer_inputs(program: Program, graph: EdgeList, seed: int = 0) -> dict[str, Tensor]:
    """Inputs of a random program or its joint program, tangents among them. The batch has 3 graphs, the last empty.
    There are 1 to 4 types of edges; if there are several, the last has no edges.

    Where selections are made, every third row of the inputs is selected.
    """
    generator = torch.Generator().manual_seed(seed)
    two = W in dict(program.spaces)
    nodes = graph.num_src if two else max(graph.num_src, graph.num_dst)
    picked = len(range(0, nodes, 3))
    types = 1 + seed % 4
    rows = {V: nodes, W: graph.num_dst, E: len(graph.src), G: _GRAPHS, M: picked, R: types}
    index = {"src": graph.src, "dst": graph.dst}
    index["batch"] = torch.randint(_GRAPHS - 1, (nodes,), generator=generator)
    index["etype"] = torch.randint(max(types - 1, 1), (len(graph.src),), generator=generator)
    index["kind"] = torch.randint(KINDS, (len(graph.src),), generator=generator)
    index[f"arange_0_{KINDS}"] = torch.arange(KINDS)
    index["picked"] = (torch.arange(nodes) % 3 == 0).long()
    found = draw_inputs(program, rows, index, generator)
    return {name: x * 0.5 if name.startswith(TANGENT) else x for name, x in found.items()}


# ---------------------------------------------------------------- moves


def pulls(s: Layering) -> list[Ref]:
    """Two or three values on edges: pulled along both maps, pulled from the batch, or inputs on edges."""
    found = []
    for _ in range(s.choose((2, 2, 3))):
        kind = s.choose(("src", "dst", "src", "dst", "batch", "edge", "inverse"))
        if kind == "edge":
            found.append(s.row(E))
        elif kind == "inverse":
            m = s.choose(s.maps)
            share = s.op(Op.div, s.fresh(s.cod(m), s.choose(WIDTHS)), s.add(Reshape(s.degree(m), (1,))))
            found.append(s.bounded(s.add(Pull(share, m)), 10.0))  # not finite in rows that no edge reads
        elif kind == "batch":
            found.append(s.pulled(s.pulled(s.row(G), s.batch), s.maps[0]))
        else:
            m = s.maps[kind == "dst"]
            found.append(s.pulled(s.row(s.cod(m)), m))
    return found


def mixed_message(s: Layering) -> None:
    """[a ; b] W, (a + b) W, (a - b) W, with or without an activation, pushed along either map."""
    parts, how = pulls(s), s.choose(("concat", "add", "sub", "neg"))
    if how == "concat":
        x = s.bounded(s.add(Concat(tuple(parts), 0)), max(s.bound[r] for r in parts))
    else:
        width = s.choose(WIDTHS)
        first, *rest = (r if s.type(r).shape == (width,) else s.linear(r, width) for r in parts)
        x = s.bounded(s.op(Op.neg, first), s.bound[first]) if how == "neg" else first
        for r in rest:
            x = s.of(Op.sub if how == "sub" else Op.add, x, r)
    out = s.linear(x, s.choose(WIDTHS)) if s.choose((True, True, False)) else x
    if s.choose((False, True)):
        out = s.activated(out)
    if s.choose((False, False, True)):
        out = s.linear(out, s.choose(WIDTHS))
    m = s.choose(s.maps)
    s.offer(p := s.pushed(out, m), s.bound[p])


def heads(s: Layering, space: Space, h: int, c: int) -> Ref:
    return s.reshaped(s.linear(s.row(space), h * c), h, c)


def attention(s: Layering) -> None:
    """Attention: the score of a head is a sum of both ends' scores, one of both ends' rows next to each other, that of
    an activated sum, or a dot product."""
    h, c = s.choose(_HEADS)
    src, dst = s.maps
    keepdim = s.choose((False, True))
    z, other = heads(s, V, h, c), heads(s, s.dst_space, h, c)
    att = s.bounded(s.op(Op.tanh, s.fresh(UNIT, h, c)), 1.0)
    match s.choose(("rows", "activated", "dot", "concat")):
        case "rows":
            one, two = (s.reduced(s.of(Op.mul, x, att), 1, keepdim) for x in (z, other))
            score = s.activated(s.of(Op.add, s.pulled(one, src), s.pulled(two, dst)))
        case "activated":
            both = s.activated(s.of(Op.add, s.pulled(z, src), s.pulled(other, dst)))
            score = s.reduced(s.of(Op.mul, both, att), 1, keepdim)
        case "concat":
            both = s.bounded(
                s.add(Concat((s.pulled(z, src), s.pulled(other, dst)), 1)), max(s.bound[z], s.bound[other])
            )
            long = s.bounded(s.op(Op.tanh, s.fresh(UNIT, h, 2 * c)), 1.0)
            score = s.activated(s.reduced(s.of(Op.mul, both, long), 1, keepdim))
        case _:
            score = s.reduced(s.of(Op.mul, s.pulled(z, src), s.pulled(other, dst)), 1, keepdim)
    alpha = s.softmax(s.bounded(s.op(Op.tanh, score), 1.0) if s.bound[score] > 30 else score, dst)
    message = s.of(Op.mul, s.pulled(z, src), s.reshaped(alpha, h, 1))
    out = s.pushed(message, s.choose((dst, dst, src)), "sum")
    if s.choose((True, False)):
        s.offer(s.reshaped(out, h * c), s.bound[out])
    else:
        s.offer(s.reduced(out, 0, False), s.bound[out] * h)


def normalised(s: Layering) -> None:
    """Sums with factors of the rows at both ends: pull(x, src) pull(a, src) pull(b, dst) w."""
    src, dst = s.maps
    m = s.choose((dst, dst, src))
    factors = [s.pulled(s.row(V), src)]
    for along in s.choose(((src, dst), (dst,), (src,), (dst, dst))):
        count = s.op(Op.maximum, s.degree(along), s.number(0.25))
        if along == m and s.choose((True, False)):
            count = s.degree(along)  # 0 and then inf in rows that no edge reads
        factor = s.op(s.choose((Op.rsqrt, Op.reciprocal, Op.sqrt)), count)
        if s.choose((False, True)):
            some = s.op(Op.gt, s.degree(along), s.number(0.0))
            factor = s.op(Op.where, some, factor, s.number(0.0))
        factors.append(s.reshaped(s.pulled(s.bounded(factor, 4.0), along), 1))
    if s.choose((False, True)):
        factors.append(s.fresh(E, 1))
    x = factors.pop(s.choose(range(len(factors))))
    while factors:
        x = s.of(Op.mul, x, factors.pop(s.choose(range(len(factors)))))
    out = s.pushed(x, m, "sum")
    s.offer(out, s.bound[out])


def gated(s: Layering) -> None:
    """sum_e gate x_u / sum_e gate."""
    width = s.choose(WIDTHS)
    src, dst = s.maps
    a, b = s.linear(s.row(V), width), s.linear(s.row(s.dst_space), width)
    gate = s.bounded(s.op(Op.sigmoid, s.op(Op.tanh, s.of(Op.add, s.pulled(a, src), s.pulled(b, dst)))), 1.0)
    whole = s.pushed(gate, dst, "sum")
    out = s.pushed(s.of(Op.mul, gate, s.pulled(s.linear(s.row(V), width), src)), dst, "sum")
    if s.choose((True, False)):
        out = s.bounded(s.op(Op.div, out, s.op(Op.add, whole, s.number(0.5))), s.bound[out] * 2)
    s.offer(out, s.bound[out])


def operand(s: Layering, shape: tuple[int, ...], m: Ref) -> Ref:
    """A factor on edges or shared, with a shape that broadcasts with `shape`. It is bounded by 1, or a sum of such."""
    fits = [o for o in _ODD if broadcast_shapes([o, shape]) == shape]
    own = s.choose(fits)
    kind = s.choose(("own", "own", "other", "edge", "unit", "one", "sum", "dot", "deep", "wide"))
    match kind:
        case "own" | "other":
            along = m if kind == "own" else s.choose(s.maps)
            return s.bounded(s.op(Op.tanh, s.add(Pull(s.fresh(s.cod(along), *own), along))), 1.0)
        case "deep":
            inside = s.op(Op.tanh, s.fresh(s.cod(m), *own))
            return s.bounded(s.add(Pull(inside, m)), 1.0)
        case "edge" | "unit":
            return s.bounded(s.op(Op.tanh, s.fresh(E if kind == "edge" else UNIT, *own)), 1.0)
        case "one":
            value = s.choose((1.0, 1.0, 0.5, -1.0, 2.0))
            ref = s.add(Const(value, Type(s.choose((E, UNIT)), own, s.dtype)))
            return s.bounded(ref, 2.0)
        case "sum":
            a, b = operand(s, own, m), operand(s, own, m)
            return s.of(s.choose((Op.add, Op.sub)), a, b)
        case "wide":
            ref = operand(s, own, m)
            return s.bounded(s.add(Broadcast(ref, own)), s.bound[ref])
        case _:
            return dot(s, own, m)


def dot(s: Layering, own: tuple[int, ...], m: Ref) -> Ref:
    """A sum over features of shape `own`, whose dims of size 1 arise in every possible way."""
    inside = tuple(3 if n == 1 else n for n in own) if s.choose((False, True)) and 1 in own else (*own, 3)
    dims = tuple(d for d, n in enumerate(inside) if d >= len(own) or own[d] != n)
    keepdim = s.choose((False, True))
    a = s.add(Pull(s.fresh(s.cod(m), *inside), m))
    b = s.add(Pull(s.fresh(V, *inside), s.maps[0])) if s.choose((True, True, False)) else s.fresh(E, *inside)
    x = s.op(Op.mul, s.op(Op.tanh, a), s.op(Op.tanh, b)) if s.choose((False, True)) else s.op(Op.mul, a, b)
    x = s.op(Op.mul, x, s.number(2.0**-4))
    if s.choose((False, False, True)):
        x = s.op(Op.neg, x)
    return s.reshaped(s.bounded(s.add(Reduce(x, Fold.sum, dims, keepdim)), 4.0), *own)


def products(s: Layering) -> None:
    """The sum along a map of a product of anything with anything, quotients and signs included."""
    m, shape = s.choose(s.maps), s.choose(_ODD)
    x = s.bounded(s.op(Op.tanh, s.fresh(E, *shape)), 1.0) if s.choose((True, False)) else operand(s, shape, m)
    for _ in range(s.choose((1, 2, 3))):
        f = operand(s, s.choose((shape, s.type(x).shape)), m)
        if s.choose((False, False, False, True)):
            safe = s.op(Op.add, s.op(Op.mul, f, f), s.number(1.0))
            x = s.bounded(s.op(Op.div, x, safe), s.bound[x])
        elif s.choose((False, False, False, True)):
            x = s.of(s.choose((Op.add, Op.sub)), x, f)
        else:
            x = s.of(Op.mul, *((x, f) if s.choose((True, False)) else (f, x)))
        if s.choose((False, False, False, True)):
            x = s.bounded(s.op(Op.neg, x), s.bound[x])
    if s.type(x).space == UNIT:
        x = s.bounded(s.add(Pull(x, s.add(ToUnit(E)))), s.bound[x])
    own = s.type(x).shape
    if s.choose((False, True)) and 1 in own:
        x = s.reshaped(x, *(n for n in own if n != 1))
    out = s.pushed(x, m, s.choose(("sum", "sum", "sum", "mean")))
    s.offer(out, s.bound[out])


def branches(s: Layering) -> None:
    """where(c, x a, x b), pushed."""
    m, width = s.choose(s.maps), s.choose(WIDTHS)
    by = s.op(Op.gt, s.fresh(s.choose((E, E, UNIT)), *s.choose(((), (1,), (width,)))), s.number(0.25))
    x = s.bounded(s.op(Op.tanh, s.add(Pull(s.fresh(s.cod(m), width), m))), 1.0)
    a, b = operand(s, (width,), m), s.choose((s.number(0.2), operand(s, (width,), m), s.number(1.0)))
    s.bound.setdefault(b, 1.0)
    yes, no = s.of(Op.mul, x, a), s.of(Op.mul, b, x)
    if s.choose((False, False, True)):
        no = s.bounded(s.op(Op.neg, no), s.bound[no])
    x = s.bounded(s.op(Op.where, by, yes, no), s.bound[yes] + s.bound[no])
    out = s.pushed(x, m, "sum")
    s.offer(out, s.bound[out])


def readout(s: Layering) -> None:
    """Pushes all nodes to their graph. It may sum edges first, and pull the result back."""
    x = s.row(V)
    if s.choose((False, True)):
        x = s.pushed(s.pulled(s.row(s.dst_space), s.maps[1]), s.maps[0], "sum")
    out = s.bounded(s.add(Push(x, s.batch, Fold.sum)), s.bound[x] * 20)
    if s.choose((False, True)):
        out = s.linear(out, s.choose(WIDTHS))
    s.offer(out, s.bound[out])
    if s.choose((False, True)):
        s.offer(s.pulled(out, s.batch), s.bound[out])


def total(s: Layering) -> None:
    """Pushes all rows of edges or nodes to one, alone or beside a push of the same value."""
    x = s.choose(pulls(s)) if s.choose((True, False)) else s.row(V)
    space = s.type(x).space
    if space == E and s.choose((True, True, False)):
        x = s.of(Op.mul, x, s.fresh(E, 1))
        s.offer(p := s.pushed(x, s.choose(s.maps), "sum"), s.bound[p])
    out = s.add(Push(x, s.add(ToUnit(space)), Fold.sum))
    s.offer(out, s.bound[x] * MAX_ROWS)


def selection(s: Layering) -> None:
    """Some rows taken out, worked on and put back: a map that sends no two rows to one."""
    flag = s.add(Cast(s.add(Input("picked", Type(V, (), DType.i64))), DType.bool))
    found = s.add(Aten("aten.nonzero.default", (Operand(flag),), (), Type(M, (1,), DType.i64)))
    m = s.add(MapOf(s.add(Reshape(found, ())), V))
    x = s.pulled(s.row(V), m)
    y = s.linear(x, s.choose(WIDTHS)) if s.choose((True, False)) else x
    back = s.bounded(s.add(Push(y, m, s.choose((Fold.sum, Fold.sum)))), s.bound[y])
    s.offer(back, s.bound[back])
    if s.choose((True, False)):
        s.offer(s.pulled(back, m), s.bound[back])


def node_layer(s: Layering) -> None:
    """A linear layer with an activation and a skip connection."""
    space = s.choose((V, s.dst_space))
    x = s.row(space)
    out = s.activated(s.linear(x, s.choose(WIDTHS)))
    if s.type(out).shape == s.type(x).shape and s.choose((True, False)):
        out = s.of(Op.add, out, x)
    s.offer(out, s.bound[out])


def propagate(s: Layering) -> None:
    """push(pull(x)), with a linear layer before or after, several times."""
    out = s.row(V)
    src, dst = s.maps if s.dst_space == V else (s.maps[0], s.maps[1])
    for _ in range(s.choose((1, 1, 2)) if s.dst_space == V else 1):
        if s.choose((True, False)):
            out = s.linear(out, s.choose(WIDTHS))
        out = s.pushed(s.pulled(out, src), dst, s.choose(("sum", "mean")))
        if s.choose((True, False)):
            out = s.linear(out, s.choose(WIDTHS))
    s.offer(out, s.bound[out])


def rearranged(s: Layering) -> None:
    """Features of a row in another order, repeated or summed."""
    x = s.row(s.choose((V, s.dst_space, E)))
    (n,) = s.type(x).shape
    y = s.bounded(s.add(Concat((x, s.of(Op.mul, x, s.fresh(UNIT, n))), 0)), s.bound[x] * 5)
    pair = s.reshaped(y, 2, n)
    swapped = s.bounded(s.add(Permute(pair, (1, 0))), s.bound[y])
    s.offer(s.choose((y, s.reshaped(swapped, numel((2, n))), s.reduced(swapped, s.choose((0, 1)), False))), 2 * n)


MOVES: tuple[Callable[[Layering], None], ...] = (
    mixed_message, mixed_message, attention, attention, normalised, gated, products, products, products, branches,
    readout, total, selection, node_layer, propagate, rearranged, *TYPED_MOVES,
)  # fmt: skip
