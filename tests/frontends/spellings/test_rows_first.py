"""Rows in the second dim, [H, rows, ...]: brought to the front, so that products and moves are those of a space."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import graphweave
from graphweave.ir.message.nodes import Gram, MatMul
from tests.captures import capture, check
from tests.support import SEVERAL, Graph, assert_matches, by_default, features, random_graph, several_or_all

pytestmark = pytest.mark.usefixtures("fresh_compiler")

H, N, E, W, J = 3, 11, 37, 4, 5
SRC, DST = random_graph(N, N, E, seed=7).unbind()


def stacked(h: Tensor, w: Tensor) -> Tensor:
    """[H, rows, J], the rows of `h` times each of the matrices `w`."""
    return h.unsqueeze(0) @ w


def matrices() -> Tensor:
    """[H, W, J], of fixed sizes as a parameter's."""
    w = features(H * W, J, torch.float64, 2).view(H, W, J).requires_grad_()
    torch._dynamo.mark_static(w)
    return w


def index_of(i: Tensor, like: Tensor) -> Tensor:
    return i.view(1, -1, 1).expand_as(like)


PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "einsum of blocks": lambda h, w: torch.einsum("nbi,bij->nbj", h.view(-1, H, W), w),
    "einsum in front": lambda h, w: torch.einsum("nbi,bij->bnj", h.view(-1, H, W), w).exp().mean(0),
    "bmm of transposes": lambda h, w: torch.bmm(h.view(-1, H, W).transpose(0, 1), w).transpose(0, 1),
    "transposed weights": lambda h, w: torch.einsum("nbi,bij->nbj", h.view(-1, H, W), w.mT.contiguous().mT),
    "a product of a product": lambda h, w: torch.einsum(
        "nbj,bij->nbi", torch.einsum("nbi,bij->nbj", h.view(-1, H, W), w), w
    ),
    "stacks": lambda h, w: (h.view(-1, H, W)[:, 0].unsqueeze(0) @ w).relu().mean(0),
    "one stack": lambda h, w: (h.view(-1, H, W)[:, 1].unsqueeze(0) @ w[:1]).squeeze(0),
}  # fmt: skip
"""Products of blocks [rows, H * W] with matrices [H, W, J]."""


@pytest.mark.parametrize("name", by_default(PRODUCTS, "einsum of blocks", "bmm of transposes", "one stack"))
def test_products_of_blocks(name: str) -> None:
    """They are nodes of the program, and so are both gradients; no call is left."""
    rows = features(N, H * W, torch.float64).requires_grad_()
    torch._dynamo.mark_static(rows, 1)
    (captured,) = capture(lambda h, w: torch.sin(PRODUCTS[name](h, w)), rows, matrices())
    check(captured)
    assert captured.targets() == []
    kinds = captured.imported.program.nodes
    assert sum(isinstance(n, MatMul) for n in kinds) == 2 * sum(isinstance(n, Gram) for n in kinds) > 0


MOVES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "index_select": lambda s, i, j: s.index_select(1, i),
    "negative dim": lambda s, i, j: s.index_select(-2, i),
    "index": lambda s, i, j: s[:, i],
    "gather": lambda s, i, j: s.gather(1, index_of(i, s.new_zeros(H, len(i), J))),
    "scatter_add": lambda s, i, j: s.new_zeros(s.shape).scatter_add(1, index_of(j, s[:, i]), s[:, i]),
    "index_add": lambda s, i, j: torch.zeros_like(s).index_add(1, j, s[:, i]),
    "index_add of a multiple": lambda s, i, j: torch.zeros_like(s).index_add(-2, j, s[:, i], alpha=2),
    "scatter_reduce": lambda s, i, j: s.sin().scatter_reduce(1, index_of(j, s[:, i]), s[:, i], "amax"),
}  # fmt: skip
"""Moves of stacks s [H, rows, J] along indices i and j of edges."""

WORK: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "bias": lambda s, h: s + s.new_ones(H, 1, 1) * torch.arange(J),
    "rows of all stacks": lambda s, h: s * h.exp().sum(1, keepdim=True),
    "a number for each row": lambda s, h: s.sum(-1) * h[:, 0],
    "softmax of features": lambda s, h: s.softmax(-1) * s,
    "softmax of stacks": lambda s, h: s.softmax(0) * s,
    "sum of rows": lambda s, h: s - s.sum(1, keepdim=True),
    "sum of stacks": lambda s, h: s - s.sum(0, keepdim=True),
    "sums of rows": lambda s, h: s.sum(1).exp(),
    "all": lambda s, h: s.sum() * h,
    "concatenated": lambda s, h: torch.cat([s, s.exp()], -1),
    "more stacks": lambda s, h: torch.cat([s, s.exp()], 0),
    "one stack": lambda s, h: s[1] * s[0, :, 2:3],
    "features": lambda s, h: s[..., 1:3] * s[..., :1],
    "split": lambda s, h: s.view(H, -1, J, 1) * s.unsqueeze(2),
    "last": lambda s, h: s.transpose(1, 2).contiguous().transpose(1, 2) * 2,
    "back": lambda s, h: s.permute(1, 2, 0).reshape(-1, J * H).sin(),
    "largest": lambda s, h: s.amax(0) + s.amax(-1).amin(0)[:, None],
    "stays": lambda s, h: s.cumsum(0).mT,
    "where": lambda s, h: torch.where(s > h[:, :1], s, h.sum(1)[:, None]),
    "layer norm": lambda s, h: nn.functional.layer_norm(s, (J,)),
}
"""Row-wise work and reductions on stacks s [H, rows, J] and rows h."""


