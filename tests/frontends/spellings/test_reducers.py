"""Every spelling of gather and scatter, as plain functions: equal to eager and to finite differences in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import graphweave
from tests.support import Graph, assert_matches, by_default, features, random_graph, several_or_all

pytestmark = pytest.mark.usefixtures("fresh_compiler")

Aggregate = Callable[[Tensor, Tensor], Tensor]


def _messages(x: Tensor, edge_index: Tensor) -> Tensor:
    return torch.sin(x[edge_index[0]]) * x[edge_index[1]]


def _wide(index: Tensor, like: Tensor) -> Tensor:
    return index.unsqueeze(-1).expand(-1, like.size(-1))


def scatter_add(x: Tensor, edge_index: Tensor) -> Tensor:
    message = _messages(x, edge_index)
    return x.new_zeros(x.shape).scatter_add(0, _wide(edge_index[1], message), message)


def scatter_add_in_place(x: Tensor, edge_index: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    message = torch.index_select(x, 0, edge_index[0])
    out.scatter_add_(0, _wide(edge_index[1], message), message)
    return out * 2 + x


def index_add(x: Tensor, edge_index: Tensor) -> Tensor:
    return x.index_add(0, edge_index[1], _messages(x, edge_index), alpha=0.5)


def index_put(x: Tensor, edge_index: Tensor) -> Tensor:
    return torch.zeros_like(x).index_put((edge_index[1],), _messages(x, edge_index), accumulate=True)


def from_gather(x: Tensor, edge_index: Tensor) -> Tensor:
    message = torch.gather(x, 0, _wide(edge_index[0], x)).tanh()
    return torch.zeros_like(x).index_add(0, edge_index[1], message)


def from_embedding(x: Tensor, edge_index: Tensor) -> Tensor:
    message = F.embedding(edge_index[0], x) * 0.5
    return torch.zeros_like(x).index_add(0, edge_index[1], message)


def edge_softmax(x: Tensor, edge_index: Tensor) -> Tensor:
    score = F.leaky_relu((x[edge_index[0]] * x[edge_index[1]]).sum(-1), 0.2)
    top = score.new_full((x.size(0),), float("-inf")).scatter_reduce(0, edge_index[1], score.detach(), "amax")
    weight = (score - top[edge_index[1]]).exp()
    total = weight.new_zeros(x.size(0)).index_add(0, edge_index[1], weight)
    weight = weight / (total[edge_index[1]] + 1e-16)
    return torch.zeros_like(x).index_add(0, edge_index[1], weight.unsqueeze(-1) * x[edge_index[0]])


def segments(x: Tensor, edge_index: Tensor) -> Tensor:
    """Edges are grouped by destination and summed as differences of running totals at the ends of groups."""
    order = torch.argsort(edge_index[1], stable=True)
    message = _messages(x, edge_index[:, order])
    counts = torch.zeros(x.size(0), dtype=torch.int64).index_add(0, edge_index[1], torch.ones_like(edge_index[1]))
    ends = counts.cumsum(0)
    totals = F.pad(message.cumsum(0), (0, 0, 1, 0))
    return totals[ends] - totals[ends - counts]


def segment_reduce(x: Tensor, edge_index: Tensor) -> Tensor:
    order = torch.argsort(edge_index[1], stable=True)
    message = _messages(x, edge_index[:, order])
    counts = torch.zeros(x.size(0), dtype=torch.int64).index_add(0, edge_index[1], torch.ones_like(edge_index[1]))
    return torch.segment_reduce(message, "sum", lengths=counts, axis=0, unsafe=True)


def _reduce(how: str, include_self: bool) -> Aggregate:
    def aggregate(x: Tensor, edge_index: Tensor) -> Tensor:
        message = _messages(x, edge_index)
        start = torch.cos(x)
        return start.scatter_reduce(0, _wide(edge_index[1], message), message, how, include_self=include_self)

    return aggregate


SPELLINGS: dict[str, Aggregate] = {
    "scatter_add": scatter_add,
    "scatter_add_": scatter_add_in_place,
    "index_add": index_add,
    "index_put": index_put,
    "gather": from_gather,
    "embedding": from_embedding,
    "edge_softmax": edge_softmax,
    "segments": segments,
    "segment_reduce": segment_reduce,
    **{f"{how}": _reduce(how, False) for how in ("sum", "mean", "amax", "amin", "prod")},
    **{f"{how}-with-self": _reduce(how, True) for how in ("mean", "amax", "prod")},
}


RARER = (
    "scatter_add_",
    "index_add",
    "embedding",
    "amin",
    "sum",
    "prod",
    "mean-with-self",
    "amax-with-self",
    "segments",
)


@pytest.mark.parametrize("name", by_default(SPELLINGS, *(name for name in SPELLINGS if name not in RARER)))
@several_or_all
def test_equals_eager_and_finite_differences(name: str, graphs: tuple[Graph, ...]) -> None:
    fn = SPELLINGS[name]
    compiled = graphweave.compile(fn)
    for graph in graphs:
        if name == "segment_reduce" and graph.edge_index.size(1) == 0:
            continue  # torch.segment_reduce itself refuses data without rows
        assert_matches(compiled, fn, features(graph.num_nodes, 3, torch.float64), graph.edge_index, label=graph.name)
    x = features(6, 3, torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(compiled, (x, random_graph(6, 6, 14)))


@pytest.mark.parametrize("how", ["amax", "amin"])
def test_ties_split_the_gradient(how: str) -> None:
    """Three equal messages into one node: a third of its gradient each, as scatter_reduce does."""

    def fn(message: Tensor, dst: Tensor, start: Tensor) -> Tensor:
        return start.scatter_reduce(0, _wide(dst, message), message, how, include_self=False)

    message = torch.tensor([[2.0], [2.0], [2.0], [1.0], [1.0]], requires_grad=True)
    dst = torch.tensor([0, 0, 0, 2, 2])
    graphweave.compile(fn)(message, dst, torch.zeros(4, 1)).sum().backward()
    assert message.grad is not None
    assert torch.equal(message.grad[:, 0], torch.tensor([1 / 3, 1 / 3, 1 / 3, 0.5, 0.5]))


@pytest.mark.parametrize("how", ["amax", "mean", "prod"])
def test_empty_neighbourhoods_keep_the_start_value(how: str) -> None:
    fn = _reduce(how, include_self=False)
    x = features(5, 2)
    out = graphweave.compile(fn)(x, torch.tensor([[1, 2], [3, 3]]))
    lonely = torch.tensor([0, 1, 2, 4])
    torch.testing.assert_close(out[lonely], torch.cos(x)[lonely])


def test_max_propagates_nan() -> None:
    fn = _reduce("amax", include_self=False)
    x = features(4, 2)
    x[1, 0] = float("nan")
    index = torch.tensor([[1, 2, 3], [0, 0, 2]])
    got, want = graphweave.compile(fn)(x, index), fn(x, index)
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.allclose(got, want, equal_nan=True)
