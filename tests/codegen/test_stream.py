"""Outputs too large for the cache are written around it, with the same numbers."""

from __future__ import annotations

import pytest
import torch

from graphweave.core.types import Space
from graphweave.ir.message.interp import interp
from graphweave.ir.message.parse import parse
from tests.program_support import compiled, in_order

LIMIT = 16 << 20  # bytes, as in `gw_streamed_from`

SUM = """
space V = s0
space E = s1
%0: E[] i64 = input src
%1: E[] i64 = input dst
%2: E -> V = map %0 to V
%3: E -> V = map %1 to V
%4: V[WIDTH] f32 = input x
%5: E[WIDTH] f32 = pull %4, %2
%6: V[WIDTH] f32 = push.sum %5, %3
%7: V[WIDTH] f32 = relu %6
%8: V[WIDTH] f32 = mul %7, %4
return %6, %8
"""


@pytest.mark.parametrize("width", [16, 31, 64])
@pytest.mark.parametrize("large", [False, True])
def test_results_do_not_depend_on_where_they_are_written(width: int, large: bool) -> None:
    rows = LIMIT // (4 * width) + 100 if large else 1000
    program = parse(SUM.replace("WIDTH", str(width)))
    generator = torch.Generator().manual_seed(width)
    given = {name: torch.randint(rows, (5000,), generator=generator) for name in ("src", "dst")}
    given["x"] = torch.randn(rows, width, generator=generator)
    made = compiled(program)
    (kernel,) = made.plan.kernels.values()
    assert ("gw_stream(" in kernel.text) == (4 * width % 64 == 0), "rows of whole cache lines are streamed"
    got = made(in_order(made.plan.program, given))
    want = interp(program, given, {Space("V"): rows, Space("E"): 5000})
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
