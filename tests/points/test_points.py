"""Points that are near or far: exact, for any number of threads; against brute force, SciPy and scikit-learn."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import graphweave
from graphweave.core.errors import DataError
from graphweave.points import fps, grid, knn, knn_graph, nearest, neighbours, radius, radius_graph, searches
from tests.points import point_references as reference

DIMS = (1, 2, 3, 8, 64)


def points(count: int, dims: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(count, dims, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def on_a_lattice(count: int, dims: int, seed: int = 0) -> Tensor:
    """Few places, so that many points are equal and many distances tie."""
    return torch.randint(-2, 3, (count, dims), generator=torch.Generator().manual_seed(seed)).double()


def batch_of(*counts: int) -> Tensor:
    return torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))


KINDS: dict[str, Callable[[int, int], Tensor]] = {
    "spread": points,
    "tied": on_a_lattice,
    "equal": lambda count, dims: torch.full((count, dims), 0.1, dtype=torch.float64),
    "float32": lambda count, dims: points(count, dims, dtype=torch.float32),
    "huge": lambda count, dims: points(count, dims) * 1e300,
    "tiny": lambda count, dims: points(count, dims) * 1e-300,
    "far away": lambda count, dims: points(count, dims) + 1e9,
    "hub": lambda count, dims: torch.cat([points(count - 3, dims) * 1e-7, 1e7 * points(3, dims)]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dims", DIMS)
def test_nearest_points_are_exact(kind: str, dims: int) -> None:
    x, y = KINDS[kind](150, dims), KINDS[kind](170, dims)[-70:]
    scale = {"huge": 2.0**-1000, "tiny": 2.0**1000}.get(kind, 1.0)
    for k in (1, 5, 40, 200):
        torch.testing.assert_close(knn(x, y, k), reference.knn(x * scale, y * scale, k), rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["spread", "tied", "equal"])
def test_any_number_of_nearest_points_is_sorted(kind: str) -> None:
    """Few are sorted by counting those before each, more than 64 by comparing."""
    x = KINDS[kind](130, 3)
    expected = reference.knn(x, x, 130)[1].view(130, 130)
    for k in (*range(1, 36), *range(60, 70), 129):
        assert torch.equal(knn(x, x, k)[1].view(130, k), expected[:, :k])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dims", DIMS)
def test_points_within_a_distance_are_exact(kind: str, dims: int) -> None:
    x, y = KINDS[kind](150, dims), KINDS[kind](170, dims)[-70:]
    scale = {"huge": 2.0**-1000, "tiny": 2.0**1000}.get(kind, 1.0)
    far = reference.squares(y * scale, x * scale).sqrt()
    for r in (0.0, float(far.quantile(0.1)), float(far.median()), 2 * float(far.max())):
        expected = reference.radius(x * scale, y * scale, r)
        assert torch.equal(radius(x, y, r / scale), expected)


def test_distances_that_are_equal_to_the_radius_are_within() -> None:
    x = on_a_lattice(200, 2)
    assert torch.equal(radius(x, x, 1.0), reference.radius(x, x, 1.0))
    assert torch.equal(radius(x, x, 5**0.5), reference.radius(x, x, 5**0.5))


@pytest.mark.parametrize("dims", DIMS)
def test_scipy_and_sklearn_find_the_same(dims: int) -> None:
    spatial, neighbors = pytest.importorskip("scipy.spatial"), pytest.importorskip("sklearn.neighbors")
    x, y = points(600, dims), points(300, dims, seed=1)
    tree = spatial.cKDTree(x.numpy())
    found = torch.from_numpy(tree.query(y.numpy(), 7)[1])
    assert torch.equal(knn(x, y, 7)[1].view(300, 7), found)
    other = neighbors.NearestNeighbors(n_neighbors=7).fit(x.numpy()).kneighbors(y.numpy(), return_distance=False)
    assert torch.equal(knn(x, y, 7)[1].view(300, 7), torch.from_numpy(other))
    r = (1 + 1e-9) * float((x[0] - y[0]).norm())
    lists = tree.query_ball_point(y.numpy(), r, return_sorted=True)
    rows, columns = radius(x, y, r)
    assert columns.tolist() == [i for found in lists for i in found]
    assert rows.bincount(minlength=300).tolist() == [len(found) for found in lists]


def test_only_points_of_one_set_are_compared() -> None:
    """Sets without points of x, without points of y, and of a single point."""
    x, y = points(40, 3), points(37, 3, seed=1)
    batch_x, batch_y = batch_of(20, 0, 1, 19), batch_of(5, 12, 20)
    for k in (1, 4, 30):
        assert torch.equal(knn(x, y, k, batch_x, batch_y), reference.knn(x, y, k, batch_x, batch_y))
    for r in (0.5, 2.0, 100.0):
        assert torch.equal(radius(x, y, r, batch_x, batch_y), reference.radius(x, y, r, batch_x, batch_y))
    # numbers of sets may be far apart
    assert torch.equal(knn(x, y, 4, batch_x << 40, batch_y << 40), knn(x, y, 4, batch_x, batch_y))
    # points without a batch are in set 0
    assert torch.equal(knn(x, y, 4, batch_x), reference.knn(x, y, 4, batch_x))


def test_many_small_sets() -> None:
    x = points(3000, 3)
    batch = batch_of(*[i % 7 for i in range(1000)])
    x = x[: len(batch)]
    expected = reference.knn(x, x, 3, batch, batch)
    assert torch.equal(knn(x, x, 3, batch, batch), expected)
    assert torch.equal(knn_graph(x, 3, batch, loop=True), expected.flip(0))


@pytest.mark.parametrize("make", [points, on_a_lattice], ids=["spread", "tied"])
def test_graphs(make: Callable[[int, int], Tensor]) -> None:
    x, batch = make(90, 3), batch_of(40, 50)
    for loop in (False, True):
        rows, columns = reference.knn(x, x, 200, batch, batch)
        kept = (rows != columns) | loop
        rows, columns = rows[kept], columns[kept]
        rank = torch.arange(len(rows)) - torch.searchsorted(rows, rows)
        expected = torch.stack([rows[rank < 6], columns[rank < 6]])
        assert torch.equal(knn_graph(x, 6, batch, loop, flow="target_to_source"), expected)
        assert torch.equal(knn_graph(x, 6, batch, loop), expected.flip(0))
        near = reference.radius(x, x, 1.0, batch, batch)
        near = near[:, (near[0] != near[1]) | loop]
        assert torch.equal(radius_graph(x, 1.0, batch, loop), near.flip(0))


def test_at_most_so_many_within_a_distance_are_the_nearest() -> None:
    x, y = on_a_lattice(300, 2), points(50, 2)
    most = reference.knn(x, y, 9)
    far = reference.squares(y, x)[most[0], most[1]]
    assert torch.equal(radius(x, y, 0.8, max_num_neighbors=9), most[:, far <= 0.8 * 0.8])
    assert torch.equal(radius(x, y, 0.8, max_num_neighbors=10**6).sort(1).values, radius(x, y, 0.8).sort(1).values)


@pytest.mark.parametrize("kind", KINDS)
def test_farthest_points(kind: str) -> None:
    for dims in (1, 3, 8):
        x = KINDS[kind](130, dims)
        scaled = x * {"huge": 2.0**-1000, "tiny": 2.0**1000}.get(kind, 1.0)
        assert torch.equal(fps(x, ratio=0.4, random_start=False), reference.fps(scaled, 0, 52))
        assert sorted(fps(x, ratio=1).tolist()) == list(range(130))


def test_farthest_points_of_each_set() -> None:
    x, batch = points(70, 3), batch_of(30, 1, 0, 39)
    found = fps(x, batch, 0.1, random_start=False)
    assert batch[found].tolist() == [0, 0, 0, 1, 3, 3, 3, 3]  # 0.1 of 30 are 3, though 0.1 * 30 > 3 in float64
    assert torch.equal(found[:3], reference.fps(x[:30], 0, 3))
    assert torch.equal(found[4:] - 31, reference.fps(x[31:], 0, 4))


def test_farthest_points_start_at_random() -> None:
    x, batch = points(60, 2), batch_of(20, 40)
    torch.manual_seed(1)
    drawn = [fps(x, batch, 0.25) for _ in range(30)]
    torch.manual_seed(1)
    assert all(torch.equal(fps(x, batch, 0.25), found) for found in drawn)
    assert len({int(found[0]) for found in drawn}) > 8
    for found in drawn:
        assert torch.equal(found[:5], reference.fps(x[:20], int(found[0]), 5))
        assert torch.equal(found[5:] - 20, reference.fps(x[20:], int(found[5]) - 20, 10))


def test_nearest_point_of_each() -> None:
    x, y = points(50, 3), points(20, 3, seed=1)
    batch_x, batch_y = batch_of(30, 20), batch_of(4, 16)
    assert torch.equal(nearest(x, y, batch_x, batch_y), reference.knn(y, x, 1, batch_y, batch_x)[1])
    with pytest.raises(DataError, match=r"y must have a point of each set of x \(got none of set 0\)"):
        nearest(x, y, batch_x, batch_of(0, 20))


def test_voxels() -> None:
    pos = torch.tensor([[0.0, 0.0], [0.9, 0.0], [1.0, 0.0], [2.5, 3.5]])
    assert grid(pos, 1.0).tolist() == [0, 0, 1, 2 + 3 * 3]
    assert grid(pos, [1.0, 4.0]).tolist() == [0, 0, 1, 2]
    assert grid(pos, 1.0, start=-1.0, end=torch.tensor([8.0, 9.0])).tolist() == [11, 11, 12, 3 + 10 * 4]
    assert grid(pos[:, 0], 2.0).tolist() == [0, 0, 0, 1]
    assert grid(pos[:0], 1.0).tolist() == []


@pytest.mark.parametrize("count", [0, 1])
def test_no_point_and_a_single_one(count: int) -> None:
    x, y = points(count, 3), points(4, 3, seed=1)
    assert knn(x, y, 2).tolist() == [[0, 1, 2, 3] * count, [0, 0, 0, 0] * count]
    assert knn(y, x, 2).shape == (2, 2 * count)
    assert radius(x, y, 100.0).shape == (2, 4 * count)
    assert radius(y, x, 100.0).shape == (2, 4 * count)
    assert knn_graph(x, 2).shape == radius_graph(x, 1.0).shape == (2, 0)
    assert radius_graph(x, 1.0, loop=True).shape == (2, count)
    assert fps(x).tolist() == [0] * count
    assert nearest(x, y).shape == (count,)


@pytest.mark.parametrize("count", [255, 256, 3_000, 4_000])
def test_any_number_of_threads_finds_the_same(count: int) -> None:
    x, batch = points(count, 3, dtype=torch.float32), batch_of(count // 3, count - count // 3)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append([knn_graph(x, 9, batch), radius_graph(x, 0.3, batch), fps(x, batch, 0.1, random_start=False)])
    finally:
        torch.set_num_threads(before)
    for others in found[1:]:
        assert all(map(torch.equal, found[0], others))


def test_pairs_that_are_too_many_to_keep_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    x = on_a_lattice(500, 3)

    def found() -> list[Tensor]:
        return [
            radius_graph(x, 1.0),
            radius(x, x, 2.0),
            knn_graph(x, 5),
            neighbours(x, 2.0, 5 * torch.eye(3).double()).pairs,
        ]

    expected = found()
    monkeypatch.setattr(searches, "MOST_KEPT", 100)
    assert all(map(torch.equal, expected, found()))


def test_more_pairs_than_a_block_keeps() -> None:
    x = torch.zeros(17, 1)
    assert torch.equal(radius(torch.zeros(70_000, 1), x, 0.0).view(2, 17, -1)[1, 3], torch.arange(70_000))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_sets(data: st.DataObject) -> None:
    dims = data.draw(st.integers(1, 5))
    make = data.draw(st.sampled_from([points, on_a_lattice]))
    counts_x, counts_y = (data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=4)) for _ in range(2))
    batch_x, batch_y = batch_of(*counts_x), batch_of(*counts_y)
    x, y = make(len(batch_x), dims, seed=1), make(len(batch_y), dims, seed=2)
    k, r = data.draw(st.integers(1, 50)), data.draw(st.sampled_from([0.0, 0.7, 1.0, 3.0]))
    assert torch.equal(knn(x, y, k, batch_x, batch_y), reference.knn(x, y, k, batch_x, batch_y))
    assert torch.equal(radius(x, y, r, batch_x, batch_y), reference.radius(x, y, r, batch_x, batch_y))


GOOD = points(6, 3)
WITH_NAN = torch.where(torch.arange(18).view(6, 3) == 7, torch.nan, GOOD)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: knn(WITH_NAN, GOOD, 1), r"x: coordinates must be finite \(got \[.*nan.*\] for point 2\)"),
        (lambda: knn(GOOD, WITH_NAN / 0, 1), "y: coordinates must be finite"),
        (lambda: knn(GOOD, GOOD, 0), r"k must be from 1 to 2\^63 - 1 \(got 0\)"),
        (lambda: knn_graph(GOOD, 2**63), r"k must be from 1 to 2\^63 - 1 \(got 9223372036854775808\)"),
        (lambda: radius(GOOD, GOOD, -1.0), r"finite distance of at least 0 \(got -1.0\)"),
        (lambda: radius(GOOD, GOOD, float("inf")), r"finite distance of at least 0 \(got inf\)"),
        (lambda: radius_graph(GOOD, float("nan")), r"finite distance of at least 0 \(got nan\)"),
        (lambda: radius(GOOD, GOOD, 1.0, max_num_neighbors=0), r"max_num_neighbors must be from 1"),
        (lambda: knn_graph(GOOD, 1, torch.tensor([0, 0, 1, 0, 1, 1])), r"sorted and not negative \(got \[0, 0, 1, 0"),
        (lambda: knn_graph(GOOD, 1, torch.tensor([-1, 0, 0, 0, 0, 0])), "sorted and not negative"),
        (lambda: knn_graph(GOOD, 1, torch.zeros(5, dtype=torch.int64)), r"batch must be int64 \[6\].*\[5\]"),
        (lambda: knn_graph(GOOD, 1, torch.zeros(6)), r"batch must be int64 \[6\].*float32"),
        (lambda: knn(GOOD, GOOD[:, :2], 1), "same dtype and dims"),
        (lambda: knn(GOOD, GOOD.float(), 1), "same dtype and dims"),
        (lambda: knn(GOOD.long(), GOOD.long(), 1), r"floating-point numbers \[points, dims\].*int64"),
        (lambda: knn(GOOD[None], GOOD, 1), r"floating-point numbers \[points, dims\].*\[1, 6, 3\]"),
        (lambda: knn_graph(GOOD, 1, flow="up"), r"'source_to_target' or 'target_to_source' \(got 'up'\)"),  # type: ignore[arg-type]
        (lambda: fps(GOOD, ratio=0), r"ratio must be above 0 and at most 1 \(got 0\)"),
        (lambda: fps(WITH_NAN), "coordinates must be finite"),
        (lambda: grid(GOOD, 0.0), "size must be above 0"),
        (lambda: grid(GOOD, [1.0, 1.0]), r"one for each of the 3 dims \(got \[2\]\)"),
        (lambda: grid(GOOD, 1.0, start=0.0), "points must lie between start and end"),
        (lambda: grid(GOOD, 1e-18), "64 bits must count the voxels"),
        (lambda: grid(GOOD, 1.0, start=float("nan")), "must be finite"),
    ],
)
def test_errors(call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises(DataError, match=message):
        call()


@pytest.mark.slow
def test_more_pairs_than_memory() -> None:
    """A search that only counts says how many there would be."""
    x = torch.zeros(3_000_000, 1)  # too many for any machine
    with pytest.raises(DataError, match="no memory for the search of 9000000000000 pairs"):
        radius(x, x, 1.0)


def test_inside_a_compiled_function() -> None:
    """One graph, one compilation for all sizes, and distances have gradients."""

    def model(x: Tensor, w: Tensor, batch: Tensor) -> Tensor:
        src, dst = knn_graph(x, 4, batch)
        far = (x[src] - x[dst]).square().sum(1)
        near = radius_graph(x, 0.9, batch)
        chosen = fps(x, batch, 0.5, random_start=False)
        out = torch.zeros(len(x), w.shape[1], dtype=x.dtype).index_add(0, dst, far[:, None] * (x @ w)[src])
        out = out.index_add(0, near[1], (x @ w)[near[0]])
        return out[chosen] * grid(x, 0.5)[chosen, None]

    graphweave.reset_counters()
    compiled = graphweave.compile(model, fullgraph=True)
    for counts in ((20, 13), (7, 30, 11), (50,)):
        batch = batch_of(*counts)
        results = []
        for run in (model, compiled):
            x, w = points(len(batch), 3).requires_grad_(), points(3, 5, seed=2).requires_grad_()
            out = run(x, w, batch)
            out.square().sum().backward()
            results.append((out.detach(), x.grad, w.grad))
        for ours, eager in zip(*results, strict=True):
            torch.testing.assert_close(ours, eager)
    assert graphweave.counters()["compilations"] == 1


def test_operators_are_what_they_say() -> None:
    x, y, batch = points(9, 3), points(5, 3), batch_of(4, 5)
    ops = torch.ops.graphweave
    size = torch.full((3,), 0.5, dtype=x.dtype)
    for op, args in (
        (ops.near_points.default, (x, y, None, None, 4, float("inf"), False)),
        (ops.near_points.default, (x, None, batch, None, 0, 1.0, True)),
        (ops.nearest_points.default, (x, y, None, None)),
        (ops.far_points.default, (x, batch, 0.5, torch.tensor([7]))),
        (ops.voxels.default, (x, size, None, None)),
        (ops.near_images.default, (x, 1.0, torch.eye(3, dtype=x.dtype), None, batch)),
    ):
        torch.library.opcheck(op, args)


def test_neighbours_of_fixed_number_can_be_viewed_by_point() -> None:
    def model(x: Tensor) -> Tensor:
        src = knn_graph(x, 4, loop=True)[0]
        return x[src].view(x.shape[0], 4, 3).amax(1)

    compiled = graphweave.compile(model, fullgraph=True)
    for count in (9, 31):
        torch.testing.assert_close(compiled(points(count, 3)), model(points(count, 3)))
