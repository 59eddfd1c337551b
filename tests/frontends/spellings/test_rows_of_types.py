"""Rows of several types behind each other, and heads in front of rows: one program, without PyTorch's cat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import graphweave
from tests.support import features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

SIZES = (7, 11, 4, 5, 9, 3, 8, 6, 10, 2)
W = 6


class TypesBehindEachOther(nn.Module):
    """Nodes of all types as one tensor, each type with its own map before and after the layer."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.first = nn.ModuleList([nn.Linear(W, 5) for _ in range(count)])
        self.last = nn.ModuleList([nn.Linear(5, 3) for _ in range(count)])

    def forward(self, xs: list[Tensor], edge_index: Tensor) -> list[Tensor]:
        h = torch.cat([lin(x) for lin, x in zip(self.first, xs, strict=True)])
        src, dst = edge_index
        h = torch.zeros_like(h).index_add(0, dst, h[src].tanh())
        out, start = [], 0
        for lin, x in zip(self.last, xs, strict=True):
            out.append(lin(h[start : start + x.size(0)]).sigmoid())
            start += x.size(0)
        return out


class HeadsInFront(nn.Module):
    """A map for each head and type, over rows of all heads behind each other."""

    def __init__(self, heads: int, types: int) -> None:
        super().__init__()
        self.heads = heads
        self.weight = nn.Parameter(features(heads * types * 3, 3, torch.float64).view(heads * types, 3, 3))
        self.kind = torch.arange(types)

    def forward(self, x: Tensor, kind: Tensor, edge_index: Tensor) -> Tensor:
        rows = x.view(-1, self.heads, 3).transpose(0, 1).reshape(-1, 3)
        types = torch.cat([kind + h * self.kind.numel() for h in range(self.heads)])
        y = torch.bmm(rows.unsqueeze(1), self.weight[types]).squeeze(1).view(self.heads, -1, 3).transpose(0, 1)
        src, dst = edge_index
        return torch.zeros_like(y).index_add(0, dst, y[src].tanh())


def types_behind_each_other(count: int) -> tuple[nn.Module, tuple[Any, ...]]:
    sizes = SIZES[:count]
    xs = [features(n, W, torch.float64, seed=i) for i, n in enumerate(sizes)]
    return TypesBehindEachOther(count).double(), (xs, random_graph(sum(sizes), sum(sizes), 90))


def hgt(relations: int, heads: int) -> tuple[nn.Module, tuple[Any, ...]]:
    names = [f"t{i}" for i in range(3)]
    kinds = [(names[r % 3], f"r{r}", names[(r // 3) % 2]) for r in range(relations)]
    size = dict(zip(names, SIZES, strict=False))
    edges = {k: random_graph(size[k[0]], size[k[2]], 9 + r, seed=r) for r, k in enumerate(kinds)}
    x = {t: features(n, W, torch.float64, seed=n) for t, n in size.items()}
    return pyg.HGTConv(W, 4, (names, kinds), heads=heads).double(), (x, edges)


def heads_in_front(heads: int) -> tuple[nn.Module, tuple[Any, ...]]:
    kind = torch.randint(2, (13,), generator=torch.Generator().manual_seed(3))
    return HeadsInFront(heads, 2), (features(13, heads * 3, torch.float64), kind, random_graph(13, 13, 50))


CASES: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "types": lambda: types_behind_each_other(3),
    "hgt": lambda: hgt(5, 1),
    "hgt-heads": lambda: hgt(5, 2),
    "heads": lambda: heads_in_front(3),
    "one-head": lambda: heads_in_front(1),
}


@pytest.mark.parametrize("door", ["compile", "backend"])
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if "hgt" in n else ()) for n in CASES])
def test_values_and_gradients_are_those_of_eager_mode(name: str, door: str) -> None:
    torch.manual_seed(0)
    model, args = CASES[name]()
    compiled = graphweave.compile(model) if door == "compile" else torch.compile(model, backend="graphweave")
    want, wanted = _step(model, model, args)
    got, given = _step(compiled, model, args)
    for a, b in zip((*got, *given), (*want, *wanted), strict=True):
        torch.testing.assert_close(a, b)
    counts = graphweave.counters()
    assert counts["eager_fallbacks"] == counts["graph_breaks"] == 0


@pytest.mark.parametrize("name", ["types", pytest.param("hgt", marks=pytest.mark.slow)])
def test_one_graph_leaves_nothing_to_pytorch(name: str) -> None:
    model, args = CASES[name]()
    report = graphweave.explain(model, *args)
    assert ", as 1 graph," in str(report) and "left to PyTorch" not in str(report)
    assert _launches(model, args)[1] == 0


@pytest.mark.slow
def test_kernels_do_not_grow_with_types_behind_each_other() -> None:
    assert _launches(*types_behind_each_other(4)) == _launches(*types_behind_each_other(9))


@pytest.mark.slow
def test_kernels_of_hgt_do_not_grow_with_relations() -> None:
    assert _launches(*hgt(9, 1)) == _launches(*hgt(14, 1))


