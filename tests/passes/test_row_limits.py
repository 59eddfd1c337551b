"""A loss of a model's first rows: kernels compute the rows that it reads, all gradients included, and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import graphweave
from graphweave.runtime import arena, long_rows
from graphweave.runtime.segments import Segment
from tests.programs.graphs import EdgeList, zoo
from tests.support import by_default

GRAPHS = [g for g in zoo() if g.square and g.num_src]
WIDTH = 16


def _sums(x: Tensor, src: Tensor, dst: Tensor, w: Tensor, first: Tensor) -> Tensor:
    """Two layers of sums, each with a product and a ReLU."""
    for _ in range(2):
        x = torch.relu(torch.zeros_like(x).index_add(0, dst, x[src]) @ w + x)
    return _loss(x, first)


def _means(x: Tensor, src: Tensor, dst: Tensor, w: Tensor, first: Tensor) -> Tensor:
    """Three layers of means: an extent behind an extent behind an extent."""
    for _ in range(3):
        degree = x.new_zeros(len(x)).index_add(0, dst, x.new_ones(len(src))).clamp(min=1)
        x = torch.tanh((torch.zeros_like(x).index_add(0, dst, x[src]) / degree[:, None]) @ w + x @ w.t())
    return _loss(x, first)


def _attention(x: Tensor, src: Tensor, dst: Tensor, w: Tensor, first: Tensor) -> Tensor:
    """Two layers of attention over edges and self-loops, which no longer are sorted by destination."""
    loops = torch.arange(len(x))
    src, dst = torch.cat([src, loops]), torch.cat([dst, loops])
    for _ in range(2):
        z = x @ w
        score = F.leaky_relu((z[src] * z[dst]).sum(1) + z[src, 0], 0.2)
        top = score.new_zeros(len(x)).scatter_reduce(0, dst, score.detach(), "amax", include_self=False)
        e = torch.exp(score - top[dst])
        a = e / e.new_zeros(len(x)).index_add(0, dst, e)[dst]
        x = x + torch.zeros_like(z).index_add(0, dst, a[:, None] * z[src])
    return _loss(x, first)


def _largest(x: Tensor, src: Tensor, dst: Tensor, w: Tensor, first: Tensor) -> Tensor:
    """Maxima, of products on edges in the second layer. Their gradients are no sums of all edges of a row."""
    index = dst[:, None].expand(-1, x.shape[1])
    x = torch.zeros_like(x).scatter_reduce(0, index, x[src] @ w, "amax", include_self=False) + x
    x = torch.zeros_like(x).scatter_reduce(0, index, torch.tanh((x[src] - x[dst]) @ w), "amax", include_self=False) + x
    return _loss(x, first)


def _read_twice(x: Tensor, src: Tensor, dst: Tensor, w: Tensor, first: Tensor) -> Tensor:
    """All rows of the first layer are read beside the first rows of the second."""
    x = torch.zeros_like(x).index_add(0, dst, x[src]) @ w + x
    return _loss(torch.zeros_like(x).index_add(0, dst, x[src] * w[0]) + x, first) + x.square().mean()


def _both_ways(x: Tensor, src: Tensor, dst: Tensor, w: Tensor, first: Tensor) -> Tensor:
    """Edges are followed one way, then the other."""
    x = torch.sigmoid(torch.zeros_like(x).index_add(0, dst, x[src]) @ w)
    x = torch.sigmoid(torch.zeros_like(x).index_add(0, src, x[dst]) @ w + x)
    return _loss(x, first)


def _loss(x: Tensor, first: Tensor) -> Tensor:
    return ((x[: first.shape[0]] - first[:, None]) ** 2).sum()


MODELS = {f.__name__.strip("_"): f for f in (_sums, _means, _attention, _largest, _read_twice, _both_ways)}


@cache
def _compiled(name: str) -> Callable[..., Tensor]:
    """One compilation for all tests, which use graphs of their own."""
    return graphweave.compile(MODELS[name])


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What kernels have not written is NaN."""
    whole, maker_of = arena.empty, arena.Maker.of

    def poison(made: Tensor) -> Tensor:
        made.view(torch.uint8).fill_(255) if made.dim() else made.fill_(
            float("nan") if made.is_floating_point() else -1
        )
        return made

    monkeypatch.setattr(arena, "empty", lambda *each: poison(whole(*each)))
    monkeypatch.setattr(arena.Maker, "of", lambda *each: lambda: poison(maker_of(*each)()))
    yield


