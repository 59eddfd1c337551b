"""Reduce functions that are more than reductions run in buckets: exact, trainable, counted, and reported by line."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweave
from graphweave.core.settings import override
from graphweave.udf.run import reduce_messages, update_all
from tests.programs.graphs import zoo
from tests.support import by_default
from tests.udf.udf_support import Case, assert_same, case_of, frames_of, in_buckets, sends

pytestmark = [
    pytest.mark.filterwarnings("ignore:graphweave.*cannot reduce all mailboxes at once"),
]
ZOO = {e.name: e for e in zoo()}
Dense = Callable[[Tensor], Tensor]

DENSE: dict[str, Dense] = {
    "sort": lambda m: m.sort(dim=1)[0][:, 0],
    "torch.sort": lambda m: torch.sort(m, 1)[0].cumsum(1)[:, -1],
    "cumsum": lambda m: m.cumsum(1).amax(1),
    "first": lambda m: m[:, 0],
    "last": lambda m: m[:, -1],
    "median": lambda m: m.median(dim=1)[0],
    "flip": lambda m: (m.flip(1) * m).sum(1),
    "loop": lambda m: sum((m[:, i] * (i + 1) for i in range(m.shape[1])), torch.zeros_like(m[:, 0])),
    "number": lambda m: m.sum(1) * float(m.shape[1]) ** 0.5,
    "branch": lambda m: m.sum(1) if m.shape[1] > 2 else m.amax(1),
    "branch on equality": lambda m: m.sum(1) if m.shape[1] == 1 else m.amin(1),
    "flatten": lambda m: m.flatten(1)[:, :3],
    "pairs": lambda m: (m @ m.transpose(1, 2)).sum(2).amax(1, keepdim=True).expand(-1, 3),
    "topk": lambda m: m.topk(1, dim=1)[0].squeeze(1),
    "places": lambda m: (m * torch.arange(m.shape[1]).view(1, -1, 1)).sum(1),
    "new tensor": lambda m: (m + torch.zeros(m.shape[0], m.shape[1], m.shape[2])).sum(1),
}
"""Functions [nodes, messages, F] -> [nodes, F], each with an operation that depends on the positions of messages."""


def message(edges: Any) -> dict[str, Tensor]:
    return {"m": edges.src["x"] * edges.data["e"]}


def by_loop(case: Case, dense: Dense) -> Tensor:
    """The function applied to one node at a time, with zeros for nodes without messages."""
    src, dst = case.ends.src, case.ends.dst
    messages = case.frames.src["x"][src] * case.frames.edge["e"]
    rows = []
    for v in range(case.ends.dst_rows.shape[0]):
        box = messages[dst == v]
        rows.append(dense(box.unsqueeze(0)).squeeze(0) if box.shape[0] else torch.zeros_like(messages.sum(0)))
    return torch.stack(rows) if rows else messages.sum(0).new_zeros(0, messages.shape[1])


@pytest.mark.parametrize("name", DENSE)
def test_plain(name: str) -> None:
    dense = DENSE[name]
    with override(eager_kernels=False):
        for edges in ZOO.values():
            case = case_of(edges, (3,))
            got = update_all(case.ends, case.frames, message, lambda nodes: {"o": dense(nodes.mailbox["m"])})
            assert_same(got, {"o": by_loop(case, dense)}, case.leaves, 64)


IN_KERNELS = ("sort", "cumsum", "first", "loop", "branch on equality", "pairs", "new tensor")


@pytest.mark.parametrize("name", by_default(IN_KERNELS, "sort", "loop", "new tensor"))
def test_eager_calls_with_kernels(name: str, fresh_compiler: None) -> None:
    dense = DENSE[name]
    for number, graph in enumerate(("hub_dst", "isolated", "no_edges", "hub_dst"), 1):
        case = case_of(ZOO[graph], (3,))
        got = update_all(case.ends, case.frames, message, lambda nodes: {"o": dense(nodes.mailbox["m"])})
        assert_same(got, {"o": by_loop(case, dense)}, case.leaves, 64)
        assert graphweave.counters()["bucketed_reductions"] == number


class Sequence(nn.Module):
    """An LSTM over messages."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3, dtype=torch.float64)
        self.lstm = nn.LSTM(3, 3, batch_first=True, dtype=torch.float64)

    def reduce(self, nodes: Any) -> dict[str, Tensor]:
        _, (h, _) = self.lstm(nodes.mailbox["m"])
        return {"o": h.squeeze(0)}

    def forward(self, case: Case, x: Tensor) -> Tensor:
        frames = frames_of({"x": self.lin(x)}, case.frames.dst, case.frames.edge)
        return update_all(case.ends, frames, message, self.reduce)["o"] * 2

    def by_loop(self, case: Case, x: Tensor) -> Tensor:
        frames = frames_of({"x": self.lin(x)}, case.frames.dst, case.frames.edge)
        return by_loop(Case(case.ends, frames, ()), lambda box: self.lstm(box)[1][0].squeeze(0)) * 2