class TypesBesideAll(nn.Module):
    """A convolution for each relation beside a map of the rows of all types, with the loss."""

    def __init__(self, names: list[str], kinds: list[tuple[str, str, str]]) -> None:
        super().__init__()
        self.names = names
        convs = {k: pyg.SAGEConv((W, W), 4, aggr="mean", root_weight=False, bias=False) for k in kinds}
        self.convs = pyg.HeteroConv(convs, aggr="sum")  # type: ignore[arg-type]
        self.root = nn.Linear(W, 4)

    def forward(self, x: Tensor, y: Tensor, parts: dict[str, Tensor], edges: dict[Any, Tensor]) -> Tensor:
        out = self.convs(parts, edges)
        return nn.functional.cross_entropy(torch.cat([out[t] for t in self.names]) + self.root(x), y)


@pytest.mark.parametrize("count", [3, 5])
def test_a_union_of_types_does_not_tell_the_rows_of_each(count: int) -> None:
    """The backward was given rows of the union, and of two of its three types, and did not compile. With five types,
    the part computed once counted the rows of its zeros by computing what is made of them, without end."""
    names = [f"t{i}" for i in range(count)]
    kinds = [("t1", "r0", "t0"), ("t0", "r1", "t2"), ("t1", "r2", "t2"), ("t2", "r3", "t1"), ("t2", "r4", "t0")]
    kinds += [(f"t{i - 1}", f"r{i + 2}", f"t{i}") for i in range(3, count)]
    size = dict(zip(names, SIZES, strict=False))
    edges = {k: random_graph(size[k[0]], size[k[2]], 20 + i, seed=i) for i, k in enumerate(kinds)}
    x = features(sum(size.values()), W, torch.float64)
    y = torch.arange(x.size(0)) % 4
    parts = dict(zip(names, x.split(list(size.values())), strict=True))
    torch.manual_seed(0)
    model = TypesBesideAll(names, kinds).double()
    want, got = model(x, y, parts, edges), graphweave.compile(model)(x, y, parts, edges)
    torch.testing.assert_close(got, want)
    weights = list(model.parameters())
    torch.testing.assert_close(torch.autograd.grad(got, weights), torch.autograd.grad(want, weights))
    assert graphweave.counters()["eager_fallbacks"] == 0


def test_one_shared_row_behind_rows_of_nodes() -> None:
    """A virtual node is shared data of one row, which is also added to all rows."""

    def f(x: Tensor, extra: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.cat([x + extra, extra])
        src, dst = edge_index
        h = torch.zeros_like(h).index_add(0, dst, h[src].sin())
        return h[: x.size(0)].exp(), h[x.size(0) :].cos()

    for rows in (1, 5, 12):
        x, extra = features(rows, 3, torch.float64), features(1, 3, torch.float64, seed=1)
        leaves = [x.requires_grad_(True), extra.requires_grad_(True)]
        edge_index = random_graph(rows + 1, rows + 1, 20)
        want, got = f(x, extra, edge_index), graphweave.compile(f)(x, extra, edge_index)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)
        ends = [torch.autograd.grad(sum(v.sum() for v in out), leaves) for out in (got, want)]  # type: ignore[arg-type]
        torch.testing.assert_close(*ends)
    assert graphweave.counters()["eager_fallbacks"] == 0


def test_slices_that_are_no_segment_stay_right() -> None:
    """Bounds inside a type, or over two types, are no segment; their gradients overlap."""

    def f(a: Tensor, b: Tensor, edge_index: Tensor) -> Tensor:
        h = torch.cat([a, b])
        src, dst = edge_index
        h = torch.zeros_like(h).index_add(0, dst, h[src].tanh())
        n = a.size(0)
        return h[1:n].sum() + h[: n + 2].square().sum() + h[n:].exp().sum() + h[:n].cos().sum()

    a, b = (features(n, 3, torch.float64, seed=n).requires_grad_(True) for n in (6, 8))
    edge_index = random_graph(14, 14, 40)
    want, got = f(a, b, edge_index), graphweave.compile(f)(a, b, edge_index)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got, (a, b)), torch.autograd.grad(want, (a, b)))


def _launches(model: nn.Module, args: tuple[Any, ...]) -> tuple[int, int]:
    """Kernels and calls of PyTorch in a call, forward and backward, on a graph that has been seen."""
    compiled = graphweave.compile(model)
    for _ in range(2):
        before = graphweave.counters()
        _step(compiled, model, args)
        after = graphweave.counters()
    return tuple(after[name] - before[name] for name in ("kernel_launches", "fallback_calls"))  # type: ignore[return-value]


def _step(call: Callable[..., Any], model: nn.Module, args: tuple[Any, ...]) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs and gradients of all parameters."""
    out = call(*args)
    outs = list(out.values()) if isinstance(out, dict) else list(out) if isinstance(out, list) else [out]
    loss = sum((v * torch.cos(torch.arange(v.numel(), dtype=v.dtype)).view_as(v)).sum() for v in outs if v is not None)
    assert isinstance(loss, Tensor)
    leaves = list(model.parameters())
    grads = torch.autograd.grad(loss, leaves, allow_unused=True)
    return outs, [torch.zeros_like(p) if g is None else g for p, g in zip(leaves, grads, strict=True)]
