"""Random chains of operations on mailboxes: one ragged call equals buckets, gradients included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import graphweave
from graphweave.core.settings import override
from tests.programs.graphs import zoo
from tests.udf.udf_support import assert_same, at_once, case_of, in_buckets

Step = Callable[[Any, Any], Any]
ZOO = zoo()

# Functions of the mailbox and of node data [nodes, 4] -> [nodes, messages, 4]; values stay of size about 1.
STEPS: dict[str, Step] = {
    "tanh": lambda m, q: m.tanh(),
    "leaky_relu": lambda m, q: F.leaky_relu(m, 0.2),
    "negate": lambda m, q: 1 - m,
    "of row": lambda m, q: m * q.unsqueeze(1).sigmoid(),
    "minus row": lambda m, q: q[:, None] - m,
    "where": lambda m, q: torch.where(m > q.unsqueeze(1), m, q.unsqueeze(1) * 0.5),
    "centre": lambda m, q: m - m.mean(1, keepdim=True),
    "softmax": lambda m, q: m.softmax(1) + m,
    "log_softmax": lambda m, q: F.log_softmax(m, dim=1).sigmoid(),
    "softmax of features": lambda m, q: m.softmax(-1),
    "maximum": lambda m, q: m - 0.5 * m.amax(1, keepdim=True),
    "sum of features": lambda m, q: m - m.sum(-1, keepdim=True) * 0.2,
    "per message": lambda m, q: m / m.shape[1],
    "root of size": lambda m, q: m / m.shape[1] ** 0.5,
    "heads": lambda m, q: m.view(*m.shape[:2], 2, -1).softmax(2).flatten(2),
    "swap": lambda m, q: torch.cat([m[..., 2:], m[:, :, :2]], -1),
    "there and back": lambda m, q: m.transpose(1, 2).softmax(2).transpose(1, 2),
    "score": lambda m, q: m * torch.einsum("nkf,nf->nk", m, q).softmax(1).unsqueeze(-1),
    "bmm": lambda m, q: torch.bmm(m, q.unsqueeze(-1)).tanh() + m,
    "gram": lambda m, q: (m.softmax(1) @ (m.transpose(1, 2) @ m.softmax(1))).tanh(),
    "expand": lambda m, q: m + q.unsqueeze(1).expand_as(m),
    "stack": lambda m, q: torch.stack([m, -m], 2).amax(2),
    "new dim": lambda m, q: m.unsqueeze(1).tanh().squeeze(1),
    "clamp": lambda m, q: m.clamp(-0.7, 0.9),
}
ENDS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda m: m.sum(1),
    "mean": lambda m: m.mean(dim=1),
    "amax": lambda m: m.amax(1).tanh(),
    "logsumexp": lambda m: m.logsumexp(1, keepdim=True).squeeze(1),
    "norm": lambda m: m.norm(p=3, dim=1),
    "std": lambda m: m.var(1, unbiased=False),
    "matmul": lambda m: torch.einsum("nkf,nkg->nfg", m, m),
    "flat": lambda m: m.flatten(2).sum((1, 2)),
    "prod": lambda m: (m.tanh() + 0.1).prod(1),
}


@settings(max_examples=60)
@given(
    st.sampled_from(ZOO),
    st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=5),
    st.sampled_from(sorted(ENDS)),
)
def test_chains(edges: Any, names: list[str], end: str) -> None:
    def reduce(nodes: Any) -> dict[str, Any]:
        box = nodes.mailbox["m"].tanh()
        for name in names:
            box = STEPS[name](box, nodes.data["q"])
        return {"o": ENDS[end](box)}

    before = graphweave.counters()["bucketed_reductions"]
    with override(eager_kernels=False):
        case = case_of(edges, (4,))
        assert_same(at_once(case, reduce), in_buckets(case, reduce), case.leaves, 64 * 16)
    assert graphweave.counters()["bucketed_reductions"] == before
