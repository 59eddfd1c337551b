"""The tables that fused pushes walk on a GPU, against lists."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from graphweave.codegen.triton.folds import FoldProgram, print_fold
from graphweave.core.types import DType
from graphweave.runtime.index import Index
from graphweave.runtime.typed_pairs import PairSizes, typed_pairs

NODES = 23
"""Rows of a push; the last two have no edges."""


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


def ends(edges: int) -> Tensor:
    """Rows of a push, one of which has a third of the edges."""
    generator = torch.Generator().manual_seed(edges)
    dst = torch.randint(NODES - 2, (edges,), generator=generator)
    return torch.where(torch.rand(edges, generator=generator) < 0.3, 13, dst)


# ---------------------------------------------------------------- tables


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", [name for name in TYPES if TYPES[name][0].numel()])
def test_pairs_hold_each_edge_once_in_order(name: str, wide: bool) -> None:
    types, num = TYPES[name]
    edges, dst = types.numel(), ends(types.numel())
    sizes = PairSizes(block=8, piece=8)
    found = typed_pairs(Index(types, num), Index(dst, NODES), sizes, wide)
    own = {t.dtype for t in found.tensors[: -len(found.folds.tensors)]}
    assert own == {torch.int64 if wide else torch.int32}
    order, first, targets = found.order.tolist(), found.edges.tolist(), found.pair_target.tolist()
    pairs, kinds, groups = found.pairs.tolist(), found.group_type.tolist(), found.groups.tolist()
    rows_of = {n + NODES: row for row, begin, end in zip(*(t.tolist() for t in found.folds.tensors), strict=True)
               for n in range(begin, end)}  # fmt: skip
    assert sorted(order) == list(range(edges)) and not found.block.any()
    walked, owners = [], {}
    for block in range(len(groups) - 1):
        here = kinds[groups[block] : groups[block + 1]]
        assert here == sorted(set(here))
        for group in range(groups[block], groups[block + 1]):
            members = range(pairs[group], pairs[group + 1])
            assert len({targets[p] for p in members}) == len(members) > 0
            for p in members:
                assert owners.setdefault(targets[p], block) == block
                here = order[first[p] : first[p + 1]]
                assert here and here == sorted(here) and len(here) <= sizes.piece
                assert {int(types[e]) for e in here} == {kinds[group]}
                assert {int(dst[e]) for e in here} == {rows_of.get(targets[p], targets[p])} == {int(found.pair_row[p])}
                walked += here
    assert walked == order
    counts = torch.bincount(dst, minlength=NODES)
    assert sorted(set(rows_of.values())) == (counts > sizes.piece).nonzero().squeeze(1).tolist()
    assert len(rows_of) == int((-(-counts[counts > sizes.piece] // sizes.piece)).sum()) <= found.folds.slots


def test_tables_are_made_once_and_again_after_an_edit() -> None:
    types, num = TYPES["skewed"]
    types, dst, sizes = types.clone(), Index(ends(90), NODES), PairSizes(32, 8)
    pairs = typed_pairs(Index(types, num), dst, sizes)
    assert typed_pairs(Index(types, num), dst, sizes) is pairs
    types[0] = (types[0] + 1) % num
    assert typed_pairs(Index(types, num), dst, sizes) is not pairs


def test_the_golden_text_of_a_small_kernel(golden: Callable[[str, str], None]) -> None:
    golden("triton_typed_fold.txt", print_fold(FoldProgram(1023, DType.f32)))
