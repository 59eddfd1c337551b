"""What the rooms make of an operator that was declared from outside: text, interpreters, kernels, other targets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave as gw
from graphweave import extend
from graphweave.codegen import triton
from graphweave.codegen.cpp import print_kernel
from graphweave.core.declared import declare
from graphweave.core.errors import DeclarationError, IRError
from graphweave.core.operators import Op, Operator
from graphweave.core.settings import override
from graphweave.core.types import UNIT, DType
from graphweave.ir.loop.parse import parse as parse_kernel
from graphweave.ir.loop.show import show as show_kernel
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import Const, Input, Pointwise, Program, Type
from graphweave.ir.message.parse import parse
from graphweave.ir.message.show import show
from graphweave.ir.operator_calls import call_of
from tests import extend_operators as library
from tests.core.test_operators import alone, check_derivatives, operands, summed
from tests.program_support import assert_computes, compiled
from tests.support import features, random_graph

SLOPE = "g / ((1 + abs(x)) * (1 + abs(x)))"


@pytest.fixture
def softsign() -> Iterator[Op]:
    with extend.pointwise("gwtest::softsign", "x / (1 + gw_abs(x))", derivative=SLOPE):
        yield Op("gwtest__softsign")


@pytest.fixture
def bump() -> Iterator[Op]:
    with extend.pointwise("gwtest::bump", "height / (1 + x * x)"):
        yield Op("gwtest__bump")


def test_programs_with_it_are_programs(softsign: Op) -> None:
    """Text that parses back, the interpreter, kernels, derivatives of the message program."""
    program = summed(softsign, DType.f64)
    assert "gwtest__softsign" in show(program) and parse(show(program)) == program
    assert_computes(compiled(program), program)
    drawn = operands(softsign)[0]
    torch.testing.assert_close(interp(alone(softsign), {"x": drawn})[0], torch.nn.functional.softsign(drawn))


def test_its_derivative_is_that_of_pytorch(softsign: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row's formulas, of first and second order. Autograd needs a call that it can look into."""
    monkeypatch.setattr("tests.core.test_operators.call_of", lambda op: _plain(op))
    monkeypatch.setattr("graphweave.ir.message.interp.call_of", lambda op: _plain(op))
    check_derivatives(softsign)


def _plain(op: Op) -> Any:
    return torch.nn.functional.softsign if op.value == "gwtest__softsign" else call_of(op)


@pytest.mark.parametrize("dtype", [DType.f32, DType.f64])
def test_its_body_is_in_the_text_of_kernels_once(softsign: Op, dtype: DType) -> None:
    made = compiled(summed(softsign, dtype))
    (planned,) = made.plan.kernels.values()
    kernel = planned.lowered.kernel
    text = print_kernel(kernel)
    assert text.count("GW_INLINE V gw_op_gwtest__softsign(V x) {\n  return x / (1 + gw_abs(x));\n}") == 1
    assert text.count("gw_op_gwtest__softsign(") > 1
    assert parse_kernel(show_kernel(kernel)) == kernel
    with pytest.raises(IRError, match="Triton kernels have no 'gwtest__softsign'"):
        triton.print_kernel(kernel)


def test_without_triton_text_regions_are_calls(softsign: Op) -> None:
    x, calls = torch.randn(6, 33), library.calls
    with override(target="triton"):
        got = gw.compile(lambda x: (ops.softsign(x) * 2).sum(1))(x)
    torch.testing.assert_close(got, (torch.nn.functional.softsign(x) * 2).sum(1))
    assert library.calls > calls


ops = torch.ops.gwtest


def test_numbers_are_operands(bump: Op) -> None:
    """The interpreters make one call for each number that a tensor of them holds."""
    assert bump.facts.numbers == (1,)
    x = torch.randn(4, 3, dtype=torch.float64)
    heights = torch.tensor([0.5, 2.0, 0.5], dtype=torch.float64)
    torch.testing.assert_close(call_of(bump)(x, heights), heights / (1 + x * x))
    torch.testing.assert_close(call_of(bump)(x, torch.tensor(3.0)), 3 / (1 + x * x))
    torch.testing.assert_close(call_of(bump)(x[0, 0], heights), heights / (1 + x[0, 0] ** 2))
    assert call_of(bump)(x[:0], heights).shape == (0, 3)
    assert call_of(bump)(x, heights[:0].reshape(0, 1, 1)).shape == (0, 4, 3)
    torch.testing.assert_close(interp(_scaled(bump), {"x": x})[0], 0.25 / (1 + x * x))