def _checked(f: Callable[..., Tensor]) -> list[str]:
    """The calls that stay of f(h, w, src, dst), which is checked against its program forward and backward."""
    (captured,) = capture(f, features(N, W, torch.float64).requires_grad_(), matrices(), SRC, DST)
    check(captured)
    return captured.targets()


@pytest.mark.parametrize("name", by_default(MOVES, "index", "scatter_add"))
def test_moves_of_stacks(name: str) -> None:
    assert _checked(lambda h, w, i, j: MOVES[name](stacked(h, w), i, j).sin().sum(0)) == []


@pytest.mark.parametrize("name", by_default(WORK, "rows of all stacks", "softmax of stacks", "back"))
def test_work_on_stacks(name: str) -> None:
    def f(h: Tensor, w: Tensor, i: Tensor, j: Tensor) -> Tensor:
        s = stacked(h, w)
        return WORK[name](s.new_zeros(s.shape).index_add(1, j, s.index_select(1, i)), h)

    # The results that have their rows in a later dim leave by a transpose, and their gradients enter by one.
    left = set(_checked(f)) - {"aten.permute.default", "aten.clone.default"}
    outside = {
        "sum of rows": {"aten.neg.default", "aten.sum.dim_IntList"},
        "stays": {"aten.cumsum.default", "aten.flip.default", "aten.transpose.int"},
    }
    assert left <= outside.get(name, set())


class Stacks(nn.Module):
    """A layer like ARMAConv: stacks in front of the rows, with weights of edges and a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(features(H * W, J, torch.float64, 3).view(H, W, J))
        self.again = nn.Parameter(features(H * J, J, torch.float64, 4).view(H, J, J))
        self.skip = nn.Parameter(features(H * W, J, torch.float64, 5).view(H, W, J))
        self.bias = nn.Parameter(features(H, J, torch.float64, 6).view(H, 1, J))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        weight = x.sum(1)[src].sigmoid()
        h = x.unsqueeze(0)
        for w in (self.first, self.again):
            h = h @ w
            messages = weight.view(-1, 1) * h.index_select(-2, src)
            h = h.new_zeros(h.shape).scatter_add(1, dst.view(1, -1, 1).expand_as(messages), messages)
            h = (h + x.unsqueeze(0) @ self.skip + self.bias).tanh()
        return h.mean(0)


class Blocks(nn.Module):
    """A layer like RGCNConv with block-diagonal weights: a loop over relations, and a mean over each one's edges."""

    def __init__(self, relations: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(features(relations * 2 * 2, J, torch.float64, 3).view(relations, 2, 2, J))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out, types = 0.0, (edge_index[0] + 2 * edge_index[1]) % len(self.weight)
        for r, w in enumerate(self.weight):
            src, dst = edge_index[:, types == r]
            count = x.new_zeros(len(x)).index_add(0, dst, x.new_ones(len(dst))).clamp(min=1)
            mean = torch.zeros_like(x).index_add(0, dst, x[src]) / count[:, None]
            out = out + torch.einsum("nbi,bij->nbj", mean.view(-1, 2, 2), w).reshape(-1, 2 * J)
        return out


@several_or_all
@pytest.mark.parametrize(
    "make", [pytest.param(Stacks, id="stacks", marks=pytest.mark.slow), pytest.param(lambda: Blocks(3), id="blocks")]
)
def test_layers_equal_eager_mode(make: Callable[[], nn.Module], graphs: tuple[Graph, ...]) -> None:
    model = make()
    compiled = graphweave.compile(model)
    for graph in graphs:
        x = features(graph.num_nodes, W, torch.float64).requires_grad_()
        assert_matches(compiled, model, x, graph.edge_index, module=model, label=graph.name)
    assert graphweave.counters()["eager_fallbacks"] == graphweave.counters()["graph_breaks"] == 0


@pytest.mark.slow
def test_pygs_stacks_leave_nothing_to_pytorch() -> None:
    torch.manual_seed(0)
    model = pyg.ARMAConv(W, J, num_stacks=H, num_layers=2).double()
    compiled = graphweave.compile(model)
    for graph in SEVERAL:
        x = features(graph.num_nodes, W, torch.float64).requires_grad_()
        assert_matches(compiled, model, x, graph.edge_index, module=model, label=graph.name)
    assert graphweave.counters()["fallback_calls"] == 0