@pytest.mark.parametrize("how", ["plain", "kernels", "compiled"])
def test_lstm(how: str, fresh_compiler: None) -> None:
    torch.manual_seed(0)
    model = Sequence()
    run = graphweave.compile(model) if how == "compiled" else model
    leaves = tuple(model.parameters())
    with override(eager_kernels=how != "plain"):
        for graph in ("isolated", "power_law", "hub_dst"):
            case = case_of(ZOO[graph], (3,))
            x = case.frames.src["x"]
            got, want = {"o": run(case, x)}, {"o": model.by_loop(case, x)}
            assert_same(got, want, (*leaves, x, case.frames.edge["e"]), 64)
    counts = graphweave.counters()
    assert counts["bucketed_reductions"] == 3
    assert counts["eager_fallbacks"] == 0
    assert counts["graph_breaks"] <= 7  # the loop over buckets, and an LSTM whose number of steps data decides


class Sorted(nn.Module):
    def forward(self, case: Case, x: Tensor) -> Tensor:
        def reduce(nodes: Any) -> dict[str, Tensor]:
            box = nodes.mailbox["m"].relu()
            return {"o": box.sort(1)[0][:, 0]}

        return update_all(case.ends, frames_of({"x": x}, {}, case.frames.edge), message, reduce)["o"]


def test_inside_a_compiled_module(fresh_compiler: None) -> None:
    run = graphweave.compile(Sorted())
    for graph in ("hub_dst", "power_law"):
        case = case_of(ZOO[graph], (3,))
        x = case.frames.src["x"]
        want = by_loop(case, lambda box: box.relu().sort(1)[0][:, 0])
        assert_same({"o": run(case, x)}, {"o": want}, (x, case.frames.edge["e"]), 64)
    assert graphweave.counters()["bucketed_reductions"] == 2
    assert graphweave.counters()["graph_breaks"] <= 4


def test_explain_names_the_line(fresh_compiler: None) -> None:
    case = case_of(ZOO["hub_dst"], (3,))
    text = str(graphweave.explain(Sorted(), case, case.frames.src["x"]))
    assert "reduce runs in buckets" in text  # Python 3.10 has no qualified names of traced functions
    assert 'return {"o": box.sort(1)[0][:, 0]}' in text
    assert os.path.relpath(__file__) in text


def test_said_once(fresh_compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphweave.core.log._warned", set())
    case = case_of(ZOO["hub_dst"], (3,))

    def reduce(nodes: Any) -> dict[str, Tensor]:
        return {"o": nodes.mailbox["m"].cummax(1)[0].sum(1)}

    with pytest.warns(UserWarning) as said:
        for _ in range(3):
            update_all(case.ends, case.frames, message, reduce)
    ours = [str(w.message) for w in said if "cannot reduce all mailboxes at once" in str(w.message)]
    assert len(ours) == 1
    assert 'nodes.mailbox["m"].cummax(1)' in ours[0] and "Tensor.cummax of a mailbox" in ours[0]


def test_messages_that_exist(fresh_compiler: None) -> None:
    case = case_of(ZOO["hub_dst"], (3,))
    messages = sends_of(case)
    for function in (_first, _total):
        got = reduce_messages(case.ends, case.frames, messages, function)
        assert_same(got, in_buckets(case, function), (), 64)
    assert graphweave.counters()["bucketed_reductions"] == 1


def sends_of(case: Case) -> dict[str, Tensor]:
    m = (case.frames.src["x"][case.ends.src] * case.frames.edge["e"]).detach()
    return {"m": m}


def _first(nodes: Any) -> dict[str, Tensor]:
    return {"o": nodes.mailbox["m"][:, 0]}


def _total(nodes: Any) -> dict[str, Tensor]:
    return {"o": nodes.mailbox["m"].sum(1)}


def test_update_after_buckets(fresh_compiler: None) -> None:
    case = case_of(ZOO["isolated"], (3,))

    def apply(nodes: Any) -> dict[str, Tensor]:
        return {"h": nodes.data["o"] + nodes.data["q"]}

    got = update_all(case.ends, case.frames, sends, _first, apply)
    first = in_buckets(case, _first)["o"]
    assert_same(got, {"o": first, "h": first + case.frames.dst["q"]}, case.leaves, 64)
