"""Typed products of edges summed by row, without a value of edges: against float64, for every number of threads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graphweave.codegen.cpp.typed_scatter import ScatterKernel
from graphweave.compiler import typed_scatter
from graphweave.compiler.typed_scatter import TypedScatter
from graphweave.core.errors import DataError, IndexRangeError
from graphweave.core.types import DType
from graphweave.runtime import formats, long_rows
from graphweave.runtime.index import Index
from graphweave.runtime.typed_blocks import typed_blocks
from graphweave.runtime.typed_pieces import typed_pieces
from tests.sanitizer_support import run_sanitized
from tests.support import by_default, threads
from tests.test_typed_kernels import DTYPES, TYPES, close, draw, want_product

NODES = 61


@pytest.fixture(autouse=True)
def kernels_and_several_blocks_for_few_edges_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_scatter, "BLOCK_EDGES", 100)


def ends(edges: int, *, shape: str) -> Tensor:
    """Rows of the result: some without edges, and one that may have most edges."""
    generator = torch.Generator().manual_seed(edges)
    dst = torch.randint(NODES, (edges,), generator=generator)
    match shape:
        case "hub":
            return torch.where(torch.rand(edges, generator=generator) < 0.7, 13, dst)
        case "sorted":
            return dst.sort().values
        case "one_row":
            return torch.full_like(dst, 13)
        case "ends_empty":
            return dst.clamp(7, NODES - 9)
    return dst


def want_scatter(x: Tensor, w: Tensor, types: Tensor, dst: Tensor, scale: Tensor | None) -> Tensor:
    """x [E, B, K]."""
    messages = want_product(x, w, types)
    if scale is not None:
        messages = messages * scale.double().reshape(*scale.shape[:1], *(scale.shape[1:] or (1,)), 1)
    return torch.zeros(NODES, *messages.shape[1:], dtype=torch.float64).index_add(0, dst, messages)


def check(
    name: str, blocks: int, k: int, j: int, dtype: torch.dtype, *, shape: str = "any", scales: int = 0,
    gathers: bool = True, transposed: bool = False,
) -> None:  # fmt: skip
    types, num = TYPES[name]
    edges = types.numel()
    dst, src = ends(edges, shape=shape), torch.arange(edges) * 7 % 50
    w = draw(num, blocks, k, j, dtype=dtype)
    held = draw(50 if gathers else edges, blocks, k, dtype=dtype)
    scale = draw(edges, scales, dtype=dtype) if scales else None
    run = TypedScatter(blocks, k, j, DTYPES[dtype], transposed)
    given = w.mT.contiguous() if transposed else w
    got = run(held, given, Index(types, num), Index(dst, NODES), Index(src, 50) if gathers else None, scale)
    close(got, want_scatter(held[src] if gathers else held, w, types, dst, scale), k * max(1, edges))


@pytest.mark.parametrize("shape", ["any", "hub", "sorted", "ends_empty"])
@pytest.mark.parametrize("name", TYPES)
def test_edges_of_every_distribution(name: str, shape: str) -> None:
    check(name, 1, 31, 33, torch.float32, shape=shape, scales=1)
    check(name, 3, 4, 2, torch.float64, shape=shape, scales=3, gathers=False)


@pytest.mark.parametrize(
    ("blocks", "k", "j"), [(1, 1, 1), (1, 64, 64), (1, 33, 2), (1, 5, 100), (4, 8, 16), (2, 64, 1), (1, 1, 64)]
)
@pytest.mark.parametrize("transposed", [False, True])
def test_widths_and_scales(blocks: int, k: int, j: int, transposed: bool) -> None:
    for scales in {0, 1, blocks}:
        check("mixed", blocks, k, j, torch.float32, scales=scales, transposed=transposed)


def test_a_scale_may_be_a_vector() -> None:
    types, num = TYPES["mixed"]
    edges = types.numel()
    x, w, dst, scale = draw(edges, 5), draw(num, 5, 3), ends(edges, shape="any"), draw(edges)
    got = TypedScatter(1, 5, 3, DType.f64)(x, w, Index(types, num), Index(dst, NODES), None, scale)
    close(got, want_scatter(x.unsqueeze(1), w.unsqueeze(1), types, dst, scale).squeeze(1), edges)


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_a_kernel(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_kernel(*_: object) -> None:
        raise AssertionError("expected PyTorch's product and sum")

    monkeypatch.setattr(typed_scatter, "load", no_kernel)
    monkeypatch.setattr(typed_scatter, "WIDEST", 0)
    check("one_type", 2, 3, 4, dtype, scales=2, transposed=True)
    check("no_rows", 1, 3, 4, dtype)


@pytest.mark.parametrize("shape", ["any", "hub"])
def test_the_number_of_threads_changes_no_bit(shape: str) -> None:
    types, num = TYPES["skewed"]
    edges = types.numel()
    x, w, dst = draw(edges, 33, dtype=torch.float32), draw(num, 33, 16, dtype=torch.float32), ends(edges, shape=shape)
    results = []
    for n in (1, 2):
        with threads(n):
            results.append(TypedScatter(1, 33, 16, DType.f32)(x, w, Index(types, num), Index(dst, NODES)))
    assert torch.equal(*results)


def few_edges_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    formats.clear()
    monkeypatch.setattr(long_rows, "LONG", 40)
    monkeypatch.setattr(long_rows, "PIECE", 16)


@pytest.mark.parametrize("shape", ["any", "hub", "one_row"])
def test_long_rows_are_divided(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few_edges_are_many(monkeypatch)
    check("mixed", 2, 31, 33, torch.float32, shape=shape, scales=2)
    check("skewed", 1, 4, 2, torch.float64, shape=shape, gathers=False, transposed=True)
    types, num = TYPES["skewed"]
    edges = types.numel()
    x, w, dst = draw(edges, 33, dtype=torch.float32), draw(num, 33, 16, dtype=torch.float32), ends(edges, shape=shape)
    results = []
    for n in (1, 2, 3):
        with threads(n):
            results.append(TypedScatter(1, 33, 16, DType.f32)(x, w, Index(types, num), Index(dst, NODES)))
    assert all(torch.equal(result, results[0]) for result in results)
    pieces, _ = typed_pieces(Index(types, num), Index(dst, NODES))
    assert bool(pieces.divided) is (int(torch.bincount(dst).max()) > 40)


@pytest.mark.parametrize("wide", [False, True])
def test_pieces_of_a_row_are_runs_of_its_edges_by_type(wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    few_edges_are_many(monkeypatch)
    types, num = TYPES["mixed"]
    dst = ends(types.numel(), shape="hub")
    found, values = typed_pieces(Index(types, num), Index(dst, NODES), wide)
    assert found.num_rows == NODES
    degrees = torch.bincount(dst, minlength=NODES)
    assert [row for row, _, _ in found.divided] == (degrees > 40).nonzero().flatten().tolist()
    next_piece = NODES
    for row, first, last in found.divided:
        assert first == next_piece
        mine = (dst == row).nonzero().flatten()
        in_order = mine[torch.argsort(types[mine], stable=True)]
        assert values[in_order].tolist() == [first + i // 16 for i in range(len(mine))]
        next_piece = last
    assert found.num_all == next_piece
    rest = degrees[dst] <= 40
    assert torch.equal(values[rest].long(), dst[rest])


@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
def test_indices_wrap_where_they_may_and_are_refused_where_not(integers: torch.dtype) -> None:
    types, num = TYPES["mixed"]
    edges = types.numel()
    dst, src = ends(edges, shape="any"), torch.arange(edges) % 50
    x, w = draw(50, 1, 5), draw(num, 1, 5, 3)
    run = TypedScatter(1, 5, 3, DType.f64)
    good = Index(types.to(integers), num), Index(dst.to(integers), NODES), Index(src.to(integers), 50)
    below = [Index(index.values - index.rows, index.rows, wrap=True) for index in good]
    want = want_scatter(x[src], w, types, dst, None)
    close(run(x, w, *good), want, edges)
    close(run(x, w, *below), want, edges)
    for at in range(3):
        for value in (-1, good[at].rows):
            wrong = good[at].values.clone()
            wrong[77] = value
            indices = [Index(wrong, index.rows) if i == at else index for i, index in enumerate(good)]
            with pytest.raises(IndexRangeError, match="at position 77 is out of range"):
                run(x, w, *indices)


def test_edges_that_do_not_match_are_refused() -> None:
    types, num = TYPES["mixed"]
    dst = Index(ends(types.numel(), shape="any"), NODES)
    run, x, w = TypedScatter(2, 5, 3, DType.f64), draw(types.numel(), 2, 5), draw(num, 2, 5, 3)
    with pytest.raises(DataError, match="for each edge"):
        run(x[1:], w, Index(types, num), dst)
    with pytest.raises(DataError, match="for each edge"):
        run(x, w, Index(types, num), dst, None, draw(types.numel() - 1))
    with pytest.raises(DataError, match="of 1 or 2 numbers"):
        run(x, w, Index(types, num), dst, None, draw(types.numel(), 3))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("shape", ["any", "hub", "sorted"])
def test_edges_come_by_block_then_type_then_row(shape: str, wide: bool) -> None:
    types, num = TYPES["mixed"]
    dst = ends(types.numel(), shape=shape)
    found = typed_blocks(Index(types, num), Index(dst, NODES), 8, wide)
    assert found.indptr.dtype == found.order.dtype == found.rows.dtype == (torch.int64 if wide else torch.int32)
    bounds, order = found.bounds.tolist(), found.order.long()
    assert bounds[0] == 0 and bounds[-1] == NODES and bounds == sorted(set(bounds))
    block = torch.bucketize(dst, found.bounds[1:], right=True)
    keys = torch.stack([block, types, dst, torch.arange(types.numel())], 1)[order].tolist()
    assert keys == sorted(keys)
    assert torch.equal(found.rows.long(), dst[order])
    counts = torch.bincount(block * num + types, minlength=(len(bounds) - 1) * num)
    assert torch.equal(found.indptr.diff(), counts.to(found.indptr.dtype))


def test_the_order_is_made_once_and_again_after_an_edit() -> None:
    types, num = TYPES["mixed"]
    types, dst = types.clone(), Index(ends(types.numel(), shape="any"), NODES)
    first = typed_blocks(Index(types, num), dst, 4)
    assert typed_blocks(Index(types, num), dst, 4) is first
    types[0] = 6 - types[0]
    again = typed_blocks(Index(types, num), dst, 4)
    assert again is not first and not torch.equal(again.indptr, first.indptr)


def test_names_tell_kernels_apart() -> None:
    plain = ScatterKernel(1, 8, 8, DType.f32)
    assert len({plain.name, ScatterKernel(1, 8, 8, DType.f64).name, ScatterKernel(1, 8, 8, DType.f32, True).name}) == 3


_SANITIZED = """
import torch
from graphweave.compiler import typed_scatter
from tests import test_typed_scatter as tests
typed_scatter.BLOCK_EDGES = 100
for name in ("no_rows", "one_row", "mixed", "empty_types"):
    for shape in ("any", "hub", "ends_empty"):
        tests.check(name, {}, shape=shape)
"""
CHECKED = {
    "tiles": "1, 31, 33, torch.float32, scales=1",
    "blocks": "2, 3, 5, torch.float64, scales=2, gathers=False, transposed=True",
}


@pytest.mark.sanitize
@pytest.mark.parametrize("kernels", by_default(CHECKED, "blocks"))
def test_kernels_are_clean_under_sanitizers(kernels: str) -> None:
    run_sanitized(_SANITIZED.format(CHECKED[kernels]))
