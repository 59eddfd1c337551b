"""The order of steps around what travels between ranks."""

from __future__ import annotations

from graphweave.ir.message.parse import parse
from graphweave.lower.dependencies import StepNodes
from graphweave.lower.overlap import overlapped

A_VIEW_OF_A_MEMBER = """
space V = n
space V_all = 7 + n
%0: V[3] f32 = input x
%1: unit[3, 4] f32 = input w
%2: V_all[3] f32 = exchange %0 over "part:_N" to V_all
%3: V[1, 3] f32 = reshape %0 [1, 3]
%4: V[1, 3] f32 = tanh %3
%5: V[3] f32 = reshape %4 [3]
%6: V[4] f32 = matmul %5, %1
return %2, %5, %6
"""


def test_a_view_of_what_a_kernel_makes_comes_after_it() -> None:
    """The kernel reads its own values in that shape, so it does not wait for the view, which others need."""
    steps = [(name, StepNodes(nodes, nodes)) for name, nodes in (("kernel", (4, 6)), ("send", (2,)), ("view", (5,)))]
    assert overlapped(parse(A_VIEW_OF_A_MEMBER), steps) == ["send", "kernel", "view"]
