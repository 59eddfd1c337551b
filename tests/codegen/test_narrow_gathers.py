"""Messages that are rounded before they are gathered: which, which not, and that sums are no less exact for it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import graphweave
from bench.check import error_against
from bench.steps import Result
from graphweave.core.types import DType
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import Cast, Program, Pull, Push, Type
from graphweave.ir.message.parse import parse
from graphweave.ir.message.verify import verify
from graphweave.passes.narrow_gathers import NarrowGathers
from tests.programs.graphs import zoo
from tests.support import features, random_graph

SCALED = """
space V = s0
space E = s1
%0: E[] i64 = input src
%1: E[] i64 = input dst
%2: E -> V = map %0 to V
%3: E -> V = map %1 to V
%4: V[2, 8] f32 = input g
%5: E[2, 1] f32 = input s
%6: V[2, 8] bf16 = input h
%7: E[2, 8] f32 = pull %4, %2
%8: E[2, 8] f32 = mul %7, %5
%9: E[16] f32 = reshape %8 [16]
%10: E[16] bf16 = cast %9 bf16
%11: V[16] bf16 = push.sum %10, %3
"""

DOTTED = """%12: E[2, 8] bf16 = pull %6, %3
%13: E[2, 8] f32 = cast %12 f32
%14: E[2, 8] f32 = mul %13, %7
%15: E[2] f32 = reduce.sum %14 [1]
"""


def gathered(program: Program) -> list[DType]:
    types = (program.types[r] for r, n in enumerate(program.nodes) if isinstance(n, Pull))
    return [t.dtype for t in types if isinstance(t, Type)]


def rounded_messages(program: Program) -> int:
    return sum(isinstance(n, Push) and isinstance(program.nodes[n.x], Cast) for n in program.nodes)


@pytest.mark.parametrize("text", [SCALED + "return %11", SCALED + DOTTED + "return %11, %15"])
def test_rows_are_gathered_in_bfloat16_and_summed_in_float32(text: str) -> None:
    program = parse(text)
    after = NarrowGathers()(program).program
    verify(after)
    assert set(gathered(after)) == {DType.bf16} and rounded_messages(after) == 0 < rounded_messages(program)
    assert NarrowGathers()(after).program is after
    for graph in zoo():
        rows, edges = max(graph.num_src, graph.num_dst), len(graph.src)
        given = {"src": graph.src, "dst": graph.dst, "s": features(edges, 2)[..., None]}
        given |= {"g": features(rows, 16).view(-1, 2, 8), "h": features(rows, 16).view(-1, 2, 8).bfloat16()}
        wide = {name: v.double() if v.is_floating_point() else v for name, v in given.items()}
        exact = interp(parse(text.replace("f32", "f64").replace("bf16", "f64")), wide)
        errors = [
            max((float((got.double() - want).abs().max()) for got, want in zip(interp(p, given), exact, strict=True)
                 if got.numel()), default=0.0)
            for p in (after, program)
        ]  # fmt: skip
        size = max((float(want.abs().max()) for want in exact if want.numel()), default=0.0)
        assert errors[0] <= errors[1] + 2.0**-8 * size, graph.name


@pytest.mark.parametrize(
    "reader",
    [
        "%12: E[2, 8] f32 = exp %7\n%13: V[2, 8] f32 = push.sum %12, %3\nreturn %11, %13",
        "%12: E[2, 8] f32 = mul %7, %7\n%13: E[2] f32 = reduce.sum %12 [1]\nreturn %11, %13",
        "%12: E[2] f32 = reduce.sum %8 [1]\nreturn %11, %12",
        "return %11, %7",
    ],
)
def test_rows_that_others_read_are_gathered_as_they_are(reader: str) -> None:
    after = NarrowGathers()(parse(SCALED + reader)).program
    assert gathered(after) == [DType.f32] and rounded_messages(after) == 0


@pytest.mark.parametrize("text", [SCALED + "return %11, %10", SCALED.replace("sum %10", "max %10") + "return %11"])
def test_messages_that_are_stored_or_compared_stay_rounded(text: str) -> None:
    program = parse(text)
    assert NarrowGathers()(program).program is program


def test_float16_has_too_small_a_range_to_round_early() -> None:
    after = NarrowGathers()(parse(SCALED.replace("bf16", "f16") + "return %11")).program
    assert gathered(after) == [DType.f32] and rounded_messages(after) == 0


@pytest.mark.usefixtures("fresh_compiler")
def test_gradients_of_weighted_messages_are_as_exact_as_autocast() -> None:
    """A layer with a trained weight for each edge: sums of w x[src] at dst, where autocast makes x bfloat16."""
    torch.manual_seed(0)
    src, dst = random_graph(200, 200, 3000)
    x, weight, matrix = features(200, 33), features(3000, 1), features(33, 32) / 6

    def step(x: Tensor, weight: Tensor, matrix: Tensor, *, half: bool) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            rows = x @ matrix
            return torch.zeros(200, 32, dtype=weight.dtype).index_add(0, dst, weight * rows[src])

    def run(fn: object, dtype: torch.dtype, half: bool) -> Result:
        given = [v.detach().to(dtype).requires_grad_() for v in (x, weight, matrix)]
        out = fn(*given, half=half)  # type: ignore[operator]
        out.backward(torch.linspace(-1, 1, out.numel(), dtype=dtype).view_as(out))
        return Result((out.detach(),), {str(i): v.grad for i, v in enumerate(given) if v.grad is not None})

    exact = run(step, torch.float64, False)
    ours = error_against(run(graphweave.compile(step), torch.float32, True), exact)
    eager = error_against(run(step, torch.float32, True), exact)
    assert ours <= eager and graphweave.counters()["eager_fallbacks"] == 0
