"""Typed scatters in Triton against float64, in Triton's interpreter; their tables against lists."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from graphweave.codegen.triton.typed import FoldProgram, print_fold
from graphweave.codegen.triton.typed_scatter import ScatterProgram, print_scatter
from graphweave.compiler import triton_typed
from graphweave.compiler.triton_typed import TritonScatter
from graphweave.core.errors import DataError, IndexRangeError
from graphweave.core.types import DType
from graphweave.runtime import formats, index
from graphweave.runtime.index import Index
from graphweave.runtime.typed_pairs import Cut, typed_pairs
from tests.test_typed_kernels import DTYPES, close, draw, want_product
from tests.triton_support import needs_interpreter

NODES = 23
"""Rows of a scatter's result; the last two have no edges."""


def rows_of_types() -> dict[str, tuple[Tensor, int]]:
    """Types of rows and the number of types; the interpreter takes milliseconds for a program, so both are few."""
    generator = torch.Generator().manual_seed(3)
    skewed = torch.full((90,), 3)
    skewed[::9] = torch.arange(10) % 6
    return {
        "no_rows": (torch.zeros(0, dtype=torch.int64), 4),
        "no_types": (torch.zeros(0, dtype=torch.int64), 0),
        "one_row": (torch.tensor([2]), 4),
        "one_type": (torch.zeros(40, dtype=torch.int64), 1),
        "sorted": (torch.arange(40) // 14, 3),
        "empty_types": (torch.arange(30) % 3 * 4 + 2, 12),
        "skewed": (skewed, 6),
        "many_types": (torch.randint(40, (44,), generator=generator), 40),
    }


TYPES = rows_of_types()


@pytest.fixture(autouse=True)
def many_parts_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"FOLDED": 2, "PAIRS": 16, "BLOCK": 32, "PIECE": 8}
    for name, value in small.items():
        monkeypatch.setattr(triton_typed, name, value)


def ends(edges: int) -> Tensor:
    """Rows of a scatter's result, one of which has a third of the edges."""
    generator = torch.Generator().manual_seed(edges)
    dst = torch.randint(NODES - 2, (edges,), generator=generator)
    return torch.where(torch.rand(edges, generator=generator) < 0.3, 13, dst)


def want_scatter(x: Tensor, w: Tensor, types: Tensor, dst: Tensor, scale: Tensor | None) -> Tensor:
    """x [E, B, K]."""
    messages = want_product(x, w, types)
    messages = messages if scale is None else messages * scale.double().unsqueeze(2)
    return torch.zeros(NODES, *messages.shape[1:], dtype=torch.float64).index_add(0, dst, messages)


def check_scatter(
    name: str, blocks: int, k: int, j: int, dtype: torch.dtype, *, scales: int = 0, gathers: bool = True,
    transposed: bool = False,
) -> None:  # fmt: skip
    types, num = TYPES[name]
    edges = types.numel()
    dst, at = ends(edges), torch.arange(edges) * 7 % 11 if gathers else torch.arange(edges)
    held, w = draw(11 if gathers else edges, blocks, k, dtype=dtype), draw(num, blocks, k, j, dtype=dtype)
    scale = draw(edges, scales, dtype=dtype) if scales else None
    run = TritonScatter(blocks, k, j, DTYPES[dtype], transposed)
    given = w.mT.contiguous() if transposed else w
    got = run(held, given, Index(types, num), Index(dst, NODES), Index(at, 11) if gathers else None, scale)
    close(got, want_scatter(held[at], w, types, dst, scale), k * max(1, edges))


# ---------------------------------------------------------------- kernels


@needs_interpreter
@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_edges_of_every_distribution(name: str, gathers: bool) -> None:
    check_scatter(name, 1, 31, 33, torch.float32, scales=int(gathers), gathers=gathers, transposed=not gathers)


@needs_interpreter
@pytest.mark.parametrize(
    ("blocks", "k", "j"), [(1, 1, 1), (1, 1, 64), (1, 64, 1), (1, 33, 70), (1, 70, 64), (3, 5, 2), (3, 33, 31)]
)
def test_widths_and_blocks(blocks: int, k: int, j: int) -> None:
    check_scatter("sorted", blocks, k, j, torch.float64, scales=blocks, transposed=blocks == 3)


@needs_interpreter
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: torch.dtype) -> None:
    check_scatter("skewed", 2, 5, 6, dtype, scales=2)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_integers_are_exact(dtype: torch.dtype) -> None:
    types, num = TYPES["skewed"]
    kinds, dst = Index(types, num), ends(types.numel())
    x, w = ((draw(*shape) * 9).to(dtype) for shape in ((90, 2, 3), (num, 2, 3, 4)))
    kind = DType.i64 if dtype is torch.int64 else DType.i32
    got = TritonScatter(2, 3, 4, kind, transposed=True)(x, w.mT, kinds, Index(dst, NODES), None, x[:, :, 0])
    assert got.dtype is dtype and torch.equal(got.double(), want_scatter(x, w, types, dst, x[:, :, 0]))


