"""Kernels whose rows are divided into pieces, interpreted and printed as C++, against the kernel itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest
import torch
from torch import Tensor

from graphweave.codegen.cpp import print_kernel
from graphweave.core.types import DType, Fold
from graphweave.ir.loop import interp
from graphweave.ir.loop.nodes import Kernel, Role
from graphweave.ir.loop.parse import parse
from graphweave.ir.loop.show import show
from graphweave.ir.loop.verify import verify
from graphweave.lower.divide import NUM_HELD, NUM_PIECES, NUM_SLOTS, divided
from graphweave.runtime import kernel_cache
from graphweave.runtime.index import Index
from graphweave.runtime.row_pieces import RowPieces, row_pieces
from tests.codegen.test_cpp_kernels import assert_same
from tests.loop_support import (
    DEGREES,
    TORCH,
    Case,
    attention,
    case_for,
    chunks_of,
    edge_mlp,
    interpreted,
    node_mlp,
    node_stages,
    online_attention,
    reindexed,
    sddmm,
    spmm,
    totals,
    two_ends,
)
from tests.sanitizer_support import run_sanitized
from tests.support import by_default

KERNELS = {
    "spmm_sum_33": spmm(33),
    "spmm_max_33_i64": spmm(33, Fold.max, index=DType.i64),
    "spmm_mul_3": spmm(3, Fold.mul, DType.f64),
    "sddmm_33": sddmm(33),
    "two_ends": two_ends(),
    "reindexed": reindexed(big=100),
    "attention_2_5": attention(2, 5),
    "edge_mlp_3_4_5": edge_mlp(3, 4, 5),
    "edge_mlp_33_f64": edge_mlp(3, 33, 2, DType.f64, size=3),
    "online_2_3": online_attention(2, 3),
    "node_mlp_3_4": node_mlp(3, 4),
    "node_stages_3_5_f64": node_stages(3, 5, DType.f64),
}
"""Kernels with sums, values of edges, stashes, products in tiles of edges or rows, and an online softmax."""

Run: TypeAlias = Callable[[Kernel, dict[str, Tensor], dict[str, Tensor], dict[str, int]], None]


def tables(degrees: tuple[int, ...], size: int, wide: bool) -> RowPieces:
    """The tables of all rows; edges lie in the order of their rows."""
    rows = torch.arange(len(degrees)).repeat_interleave(torch.tensor(degrees, dtype=torch.int64))
    return row_pieces(Index(rows, len(degrees)), wide, len(degrees), size)


def by_pieces(case: Case, degrees: tuple[int, ...], size: int, run: Run = interp.run) -> dict[str, Tensor]:
    """Divides every row and adds up totals, which kernels begin anew."""
    done, parts = case.copy(), divided(case.kernel)
    assert parts is not None
    cut = tables(degrees, size, case.kernel.index is DType.i64)
    indptr = case.indptr | {"pieces": cut.pieces, "slots": cut.slots}
    counts = {NUM_PIECES: cut.piece_row.numel(), NUM_SLOTS: cut.slot_row.numel(), NUM_HELD: sum(degrees)}
    tensors = done.buffers | {
        name: getattr(cut, name) for name in ("piece_row", "piece_shift", "piece_slot", "slot_row")
    }
    totals = {b.name: [] for b in case.kernel.buffers if b.role is Role.total}
    for kernel in parts.kernels:
        verify(kernel)
        assert parse(show(kernel)) == kernel
        for b in kernel.buffers:
            if b.name not in tensors:
                tensors[b.name] = torch.full((counts[b.rows], *b.shape), 77, dtype=TORCH[b.dtype])
        run(kernel, tensors, indptr, case.sizes | counts)
        for b in kernel.buffers:
            if b.role is Role.total:
                totals[b.name].append(tensors[b.name].clone())
    for name, found in totals.items():
        done.buffers[name] = torch.stack(found).sum(0)
    return done.results


def by_cpp(kernel: Kernel, tensors: dict[str, Tensor], indptr: dict[str, Tensor], sizes: dict[str, int]) -> None:
    given = [indptr[csr.name] for csr in kernel.csrs] + [tensors[b.name] for b in kernel.buffers]
    counts = [sizes[size] for size in kernel.sizes] + [0] * len(kernel.csrs)  # stashes need degrees
    function = kernel_cache.load(print_kernel(kernel), kernel.name)
    function([t.data_ptr() for t in given], counts, chunks_of(counts[0], 2), 2)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("size", [1, 3, 64])
def test_pieces_compute_what_rows_compute(name: str, size: int) -> None:
    for graph in ("one_node", "no_edges", "mixed", "hub"):
        case = case_for(KERNELS[name], DEGREES[graph])
        assert_same(by_pieces(case, DEGREES[graph], size), interpreted(case))


@pytest.mark.parametrize(
    "name", by_default(KERNELS, "attention_2_5", "edge_mlp_3_4_5", "online_2_3", "node_stages_3_5_f64")
)
def test_printed_as_cpp(name: str) -> None:
    case = case_for(KERNELS[name], DEGREES["hub"])
    for size in (3, 64):
        assert_same(by_pieces(case, DEGREES["hub"], size, by_cpp), interpreted(case))


_SANITIZED = """
from tests.codegen import test_divide as tests
from tests.loop_support import DEGREES, case_for
for degrees in (DEGREES["hub"], DEGREES["no_edges"]):
    tests.by_pieces(case_for(tests.KERNELS["{}"], degrees), degrees, 3, tests.by_cpp)
