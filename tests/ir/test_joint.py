"""Derivatives of message programs are those of PyTorch, taken through the interpreter."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor

from graphweave.core.types import DType, Fold
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import Input, Program, Push, Reduce, Type
from graphweave.ir.message.parse import parse
from graphweave.ir.message.verify import verify
from tests.programs.algebra import layer_inputs, random_layers
from tests.programs.graphs import zoo
from tests.programs.joint import TANGENT, Joint, joint
from tests.programs.random_programs import inputs, random_program


def by_autograd(program: Program, j: Joint, given: dict[str, Tensor]) -> list[Tensor | None]:
    """Gradients of the float inputs, None where there is none."""
    leaves = {k: x.clone().requires_grad_() if x.is_floating_point() else x for k, x in given.items()}
    outputs = [
        (x, given[f"{TANGENT}{i}"]) for i, x in enumerate(interp(program, leaves)) if x is not None and x.requires_grad
    ]
    floats = [
        n.name for n in program.nodes if isinstance(n, Input) and isinstance(n.type, Type) and n.type.dtype.is_float
    ]
    if not outputs:
        return [None] * len(floats)
    values, tangents = zip(*outputs, strict=True)
    return list(torch.autograd.grad(values, [leaves[k] for k in floats], tangents, allow_unused=True))


def assert_gradients(got: Iterable[Tensor | None], want: Iterable[Tensor | None]) -> None:
    for x, y in zip(got, want, strict=True):
        if y is None:
            assert x is None or not x.any()
            continue
        x = torch.zeros_like(y) if x is None else x
        finite = y.isfinite()
        scale = 1.0 + float(y[finite].abs().max()) if bool(finite.any()) else 1.0
        torch.testing.assert_close(x[finite], y[finite], rtol=0, atol=1e-10 * scale)


@pytest.mark.parametrize("part", range(4))
def test_layers(part: int) -> None:
    """This includes softmaxes whose maximum is a constant, which changes no gradient."""
    for number in range(part, 60, 4):
        layers = random_layers(number)
        for j in (joint(layers.forward), layers.joint()):
            verify(j.program)
            for graph in zoo(number)[number % 8 :: 8]:
                given = layer_inputs(j.program, graph, number)
                got = interp(j.program, given)[j.num_forward :]
                assert_gradients(got, by_autograd(layers.forward, j, given))


@pytest.mark.parametrize("part", range(4))
def test_random_programs(part: int) -> None:
    for number in range(part, 120, 4):
        program = random_program(number, DType.f64)
        if any(isinstance(n, Push | Reduce) and n.fold is Fold.mul for n in program.nodes):
            continue
        j = joint(program)
        verify(j.program)
        for graph in zoo(number)[number % 8 :: 8]:
            given = inputs(j.program, graph, number)
            assert_gradients(interp(j.program, given)[j.num_forward :], by_autograd(program, j, given))


def test_ties_are_split_evenly() -> None:
    """Two edges reach the maximum of row 0. The maximum of row 1 is the value for empty rows, tied with its edge."""
    program = parse("""
space V = 3
space E = s1
%0: E[] i64 = input dst
%1: E -> V = map %0 to V
%2: E[] f64 = input x
%3: V[] f64 = push.max %2, %1
return %3
""")
    j = joint(program)
    given = {"dst": torch.tensor([0, 0, 0, 1]), "x": torch.tensor([2.0, 1.0, 2.0, 0.0], dtype=torch.float64)}
    given[f"{TANGENT}0"] = torch.tensor([6.0, 6.0, 6.0], dtype=torch.float64)
    gradient = interp(j.program, given)[1]
    assert gradient.tolist() == [3.0, 0.0, 3.0, 3.0]
    assert_gradients([gradient], by_autograd(program, j, given))


def test_inputs_that_nothing_depends_on_have_no_gradient() -> None:
    program = parse("""
space V = s0
%0: V[] f64 = input x
%1: V[] f64 = input y
%2: V[] bool = gt %1, %1
%3: V[] f64 = neg %0
return %3, none, %2
""")
    j = joint(program)
    assert j.num_forward == 3 and j.tangents == {"tangent_0"}
    assert [r is None for r in j.program.outputs] == [False, True, False, False, True]