@needs_interpreter
@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
def test_indices_wrap_where_they_may_and_are_refused_where_not(integers: torch.dtype) -> None:
    types, num = TYPES["skewed"]
    edges, at = types.numel(), torch.arange(types.numel()) % 11
    x, w, dst = draw(11, 1, 5), draw(num, 1, 5, 3), ends(edges)
    good = Index(types.to(integers), num), Index(dst.to(integers), NODES), Index(at.to(integers), 11)
    below = [Index(right.values - right.rows, right.rows, wrap=True) for right in good]
    scatter = TritonScatter(1, 5, 3, DType.f64)
    for t, d, s in (good, below):
        close(scatter(x, w, t, d, s), want_scatter(x[at], w, types, dst, None), 5 * edges)
    for position in range(3):
        for value in (-1, good[position].rows):
            wrong = good[position].values.clone()
            wrong[77] = value
            indices = [Index(wrong, right.rows) if i == position else right for i, right in enumerate(good)]
            with pytest.raises(IndexRangeError, match="at position 77 is out of range"):
                scatter(x, w, *indices)


def test_what_is_no_work_needs_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor Triton; but its indices are looked at."""

    def no_kernel(*_: object, **__: object) -> None:
        raise AssertionError("expected no kernel")

    monkeypatch.setattr(triton_typed, "launch", no_kernel)
    types, num = TYPES["skewed"]
    for rows, blocks, k, j in ((0, 1, 3, 4), (90, 1, 0, 4), (90, 1, 3, 0), (90, 0, 3, 4)):
        run, x, dst = TritonScatter(blocks, k, j, DType.f32), torch.zeros(rows, blocks, k), Index(ends(rows), NODES)
        w = torch.zeros(num, blocks, k, j)
        assert torch.equal(run(x, w, Index(types[:rows], num), dst), torch.zeros(NODES, blocks, j))
        if rows:
            with pytest.raises(IndexRangeError):
                run(x, w, Index(types + num, num), dst)


def test_rows_that_do_not_match_are_refused() -> None:
    types, num = TYPES["skewed"]
    kinds, w, dst = Index(types, num), draw(num, 1, 5, 3), Index(ends(90), NODES)
    with pytest.raises(DataError, match="for each edge"):
        TritonScatter(1, 5, 3, DType.f64)(draw(89, 1, 5), w, kinds, dst)


@needs_interpreter
def test_strides_and_shapes_of_the_callers_tensors() -> None:
    types, num = TYPES["sorted"]
    kinds, dst = Index(types, num), ends(types.numel())
    x, w = draw(8, 2 * types.numel()).T[::2], draw(num, 5, 8).mT
    scale = draw(types.numel(), 2)[:, 0]
    got = TritonScatter(1, 8, 5, DType.f64)(x, w, kinds, Index(dst, NODES), None, scale)
    close(got, want_scatter(x.unsqueeze(1), w.unsqueeze(1), types, dst, scale.unsqueeze(1)).squeeze(1), 400)


@needs_interpreter
def test_tables_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which no graph that fits into a test needs."""
    monkeypatch.setattr(Index, "wide", True)
    check_scatter("skewed", 1, 5, 3, torch.float32, scales=1)


@needs_interpreter
def test_two_runs_give_the_same_bits() -> None:
    types, num = TYPES["skewed"]
    kinds, dst = Index(types, num), Index(ends(90), NODES)
    x, w = (draw(*shape, dtype=torch.float32) for shape in ((90, 33), (num, 33, 16)))
    scatter = TritonScatter(1, 33, 16, DType.f32)
    assert torch.equal(scatter(x, w, kinds, dst), scatter(x, w, kinds, dst))


@needs_interpreter
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_what_is_not_finite_stays_with_its_row_and_type() -> None:
    types, num = TYPES["skewed"]
    kinds, dst = Index(types, num), ends(90)
    x, w = (draw(*shape, dtype=torch.float32) for shape in ((90, 33), (num, 33, 5)))
    x[int((types == 0).nonzero()[0])], w[4] = float("inf"), float("nan")
    touched = (types == 4) | x.isinf().any(1)
    finite = TritonScatter(1, 33, 5, DType.f32)(x, w, kinds, Index(dst, NODES)).isfinite().all(1)
    assert torch.equal(finite, ~torch.zeros(NODES, dtype=torch.bool).index_fill(0, dst[touched], True))


