"""Pairs of messages of one node: against buckets, whose dense tensors have them, and through kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweave
from graphweave.core.settings import override
from graphweave.udf.run import update_all
from tests.programs.compare import assert_close
from tests.programs.graphs import zoo
from tests.udf.udf_support import Case, assert_same, case_of, in_buckets, sends

ZOO = {e.name: e for e in zoo()}
Pattern = Callable[[Any, Any], Any]

PATTERNS: dict[str, Pattern] = {
    "pair-wise normalisation": lambda m, n: ((m.unsqueeze(1) - m.unsqueeze(2)).relu().sum(1) * n).sum(1),
    "over the right": lambda m, n: ((m.unsqueeze(2) - n.unsqueeze(1)).tanh().sum(2) * n).sum(1),
    "torch.sum, keepdim": lambda m, n: (
        torch.sum(torch.relu(m.unsqueeze(2) * n.unsqueeze(1)), 2, True).squeeze(2).sum(1)
    ),
    "left, keepdim": lambda m, n: (m.unsqueeze(2) * n.unsqueeze(1)).mean(1, keepdim=True).squeeze(1).sum(1),
    "amax of margins": lambda m, n: (0.3 + m.unsqueeze(1) - n.unsqueeze(2)).clamp(min=0).amax(2).mean(1),
    "softmax over one": lambda m, n: ((m.unsqueeze(2) * m.unsqueeze(1)).softmax(2) * n.unsqueeze(1)).sum(2).sum(1),
    "features": lambda m, n: (m.unsqueeze(2) * n.unsqueeze(1)).sum(-1).softmax(2).sum(1).amax(1, keepdim=True),
    "comparison": lambda m, n: torch.where(m.unsqueeze(2) > m.unsqueeze(1), n.unsqueeze(2), 0.5).sum(2).sum(1),
    "number of larger": lambda m, n: (m.unsqueeze(2) < m.unsqueeze(1)).to(n.dtype).sum(2).mul(n).sum(1),
    "reflected": lambda m, n: (1.0 / (2.0 + (m.unsqueeze(2) - m.unsqueeze(1)).abs())).sum(2).mul(n).sum(1),
}
GRAPHS = [name for name, e in ZOO.items() if e.src.numel()]


def reduce_of(pattern: Pattern) -> Callable[[Any], dict[str, Any]]:
    return lambda nodes: {"o": pattern(nodes.mailbox["m"], nodes.mailbox["n"])}


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", PATTERNS)
def test_pairs_are_those_of_dense_mailboxes(name: str, graph: str) -> None:
    case, reduce = case_of(ZOO[graph], (3,)), reduce_of(PATTERNS[name])
    graphweave.reset_counters()
    with override(eager_kernels=False):
        got = update_all(case.ends, case.frames, sends, reduce)
    assert graphweave.counters()["bucketed_reductions"] == 0
    assert_same(got, in_buckets(case, reduce), case.leaves, 64)


class Normalised(nn.Module):
    """The third model of Graphiler: a message's weight is how far it is ahead of the others."""

    def forward(self, case: Case) -> Tensor:
        def message(edges: Any) -> dict[str, Tensor]:
            return {"m": edges.src["x"] * edges.data["e"], "w": edges.src["x"].sum(-1, keepdim=True)}

        def reduce(nodes: Any) -> dict[str, Tensor]:
            w = nodes.mailbox["w"]
            ahead = (w.unsqueeze(1) - w.unsqueeze(2)).relu().sum(1)
            return {"o": (ahead * nodes.mailbox["m"]).sum(1)}

        return update_all(case.ends, case.frames, message, reduce)["o"]


@pytest.mark.parametrize("how", ["compiled", "eager"])
def test_pairs_in_kernels(how: str) -> None:
    model = Normalised()
    run = graphweave.compile(model) if how == "compiled" else model
    graphweave.reset_counters()
    for name in ("isolated", "hub_dst", "power_law"):
        case = case_of(ZOO[name], (5,))
        with override(eager_kernels=False):
            want = model(case)
        got = run(case)
        assert_close(got, want, reduction_length=64)
        weight = torch.randn_like(want)
        leaves = [case.leaves[0], case.leaves[-1]]
        for a, b in zip(*(torch.autograd.grad((y * weight).sum(), leaves) for y in (got, want)), strict=True):
            assert_close(a, b, reduction_length=64, floor=1.0)
    counts = graphweave.counters()
    assert (counts["graph_breaks"], counts["eager_fallbacks"], counts["bucketed_reductions"]) == (0, 0, 0)
    assert counts["compilations"] == 1


def test_what_pairs_cannot_do_runs_in_buckets() -> None:
    case = case_of(ZOO["isolated"], (3,))
    reduce = reduce_of(lambda m, n: (m.unsqueeze(2) - m.unsqueeze(1)).sum((1, 2)))
    graphweave.reset_counters()
    with override(eager_kernels=False), pytest.warns(UserWarning, match="over several dims of pairs"):
        got = update_all(case.ends, case.frames, sends, reduce)
    assert graphweave.counters()["bucketed_reductions"] == 1
    assert_same(got, in_buckets(case, reduce), case.leaves, 64)


def test_the_number_of_messages_beside_pairs_is_that_of_the_row() -> None:
    """Also where pairs are as many as rows, so that one might be taken for the other."""
    for graph in ("one_node_loop", "power_law", "isolated"):
        case = case_of(ZOO[graph], (3,))
        reduce = reduce_of(lambda m, n: ((m.unsqueeze(2) - n.unsqueeze(1)) / m.shape[1]).sum(2).sum(1))
        with override(eager_kernels=False):
            got = update_all(case.ends, case.frames, sends, reduce)
        assert_same(got, in_buckets(case, reduce), case.leaves, 64)
