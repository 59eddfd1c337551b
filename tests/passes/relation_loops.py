"""Random message programs written as models loop over relations: alike for each, but for a few that differ."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
from torch import Tensor

from graphweave.core.sizes import Symbol
from graphweave.core.types import UNIT, DType, Fold, Op, Space
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.nodes import (
    Cast,
    Concat,
    Const,
    Gram,
    Input,
    MapOf,
    MatMul,
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

WIDTH = 3


@dataclass
class Loops:
    """A program that grows, and inputs that fit it."""

    rng: random.Random
    build: Builder = field(default_factory=Builder)
    inputs: dict[str, Tensor] = field(default_factory=dict)
    rows: dict[Space, int] = field(default_factory=dict)

    def given(self, name: str, space: Space, shape: tuple[int, ...]) -> Ref:
        generator = torch.Generator().manual_seed(len(self.inputs))
        sizes = shape if space == UNIT else (self.rows[space], *shape)
        self.inputs[name] = torch.randn(sizes, generator=generator, dtype=torch.float64)
        return self.build.add(Input(name, Type(space, shape, DType.f64)))

    def index(self, name: str, dom: Space, cod: Space, *, wrap: bool) -> Ref:
        generator = torch.Generator().manual_seed(len(self.inputs))
        low = -self.rows[cod] if wrap else 0
        self.inputs[name] = torch.randint(low, self.rows[cod], (self.rows[dom],), generator=generator)
        return self.build.add(MapOf(self.build.add(Input(name, Type(dom, (), DType.i64))), cod, wrap))

    def map(self, op: Op, *args: Ref) -> Ref:
        return self.build.add(Pointwise(op, args))

    def program(self, outputs: list[Ref]) -> Program:
        return self.build.program(outputs, [(s, Symbol(f"s{s.name}")) for s in self.rows])


@dataclass(frozen=True)
class Relation:
    name: str
    src: Ref
    dst: Ref
    source: int
    target: int


def random_loops(seed: int) -> tuple[Program, dict[str, Tensor]]:
    """One or two layers over 1 to 3 types and 2 to 6 relations."""
    rng = random.Random(seed)
    loops = Loops(rng)
    types = [Space(f"V{t}") for t in range(rng.randint(1, 3))]
    loops.rows = {s: rng.choice([1, 2, 4, 5]) for s in types}
    relations = []
    for r in range(rng.randint(2, 6)):
        edges, source, target = Space(f"E{r}"), rng.randrange(len(types)), rng.randrange(len(types))
        loops.rows[edges] = rng.choice([0, 1, 3, 7])
        wrap = rng.random() < 0.2
        src = loops.index(f"src{r}", edges, types[source], wrap=wrap)
        relations.append(
            Relation(f"r{r}", src, loops.index(f"dst{r}", edges, types[target], wrap=False), source, target)
        )
    values = [loops.given(f"x{t}", s, (WIDTH,)) for t, s in enumerate(types)]
    outputs: list[Ref] = []
    for layer in range(rng.randint(1, 2)):
        values = _layer(loops, relations, values, f"l{layer}", outputs)
    outputs += values
    return loops.program(list(dict.fromkeys(outputs))), loops.inputs


def _layer(loops: Loops, relations: list[Relation], values: list[Ref], name: str, outputs: list[Ref]) -> list[Ref]:
    rng = loops.rng
    before, during, fold = rng.sample(BEFORE, 1), rng.sample(DURING, rng.randint(0, 2)), rng.choice(list(FOLDS))
    after = rng.sample(AFTER, rng.randint(0, 3))
    odd = rng.randrange(2 * len(relations))
    got: dict[int, list[Ref]] = {}
    for n, relation in enumerate(relations):
        x = values[relation.source]
        for step in before:
            x = step(loops, x, relation, name)
        message = loops.build.add(Pull(x, relation.src))
        for step in during if n != odd else during[1:]:
            message = step(loops, message, relation, name)
        out = loops.build.add(Push(message, relation.dst, FOLDS[fold], rng.choice([0.0]) if fold != "min" else 1.0))
        for step in after if n != odd else after[:-1]:
            out = step(loops, out, relation, name)
        if rng.random() < 0.15:
            outputs.append(out)
        got.setdefault(relation.target, []).append(out)
    if rng.random() < 0.4:
        outputs.append(_blocks(loops, [r for parts in got.values() for r in parts]))
    combine = rng.choice([Op.add, Op.add, Op.maximum, None])
    return [_combined(loops, combine, got[t], outputs) if t in got else x for t, x in enumerate(values)]


def _blocks(loops: Loops, parts: list[Ref]) -> Ref:
    """Grams of each, side by side, as the gradients of slices are."""
    total: Ref | None = None
    for n, part in enumerate(parts):
        block = loops.build.add(Reshape(loops.build.add(Gram(part, part)), (1, WIDTH, WIDTH)))
        placed = loops.build.add(Pad(block, 0, n, len(parts) - 1 - n))
        total = placed if total is None else loops.map(Op.add, total, placed)
    assert total is not None
    return total


def _combined(loops: Loops, op: Op | None, parts: list[Ref], outputs: list[Ref]) -> Ref:
    if op is None:
        outputs += parts
        return parts[-1]
    out = parts[0]
    for part in parts[1:]:
        out = loops.map(op, out, part)
    if loops.rng.random() < 0.5:
        out = loops.map(Op.relu, out)
    return out


# ---------------------------------------------------------------- bodies of the loop over relations


def _own(loops: Loops, relation: Relation, name: str, shape: tuple[int, ...]) -> Ref:
    """A weight of one relation, or one that all relations share."""
    shared = loops.rng.random() < 0.1
    full = f"{name}_{'all' if shared else relation.name}_{'x'.join(map(str, shape))}"
    return _given(loops, full, shape)


def _given(loops: Loops, full: str, shape: tuple[int, ...]) -> Ref:
    known = next((r for r, n in enumerate(loops.build.nodes) if isinstance(n, Input) and n.name == full), None)
    return loops.given(full, UNIT, shape) if known is None else known


def _same(loops: Loops, x: Ref, relation: Relation, name: str) -> Ref:
    return x


def _linear(loops: Loops, x: Ref, relation: Relation, name: str) -> Ref:
    return loops.build.add(MatMul(x, _own(loops, relation, name + "w", (WIDTH, WIDTH))))


def _transposed(loops: Loops, x: Ref, relation: Relation, name: str) -> Ref:
    w = loops.build.add(Permute(_own(loops, relation, name + "t", (WIDTH, WIDTH)), (1, 0)))
    return loops.build.add(MatMul(x, w))


def _sliced(loops: Loops, x: Ref, relation: Relation, name: str) -> Ref:
    """A product with a slice of what holds the weights of all relations."""
    whole, r = _given(loops, f"{name}_slices", (7, WIDTH, WIDTH)), int(relation.name[1:])
    w = loops.build.add(Reshape(loops.build.add(Slice(whole, 0, r, r + 1)), (WIDTH, WIDTH)))
    return loops.build.add(MatMul(x, w))


def _bias(loops: Loops, x: Ref, relation: Relation, name: str) -> Ref:
    return loops.map(Op.add, x, _own(loops, relation, name + "b", (WIDTH,)))


def _scale(loops: Loops, x: Ref, relation: Relation, name: str) -> Ref:
    return loops.map(Op.mul, x, _own(loops, relation, name + "s", ()))


def _half(loops: Loops, x: Ref, relation: Relation, name: str) -> Ref:
    value = loops.rng.choice([0.5, 0.5, 0.25])
    return loops.map(Op.mul, x, loops.build.add(Const(value, Type(UNIT, (), DType.f64))))


def _tanh(loops: Loops, x: Ref, relation: Relation, name: str) -> Ref:
    return loops.map(Op.tanh, x)


def _softmax(loops: Loops, x: Ref, relation: Relation, name: str) -> Ref:
    top = loops.build.add(Push(x, relation.dst, Fold.max, -float("inf")))
    e = loops.map(Op.exp, loops.map(Op.sub, x, loops.build.add(Pull(top, relation.dst))))
    total = loops.build.add(Push(e, relation.dst, Fold.sum))
    return loops.map(Op.mul, x, loops.map(Op.div, e, loops.build.add(Pull(total, relation.dst))))


def _rearranged(loops: Loops, x: Ref, relation: Relation, name: str) -> Ref:
    t = loops.build.add(Reshape(loops.build.add(Slice(x, 0, 0, 2)), (2, 1)))
    total = loops.build.add(Reduce(t, Fold.sum, (1,), False))
    return loops.build.add(Pad(total, 0, 1, 0))


def _beside(loops: Loops, x: Ref, relation: Relation, name: str) -> Ref:
    both = loops.build.add(Concat((x, _own(loops, relation, name + "c", (1,))), 0))
    return loops.build.add(Slice(both, 0, 1, WIDTH + 1))


def _narrow(loops: Loops, x: Ref, relation: Relation, name: str) -> Ref:
    return loops.build.add(Cast(loops.build.add(Cast(x, DType.f32)), DType.f64))


def _mean(loops: Loops, x: Ref, relation: Relation, name: str) -> Ref:
    """Divides a row by its number of edges."""
    t = loops.build.types[relation.dst]
    ones = loops.build.add(Const(1.0, Type(t.dom, (), DType.f64)))  # type: ignore[union-attr]
    one = loops.build.add(Const(1.0, Type(UNIT, (), DType.f64)))
    count = loops.map(Op.maximum, loops.build.add(Push(ones, relation.dst, Fold.sum)), one)
    return loops.map(Op.div, x, loops.build.add(Reshape(count, (1,))))


def _total(loops: Loops, x: Ref, relation: Relation, name: str) -> Ref:
    """Scales each row by one number of the whole relation."""
    t = loops.build.types[x]
    to_unit = loops.build.add(ToUnit(t.space))  # type: ignore[union-attr]
    total = loops.build.add(Push(x, to_unit, Fold.sum))
    return loops.map(Op.mul, x, loops.map(Op.tanh, loops.build.add(Pull(total, to_unit))))


def _gram(loops: Loops, x: Ref, relation: Relation, name: str) -> Ref:
    """A product with itself."""
    return loops.build.add(MatMul(x, loops.map(Op.tanh, loops.build.add(Gram(x, x)))))


BEFORE = [_same, _same, _linear, _transposed, _sliced]
DURING = [_tanh, _scale, _softmax, _half, _linear]
AFTER = [_linear, _sliced, _bias, _mean, _rearranged, _beside, _narrow, _total, _gram, _tanh, _transposed]
FOLDS = {"sum": Fold.sum, "max": Fold.max, "min": Fold.min}