@needs_interpreter
def test_sums_of_half_numbers_do_not_overflow_before_the_product() -> None:
    x, w = torch.full((4, 16), 4e4, dtype=torch.float16), torch.full((1, 16, 16), 1e-3, dtype=torch.float16)
    zeros = torch.zeros(4, dtype=torch.int64)
    got = TritonScatter(1, 16, 16, DType.f16)(x, w, Index(zeros, 1), Index(zeros, 1))
    want = 4 * x[:1].double() @ w[0].double()
    torch.testing.assert_close(got.double(), want, rtol=2**-10, atol=0)


# ---------------------------------------------------------------- tables


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", [name for name in TYPES if TYPES[name][0].numel()])
def test_pairs_hold_each_edge_once_in_order(name: str, wide: bool) -> None:
    types, num = TYPES[name]
    edges, dst = types.numel(), ends(types.numel())
    cut = Cut(block=8, piece=8, tile=4)
    found = typed_pairs(Index(types, num), Index(dst, NODES), cut, wide)
    assert found.order.dtype == found.edges.dtype == found.targets.dtype == (torch.int64 if wide else torch.int32)
    order, first, targets = found.order.tolist(), found.edges.tolist(), found.targets.tolist()
    pairs, kinds, tiles = found.pairs.tolist(), found.kinds.tolist(), found.tiles.tolist()
    rows_of = {n + NODES: row for row, begin, end in zip(*(t.tolist() for t in found.folds.tensors), strict=True)
               for n in range(begin, end)}  # fmt: skip
    assert sorted(order) == list(range(edges))
    walked, owners = [], {}
    for block in range(len(tiles) - 1):
        for tile in range(tiles[block], tiles[block + 1]):
            members = range(pairs[tile], pairs[tile + 1])
            assert 0 < len(members) <= cut.tile
            assert len({targets[p] for p in members}) == len(members)
            for p in members:
                assert owners.setdefault(targets[p], block) == block
                here = order[first[p] : first[p + 1]]
                assert here and here == sorted(here) and len(here) <= cut.piece
                assert {int(types[e]) for e in here} == {kinds[tile]}
                assert {int(dst[e]) for e in here} == {rows_of.get(targets[p], targets[p])}
                walked += here
    assert walked == order
    counts = torch.bincount(dst, minlength=NODES)
    assert sorted(set(rows_of.values())) == (counts > cut.piece).nonzero().squeeze(1).tolist()
    assert len(rows_of) == int((-(-counts[counts > cut.piece] // cut.piece)).sum()) <= found.folds.slots


def test_tables_are_made_once_and_again_after_an_edit() -> None:
    types, num = TYPES["skewed"]
    types, dst, cut = types.clone(), Index(ends(90), NODES), Cut(32, 8, 16)
    pairs = typed_pairs(Index(types, num), dst, cut)
    assert typed_pairs(Index(types, num), dst, cut) is pairs
    types[0] = (types[0] + 1) % num
    assert typed_pairs(Index(types, num), dst, cut) is not pairs


def test_nothing_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number asked of a fake tensor, and a tensor on another device, is an error."""
    monkeypatch.setattr(formats, "cached", lambda key, tensors, build: build())
    for room in (formats, index):
        monkeypatch.setattr(room, "place", lambda t: ())  # which fake tensors do not have
    launched: list[str] = []

    def launch(kernel: triton_typed.TypedKernel, count: int, arguments: list[object], *_: object, **__: object) -> None:
        assert {t.device.type for t in arguments if isinstance(t, Tensor)} == {"cuda"}
        launched.append(kernel.name)

    monkeypatch.setattr(triton_typed, "launch", launch)
    with FakeTensorMode(), torch.device("cuda"):
        x, w, scale = torch.zeros(70, 31), torch.zeros(9, 31, 33), torch.zeros(5000, 1)
        types, src = (Index(torch.zeros(5000, dtype=torch.int64), rows, wrap=True) for rows in (9, 70))
        dst = Index(torch.zeros(5000, dtype=torch.int32), 100)
        result = TritonScatter(1, 31, 33, DType.f32)(x, w, types, dst, src, scale)
    assert tuple(result.shape) == (100, 33) and result.device.type == "cuda"
    assert len(launched) == 2  # it is folded


# ---------------------------------------------------------------- texts


def test_texts_say_what_they_need() -> None:
    scattered = [ScatterProgram(2, 8, 8, DType.f32, False, scales) for scales in (0, 1, 2)]
    assert len({kernel.name for kernel in scattered}) == len({print_scatter(kernel) for kernel in scattered}) == 3


def test_golden_texts_of_small_kernels(golden: Callable[[str, str], None]) -> None:
    golden("triton_typed_fold.txt", print_fold(FoldProgram(1023, DType.f32)))
    golden("triton_typed_scatter.txt", print_scatter(ScatterProgram(2, 31, 33, DType.bf16, True, 2)))
