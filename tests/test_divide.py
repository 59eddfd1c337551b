"""Kernels whose rows are divided into pieces, by the interpreter of the loop IR, against the kernel itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graphweave.core.types import DType, Fold
from graphweave.ir.loop import interp
from graphweave.ir.loop.nodes import Kernel, Role
from graphweave.ir.loop.verify import verify
from graphweave.lower.divide import divided, of_pieces
from graphweave.runtime.row_pieces import RowPieces, row_pieces
from tests.loop_support import DEGREES, Case, case_for, edge_mlp, interpreted, reindexed, sddmm, spmm, totals, two_ends
from tests.test_cpp_kernels import assert_same

KERNELS = {
    "spmm_sum_33": spmm(33),
    "spmm_max_33_i64": spmm(33, Fold.max, index=DType.i64),
    "spmm_mul_3": spmm(3, Fold.mul, DType.f64),
    "sddmm_33": sddmm(33),
    "two_ends": two_ends(),
    "reindexed": reindexed(big=100),
}


def tables(degrees: tuple[int, ...], size: int, wide: bool) -> RowPieces:
    """Of all rows; edges lie in the order of their rows."""
    rows = torch.arange(len(degrees)).repeat_interleave(torch.tensor(degrees, dtype=torch.int64))
    return row_pieces(rows, len(degrees), False, wide, len(degrees), size)


def by_pieces(case: Case, degrees: tuple[int, ...], size: int) -> dict[str, Tensor]:
    """Every row divided."""
    done, parts = case.copy(), divided(case.kernel)
    assert parts is not None
    cut = tables(degrees, size, case.kernel.index is DType.i64)
    indptr = case.indptr | {"pieces": cut.pieces, "slots": cut.slots}
    counts = {"num_pieces": cut.piece_row.numel(), "num_slots": cut.slot_row.numel()}
    tensors = done.buffers | {
        name: getattr(cut, name) for name in ("piece_row", "piece_shift", "piece_slot", "slot_row")
    }

    def run(kernel: Kernel) -> None:
        verify(kernel)
        for b in kernel.buffers:
            if b.name not in tensors:
                rows = counts["num_pieces" if of_pieces(b) else "num_slots"]
                like = next(t for t in done.buffers.values() if t.is_floating_point())
                tensors[b.name] = torch.full((rows, *b.shape), 77, dtype=like.dtype)
        assert not any(b.role is Role.total for b in kernel.buffers), "totals are folded by the launcher"
        interp.run(kernel, tensors, indptr, case.sizes | counts)

    for pieces, fold in parts.passes:
        run(pieces)
        if fold is not None:
            run(fold)
    run(parts.finish)
    return done.results


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("size", [1, 3, 64])
def test_pieces_compute_what_rows_compute(name: str, size: int) -> None:
    for graph in ("one_node", "no_edges", "mixed", "hub"):
        case = case_for(KERNELS[name], DEGREES[graph])
        assert_same(by_pieces(case, DEGREES[graph], size), interpreted(case))


@pytest.mark.parametrize("kernel", [totals(3), edge_mlp(3, 4, 5)], ids=lambda kernel: kernel.name)
def test_kernels_without_edges_or_with_products_are_left_whole(kernel: Kernel) -> None:
    assert divided(kernel) is None


@pytest.mark.parametrize("slots", [1, 3, 7])
@pytest.mark.parametrize("size", [1, 4, 100])
def test_every_edge_of_the_longest_rows_is_in_one_piece(slots: int, size: int) -> None:
    degrees = (3, 0, 1, 50, 0, 2, 9)
    rows = torch.arange(7).repeat_interleave(torch.tensor(degrees))
    shuffled = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    cut = row_pieces(shuffled, 7, False, False, slots, size)
    longest = sorted(range(7), key=lambda r: (-degrees[r], r))[:slots]
    assert cut.slot_row.tolist() == longest
    indptr = [0, 3, 3, 4, 54, 54, 56, 65]
    seen: dict[int, list[int]] = {}
    for p, (row, slot, shift) in enumerate(zip(cut.piece_row, cut.piece_slot, cut.piece_shift, strict=True)):
        begin, end = cut.pieces[p : p + 2].tolist()
        assert end - begin <= size and longest[int(slot)] == int(row)
        mine = cut.slots[slot] <= p < cut.slots[slot + 1]
        assert mine or begin == end, "what is left over has no edges"
        seen.setdefault(int(row), []).extend(range(begin + int(shift), end + int(shift)))
    assert seen == {r: list(range(indptr[r], indptr[r + 1])) for r in longest}
