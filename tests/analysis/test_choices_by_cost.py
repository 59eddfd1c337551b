"""Choices by cost seen from outside: what `explain` says of them, and which graphs compile anew."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import graphweave


class Difference(nn.Module):
    """max over edges of (x_u - x_v) W: on nodes if edges are more, on edges if nodes are."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        message = self.linear(x[src] - x[dst])
        index = dst[:, None].expand_as(message)
        return torch.zeros_like(x).scatter_reduce(0, index, message, "amax", include_self=False)


def run(model: nn.Module, nodes: int, edges: int) -> None:
    generator = torch.Generator().manual_seed(nodes + edges)
    x = torch.randn(nodes, 64, generator=generator).requires_grad_()
    model(x, torch.randint(nodes, (2, edges), generator=generator)).sum().backward()


def compilations() -> int:
    return graphweave.counters()["compilations"]


def test_a_graph_for_which_another_form_is_better_takes_it() -> None:
    torch._dynamo.reset()
    graphweave.reset_counters()
    model = graphweave.compile(Difference())
    run(model, 1_000, 100_000)
    assert compilations() == 1
    for nodes, edges in ((1_200, 90_000), (2_000, 3_000), (50, 40), (7, 0)):
        run(model, nodes, edges)
    assert compilations() == 1, "where little is at stake one form serves all"
    run(model, 100_000, 500)
    assert (compilations(), graphweave.counters()["forms_made"]) == (1, 1)
    run(model, 900, 110_000)
    run(model, 90_000, 400)
    assert (compilations(), graphweave.counters()["forms_made"]) == (1, 1)
    assert graphweave.counters()["eager_fallbacks"] == 0


def test_both_forms_give_the_same() -> None:
    torch._dynamo.reset()
    layer = Difference()
    wide = Difference().double()
    wide.load_state_dict(layer.state_dict())
    model = graphweave.compile(layer)
    for nodes, edges in ((500, 60_000), (80_000, 300)):
        generator = torch.Generator().manual_seed(edges)
        x = torch.randn(nodes, 64, generator=generator)
        index = torch.randint(nodes, (2, edges), generator=generator)
        torch.testing.assert_close(model(x, index).double(), wide(x.double(), index), rtol=1e-4, atol=1e-5)


def test_explain_tells_what_was_taken_and_refused_and_why() -> None:
    x, index = torch.randn(50, 64, requires_grad=True), torch.randint(50, (2, 4_000))
    told = graphweave.explain(Difference(), x, index)
    (note,) = told.rewrites
    assert "matmul" in note.before and note.before != note.after
    taken = [s for s in note.steps if s.taken]
    assert any("postpone" in s.rules and "split-linear" in s.rules for s in taken)
    assert all(s.seconds > 0 for s in taken)
    assert all(s.after[2] < s.before[2] for s in taken if "split-linear" in s.rules), "fewer flops in products"
    text = told.text("all")
    for words in ("choices taken", "-- taken: split-linear", "MB moved", "message IR before", "message IR after"):
        assert words in text
    assert any("linear" in s.loc.code for s in taken), "the user's own line"


def test_refused_choices_are_told_with_both_costs() -> None:
    x, index = torch.randn(100_000, 64, requires_grad=True), torch.randint(100_000, (2, 300))
    (note,) = graphweave.explain(Difference(), x, index).rewrites
    refused = [s for s in note.steps if not s.taken and "postpone" in s.rules]
    assert refused and all(s.after[2] > s.before[2] for s in refused)
