"""Remembered graph-only results: recomputed exactly when an input or a result was edited."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from graphweave.core.counters import counters, reset_counters
from graphweave.core.settings import override
from graphweave.runtime.memo import Memo


@pytest.fixture
def memo() -> Iterator[Memo]:
    reset_counters()
    yield Memo()


def degrees(index: Tensor, rows: int) -> tuple[Tensor, int]:
    return torch.zeros(rows).scatter_add_(0, index, torch.ones(index.numel())), index.numel()


def with_loops(edge_index: Tensor, rows: int) -> tuple[Tensor]:
    return (torch.cat([edge_index, torch.arange(rows).expand(2, rows)], 1),)


def tensor(x: Tensor | int) -> Tensor:
    assert isinstance(x, Tensor)
    return x


def same(a: Tensor | int, b: Tensor | int) -> bool:
    """Whether two results share the same memory."""
    return isinstance(a, Tensor) and isinstance(b, Tensor) and a.data_ptr() == b.data_ptr()


def made() -> tuple[int, int]:
    return counters()["hoist_builds"], counters()["hoist_hits"]


def test_computed_once_per_graph(memo: Memo) -> None:
    edge_index = torch.tensor([[0, 1, 1], [2, 2, 0]])
    first = memo(degrees, edge_index[1], 3)
    assert tensor(first[0]).tolist() == [1, 0, 2]
    assert first[1] == 3
    again = memo(degrees, edge_index[1], 3)
    assert same(again[0], first[0])
    assert made() == (1, 1)
    memo(degrees, edge_index[0], 3)
    memo(degrees, edge_index[1], 4)
    memo(with_loops, edge_index, 3)
    assert made() == (4, 1)


def test_no_edges_and_no_inputs(memo: Memo) -> None:
    empty = torch.zeros(2, 0, dtype=torch.int64)
    assert tensor(memo(with_loops, empty, 2)[0]).tolist() == [[0, 1], [0, 1]]
    assert tensor(memo(with_loops, empty, 0)[0]).shape == (2, 0)
    assert memo(lambda: (7,)) == (7,)


def test_an_edited_input_is_computed_again(memo: Memo) -> None:
    edge_index = torch.tensor([[0, 1, 1], [2, 2, 0]])
    memo(degrees, edge_index[1], 3)
    edge_index[1, 0] = 0
    assert tensor(memo(degrees, edge_index[1], 3)[0]).tolist() == [2, 0, 1]
    assert made() == (2, 0)


def test_an_edited_result_is_computed_again(memo: Memo) -> None:
    index = torch.tensor([2, 2, 0])
    first, _ = memo(degrees, index, 3)
    assert isinstance(first, Tensor)
    first[1:].mul_(10)
    again, _ = memo(degrees, index, 3)
    assert isinstance(again, Tensor)
    assert again.tolist() == [1, 0, 2]
    assert same(memo(degrees, index, 3)[0], again)


def test_what_is_done_to_a_result_object_stays_with_it(memo: Memo) -> None:
    index = torch.tensor([2, 2, 0])
    first, _ = memo(degrees, index, 3)
    assert isinstance(first, Tensor)
    first.requires_grad_()
    first.data = torch.full((3,), -5.0)
    again = memo(degrees, index, 3)[0]
    assert isinstance(again, Tensor)
    assert again.tolist() == [1, 0, 2]
    assert not again.requires_grad
    assert made() == (1, 1)


def test_integers_are_told_from_booleans(memo: Memo) -> None:
    def kind(flag: int) -> tuple[int]:
        return (1 if flag is True else 2,)

    assert memo(kind, True) == (1,)
    assert memo(kind, 1) == (2,)


def test_inference_mode(memo: Memo) -> None:
    index = torch.tensor([2, 2, 0])
    with torch.inference_mode():
        first = memo(degrees, index, 3)[0]
        assert same(memo(degrees, index, 3)[0], first)
        born_there = torch.tensor([1, 1])
        memo(degrees, born_there, 3)
        born_there[0] = 0
        assert tensor(memo(degrees, born_there, 3)[0]).tolist() == [1, 1, 0]
    assert isinstance(first, Tensor)
    assert not first.is_inference()  # so it can be saved for a backward later
    assert (first * torch.ones(3, requires_grad=True)).sum().requires_grad
    assert memo.stats()["entries"] == 1


def test_inputs_that_require_a_gradient_keep_their_graph(memo: Memo) -> None:
    weight = torch.ones(2, requires_grad=True)
    for _ in range(2):
        (doubled,) = memo(lambda w: (w * 2,), weight)
        assert tensor(doubled).requires_grad
    assert memo.stats()["entries"] == 0


def test_bounded_in_bytes(memo: Memo) -> None:
    tensors = [torch.randint(0, 9, (1000,)) for _ in range(5)]
    one = 1000 * 8 + 9 * 4
    with override(format_bytes=2 * one):
        for index in tensors:
            memo(degrees, index, 9)
        assert memo.stats() == {"entries": 2, "bytes": 2 * one}
        memo(degrees, tensors[4], 9)
        assert made() == (5, 1)
        memo(degrees, tensors[0], 9)
        assert made() == (6, 1)
    memo.clear()
    assert memo.stats() == {"entries": 0, "bytes": 0}


def test_a_function_that_raises_is_not_remembered(memo: Memo) -> None:
    index = torch.tensor([3])
    for _ in range(2):
        with pytest.raises(RuntimeError):
            memo(degrees, index, 3)
    assert memo.stats()["entries"] == 0