class Computed:
    """The rows that kernels of native calls computed, and the edges that they walked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[int] = []
        self.edges: list[int] = []
        native = Segment.__call__

        def spied(segment: Segment, *args: Any) -> list[Tensor] | None:
            done = native(segment, *args)
            for rows, edges in segment.computed():
                self.rows.append(rows)
                self.edges.append(edges)
            return done

        monkeypatch.setattr(Segment, "__call__", spied)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Computed:
    return Computed(monkeypatch)


def _step(fn: Callable[..., Tensor], x: Tensor, g: EdgeList, w: Tensor, first: Tensor) -> list[Tensor]:
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    loss = fn(x, g.src, g.dst, w, first)
    return [loss.detach(), *torch.autograd.grad(loss, (x, w))]


def _data(g: EdgeList, first: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(g.num_src, WIDTH, generator=generator, dtype=torch.float64)
    w = torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64) / WIDTH**0.5
    return x, w, torch.randn(first, generator=generator, dtype=torch.float64)


def _check(compiled: Callable[..., Tensor], fn: Callable[..., Tensor], g: EdgeList, first: int) -> None:
    x, w, target = _data(g, first)
    expected, found = _step(fn, x, g, w, target), _step(compiled, x, g, w, target)
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9, msg=lambda m: f"{g.name}, first {first}: {m}")


@pytest.mark.parametrize("name", by_default(MODELS, "sums", "attention"))
@pytest.mark.usefixtures("poisoned")
def test_equals_eager_where_nothing_else_is_computed(name: str) -> None:
    compiled = _compiled(name)
    for g in GRAPHS:
        for first in {0, 1, g.num_src // 2, g.num_src}:
            _check(compiled, MODELS[name], g, first)


@pytest.mark.parametrize("name", by_default(["sums", "means", "attention"], "sums", "attention"))
def test_rows_that_nobody_reads_are_not_computed(name: str, computed: Computed) -> None:
    path = _path(40)
    compiled = _compiled(name)
    _check(compiled, MODELS[name], path, 5)
    layers = 3 if name == "means" else 2
    limited = [rows for rows in computed.rows if rows < 40]
    assert 1 < max(limited) <= 5 + 2 * layers, "node v has an edge from node v + 1 alone"
    assert any(0 < edges < 39 for edges in computed.edges), "the backward walks edges by their sources"


@pytest.mark.slow
def test_all_rows_are_computed_where_all_are_read(computed: Computed) -> None:
    def whole(x: Tensor, src: Tensor, dst: Tensor, w: Tensor, first: Tensor) -> Tensor:
        return _sums(x, src, dst, w, first) + (torch.zeros_like(x).index_add(0, dst, x[src]) @ w).sum()

    compiled = graphweave.compile(whole)
    _check(compiled, whole, _path(40), 5)
    assert 40 in computed.rows


@pytest.mark.usefixtures("poisoned")
def test_a_saved_value_that_is_also_a_result_is_whole() -> None:
    def both(x: Tensor, src: Tensor, dst: Tensor, w: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.relu(torch.zeros_like(x).index_add(0, dst, x[src]) @ w)
        return x, _loss(torch.zeros_like(x).index_add(0, dst, x[src]) @ w, first)

    path = _path(30)
    x, w, first = _data(path, 4)
    w.requires_grad_()
    found, loss = graphweave.compile(both)(x, path.src, path.dst, w, first)
    expected, wanted = both(x, path.src, path.dst, w, first)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(loss, wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(*(torch.autograd.grad(y, w)[0] for y in (loss, wanted)), rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("poisoned")
def test_one_compilation_serves_every_batch() -> None:
    compiled = _compiled("sums")
    _check(compiled, _sums, _path(20), 3)
    before = graphweave.counters()["compilations"]
    for nodes, first in ((20, 19), (50, 2), (7, 7)):
        _check(compiled, _sums, _path(nodes), first)
    assert graphweave.counters()["compilations"] == before


@pytest.mark.parametrize("name", ["sums", "attention"])
@pytest.mark.usefixtures("poisoned")
def test_long_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are divided into pieces also where a limit leaves other long rows out."""
    monkeypatch.setattr(long_rows, "LONG", 8)
    monkeypatch.setattr("graphweave.execute.row_bounds.LONG", 8)
    monkeypatch.setattr(long_rows, "SHARE", 1 << 20)
    generator = torch.Generator().manual_seed(0)
    dst = torch.cat([torch.randint(30, (60,), generator=generator), torch.full((40,), 1), torch.full((50,), 25)])
    src = torch.randint(30, (150,), generator=generator)
    src[::7] = 2
    compiled = _compiled(name)
    for first in (0, 1, 2, 12, 26, 30):
        _check(compiled, MODELS[name], EdgeList("hubs", src, dst, 30, 30), first)
        _check(compiled, MODELS[name], EdgeList("hubs_back", dst, src, 30, 30), first)


@pytest.mark.usefixtures("poisoned")
def test_values_above_the_limit_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that Python calls one by one have the same limits."""
    monkeypatch.setattr("graphweave.execute.cpp_stretch.MAX_BYTES", 0)
    compiled = _compiled("sums")
    for g in (_path(30), GRAPHS[-1]):
        for first in (0, 4, g.num_src):
            _check(compiled, _sums, g, first)


def test_an_edited_index_moves_the_limits() -> None:
    compiled, path = _compiled("sums"), _path(30)
    _check(compiled, _sums, path, 3)
    path.src[:] = path.src.flip(0)
    _check(compiled, _sums, path, 3)
    path.src.numpy()[:] = path.src.numpy()[::-1].copy()  # which PyTorch does not see
    _check(compiled, _sums, path, 3)


@pytest.mark.slow
@pytest.mark.usefixtures("poisoned")
def test_inference_computes_the_same_rows() -> None:
    compiled, path = _compiled("attention"), _path(30)
    x, w, first = _data(path, 6)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found = compiled(x, path.src, path.dst, w, first)
            torch.testing.assert_close(found, _attention(x, path.src, path.dst, w, first), rtol=1e-9, atol=1e-9)


def _path(nodes: int) -> EdgeList:
    """Edges v + 1 -> v."""
    return EdgeList("path", torch.arange(1, nodes), torch.arange(nodes - 1), nodes, nodes)
