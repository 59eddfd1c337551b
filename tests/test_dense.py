"""Products of tall matrices: generated kernels against PyTorch, the same bits for any number of threads."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from support import by_default
from torch import Tensor

from graphweave.codegen.cpp.dense import Kind, print_product, product_name
from graphweave.compiler import products
from graphweave.compiler.products import TALL, WIDE, Product
from graphweave.core.types import DType
from tests.sanitizer_support import ENVIRONMENT, build_sanitized

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


_MAIN = """
#include <cstdio>
int main() {
  const int64_t rows = 203, chunks[] = {0, 70, 70, 203};
  float* x = new float[rows * K];
  float* y = new float[Y];
  float* out = new float[OUT];
  for (int64_t i = 0; i < rows * K; ++i) x[i] = i % 7 - 3;
  for (int64_t i = 0; i < Y; ++i) y[i] = i % 5 - 2;
  for (int64_t i = 0; i < OUT; ++i) out[i] = 0;
  void* ptrs[] = {x, y, out};
  if (NAME(ptrs, nullptr, chunks, 3, 2)) return 1;
  double sum = 0;
  for (int64_t i = 0; i < OUT; ++i) sum += out[i] * (i % 3 - 1);
  std::printf("%.0f", sum);
  delete[] x; delete[] y; delete[] out;
}
"""


@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("kind", "k", "j", "native"),
    [
        ("matmul", 31, 33, True),
        ("matmul", 31, 33, False),
        ("addmatmul", 64, 17, True),
        pytest.param("addmatmul", 64, 17, False, marks=pytest.mark.slow),
        ("gram", 31, 33, True),
        pytest.param("gram", 31, 33, False, marks=pytest.mark.slow),
    ],
)
def test_sanitized(kind: Kind, k: int, j: int, native: bool, tmp_path: Path) -> None:
    rows = 203
    count = {"K": k, "Y": rows * j if kind == "gram" else k * j, "OUT": k * j if kind == "gram" else rows * j}
    text = _MAIN.replace("NAME", product_name(kind, k, j, DType.f32))
    for name, value in count.items():
        text = (
            text.replace(f"{name}]", f"{value}]")
            .replace(f"< {name};", f"< {value};")
            .replace(f"* {name}", f"* {value}")
        )
    source = tmp_path / "product.cpp"
    source.write_text(print_product(kind, k, j, DType.f32) + text)
    program = build_sanitized(source, *["-march=native"] * native)
    done = subprocess.run([str(program)], capture_output=True, env=ENVIRONMENT, check=False, text=True)
    assert done.returncode == 0, done.stderr
    x = (torch.arange(rows * k, dtype=torch.float64) % 7 - 3).reshape(rows, k)
    y = torch.arange(count["Y"], dtype=torch.float64) % 5 - 2
    out = x.T @ y.reshape(rows, j) if kind == "gram" else x @ y.reshape(k, j)
    signs = torch.arange(out.numel(), dtype=torch.float64) % 3 - 1
    assert float(done.stdout) == float((out.flatten() * signs).sum())
