"""Products of tall matrices: generated kernels against PyTorch, the same bits for any number of threads."""

from __future__ import annotations

import pytest
import torch
from support import by_default
from torch import Tensor

from graphweave.compiler import products
from graphweave.compiler.products import TALL, WIDE, Product
from graphweave.core.types import DType

DTYPES = {DType.f32: torch.float32, DType.f64: torch.float64}


def draw(rows: int, width: int, dtype: DType) -> Tensor:
    generator = torch.Generator().manual_seed(rows + width)
    return torch.randn(rows, width, generator=generator, dtype=torch.float64).to(DTYPES[dtype])


def close(got: Tensor, want: Tensor, terms: int) -> None:
    scale = float(want.abs().max())
    rounding = {torch.float32: 2**-22, torch.float64: 2**-50}[got.dtype]
    torch.testing.assert_close(got.double(), want, rtol=0, atol=rounding * scale * max(1.0, terms**0.5))


WIDTHS = [(64, 64), (1, 1), (31, 33), (3, 64), (64, 3), (100, 17), (256, 64)]
KINDS = [(k, j, dtype) for dtype in DTYPES for k, j in WIDTHS]


@pytest.mark.parametrize(
    "kind", by_default(KINDS, *KINDS[:6], (31, 33, DType.f64)), ids=lambda kind: "-".join(map(str, kind))
)
@pytest.mark.parametrize("rows", [TALL, TALL + 77])
def test_tall_products_are_right(kind: tuple[int, int, DType], rows: int) -> None:
    k, j, dtype = kind
    x, y, w = draw(rows, k, dtype), draw(rows, j, dtype), draw(k, j, dtype)
    close(Product("matmul", k, j, dtype)(x, w), x.double() @ w.double(), k)
    close(Product("gram", k, j, dtype)(x, y), x.double().T @ y.double(), rows)
    want = y.double() + x.double() @ w.double()
    into = y.clone()
    got = Product("addmatmul", k, j, dtype).add(into, x, w)
    assert got.data_ptr() == into.data_ptr()
    close(got, want, k)


@pytest.mark.parametrize("kind", ["matmul", "gram"])
def test_the_number_of_threads_changes_no_bit(kind: str) -> None:
    x = draw(TALL + 5, 48, DType.f32)
    other = draw(48, 24, DType.f32) if kind == "matmul" else draw(TALL + 5, 24, DType.f32)
    threads = torch.get_num_threads()
    results = []
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            results.append(Product(kind, 48, 24, DType.f32)(x, other).clone())  # type: ignore[arg-type]
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*results)


def test_columns_in_another_order_and_rows_of_a_view_are_read_as_they_are() -> None:
    x = draw(2 * TALL, 64, DType.f32)[::2]
    w = draw(64, 64, DType.f32).T
    close(Product("matmul", 64, 64, DType.f32)(x, w), x.double() @ w.double(), 64)


@pytest.mark.parametrize(("rows", "k"), [(TALL - 1, 8), (TALL, WIDE + 1), (0, 8), (1, 8)])
def test_other_matrices_are_left_to_the_library(rows: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_kernel(*_: object) -> None:
        raise AssertionError("expected the vendor's product")

    monkeypatch.setattr(products, "load", no_kernel)
    x, w = draw(rows, k, DType.f32), draw(k, 5, DType.f32)
    close(Product("matmul", k, 5, DType.f32)(x, w), x.double() @ w.double(), k) if rows else None
    assert Product("gram", k, k, DType.f32)(x, x).shape == (k, k)
