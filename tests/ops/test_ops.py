"""Products with a matrix for each type: `gather_mm`, `segment_mm` and `TypedLinear`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave as gw
from graphweave import nn as gnn
from graphweave import ops
from graphweave.core.errors import DataError, IndexRangeError
from tests.relational_cases import relation_weights
from tests.support import assert_matches, features

R, K, J, B = 5, 6, 3, 2

TYPES: dict[str, list[int]] = {
    "mixed": [3, 0, 4, 4, 1, 2, 0, 0, 3],
    "sorted": [0, 0, 1, 3, 3, 3],
    "empty_types": [4, 1, 4, 4, 1],
    "one_each": [2, 4, 0, 1, 3],
    "nearly_all": [2] * 12 + [0] + [2] * 3,
    "one_row": [4],
    "no_rows": [],
}


def looped(a: Tensor, b: Tensor, types: list[int]) -> Tensor:
    rows = [torch.einsum("...k,...kj->...j", row, b[t]) for row, t in zip(a, types, strict=True)]
    # gradients of 0 where there are no rows
    return torch.stack(rows) if rows else (a.sum() + b.sum() * 0) * a.new_zeros(0, *b.shape[1:-2], b.shape[-1])


def operands(count: int, blocks: bool) -> tuple[Tensor, Tensor]:
    more = (B,) if blocks else ()
    generator = torch.Generator().manual_seed(3)
    return (
        torch.randn(count, *more, K, generator=generator, dtype=torch.float64),
        torch.randn(R, *more, K, J, generator=generator, dtype=torch.float64),
    )


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("name", TYPES)
def test_products_by_type(name: str, dtype: torch.dtype, blocks: bool) -> None:
    types = TYPES[name]
    index = torch.tensor(types, dtype=dtype)
    assert_matches(
        lambda a, b: ops.gather_mm(a, b, idx_b=index), lambda a, b: looped(a, b, types), *operands(len(types), blocks)
    )
    lengths = torch.bincount(index, minlength=R).to(dtype)
    assert_matches(
        lambda a, b: ops.segment_mm(a, b, lengths), lambda a, b: looped(a, b, sorted(types)),
        *operands(len(types), blocks),
    )  # fmt: skip


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("blocks", [pytest.param(False, marks=pytest.mark.slow), True])
def test_products_by_type_compiled(blocks: bool) -> None:
    gather = gw.compile(lambda a, b, index: ops.gather_mm(a, b, idx_b=index))
    segment = gw.compile(ops.segment_mm)
    for name, types in TYPES.items():
        index, (a, b) = torch.tensor(types, dtype=torch.int64), operands(len(types), blocks)
        lengths, in_order = torch.bincount(index, minlength=R), sorted(types)
        assert_matches(lambda a, b, i=index: gather(a, b, i), lambda a, b, t=types: looped(a, b, t), a, b, label=name)
        assert_matches(
            lambda a, b, s=lengths: segment(a, b, s), lambda a, b, t=in_order: looped(a, b, t), a, b, label=name
        )
    assert gw.counters()["graph_breaks"] == 0


def test_gradients_of_gradients() -> None:
    index = torch.tensor(TYPES["empty_types"])
    a, b = (x.requires_grad_() for x in operands(len(index), False))
    assert torch.autograd.gradgradcheck(lambda a, b: ops.gather_mm(a, b, idx_b=index), (a, b))


def test_weights_are_not_copied_a_row() -> None:
    """A copy of the weights for each row would be 4,000 matrices of 64 x 64: 64 MB."""
    a, b = features(4000, 64).requires_grad_(), features(3 * 64, 64).view(3, 64, 64).requires_grad_()
    saved: list[int] = []

    def pack(x: Tensor) -> Tensor:
        saved.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        ops.gather_mm(a, b, idx_b=torch.arange(4000) % 3).sum().backward()
    assert max(saved) <= a.numel()


A, WEIGHTS, INDEX = torch.zeros(4, K), torch.zeros(R, K, J), torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (
            lambda: ops.gather_mm(A, WEIGHTS, idx_b=INDEX + R),
            IndexRangeError,
            "index 5 at position 0 is out of range",
        ),
        (lambda: ops.gather_mm(A, WEIGHTS, idx_b=INDEX - 1), IndexRangeError, "index -1 at position 0"),
        (lambda: ops.gather_mm(A, WEIGHTS, idx_b=INDEX[:3]), DataError, "3 types, but a has 4 rows"),
        (lambda: ops.gather_mm(A, WEIGHTS, idx_b=INDEX.float()), DataError, "idx_b must be integers"),
        (lambda: ops.gather_mm(A[:, 1:], WEIGHTS, idx_b=INDEX), DataError, r"got shapes \(4, 5\) and \(5, 6, 3\)"),
        (lambda: ops.gather_mm(A[:, None], WEIGHTS, idx_b=INDEX), DataError, "got shapes"),
        (lambda: ops.segment_mm(A, WEIGHTS, torch.tensor([1, 1, 1, 0, 0])), DataError, "add up to the 4 rows"),
        (lambda: ops.segment_mm(A, WEIGHTS, torch.tensor([5, -1, 0, 0, 0])), DataError, "non-negative"),
        (lambda: ops.segment_mm(A, WEIGHTS, torch.tensor([4])), DataError, r"seglen_a must be integers \[5\]"),
    ],
)
def test_wrong_arguments(call: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()


@pytest.mark.parametrize(("regularizer", "num_bases"), [(None, None), ("basis", 2), ("basis", None), ("bdd", 3)])
def test_typed_linear(regularizer: Any, num_bases: int | None) -> None:
    linear = gnn.TypedLinear(K, J, R, regularizer, num_bases).double()
    for types in TYPES.values():
        index, (a, _) = torch.tensor(types, dtype=torch.int64), operands(len(types), False)
        assert_matches(
            lambda x, i=index: linear(x, i),
            lambda x, t=types: looped(x, torch.stack(relation_weights(linear)), t),
            a, module=linear,
        )  # fmt: skip


def test_parameters_have_the_shapes_of_dgl() -> None:
    shapes = {name: tuple(p.shape) for name, p in gnn.TypedLinear(6, 4, 5).named_parameters()}
    assert shapes == {"W": (5, 6, 4)}
    shapes = {name: tuple(p.shape) for name, p in gnn.TypedLinear(6, 4, 5, "basis", 3).named_parameters()}
    assert shapes == {"W": (3, 6, 4), "coeff": (5, 3)}
    shapes = {name: tuple(p.shape) for name, p in gnn.TypedLinear(6, 4, 5, "bdd", 2).named_parameters()}
    assert shapes == {"W": (5, 2 * 3 * 2)}


@pytest.mark.parametrize(
    ("options", "says"), [(("blocks", 2), "regularizer must be one of"), (("bdd", 4), "multiples of num_bases")]
)
def test_wrong_options(options: tuple[Any, ...], says: str) -> None:
    with pytest.raises(DataError, match=says):
        gnn.TypedLinear(K, J, R, *options)
