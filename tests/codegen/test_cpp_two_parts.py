"""The chunks of a kernel, cut at a row."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphweave.execute.cpp_two_parts import cut
from graphweave.runtime.edge_subsets import first_reaching
from graphweave.runtime.index import Index


def rows_of(chunks: list[int]) -> list[int]:
    """The rows that a kernel computes."""
    starts = [~c if c < 0 else c for c in chunks]
    return [r for c, begin, end in zip(chunks, starts, starts[1:], strict=False) if c >= 0 for r in range(begin, end)]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.lists(st.booleans(), min_size=6, max_size=6), st.data())
def test_the_parts_have_each_row_once(sizes: list[int], left_out: list[bool], data: st.DataObject) -> None:
    """Also where chunks are left out, and where the row is a boundary, the first or behind the last."""
    starts = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    chunks = [~r if out else r for r, out in zip(starts[:-1], left_out, strict=False)] + starts[-1:]
    row = data.draw(st.integers(0, starts[-1] + 1))
    before, after = (part.tolist() for part in cut(torch.tensor(chunks), row))
    assert rows_of(before) == [r for r in rows_of(chunks) if r < row]
    assert rows_of(after) == [r for r in rows_of(chunks) if r >= row]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_first_row_that_reads_a_halo_row(dtype: torch.dtype) -> None:
    src, dst = torch.tensor([[0, 5, 1, 6, 2], [4, 3, 0, 2, 0]], dtype=dtype)
    assert first_reaching(Index(dst, 7, False), 5, Index(src, 7, False), False) == 2
    assert first_reaching(Index(dst, 7, False), 7, Index(src, 7, False), False) == 7
    assert first_reaching(Index(dst[:0], 7, False), 0, Index(src[:0], 7, False), False) == 7
