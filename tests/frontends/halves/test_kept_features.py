"""Rows made from features are used again only if no number of the features has changed, however it was edited."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import graphweave
from graphweave.core.settings import override
from graphweave.runtime.agreed import SteadyRows
from graphweave.runtime.kept_rows import KeptRows
from graphweave.runtime.unseen_edits import whole_checksum
from tests.support import features, random_graph

NODES, WIDTH = 4096, 64
"""A sample of features of this size, 2 MiB in float64, would be one of their 16 parts."""


def gathered(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, dst, x[src] * 2)


def _through_numpy(x: Tensor, row: int) -> None:
    x.numpy()[row] += 1


def _through_data(x: Tensor, row: int) -> None:
    x.data[row] += 1


def _through_a_pointer(x: Tensor, row: int) -> None:
    one = np.full(1, 7.0 + row)
    ctypes.memmove(x[row].data_ptr(), one.ctypes.data, one.nbytes)


DOORS = [
    pytest.param(lambda f: graphweave.compile(f, options={"relabel": "degree"}), id="own"),
    pytest.param(
        lambda f: torch.compile(f, backend="graphweave", dynamic=True, options={"relabel": "degree"}), id="plain"
    ),
]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("trusting", [False, True])
def test_each_edit_of_one_row_is_noticed_by_the_next_call(
    fresh_compiler: None, door: Callable[[Callable], Callable], trusting: bool
) -> None:
    """The option that turns the checksums of index tensors off says nothing about features."""
    compiled = door(gathered)
    x, edges = features(NODES, WIDTH, torch.float64), random_graph(NODES, NODES, 3 * NODES)
    with override(unseen_edits=not trusting):
        for _ in range(3):
            compiled(x, *edges)
        before = graphweave.counters()["reorderings"]
        torch.testing.assert_close(compiled(x, *edges), gathered(x, *edges))
        assert graphweave.counters()["reorderings"] == before, "the features are kept"
        for i in range(12):
            edit = (_through_numpy, _through_data, _through_a_pointer)[i % 3]
            edit(x, 331 * i)
            torch.testing.assert_close(compiled(x, *edges), gathered(x, *edges))


def test_rows_of_other_ranks_are_exchanged_again_after_each_edit() -> None:
    """What ranks keep of features that stay the same, with an exchange that doubles them in place of other ranks."""
    kept, exchanges = SteadyRows(), []

    def exchange(x: Tensor) -> Tensor:
        exchanges.append(x.clone())
        return torch.cat([x, 2 * x])

    x = features(NODES, WIDTH)
    for i in range(15):
        if i > 3:
            _through_numpy(x, 17 * i)
        torch.testing.assert_close(kept(x, lambda good: good, exchange), torch.cat([x, 2 * x]))
    assert len(exchanges) == 2 + 11


def test_ranks_that_do_not_agree_all_exchange() -> None:
    kept, x, made = SteadyRows(), features(8, 3), []
    for _ in range(4):
        kept(x, lambda good: False, lambda rows: made.append(rows) or rows.clone())  # type: ignore[func-returns-value]
    assert len(made) == 4


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t,
        lambda t: t[:, :33],
        lambda t: t[::2],
        lambda t: t.t(),
        lambda t: t.float()[:, ::2],
        lambda t: t.half(),
        lambda t: t[:1],
    ],
)
def test_the_checksum_reads_every_number(view: Callable[[Tensor], Tensor]) -> None:
    x = view(features(300, 70, torch.float64))
    before = whole_checksum(x)
    assert before is not None and before == whole_checksum(x)
    generator = torch.Generator().manual_seed(3)
    flat = [torch.randint(n, (40,), generator=generator).tolist() for n in x.shape]
    for row, column in zip(*flat, strict=True):
        was = float(x[row, column])
        x.data[row, column] = was + 1
        assert whole_checksum(x) != before
        x.data[row, column] = was
        assert whole_checksum(x) == before


def test_what_cannot_be_read_whole_is_not_kept() -> None:
    """Memory that is no rectangle, elements of 16 bytes, and memory that PyTorch does not give out."""
    kept = KeptRows()
    for x in (features(40, 60).view(4, 10, 60)[:, ::3, ::3], torch.randn(8, 3, dtype=torch.complex128)[:, ::2]):
        for _ in range(3):
            assert kept.find(x) is None
            kept.make(torch.clone, x)
    assert whole_checksum(torch.empty(3, 4, device="meta")) is None


def test_kept_rows_share_the_bound_in_bytes() -> None:
    kept, x = KeptRows(), features(100, 10)
    with override(format_bytes=100):
        for _ in range(3):
            kept.make(torch.clone, x)
        assert kept.find(x) is None