"""


@pytest.mark.slow
@pytest.mark.sanitize
@pytest.mark.parametrize("name", ["edge_mlp_3_4_5", "attention_2_5", "online_2_3"])
def test_pieces_are_clean_under_sanitizers(name: str) -> None:
    run_sanitized(_SANITIZED.format(name))


@pytest.mark.parametrize("name", by_default(["online_2_3", "attention_2_5", "spmm_max_33_i64"], "online_2_3"))
@pytest.mark.parametrize("run", [interp.run, by_cpp], ids=["interpreted", "cpp"])
def test_nan_and_inf_travel_as_in_whole_rows(name: str, run: Run) -> None:
    case = case_for(KERNELS[name], DEGREES["hub"], special=True)
    want = interpreted(case)
    assert any(result.isnan().any() for result in want.values())
    assert_same(by_pieces(case, DEGREES["hub"], 3, run), want)


@pytest.mark.parametrize("run", [interp.run, by_cpp], ids=["interpreted", "cpp"])
def test_a_piece_whose_scores_are_all_minus_infinity_counts_for_nothing(run: Run) -> None:
    """Such a piece does not count unless all pieces of the row are such."""
    degrees = (1, 12, 0, 4)
    case = case_for(KERNELS["online_2_3"], degrees)
    case.buffers["src"].copy_(torch.tensor([0, *[0] * 5, 1, 2, *[0] * 5, *[0] * 4]))
    case.buffers["a"][0] = -torch.inf
    want = interpreted(case)
    assert want["y"][1].isfinite().all() and want["y"][3].isnan().all()
    assert_same(by_pieces(case, degrees, 3, run), want)


def test_a_kernel_without_edges_is_left_whole() -> None:
    assert divided(totals(3)) is None


@pytest.mark.parametrize("slots", [1, 3, 7])
@pytest.mark.parametrize("size", [1, 4, 100])
def test_every_edge_of_the_longest_rows_is_in_one_piece(slots: int, size: int) -> None:
    degrees = (3, 0, 1, 50, 0, 2, 9)
    rows = torch.arange(7).repeat_interleave(torch.tensor(degrees))
    shuffled = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    cut = row_pieces(Index(shuffled, 7), False, slots, size)
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
