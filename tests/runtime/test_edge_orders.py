"""Orders of rows and edges other than the user's: which they are, and the pieces that rows are cut into."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from graphweave.core.locality import cuthill_mckee, hilbert
from graphweave.core.schedule import EDGE_ORDERS, ROW_ORDERS
from graphweave.runtime import formats
from graphweave.runtime.chunks import equal_rows, equal_work
from graphweave.runtime.edge_orders import EdgeOrders
from graphweave.runtime.index import Index

DST, SRC = torch.tensor([1, 0, 1, 1, 1, 2]), torch.tensor([3, 0, 2, 0, 2, 2])


def orders(**fields: Any) -> EdgeOrders:
    """The orders of six edges from five sources to four rows, of which the last has none."""
    return EdgeOrders(Index(DST, 4), Index(SRC, 5), **fields)


def starts(of: EdgeOrders) -> list[int]:
    """The position at which each piece begins."""
    table = of.pieces().pieces
    return [int(k + s) for k, s in zip(table.pieces[:-1], table.piece_shift, strict=True)]


def test_orders_of_edges() -> None:
    assert orders(edges="source").edge_at().tolist() == [1, 3, 2, 4, 0, 5]
    assert orders(edges="degree").edge_at().tolist() == [1, 2, 4, 3, 0, 5]
    assert orders(edges="source").column(Index(SRC, 5)).tolist() == [0, 0, 2, 2, 3, 2]


def test_orders_of_rows() -> None:
    by_degree = orders(rows="degree")
    assert by_degree.row_order().tolist() == [1, 0, 2, 3]
    assert by_degree.indptr().tolist() == [0, 4, 5, 6, 6]
    assert by_degree.edge_at().tolist() == [0, 2, 3, 4, 1, 5]


def test_pieces_of_source_ranges() -> None:
    """Rows 0 to 3 in ranges of sources {0, 1, 2} and {3, 4}: row 1 has edges of both, row 3 none."""
    of = orders(edges="source", partitions=2)
    table = of.pieces().pieces
    assert table.piece_row.tolist() == [0, 1, 2, 1, 3]
    assert table.pieces.tolist() == [0, 1, 4, 5, 6, 6]
    assert starts(of)[:4] == [0, 1, 5, 4]  # positions in the order of edge_at
    assert table.slots.tolist() == [0, 1, 3, 4, 5]
    assert table.slot_piece is not None and table.slot_piece.tolist() == [0, 1, 3, 2, 4]


def test_row_order_holds_within_a_range() -> None:
    assert orders(rows="degree", edges="source", partitions=2).pieces().pieces.piece_row.tolist() == [1, 0, 2, 1, 3]


@given(st.data())
def test_every_order_visits_each_edge_once(data: st.DataObject) -> None:
    rows, sources, count = (data.draw(st.integers(low, 12)) for low in (1, 1, 0))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    dst = torch.randint(rows, (count,), generator=generator)
    src = torch.randint(sources, (count,), generator=generator)
    edges = data.draw(st.sampled_from(EDGE_ORDERS))
    turns = "given" if edges == "hilbert" else data.draw(st.sampled_from(ROW_ORDERS))
    parts, wide = data.draw(st.sampled_from([None, 1, 3, 40])), data.draw(st.booleans())
    of = EdgeOrders(Index(dst, rows), Index(src, sources), turns, edges, parts, wide=wide)
    at = of.edge_at()
    assert sorted(at.tolist()) == list(range(count))
    assert of.column(Index(src, sources)).tolist() == src[at.long()].tolist()
    order = torch.arange(rows) if of.in_pieces else of.row_order().long()
    indptr = formats.csr(of.index).indptr if of.in_pieces else of.indptr()
    assert dst[at.long()].tolist() == order.repeat_interleave(indptr.diff().long()).tolist()
    if of.in_pieces:
        check_pieces(of, at, dst)


def check_pieces(of: EdgeOrders, at: Tensor, dst: Tensor) -> None:
    """The pieces hold each position once, in their own row, and each row's slot lists its pieces."""
    table, rows = of.pieces().pieces, of.index.rows
    held = [
        (int(row), first + i)
        for row, first, length in zip(table.piece_row, starts(of), table.pieces.diff(), strict=True)
        for i in range(int(length))
    ]
    assert sorted(p for _, p in held) == list(range(len(dst)))
    assert all(int(dst[int(at[p])]) == row for row, p in held)
    assert table.slot_piece is not None
    for row in range(rows):
        mine = table.slot_piece[int(table.slots[row]) : int(table.slots[row + 1])].long()
        assert len(mine) and set(table.piece_row[mine].tolist()) == {row}


@pytest.mark.parametrize("side", [1, 2, 4, 8])
def test_hilbert_curve_visits_every_cell_and_steps_to_neighbours(side: int) -> None:
    x, y = (t.flatten() for t in torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"))
    place = hilbert(x, y)
    assert sorted(place.tolist()) == list(range(side * side))
    order = torch.argsort(place)
    steps = (x[order].diff().abs() + y[order].diff().abs()).tolist()
    assert steps == [1] * (side * side - 1)


def test_hilbert_places_of_no_cells() -> None:
    assert hilbert(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)).tolist() == []


def test_cuthill_mckee_straightens_a_path() -> None:
    """The ends of each edge of a shuffled path are next to each other afterwards."""
    name = torch.randperm(50, generator=torch.Generator().manual_seed(1))
    row, source = cuthill_mckee(name[:-1], name[1:], 50, 50, one_space=True)
    assert torch.equal(row, source)
    assert (row[name[:-1]] - row[name[1:]]).abs().max() == 1


def test_cuthill_mckee_of_two_spaces_ranks_both() -> None:
    rows, sources = torch.tensor([0, 1, 2, 0]), torch.tensor([3, 2, 1, 0])
    row, source = cuthill_mckee(rows, sources, 3, 4, one_space=False)
    assert sorted([*row.tolist(), *source.tolist()]) == list(range(7))
    empty, none = cuthill_mckee(rows[:0], sources[:0], 0, 0, one_space=False)
    assert not empty.numel() and not none.numel()


def test_chunks_of_equal_rows_and_of_equal_work() -> None:
    assert equal_rows(10, 3).tolist() == [0, 3, 6, 10]
    assert equal_rows(2, 5).tolist() == [0, 1, 2] and equal_rows(0, 5).tolist() == [0, 0]
    indptr = torch.tensor([0, 100, 100, 101, 102, 103])
    assert equal_work(indptr, 2).tolist() == [0, 1, 5]
    assert equal_work(indptr, 100).tolist() == [0, 1, 2, 3, 4, 5]
    assert equal_work(torch.tensor([0]), 4).tolist() == [0, 0]
