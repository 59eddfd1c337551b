"""Formats of index tensors against NumPy, and a cache that must notice edits and never confuse two tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from graphweave.core.counters import counters, reset_counters
from graphweave.core.errors import DataError, IndexRangeError
from graphweave.core.settings import override
from graphweave.runtime import formats
from graphweave.runtime.index import Index
from graphweave.runtime.launch import MAX_CHUNKS
from tests.sanitizer_support import run_sanitized


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    formats.clear()
    reset_counters()
    yield
    formats.clear()


def hub(rows: int, edges: int) -> list[int]:
    rng = np.random.default_rng(rows)
    return np.where(rng.random(edges) < 0.5, rows // 2, rng.integers(0, rows, edges)).tolist()


ZOO: dict[str, tuple[int, list[int]]] = {
    "no rows": (0, []),
    "no edges": (5, []),
    "one node, no edges": (1, []),
    "one edge": (1, [0]),
    "one edge among many rows": (9, [4]),
    "isolated first and last": (6, [3, 1, 3, 2]),
    "sorted": (6, [1, 1, 2, 4]),
    "reversed": (7, [6, 5, 4, 3, 2, 1, 0]),
    "duplicates": (3, [2] * 9),
    "hub": (50, hub(50, 400)),
    "parallel": (700, np.random.default_rng(1).integers(0, 700, 100_000).tolist()),
    "parallel hub": (3000, hub(3000, 70_000)),
    "parallel sorted": (100, sorted(hub(100, 70_000))),
    "more rows than edges": (200_000, np.random.default_rng(2).integers(0, 200_000, 40_000).tolist()),
}


@pytest.fixture(params=ZOO)
def graph(request: pytest.FixtureRequest) -> tuple[int, list[int]]:
    return ZOO[request.param]


def assert_groups(found: formats.CsrFormat, index: Tensor, rows: int, wide: bool) -> None:
    values = index.numpy() % max(rows, 1)
    dtype = torch.int64 if wide else torch.int32
    order = np.argsort(values, kind="stable")
    degree = np.bincount(values, minlength=rows)
    assert (found.num_rows, found.num_edges) == (rows, len(values))
    assert found.indptr.dtype == dtype
    assert found.indptr.tolist() == np.concatenate([[0], np.cumsum(degree)]).astype(int).tolist()
    assert found.max_degree == (degree.max() if rows else 0)
    assert found.in_order == np.array_equal(order, np.arange(len(values)))
    perm = formats.perm(Index(index, rows, bool((index < 0).any())), wide=wide)
    assert (perm is None) == found.in_order
    if perm is not None:
        assert perm.dtype == dtype
        assert np.array_equal(perm.numpy(), order)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("wide", [False, True])
def test_csr_is_a_stable_sort(graph: tuple[int, list[int]], dtype: torch.dtype, wide: bool) -> None:
    rows, values = graph
    index = torch.tensor(values, dtype=dtype)
    assert_groups(formats.csr(Index(index, rows), wide=wide), index, rows, wide)


def layouts(values: list[int]) -> dict[str, Tensor]:
    index = torch.tensor(values, dtype=torch.int64)
    return {
        "row of a pair": torch.stack([index.flip(0), index])[1],
        "column of pairs": torch.stack([index.flip(0), index], dim=1)[:, 1],
        "every third": index.repeat_interleave(3)[::3],
        "offset": torch.cat([index.new_full((3,), -99), index])[3:],
    }


def test_any_layout(graph: tuple[int, list[int]]) -> None:
    rows, values = graph
    for index in layouts(values).values():
        assert_groups(formats.csr(Index(index, rows)), index, rows, wide=False)
        assert formats.flat(Index(index, rows)).tolist() == values


def test_an_expanded_index() -> None:
    index = torch.tensor([2]).expand(40)
    assert_groups(formats.csr(Index(index, 4)), index, 4, wide=False)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("wide", [False, True])
def test_negative_values_count_from_the_end_with_wrap(
    graph: tuple[int, list[int]], dtype: torch.dtype, wide: bool
) -> None:
    rows, values = graph
    signs = np.random.default_rng(5).integers(0, 2, len(values))
    index = torch.tensor(np.array(values, dtype=np.int64) - signs * rows, dtype=dtype)
    assert_groups(formats.csr(Index(index, rows, wrap=True), wide=wide), index, rows, wide)
    flat = formats.flat(Index(index, rows, wrap=True), wide=wide)
    assert flat.tolist() == values
    assert flat.dtype == (torch.int64 if wide else torch.int32)


def test_chunks_balance_rows_and_edges(graph: tuple[int, list[int]]) -> None:
    rows, values = graph
    found = formats.csr(Index(torch.tensor(values, dtype=torch.int64), rows))
    chunks = found.chunks
    assert chunks.dtype == torch.int64
    assert chunks[[0, -1]].tolist() == [0, rows]
    assert 1 <= chunks.numel() - 1 <= MAX_CHUNKS
    if rows:
        assert (chunks.diff() > 0).all()
    work = (found.indptr.long() + torch.arange(rows + 1))[chunks].diff()
    share = -(-(rows + len(values)) // max(1, min(-(-(rows + len(values)) // formats.CHUNK_SHARE), MAX_CHUNKS)))
    assert int(work.max()) <= share + found.max_degree + 1


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    before = torch.get_num_threads()
    try:
        for rows, values in ZOO.values():
            index = torch.tensor(values, dtype=torch.int64)
            answers = []
            for threads in (1, 2, 5):
                torch.set_num_threads(threads)
                formats.clear()
                column = formats.column(Index(index, rows), Index(index.flip(0), rows))
                answers.append((formats.csr(Index(index, rows)), formats.perm(Index(index, rows)), column))
            (first, perm, column), *others = answers
            for other, other_perm, other_column in others:
                assert torch.equal(other.indptr, first.indptr)
                assert torch.equal(other.chunks, first.chunks)
                assert torch.equal(other_column, column)
                assert (other_perm is None) == (perm is None) == first.in_order
                if perm is not None:
                    assert torch.equal(other_perm, perm)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("wide", [False, True])
def test_column_is_the_other_end_in_csr_order(graph: tuple[int, list[int]], wide: bool) -> None:
    rows, values = graph
    index = torch.tensor(values, dtype=torch.int64)
    rng = np.random.default_rng(9)
    other = torch.tensor(rng.integers(-77, 77, len(values)), dtype=torch.int32)
    found = formats.column(Index(index, rows), Index(other, 77, True), wide=wide)
    order = np.argsort(index.numpy(), kind="stable")
    assert found.tolist() == (other.numpy() % 77)[order].tolist()
    assert found.dtype == (torch.int64 if wide else torch.int32)


def test_ends_of_different_length_are_refused() -> None:
    with pytest.raises(DataError, match=r"equal length \(got \[2\] and \[3\]\)"):
        formats.column(Index(torch.tensor([0, 1]), 2), Index(torch.tensor([0, 1, 0]), 2))


def test_flat_gives_an_index_of_our_own_as_it_is() -> None:
    narrow = formats.narrowed(torch.tensor([3, 1, 2]))
    assert formats.flat(Index(narrow, 4)).data_ptr() == narrow.data_ptr()
    assert formats.flat(Index(narrow, 4, wrap=True)).data_ptr() == narrow.data_ptr()
    assert formats.flat(Index(narrow.long(), 4), wide=True).dtype == torch.int64
    assert formats.flat(Index(narrow[::2], 4)).tolist() == [3, 2]


@pytest.mark.parametrize("wide", [False, True])
def test_flat_copies_an_index_that_others_may_write_to(wide: bool) -> None:
    """An index is checked once, and a kernel must not read what is written there later."""
    index = torch.tensor([3, 1, 2], dtype=torch.int64 if wide else torch.int32)
    flat = formats.flat(Index(index, 4), wide=wide)
    index.numpy()[:] = 10**6
    assert flat.tolist() == [3, 1, 2]


BAD: list[tuple[list[int], int, bool, str]] = [
    ([1, 2, 3, 12], 10, False, "index 12 at position 3 is out of range for 10 rows; expected 0 <= index < 10"),
    ([0, -1, 4], 10, False, "index -1 at position 1 is out of range for 10 rows; expected 0 <= index < 10"),
    ([9, -11], 10, True, "index -11 at position 1 is out of range for 10 rows; expected -10 <= index < 10"),
    ([10, 10], 10, True, "index 10 at position 0 is out of range for 10 rows; expected -10 <= index < 10"),
    ([0], 0, True, "index 0 at position 0 is out of range for 0 rows; expected -0 <= index < 0"),
    ([2**31 - 1], 3, False, "index 2147483647 at position 0 is out of range"),
]


@pytest.mark.parametrize(("values", "rows", "wrap", "message"), BAD)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_out_of_range(values: list[int], rows: int, wrap: bool, message: str, dtype: torch.dtype) -> None:
    index = torch.tensor(values, dtype=dtype)
    for call in (lambda: formats.csr(Index(index, rows, wrap)), lambda: formats.flat(Index(index, rows, wrap))):
        with pytest.raises(IndexRangeError) as caught:
            call()
        assert message in str(caught.value)
    with pytest.raises(IndexError):
        formats.column(Index(torch.zeros(len(values), dtype=torch.int64), 1), Index(index, rows, wrap))


def test_extreme_values_do_not_overflow() -> None:
    for value in (2**63 - 1, -(2**63), 2**32, -(2**32)):
        for wrap in (False, True):
            with pytest.raises(IndexRangeError, match=f"index {value} at position 1"):
                formats.csr(Index(torch.tensor([0, value]), 5, wrap))


def test_the_first_bad_position_is_reported_whatever_the_threads() -> None:
    index = torch.zeros(200_000, dtype=torch.int64)
    index[[70_001, 120_000, 199_999]] = 8
    with pytest.raises(IndexRangeError, match="index 8 at position 70001 "):
        formats.csr(Index(index, 8))


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (torch.tensor([0.0, 1.0]), "int32 or int64 index \\(got torch.float32\\)"),
        (torch.tensor([[0, 1]]), "1-d index on a CPU or GPU \\(got shape \\[1, 2\\]"),
        (torch.tensor(3), "1-d index"),
        (torch.empty(3, dtype=torch.int64, device="meta"), "on meta"),
    ],
)
def test_what_is_not_an_index_is_refused(index: Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        formats.csr(Index(index, 2))


def test_too_many_rows_need_wide() -> None:
    with pytest.raises(DataError, match="wide=True"):
        formats.flat(Index(torch.tensor([0]), 2**31))
    assert formats.flat(Index(torch.tensor([2**31 - 1]), 2**31), wide=True).tolist() == [2**31 - 1]


# ---------------------------------------------------------------- the cache


def builds() -> int:
    return counters()["format_builds"]


def test_a_second_lookup_is_a_hit_also_through_a_fresh_view() -> None:
    edge_index = torch.tensor([[0, 1, 2], [2, 1, 0]])
    first = formats.csr(Index(edge_index[1], 3))
    once = builds()
    assert formats.csr(Index(edge_index[1], 3)) is first
    assert formats.csr(Index(edge_index.select(0, 1), 3)) is first
    assert builds() == once
    assert counters()["format_hits"] == 2
    assert formats.csr(Index(edge_index[0], 3)) is not first
    assert formats.csr(Index(edge_index[1], 4)) is not first
    assert formats.csr(Index(edge_index[1], 3, wrap=True)) is not first
    assert formats.csr(Index(edge_index[1], 3), wide=True) is not first


def through_view(t: Tensor) -> None:
    t.view(-1)[:1].fill_(1)


def in_inference(t: Tensor) -> None:
    with torch.inference_mode():
        t[0] = 1


EDITS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda t: t.__setitem__(0, 1),
    "arithmetic": lambda t: t.sub_(t).add_(1),
    "copy": lambda t: t.copy_(torch.ones_like(t)),
    "through a view": through_view,
    "through detach": lambda t: t.detach().fill_(1),
    "out=": lambda t: torch.ones(t.shape, dtype=t.dtype, out=t),
    "in inference mode": in_inference,
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_in_place_is_noticed(edit: str) -> None:
    index, other = torch.tensor([2, 2, 0, 2]), torch.tensor([3, 3, 3, 0])
    assert formats.csr(Index(index, 4)).indptr.tolist() == [0, 1, 1, 4, 4]
    formats.column(Index(index, 4), Index(other, 4))
    EDITS[edit](index)
    assert_groups(formats.csr(Index(index, 4)), index, 4, wide=False)
    EDITS[edit](other)
    column = formats.column(Index(index, 4), Index(other, 4))
    assert column.tolist() == other[index.argsort(stable=True)].tolist()
    assert formats.flat(Index(other, 4)).tolist() == other.tolist()


def test_an_edit_that_goes_out_of_range_is_caught() -> None:
    index = torch.tensor([0, 1])
    formats.csr(Index(index, 2))
    index[1] = 2
    with pytest.raises(IndexRangeError, match="index 2 at position 1"):
        formats.csr(Index(index, 2))


def test_a_freed_tensors_address_is_never_mistaken() -> None:
    for trial in range(60):
        index = torch.full((64,), trial % 5, dtype=torch.int64)
        assert_groups(formats.csr(Index(index, 5)), index, 5, wide=False)
        del index


def test_rebinding_a_tensor_to_other_memory_is_noticed() -> None:
    index = torch.tensor([0, 0, 1])
    formats.csr(Index(index, 3))
    index.data = torch.tensor([2, 2, 2])
    assert_groups(formats.csr(Index(index, 3)), index, 3, wide=False)
    index.set_(torch.tensor([1, 2, 1]))  # type: ignore[call-overload]
    assert_groups(formats.csr(Index(index, 3)), index, 3, wide=False)


def test_a_second_wrapper_of_the_same_numpy_memory_is_another_tensor() -> None:
    array = np.array([0, 0, 1])
    formats.csr(Index(torch.from_numpy(array), 3))
    array[:] = 2
    assert formats.csr(Index(torch.from_numpy(array), 3)).indptr.tolist() == [0, 0, 0, 3]


def test_inference_tensors_are_right_and_not_cached() -> None:
    with torch.inference_mode():
        index = torch.tensor([2, 0, 1])
        assert_groups(formats.csr(Index(index, 3)), index.clone(), 3, wide=False)
        index[0] = 1
        assert formats.csr(Index(index, 3)).indptr.tolist() == [0, 1, 3, 3]
        narrow = torch.tensor([1, 0], dtype=torch.int32)
        formats.flat(Index(narrow, 2))
        narrow[0] = 0
        assert formats.flat(Index(narrow, 2)).tolist() == [0, 0]
    assert formats.stats()["entries"] == 0


def test_formats_built_under_inference_mode_are_ordinary_and_cached() -> None:
    index = torch.tensor([2, 0, 1])
    with torch.inference_mode():
        found = formats.csr(Index(index, 3))
    assert formats.csr(Index(index, 3)) is found
    assert not found.indptr.is_inference()


def test_the_cache_is_bounded_in_bytes_and_drops_the_least_recently_used() -> None:
    tensors = [torch.randint(0, 50, (10_000,)) for _ in range(4)]
    formats.flat(Index(tensors[0], 50))
    one = formats.stats()["bytes"]
    assert one == 10_000 * (8 + 4)  # the index it keeps alive, and its 32-bit copy
    with override(format_bytes=2 * one + 1000):
        formats.flat(Index(tensors[1], 50))
        kept = formats.flat(Index(tensors[0], 50))
        formats.flat(Index(tensors[2], 50))
        assert formats.stats() == {"entries": 2, "bytes": 2 * one}
        assert formats.flat(Index(tensors[0], 50)) is kept
        before = builds()
        formats.flat(Index(tensors[1], 50))
        assert builds() == before + 1
    with override(format_bytes=0):
        assert_groups(formats.csr(Index(tensors[3], 50)), tensors[3], 50, wide=False)
        assert formats.stats() == {"entries": 0, "bytes": 0}


def test_a_permutation_is_made_when_it_is_asked_for_and_kept() -> None:
    rows, values = ZOO["parallel"]
    index, other = torch.tensor(values), torch.tensor(values).flip(0)
    formats.column(Index(index, rows), Index(other, rows))
    assert builds() == 2  # rows and column, no permutation
    order = formats.perm(Index(index, rows))
    assert order is not None
    assert torch.equal(order.long(), index.argsort(stable=True))
    assert formats.perm(Index(index, rows)) is order
    assert builds() == 3
    index[0] = rows - 1 - index[0]
    edited = formats.perm(Index(index, rows))
    assert edited is not None
    assert torch.equal(edited.long(), index.argsort(stable=True))
    assert formats.perm(Index(torch.tensor([0, 0, 2]), 3)) is None


@pytest.mark.parametrize("wrap", [False, True])
def test_the_first_bad_end_is_reported_whatever_the_threads(wrap: bool) -> None:
    rows, values = ZOO["parallel"]
    index, other = torch.tensor(values), torch.tensor(values).flip(0)
    other[[60_001, 80_000, 99_999]] = -rows - 1
    for _ in range(3):
        with pytest.raises(IndexRangeError, match=f"index {-rows - 1} at position 60001 "):
            formats.column(Index(index, rows, wrap), Index(other, rows, wrap))


def test_an_index_of_64_bits_is_kept_in_32_where_it_fits() -> None:
    _, values = ZOO["parallel"]
    for index in (torch.tensor(values) - 5, torch.stack([torch.tensor(values)] * 2, 1)[:, 1], torch.empty(0).long()):
        found = formats.narrowed(index)
        assert found.dtype == torch.int32
        assert found.tolist() == index.tolist()
    for value in (2**31, -(2**31) - 1, 2**40 + 1):
        beyond = torch.tensor([3, value])
        assert formats.narrowed(beyond) is beyond
        with pytest.raises(IndexRangeError, match=f"index {value} at position 1"):
            formats.csr(Index(formats.narrowed(beyond), 5))
    limits = torch.tensor([2**31 - 1, -(2**31)])
    assert formats.narrowed(limits).tolist() == limits.tolist()
    for other in (torch.tensor([1], dtype=torch.int32), torch.tensor([[1]]), torch.tensor([1.0])):
        assert formats.narrowed(other) is other


@pytest.mark.parametrize("written", ["index", "count"])
def test_an_index_written_to_while_it_is_read_is_refused(written: str) -> None:
    """Foreign memory may be written without PyTorch's knowing: nothing is read or written out of bounds then."""
    rows, values = ZOO["parallel hub"]
    array = np.array(values)
    index = torch.from_numpy(array)
    formats.csr(Index(index, rows))
    if written == "index":
        array[::2] = rows - 1
    else:
        array[:] = -7
    with pytest.raises(DataError, match="nobody writes to"):
        formats.perm(Index(index, rows))
    with pytest.raises(DataError, match="nobody writes to"):
        formats.column(Index(index, rows), Index(index.clone() % rows, rows))