def _scaled(op: Op) -> Program:
    build = Builder()
    x = build.add(Input("x", Type(UNIT, (4, 3), DType.f64)))
    height = build.add(Const(0.25, Type(UNIT, (), DType.f64)))
    return build.program([build.add(Pointwise(op, (x, height)))], [])


def test_its_row_claims_little(softsign: Op, bump: Op) -> None:
    for op in (softsign, bump):
        facts = op.facts
        assert (facts.takes, facts.finite, facts.exact, facts.linear, facts.signs) == ("floats", False, False, (), ())
        assert facts.sampled is None, "random programs draw nothing that is declared"


def test_names_are_taken_once(softsign: Op) -> None:
    with pytest.raises(DeclarationError, match="'tanh' already"):
        declare("tanh", Operator())
    with pytest.raises(DeclarationError, match="'gwtest__softsign' already"):
        declare("gwtest__softsign", Operator())


def test_a_refused_body_leaves_no_operator() -> None:
    before = [op.value for op in Op]
    with pytest.raises(DeclarationError):
        extend.pointwise("gwtest::softsign", "x", derivative="g")
    assert [op.value for op in Op] == before
    with pytest.raises(ValueError, match="gwtest__softsign"):
        Op("gwtest__softsign")


def test_derivatives_call_declared_operators() -> None:
    """Derivatives use their names in PyTorch; the formula of the row has their names in programs."""
    with (
        extend.pointwise("gwtest::softsign", "x / (1 + gw_abs(x))", derivative=SLOPE),
        extend.pointwise(
            "gwtest::hypotenuse", "gw_sqrt(1 + a * a + b * b)",
            derivative={"a": "g * a / out + 0 * gwtest::softsign(b)", "b": "g * b / out"},
        ),
    ):  # fmt: skip
        facts = Op("gwtest__hypotenuse").facts
        assert facts.derivative == ("g * x / out + 0 * gwtest__softsign(y)", "g * y / out")
        a, b = (torch.randn(6, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
        made, calls = gw.compile(lambda a, b: ops.hypotenuse(a * 2, b).sum(1)), library.calls
        got = torch.autograd.grad(made(a, b).sum(), (a, b))
        want = torch.autograd.grad((1 + 4 * a * a + b * b).sqrt().sum(), (a, b))
        assert library.calls == calls
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w)


def test_verify_compares_with_the_operator_itself(softsign: Op) -> None:
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    made: Any = gw.compile(lambda x: (ops.softsign(x * 3) * x).sum(1), options={"verify": True})

    def plain(x: Tensor) -> Tensor:
        return (torch.nn.functional.softsign(x * 3) * x).sum(1)

    calls = library.calls
    torch.testing.assert_close(torch.autograd.grad(made(x).sum(), x), torch.autograd.grad(plain(x).sum(), x))
    assert library.calls > calls


@pytest.mark.slow
def test_numbers_that_differ_by_relation(bump: Op) -> None:
    """Relations that are merged make one operand of their numbers, which differs from row to row."""
    width, relations = 4, 2
    x = features(12, width, torch.float64).requires_grad_()
    weights = features(relations * width, width, torch.float64).view(relations, width, width).requires_grad_()
    edges = [random_graph(12, 12, 30, seed) for seed in range(relations)]

    def layer(x: Tensor, weights: Tensor, edges: list[Tensor], bump: Any = ops.bump) -> Tensor:
        out = torch.zeros_like(x)
        for r, (src, dst) in enumerate(edges):
            out = out.index_add(0, dst, bump(x[src] @ weights[r], 0.5 * 2.0**r))
        return out

    with torch.no_grad():
        merged = gw.explain(lambda *args: layer(*args), x, weights, edges).rewrites[0].after
    assert merged.count("gwtest__bump ") == 1
    made = gw.compile(lambda *args: layer(*args), options={"verify": True})
    found = []
    for f in (made, lambda *args: layer(*args, lambda x, height: height / (1 + x * x))):
        out = f(x, weights, edges)
        found.append((out, *torch.autograd.grad(out.sin().sum(), (x, weights))))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
