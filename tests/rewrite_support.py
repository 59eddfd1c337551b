"""Applies rules of the algebra where they apply, and compares the result with the original program."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from graphweave.core.sizes import read
from graphweave.core.types import UNIT, DType, Fold, Op, Space
from graphweave.ir.message.builder import Builder, spaces_in
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import (
    Const,
    Input,
    MapOf,
    MatMul,
    Pointwise,
    Program,
    Pull,
    Push,
    Reduce,
    Ref,
    Reshape,
    Type,
)
from graphweave.ir.message.verify import verify
from graphweave.passes import rules as rules_room
from graphweave.passes.moves import Move, pairs_in
from graphweave.passes.rewrite import apply
from graphweave.passes.rules.compact import compact
from graphweave.passes.rules.rule import Rule
from graphweave.passes.substitute import substitute
from tests.programs.joint import Joint, joint

V, E = Space("V"), Space("E")
_ROUNDING = 1e-12
"""Tolerance in float64, relative to the largest number in a program. It allows some thousand roundings."""


def _all_rules() -> dict[str, Rule]:
    modules = [
        importlib.import_module(f"{rules_room.__name__}.{m.name}") for m in pkgutil.iter_modules(rules_room.__path__)
    ]
    values = [value for module in modules for value in vars(module).values()]
    several = [rule for value in values if isinstance(value, tuple) for rule in value if isinstance(rule, Rule)]
    return {rule.name: rule for rule in (*(v for v in values if isinstance(v, Rule)), *several)}


RULES = _all_rules()


def rewritten(program: Program, move: Move) -> Program | None:
    """The program after the move, whatever it costs; None where none of its rules applies."""
    build = Builder.of(program)
    replaced, _ = apply(build, move)
    if not replaced:
        return None
    done = substitute(build, len(program.nodes), replaced, program.outputs, (), program.spaces).program
    verify(done)
    assert [done.types[r] for r in _outputs(done)] == [program.types[r] for r in _outputs(program)]
    return done


def _outputs(program: Program) -> list[Ref]:
    return [r for r in program.outputs if r is not None]


def every_site(program: Program) -> tuple[Program, list[tuple[str, Ref, Ref]]]:
    """(rule, node, what the rule makes of it) wherever a rule applies; the program gives both, pair by pair."""
    build = Builder.of(program)
    found: list[tuple[str, Ref, Ref]] = []
    rules = (*RULES.values(), *(compact(m, t) for m, t in pairs_in(program)))
    for ref, t in enumerate(program.types):
        for rule in rules:
            count = len(build.nodes)
            new = rule.apply(build, ref)
            if new is None or new == ref:
                build.rollback(count)
            else:
                assert build.types[new] == t, f"{rule.name} at %{ref}: {build.types[new]} instead of {t}"
                found.append((rule.name, ref, new))
    declared = {space for space, _ in program.spaces}
    made = dict.fromkeys(s for t in build.types for s in spaces_in(t) if s not in {*declared, UNIT})
    spaces = [*program.spaces, *((s, None) for s in made)]
    both = build.program([r for _, ref, new in found for r in (ref, new)], spaces)
    verify(both)
    return both, found


def assert_equal(program: Program, others: Mapping[str, Program], given: dict[str, Tensor]) -> None:
    """Each of `others` gives the outputs of `program`, except where these are not finite."""
    want, scale = with_scale(program, given)
    for name, other in others.items():
        assert_same(interp(other, given), want, scale, name)


def with_scale(program: Program, given: dict[str, Tensor]) -> tuple[list[Tensor | None], float]:
    """Outputs of `program`, and the largest finite number in it, at least 1: what its roundings are relative to."""
    floats = [r for r, t in enumerate(program.types) if isinstance(t, Type) and t.dtype.is_float]
    values = interp(replace(program, outputs=(*program.outputs, *floats)), given)
    outputs, inside = values[: len(program.outputs)], values[len(program.outputs) :]
    sizes = [float(torch.where(x.isfinite(), x.abs(), 0).max()) for x in inside if x.numel()]
    return outputs, max([1.0, *sizes])


def assert_same(got: Sequence[Tensor | None], want: Sequence[Tensor | None], scale: float, name: str) -> None:
    assert len(got) == len(want)
    for i, (x, y) in enumerate(zip(got, want, strict=True)):
        if x is None or y is None:
            assert x is y, f"{name}: output {i}"
            continue
        assert x.shape == y.shape and x.dtype == y.dtype, f"{name}: output {i} is {x.dtype} {list(x.shape)}"
        if not y.dtype.is_floating_point:
            assert torch.equal(x, y), f"{name}: output {i}"
            continue
        finite = y.isfinite()
        assert bool(x[finite].isfinite().all()), f"{name}: output {i} is not finite"
        worst = float((x - y)[finite].abs().max()) if bool(finite.any()) else 0.0
        assert worst <= _ROUNDING * scale, (
            f"{name}: output {i} differs by {worst:.3g}, the largest number is {scale:.3g}"
        )


def attention(layers: int) -> Joint:
    """Attention layers of four heads of four, softmax as PyG has it, ELU between them; forward and backward."""
    b = Builder()

    def op(op: Op, *args: Ref) -> Ref:
        return b.add(Pointwise(op, args))

    def shared(name: str, *shape: int) -> Ref:
        return b.add(Input(name, Type(UNIT, shape, DType.f32)))

    def number(value: float) -> Ref:
        return b.add(Const(value, Type(UNIT, (), DType.f32)))

    src, dst = (b.add(MapOf(b.add(Input(name, Type(E, (), DType.i64))), V)) for name in ("src", "dst"))
    x = b.add(Input("x", Type(V, (16,), DType.f32)))
    tops = set()
    for i in range(layers):
        if i:
            x = op(Op.where, op(Op.gt, x, number(0.0)), x, op(Op.expm1, x))
        z = b.add(Reshape(b.add(MatMul(x, shared(f"w{i}", 16, 16))), (4, 4)))
        ends = [b.add(Reduce(op(Op.mul, z, shared(f"a{i}{end}", 4, 4)), Fold.sum, (1,), False)) for end in "ji"]
        score = op(Op.add, b.add(Pull(ends[0], src)), b.add(Pull(ends[1], dst)))
        score = op(Op.where, op(Op.gt, score, number(0.0)), score, op(Op.mul, score, number(0.2)))
        tops.add(top := b.add(Pull(b.add(Push(score, dst, Fold.max)), dst)))
        weight = op(Op.exp, op(Op.sub, score, top))
        whole = op(Op.add, b.add(Push(weight, dst, Fold.sum)), number(1e-16))
        alpha = b.add(Reshape(op(Op.div, weight, b.add(Pull(whole, dst))), (4, 1)))
        out = b.add(Push(op(Op.mul, b.add(Pull(z, src)), alpha), dst, Fold.sum))
        x = op(Op.add, b.add(Reshape(out, (16,))), shared(f"b{i}", 16))
    return joint(b.program([x], [(V, read("s0")), (E, read("s1"))]), tops)


def sites(program: Program, names: Iterable[str], order: Sequence[Ref]) -> Move | None:
    """The first of the rules `names` at the first node in `order` where it applies."""
    build = Builder.of(program)
    for name in names:
        for ref in order:
            new = RULES[name].apply(build, ref)
            if new is not None and new != ref:
                return Move((RULES[name],), (ref,))
            build.rollback(len(program.nodes))
    return None
