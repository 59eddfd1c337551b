"""Graphs that are used once: native code makes what kernels need of them, and forgets it when the next graph comes."""

from __future__ import annotations

import gc
import resource
import threading
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import graphweave
from graphweave.core.counters import counters, reset_counters
from graphweave.core.settings import override, settings
from graphweave.runtime import formats, index_records
from graphweave.runtime.memo import memo
from tests.sanitizer_support import run_sanitized
from tests.support import awkward_graphs, features, random_graph

pytestmark = pytest.mark.skipif(settings().target == "triton", reason="only kernels of C++ run in native calls")


def mean(x: Tensor, index: Tensor) -> Tensor:
    degree = torch.zeros(x.shape[0], dtype=x.dtype).index_add(0, index[1], torch.ones_like(index[1], dtype=x.dtype))
    return torch.zeros_like(x).index_add(0, index[1], x[index[0]]) / degree.clamp(min=1)[:, None]


def loss(x: Tensor, w: Tensor, index: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(mean((mean(x, index) @ w).relu(), index), y)


def batch(rows: int, edges: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    y = torch.randint(6, (rows,), generator=torch.Generator().manual_seed(seed))
    return features(rows, 6, torch.float64, seed), random_graph(rows, rows, edges, seed), y


W = features(6, 6, torch.float64, 77)


def gradients(fn: object, x: Tensor, index: Tensor, y: Tensor) -> list[Tensor]:
    x, w = x.clone().requires_grad_(), W.clone().requires_grad_()
    out = fn(x, w, index, y)  # type: ignore[operator]
    return [out.detach(), *torch.autograd.grad(out, (x, w))]


def check(compiled: object, x: Tensor, index: Tensor, y: Tensor) -> None:
    for got, want in zip(gradients(compiled, x, index, y), gradients(loss, x, index, y), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    formats.clear()
    memo.clear()
    reset_counters()
    yield
    formats.clear()
    memo.clear()


@pytest.fixture(scope="module")
def compiled() -> object:
    made = graphweave.compile(loss)
    check(made, *batch(11, 30, 1000))
    return made


def test_small_graphs_that_come_once_leave_nothing_behind(compiled: object) -> None:
    for seed in range(20):
        check(compiled, *batch(5 + seed, 3 * seed, seed))
    assert formats.stats()["entries"] == memo.stats()["entries"] == 0
    assert counters()["hoist_builds"] == 20 and counters()["hoist_hits"] == 0


def test_a_graph_that_comes_again_is_kept_from_then_on(compiled: object) -> None:
    two = batch(30, 60, 1), batch(31, 70, 2)
    for _ in range(2):
        for one in two:
            check(compiled, *one)
    assert counters()["hoist_builds"] == 4  # each is computed once for itself, and once to be kept
    assert memo.stats()["entries"] == 2 and formats.stats()["entries"] >= 2
    built = counters()["format_builds"]
    for _ in range(3):
        for one in two:
            check(compiled, *one)
    assert (counters()["hoist_builds"], counters()["format_builds"]) == (4, built)


def test_the_same_graph_again_and_again_is_found_without_a_cache(compiled: object) -> None:
    one = batch(30, 60, 3)
    check(compiled, *one)
    built = counters()["format_builds"]
    for _ in range(5):
        check(compiled, *one)
    assert (counters()["hoist_builds"], counters()["hoist_hits"], counters()["format_builds"]) == (1, 5, built)


def test_tensors_that_get_the_memory_of_dead_ones_are_not_taken_for_them(compiled: object) -> None:
    for seed in range(40):
        check(compiled, *batch(20, 50, seed))  # each is freed before the next is made


def test_equal_values_in_other_memory_each_time_are_soon_shared_no_more(
    compiled: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pooling computes the batch of its nodes, or an index without edges, in every step anew."""
    x, index, y = batch(20, 50, 8)
    shared: list[object] = []
    for cache in (index_records.cache, memo._cache):
        put = cache.put
        monkeypatch.setattr(cache, "put", lambda key, *rest, put=put: (shared.append(key), put(key, *rest)))
    alone = 0
    for _ in range(150):
        shared.clear()
        check(compiled, x, index.clone(), y.clone())
        alone = 0 if shared else alone + 1
        if alone == 30:
            break
    assert alone == 30
    two = batch(30, 60, 1), batch(31, 70, 2)  # what does come again is shared once more
    for _ in range(140):
        for one in two:
            check(compiled, *one)
    built = counters()["hoist_builds"], counters()["format_builds"]
    for one in two:
        check(compiled, *one)
    assert (counters()["hoist_builds"], counters()["format_builds"]) == built


def in_place(index: Tensor) -> None:
    index[0, 0] = (index[0, 0] + 1) % 20


def through_numpy(index: Tensor) -> None:
    index.numpy()[1, -1] = (index.numpy()[1, -1] + 1) % 20


def through_data(index: Tensor) -> None:
    index.data[1, 3] = (index.data[1, 3] + 1) % 20


@pytest.mark.parametrize("edit", [in_place, through_numpy, through_data])
@pytest.mark.parametrize("known", [1, 2, 3])
def test_an_edit_of_a_small_graph_is_noticed_by_the_next_call(compiled: object, edit: object, known: int) -> None:
    x, index, y = batch(20, 50, 5)
    for _ in range(known):
        check(compiled, x, index, y)
        if known == 2:
            check(compiled, *batch(20, 50, 6))
    for _ in range(3):
        edit(index)  # type: ignore[operator]
        check(compiled, x, index, y)
    y.numpy()[:] = 1
    check(compiled, x, index, y)


@pytest.mark.parametrize("shared", [True, False])
def test_an_edit_of_a_graph_that_is_not_the_last_one_is_noticed(compiled: object, shared: bool) -> None:
    """The edit makes a graph that was never seen, in memory of which the formats are known to all programs."""
    if not shared:
        for seed in range(20):
            for _ in range(2):
                check(compiled, *batch(21, 40, 900 + seed // 10))
    one, other = batch(20, 50, 70 + shared), batch(20, 50, 80 + shared)
    for _ in range(2):
        check(compiled, *one)
        check(compiled, *other)
    for _ in range(3):
        through_numpy(one[1])
        check(compiled, *one)
        check(compiled, *other)


def test_an_edit_that_one_program_finds_is_known_to_all() -> None:
    def degrees(x: Tensor, index: Tensor) -> Tensor:
        return mean(x, index) + 1

    first, second = graphweave.compile(mean), graphweave.compile(degrees)
    x, index, _ = batch(20, 50, 7)
    for _ in range(3):
        torch.testing.assert_close(first(x, index), mean(x, index))
        torch.testing.assert_close(second(x, index), degrees(x, index))
        through_numpy(index)
    with override(unseen_edits=False):
        torch.testing.assert_close(first(x, index), mean(x, index))
    torch.testing.assert_close(second(x, index), degrees(x, index))


@pytest.mark.parametrize("position", [(0, 0), (0, 49), (1, 0), (1, 31)])
@pytest.mark.parametrize("value", [20, -21, 1 << 40])
def test_an_index_out_of_range_is_refused_on_a_new_graph(
    compiled: object, position: tuple[int, int], value: int
) -> None:
    x, index, y = batch(20, 50, 8)
    good = index.clone()
    index[position] = value
    with pytest.raises(IndexError, match=f"index {value} at position"):
        gradients(compiled, x, index, y)
    check(compiled, x, good, y)
    y = y.clone()
    y[4] = 6
    with pytest.raises(IndexError, match="6"):
        gradients(compiled, x, good, y)


def test_formats_that_native_code_adds_to_a_known_graph_are_counted() -> None:
    """A second program reads values of edges, whose order in the CSR is one more format of the same index."""

    def weighted(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, dst, x[src] * w[:, None])

    def plain(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, dst, x[src])

    first, second = graphweave.compile(plain), graphweave.compile(weighted)
    x, index, _ = batch(2000, 20_000, 12)
    w, (src, dst) = features(20_000, 1, torch.float64)[:, 0], index.clone()
    torch.testing.assert_close(first(x, src, dst), plain(x, src, dst))
    before = formats.stats()
    torch.testing.assert_close(second(x, w, src, dst), weighted(x, w, src, dst))
    after = formats.stats()
    assert after["entries"] == before["entries"] and after["bytes"] - before["bytes"] == 4 * 20_000


def test_values_with_gaps_are_copied(compiled: object) -> None:
    x, index, y = batch(20, 50, 9)
    check(compiled, x.t().contiguous().t(), index, y)
    check(compiled, torch.stack([x, x], 2)[:, :, 1], index.t().contiguous().t(), y.repeat_interleave(3)[::3])


def test_inference_mode_keeps_nothing() -> None:
    compiled = graphweave.compile(mean)
    x, index, _ = batch(20, 50, 10)
    with torch.inference_mode():
        inside = index.clone()
        for _ in range(3):
            torch.testing.assert_close(compiled(x, inside), mean(x, inside))
            inside[0, 0] = (inside[0, 0] + 1) % 20
        torch.testing.assert_close(compiled(x, index), mean(x, index))
    torch.testing.assert_close(compiled(x, index), mean(x, index))


def test_awkward_graphs_once_each(compiled: object) -> None:
    for graph in awkward_graphs():
        y = torch.arange(graph.num_nodes) % 6
        for dtype in (torch.int64, torch.int32):
            x = features(graph.num_nodes, 6, torch.float64)
            check(compiled, x, graph.edge_index.long().to(dtype).long(), y)


def test_threads_with_different_sizes_while_another_edits_a_graph(compiled: object) -> None:
    """Every thread computes what eager mode does on its own graphs, whatever happens to that of another."""
    failures: list[BaseException] = []
    stop = threading.Event()
    shared = batch(40, 90, 11)

    def work(seed: int) -> None:
        try:
            own = batch(10 + seed, 7 * seed, seed)
            for i in range(12):
                check(compiled, *own)
                check(compiled, *batch(10 + seed + i, 5 * seed, 100 * seed + i))
        except BaseException as error:
            failures.append(error)

    def edit() -> None:
        x, index, y = shared
        try:
            while not stop.is_set():
                index[:, :] = torch.randint(40, (2, 90))
                gradients(compiled, x, index, y)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
    editor = threading.Thread(target=edit)
    for thread in (*workers, editor):
        thread.start()
    for worker in workers:
        worker.join()
    stop.set()
    editor.join()
    assert not failures, failures[0]


@pytest.mark.slow
def test_memory_stays_flat_over_many_graphs(compiled: object) -> None:
    def rss() -> int:
        gc.collect()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def run(count: int, first: int) -> None:
        for seed in range(first, first + count):
            rows = 5 + seed % 40
            gradients(compiled, *batch(rows, 2 * rows, seed))

    run(2000, 0)
    before = rss()
    run(20_000, 2000)
    assert rss() - before < 8 << 10, "kilobytes"


@pytest.mark.sanitize
def test_native_code_is_clean_under_sanitizers() -> None:
    run_sanitized(
        "import pytest, torch, graphweave\n"
        "from tests.frontends.halves.test_new_graphs import batch, check, gradients, loss, through_numpy\n"
        "from tests.support import awkward_graphs, features\n"
        "torch._dynamo.config.cache_size_limit = 64\n"
        "compiled = graphweave.compile(loss)\n"
        "for seed in range(6):\n"
        "    for _ in range(3):\n"
        "        check(compiled, *batch(3 + 5 * seed, 9 * seed, seed))\n"
        "for graph in awkward_graphs():\n"
        "    y = torch.arange(graph.num_nodes) % 6\n"
        "    check(compiled, features(graph.num_nodes, 6, torch.float64), graph.edge_index, y)\n"
        "x, index, y = batch(20, 50, 1)\n"
        "for _ in range(3):\n"
        "    check(compiled, x.t().contiguous().t(), index, y)\n"
        "    through_numpy(index)\n"
        "index[1, 7] = 20\n"
        "with pytest.raises(IndexError):\n"
        "    gradients(compiled, x, index, y)\n"
        "large = batch(3000, 20_000, 2)\n"
        "for _ in range(3):\n"
        "    check(compiled, *large)\n"
        "    large[1].numpy()[:] = large[1].numpy()[:, ::-1].copy()\n"
        "from graphweave.core.counters import counters\n"
        "from graphweave.runtime import formats, long_rows\n"
        "long_rows.LONG, long_rows.SHARE, long_rows.PIECE = 8, 1 << 40, 3\n"
        "hubs = graphweave.compile(lambda *args: loss(*args))\n"
        "for seed in range(3):\n"
        "    x, index, y = batch(30, 200 + 50 * seed, 20 + seed)\n"
        "    index[1, ::2], index[0, 1::3], index[1, 1::4] = 7, 29, 0\n"
        "    for _ in range(3):\n"
        "        check(hubs, x, index, y)\n"
        "    index[1] = 7\n"
        "    check(hubs, x, index, y)\n"
        "assert counters()['divided_launches'] > 20, counters()\n"
        "def first(x, w, index, y):\n"
        "    return loss(x, w, index, y) + (torch.zeros_like(x).index_add(0, index[1], x[index[0]]) @ w)[:5].sum()\n"
        "import tests.frontends.halves.test_new_graphs as here\n"
        "here.loss = first\n"
        "check(graphweave.compile(first), *batch(40, 30, 3))\n"
    )