def test_formats_of_dead_tensors_do_not_fill_the_cache() -> None:
    formats.clear()
    kept = torch.randint(0, 50, (2, 1000))
    first = formats.csr(Index(kept[1], 50))
    peak = 0
    for _ in range(100):
        batch = torch.randint(0, 50, (2, 5000))
        formats.csr(Index(batch[1], 50))
        formats.column(Index(batch[1], 50), Index(batch[0], 50))
        peak = max(peak, formats.stats()["bytes"])
    assert peak < 300_000
    assert formats.csr(Index(kept[1], 50)) is first
    living = [torch.randint(0, 50, (5000,), dtype=torch.int32) for _ in range(40)]
    found = [formats.flat(Index(index, 50)) for index in living]  # formats that share the storage of their index
    assert all(formats.flat(Index(index, 50)) is one for index, one in zip(living, found, strict=True))


def test_edits_do_not_pile_up_entries() -> None:
    index = torch.zeros(1000, dtype=torch.int64)
    for _ in range(5):
        formats.csr(Index(index, 3))
        index.add_(0)
    assert formats.stats()["entries"] == 1


def test_many_threads_at_once() -> None:
    tensors = [torch.randint(0, 40, (5000,)) for _ in range(6)]
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for i in np.random.default_rng(seed).integers(0, 6, 60):
                assert_groups(formats.csr(Index(tensors[i], 40)), tensors[i], 40, wide=False)
        except BaseException as error:
            failures.append(error)

    with override(format_bytes=500_000):
        workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert not failures


@pytest.mark.sanitize
def test_native_code_is_clean_under_sanitizers() -> None:
    program = (
        "import torch\n"
        "from tests.runtime.test_formats import ZOO, BAD, layouts\n"
        "from graphweave.runtime import formats\n"
        "from graphweave.runtime.index import Index\n"
        "for rows, values in ZOO.values():\n"
        "    for index in layouts(values).values():\n"
        "        for wide in (False, True):\n"
        "            formats.csr(Index(index, rows), wide=wide)\n"
        "            formats.column(Index(index, rows), Index(index, rows, wrap=True), wide)\n"
        "for values, rows, wrap, _ in BAD:\n"
        "    try:\n"
        "        formats.csr(Index(torch.tensor(values), rows, wrap))\n"
        "    except IndexError:\n"
        "        continue\n"
        "    raise SystemExit('accepted')\n"
    )
    run_sanitized(program)
