"""Rows of the table in `core/operators.py`: facts are true, derivatives are PyTorch's, an operator is one row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from graphweave.codegen.triton import print_kernel
from graphweave.core.formulas import evaluate
from graphweave.core.operators import ANY, DEAR, MODEST, Op, Operator, Spelling
from graphweave.core.sizes import Symbol
from graphweave.core.types import UNIT, DType, Fold, Space
from graphweave.ir.loop.verify import verify as verify_kernel
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import Input, MapOf, Pointwise, Program, Pull, Push, Type
from graphweave.ir.message.parse import parse
from graphweave.ir.message.show import show
from graphweave.ir.message.verify import verify
from graphweave.ir.operator_calls import call_of
from tests.codegen.test_cpp_kernels import all_operators, operators_case
from tests.ir.test_joint import assert_gradients, by_autograd
from tests.loop_support import compiled as compiled_kernel
from tests.loop_support import interpreted
from tests.program_support import assert_computes, compiled
from tests.programs.joint import TANGENT, joint
from tests.programs.operators import declared
from tests.programs.random_programs import random_program

DIFFERENTIABLE = [op for op in Op if op.facts.derivative is not None]
COUNT = 64


def operands(op: Op, seed: int = 0) -> list[Tensor]:
    """Signed numbers from 0.01 to 10 in size, where `op` is defined; some of y equal x."""
    generator = torch.Generator().manual_seed(seed)

    def drawn() -> Tensor:
        size = 10.0 ** (3 * torch.rand(COUNT, generator=generator, dtype=torch.float64) - 2)
        return size * (1 - 2 * torch.randint(2, (COUNT,), generator=generator))

    low, high = op.facts.sampled or ANY
    values = [drawn().clamp(-8, 8) for _ in range(op.facts.arity)]
    if (low, high) not in (ANY, MODEST):
        values[0] = -values[0].abs() if high == 0 else low + values[0].abs() * (high - low) / 8
    if op is Op.pow:
        values[0] = values[0].abs()
    if op.facts.arity == 2:
        values[1][::5] = values[0][::5]
    return [values[0] > 0, *values[1:]] if op.facts.condition else values


def alone(op: Op) -> Program:
    """One operator on shared data."""
    build = Builder()
    types = [DType.bool if op.facts.condition and i == 0 else DType.f64 for i in range(op.facts.arity)]
    args = tuple(build.add(Input("xyz"[i], Type(UNIT, (COUNT,), t))) for i, t in enumerate(types))
    return build.program([build.add(Pointwise(op, args))], [])


def check_derivatives(op: Op) -> None:
    """Checks the backward, the forward derivative, and the backward of the backward."""
    program, values = alone(op), operands(op)
    j = joint(program)
    verify(j.program)
    given = dict(zip("xyz", values, strict=False)) | {f"{TANGENT}0": operands(Op.add, 1)[0]}
    assert_gradients(interp(j.program, given)[1:], by_autograd(program, j, given))

    floats = [i for i, v in enumerate(values) if v.is_floating_point()]
    changes = {i: operands(Op.add, 2 + i)[1] for i in floats}
    forward = torch.func.jvp(
        lambda *xs: call_of(op)(*(xs[floats.index(i)] if i in floats else v for i, v in enumerate(values))),
        tuple(values[i] for i in floats), tuple(changes.values()),
    )  # fmt: skip
    names = given | {"out": forward[0]}
    parts = [
        evaluate(
            f, names | {"g": changes[i]}, lambda o, xs: call_of(o)(*xs), lambda v: torch.tensor(v, dtype=torch.float64)
        )
        for i, f in enumerate(op.facts.derivative or ())
        if f
    ]
    assert_gradients([sum(parts, torch.zeros(COUNT).double())], [forward[1]])

    again = replace(j.program, outputs=(None, *j.program.outputs[1:]))
    twice = joint(again)
    given |= {f"{TANGENT}{i}": operands(Op.add, 5 + i)[0] for i in range(1, len(again.outputs))}
    assert_gradients(interp(twice.program, given)[twice.num_forward :], by_autograd(again, twice, given))


@pytest.mark.parametrize("op", DIFFERENTIABLE)
def test_derivatives_are_those_of_pytorch(op: Op) -> None:
    assert len(op.facts.derivative or ()) == op.facts.arity
    check_derivatives(op)


def test_every_operator_that_gives_numbers_has_derivatives() -> None:
    assert [op for op in Op if (op.facts.derivative is None) is not op.facts.gives_bool] == []


def test_every_operator_and_fold_has_a_name_in_every_language() -> None:
    """So that one row takes a new operator to all targets."""
    rows = [(op, op.facts) for op in Op]
    assert [op for op, facts in rows if not (facts.aten and facts.jax and facts.cpp.floats)] == []
    assert [op for op, facts in rows if not facts.triton.floats] == [Op.atan2], "Triton has no function for it"
    assert [f for f in Fold if not (f.facts.aten and f.facts.jax and f.facts.cpp)] == []


@pytest.mark.parametrize("op", Op)
def test_facts_are_true(op: Op) -> None:
    facts, call, args = op.facts, call_of(op), operands(op)
    out = call(*args)
    if facts.signs:
        torch.testing.assert_close(out, sum(s * a for s, a in zip(facts.signs, args, strict=True)), rtol=0, atol=0)
    for i, a in enumerate(args):
        at_sum, at_other = (call(*args[:i], b, *args[i + 1 :]) for b in (a + a.flip(0), a.flip(0)))
        is_linear = facts.gives_bool is False and bool(torch.isclose(at_sum, out + at_other, rtol=1e-12).all())
        joint_sum = bool(facts.signs) and facts.arity > 1
        assert is_linear is (i in facts.linear) or joint_sum or a.dtype is torch.bool
    if facts.neutral is not None:
        assert torch.equal(call(args[0], torch.full_like(args[1], facts.neutral)), args[0])
    if facts.arity == 2:
        assert facts.commutative is torch.equal(call(*args), call(*args[::-1]))
    if facts.finite:
        assert out.isfinite().all()
    else:
        ends = [torch.tensor([0.0, -1.0, -0.5]).double()] * facts.arity
        assert not call(*ends).isfinite().all()
    assert out.dtype is (torch.bool if facts.gives_bool else torch.float64)


@pytest.mark.parametrize("op", [op for op in Op if op.facts.on_bool])
def test_operators_on_bool(op: Op) -> None:
    a, b = (torch.tensor(t) for t in zip(*product((False, True), repeat=2), strict=True))
    assert torch.equal(call_of(op)(a, b), call_of(Op(op.facts.on_bool))(a, b))


def test_folds_have_an_operator_each() -> None:
    assert {fold: fold.op for fold in Fold} == {
        Fold.sum: Op.add, Fold.mul: Op.mul, Fold.max: Op.maximum, Fold.min: Op.minimum
    }  # fmt: skip


# ---------------------------------------------------------------- a new operator


SOFTSIGN = Operator(
    cost=DEAR, derivative=("g / ((abs(x) + 1) * (abs(x) + 1))",), formula="x / (abs(x) + 1)", sampled=ANY,
    cpp=Spelling("({(x)} / ({one} + gw_abs({x})))", header="pointwise"),
    triton=Spelling("({x} / (1.0 + tl.abs({x})))"),
)  # fmt: skip


@pytest.fixture
def softsign() -> Iterator[Op]:
    with declared("softsign", SOFTSIGN) as op:
        yield op


def summed(op: Op, dtype: DType) -> Program:
    """For each node, the sum over its edges of op(x at the other end)."""
    build, nodes, edges = Builder(), Space("V"), Space("E")
    x = build.add(Input("x", Type(nodes, (33,), dtype)))
    src, dst = (build.add(MapOf(build.add(Input(n, Type(edges, (), DType.i64))), nodes)) for n in ("src", "dst"))
    out = build.add(Push(build.add(Pointwise(op, (build.add(Pull(x, src)),))), dst, Fold.sum))
    return build.program([out], [(nodes, Symbol("s0")), (edges, Symbol("s1"))])


def test_a_row_is_a_new_operator(softsign: Op) -> None:
    """A row works in message programs, their text, interpreters, kernels, derivatives and random programs."""
    program = summed(softsign, DType.f64)
    verify(program)
    assert "softsign" in show(program) and parse(show(program)) == program
    assert_computes(compiled(program), program)
    check_derivatives(softsign)
    drawn = operands(softsign)[0]
    torch.testing.assert_close(interp(alone(softsign), {"x": drawn})[0], F.softsign(drawn), rtol=1e-15, atol=0)
    assert any("softsign" in show(random_program(number)) for number in range(50))


@pytest.mark.parametrize("dtype", [DType.f32, DType.f64])
def test_a_row_is_a_new_operator_of_kernels(softsign: Op, dtype: DType) -> None:
    values = operands(softsign)[0].view(8, 8).to(torch.float64 if dtype is DType.f64 else torch.float32)
    case, results = operators_case(dtype, {"a": values, "b": values.flip(0)})
    verify_kernel(case.kernel)
    assert "softsign_out" in results
    for run in (interpreted, compiled_kernel):
        torch.testing.assert_close(run(case)["softsign_out"], F.softsign(values), rtol=1e-6, atol=0)
    text = print_kernel(all_operators(dtype, without=(Op.atan2,))[0])
    assert " / (1.0 + tl.abs(" in text


def test_the_operator_is_gone_afterwards() -> None:
    with declared("softsign", SOFTSIGN):
        assert Op("softsign").facts is SOFTSIGN
        assert "softsign" in (op.value for op in Op)
    assert "softsign" not in (op.value for op in Op)
    with pytest.raises(ValueError, match="softsign"):
        Op("softsign")
