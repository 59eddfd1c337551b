"""Products with a matrix for each type of row: kernels, copies for few rows and the library, against float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graphweave.codegen.cpp.typed import TypedKernel, print_typed
from graphweave.compiler import typed
from graphweave.compiler.typed import TypedGram, TypedProduct
from graphweave.core.errors import DataError, IndexRangeError
from graphweave.core.types import DType
from graphweave.runtime.index import Index
from tests.sanitizer_support import run_sanitized
from tests.support import by_default, threads

DTYPES = {torch.float32: DType.f32, torch.float64: DType.f64, torch.bfloat16: DType.bf16, torch.float16: DType.f16}
WIDTHS = [
    (1, 1),
    (1, 64),
    (64, 1),
    (2, 2),
    (3, 33),
    (31, 33),
    (33, 31),
    (64, 64),
    (100, 17),
    (16, 3),
    (5, 100),
    (33, 2),
]


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def rows_of_types() -> dict[str, tuple[Tensor, int]]:
    """Types of rows and the number of types."""
    generator = torch.Generator().manual_seed(5)
    mixed = torch.randint(7, (1203,), generator=generator)
    skewed = torch.where(
        torch.rand(3001, generator=generator) < 0.98, 3, torch.randint(9, (3001,), generator=generator)
    )
    return {
        "no_rows": (torch.zeros(0, dtype=torch.int64), 4),
        "one_row": (torch.tensor([2]), 4),
        "one_type": (torch.zeros(300, dtype=torch.int64), 1),
        "mixed": (mixed, 7),
        "sorted": (mixed.sort().values, 7),
        "empty_types": (mixed * 3 + 2, 25),
        "skewed": (skewed, 9),
        "many_types": (torch.randint(1345, (4000,), generator=generator), 1345),
    }


TYPES = rows_of_types()


@pytest.fixture(autouse=True)
def kernels_for_few_rows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed, "FEW", -1)


def want_product(x: Tensor, w: Tensor, types: Tensor) -> Tensor:
    """x [S, B, K], w [R, B, K, J]."""
    return torch.einsum("sbk,sbkj->sbj", x.double(), w.double()[types])


def want_gram(x: Tensor, y: Tensor, types: Tensor, num_types: int) -> Tensor:
    outer = x.double().unsqueeze(3) * y.double().unsqueeze(2)
    return torch.zeros(num_types, *outer.shape[1:], dtype=torch.float64).index_add(0, types, outer)


def close(got: Tensor, want: Tensor, terms: int) -> None:
    """Sums of `terms` rounded products of size about 1."""
    assert got.shape == want.shape
    rounding = {torch.float32: 2**-22, torch.float64: 2**-50, torch.bfloat16: 2**-7, torch.float16: 2**-10}[got.dtype]
    scale = float(want.abs().max()) if want.numel() else 1.0
    torch.testing.assert_close(got.double(), want, rtol=0, atol=rounding * max(scale, 1.0) * max(1.0, terms**0.5))


def check(name: str, blocks: int, k: int, j: int, dtype: torch.dtype, *, gathers: bool, transposed: bool) -> None:
    types, num = TYPES[name]
    rows, kind = types.numel(), DTYPES[dtype]
    w, y = draw(num, blocks, k, j, dtype=dtype), draw(rows, blocks, j, dtype=dtype)
    given = w.mT.contiguous() if transposed else w
    if gathers:
        held, at = draw(50, blocks, k, dtype=dtype), torch.arange(rows) * 7 % 50
        gather, x = Index(at, 50), held[at]
    else:
        held = x = draw(rows, blocks, k, dtype=dtype)
        gather = None
    close(
        TypedProduct(blocks, k, j, kind, transposed)(held, given, Index(types, num), gather),
        want_product(x, w, types),
        k,
    )
    gram = TypedGram(blocks, k, j, kind)
    want = want_gram(x, y, types, num)
    close(gram(held, y, Index(types, num), gather), want, rows)
    if gathers:
        swapped = TypedGram(blocks, j, k, kind)(y, held, Index(types, num), None, gather)
        close(swapped, want.mT, rows)


@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_rows_of_every_distribution(name: str, gathers: bool) -> None:
    check(name, 1, 31, 33, torch.float32, gathers=gathers, transposed=False)
    check(name, 1, 64, 1, torch.float32, gathers=gathers, transposed=gathers)
    check(name, 3, 4, 2, torch.float64, gathers=gathers, transposed=True)


@pytest.mark.parametrize("widths", by_default(WIDTHS, (1, 1), (31, 33), (64, 64), (5, 100), (33, 2)), ids=str)
def test_widths(widths: tuple[int, int]) -> None:
    k, j = widths
    check("mixed", 1, k, j, torch.float32, gathers=True, transposed=False)
    check("empty_types", 1, k, j, torch.float32, gathers=False, transposed=False)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("blocks", [1, 3, 4])
@pytest.mark.parametrize(("k", "j"), WIDTHS)
def test_widths_of_blocks(k: int, j: int, blocks: int, dtype: torch.dtype) -> None:
    check("mixed", blocks, k, j, dtype, gathers=True, transposed=blocks != 3)
    check("empty_types", blocks, k, j, dtype, gathers=False, transposed=blocks == 3)


TRANSPOSED = [(16, 24), (33, 17), (7, 9), (100, 2), (2, 100)]


@pytest.mark.parametrize("widths", by_default(TRANSPOSED, (33, 17), (100, 2)), ids=str)
def test_transposed_matrices(widths: tuple[int, int]) -> None:
    k, j = widths
    check("mixed", 3, k, j, torch.float64, gathers=False, transposed=True)


@pytest.mark.slow
@pytest.mark.parametrize("k", [256, 512])
def test_wide_matrices(k: int) -> None:
    check("mixed", 1, k, 200, torch.float32, gathers=True, transposed=k == 256)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TYPES)
def test_the_library_takes_what_has_no_kernel(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed, "WIDEST", 0)
    check(name, 1, 5, 6, dtype, gathers=True, transposed=False)
    check(name, 2, 5, 6, dtype, gathers=False, transposed=True)


@pytest.mark.parametrize("name", TYPES)
def test_few_rows_take_copies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_kernel(*_: object) -> None:
        raise AssertionError("expected copies of the matrices")

    monkeypatch.setattr(typed, "FEW", 10_000)
    monkeypatch.setattr(typed, "load", no_kernel)
    check(name, 1, 5, 6, torch.float32, gathers=True, transposed=False)
    check(name, 2, 5, 6, torch.float64, gathers=False, transposed=True)


@pytest.mark.parametrize("few", [-1, 10_000])
@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
def test_integers_of_both_widths_wrap_where_they_may(
    integers: torch.dtype, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typed, "FEW", few)
    types, num = TYPES["mixed"]
    x, w, y = draw(40, 1, 8), draw(num, 1, 8, 5), draw(types.numel(), 1, 5)
    at = torch.arange(types.numel()) % 40
    negative = torch.where(at % 3 == 0, at - 40, at).to(integers)
    kinds = Index(torch.where(types % 2 == 0, types - num, types).to(integers), num, wrap=True)
    gather = Index(negative, 40, wrap=True)
    close(TypedProduct(1, 8, 5, DType.f64)(x, w, kinds, gather), want_product(x[at], w, types), 8)
    close(TypedGram(1, 8, 5, DType.f64)(x, y, kinds, gather), want_gram(x[at], y, types, num), types.numel())


def test_indices_of_64_bits() -> None:
    """Which no graph that fits into a test needs."""
    kernel = TypedKernel("matmul", 1, 4, 3, DType.f64, wide=True)
    assert "<double, int64_t, 1, 4, 3, false>" in print_typed(kernel)
    assert kernel.name != TypedKernel("matmul", 1, 4, 3, DType.f64).name
    types, num = TYPES["mixed"]
    grouped = typed._Grouped(Index(types, num))
    grouped.wide, grouped.csr = True, typed.formats.csr(types, num, wide=True)
    grouped.perm = typed.formats.perm(types, num, wide=True)
    x, w, out = draw(types.numel(), 1, 4), draw(num, 1, 4, 3), torch.empty(types.numel(), 1, 3, dtype=torch.float64)
    chunks = typed.uniform_chunks(types.numel(), 7)
    typed._run(kernel, (x, w, out), grouped, (grouped.perm, grouped.perm), chunks)
    close(out, want_product(x, w, types), 4)


@pytest.mark.parametrize("few", [-1, 10_000])
@pytest.mark.parametrize("bad", [7, -1])
def test_an_index_out_of_range_is_refused(bad: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed, "FEW", few)
    types, num = TYPES["mixed"]
    wrong = types.clone()
    wrong[100] = bad
    x, w, y = draw(types.numel(), 1, 8), draw(num, 1, 8, 5), draw(types.numel(), 1, 5)
    product, gram = TypedProduct(1, 8, 5, DType.f64), TypedGram(1, 8, 5, DType.f64)
    calls = [
        lambda: product(x, w, Index(wrong, num)),
        lambda: product(x[:7], w, Index(types, num), Index(wrong, 7)),
        lambda: gram(x, y, Index(wrong, num)),
        lambda: gram(x[:7], y, Index(types, num), Index(wrong, 7)),
        lambda: gram(x, y[:7], Index(types, num), None, Index(wrong, 7)),
    ]
    for call in calls:
        with pytest.raises(IndexRangeError, match="out of range"):
            call()


def test_rows_without_a_type_are_refused() -> None:
    types, num = TYPES["mixed"]
    product = TypedProduct(1, 8, 5, DType.f64)
    with pytest.raises(DataError, match="a type for each row"):
        product(draw(types.numel() - 1, 8), draw(num, 8, 5), Index(types, num))
    with pytest.raises(DataError, match="said to be 9"):
        product(draw(8, 8), draw(num, 8, 5), Index(types, num), Index(types, 9))


def test_strides_and_shapes_of_the_callers_tensors() -> None:
    types, num = TYPES["mixed"]
    x, w = draw(8, 2 * types.numel()).T[::2], draw(num, 5, 8).mT
    got = TypedProduct(1, 8, 5, DType.f64)(x, w, Index(types, num))
    close(got, want_product(x.unsqueeze(1), w.unsqueeze(1), types).squeeze(1), 8)
    y = draw(5, types.numel()).T
    got = TypedGram(1, 8, 5, DType.f64)(x, y, Index(types[::1], num))
    close(got, want_gram(x.unsqueeze(1), y.unsqueeze(1), types, num).squeeze(1), types.numel())


@pytest.mark.parametrize(("blocks", "k", "j"), [(1, 8, 64), (8, 4, 8), (5, 3, 7)])
def test_results_that_go_past_the_cache(blocks: int, k: int, j: int) -> None:
    types = torch.arange(130_003) * 7 % 11
    x, w = draw(20, blocks, k, dtype=torch.float32), draw(11, blocks, k, j, dtype=torch.float32)
    at = torch.arange(types.numel()) % 20
    got = TypedProduct(blocks, k, j, DType.f32)(x, w, Index(types, 11), Index(at, 20))
    assert got.numel() * 4 >= 16 << 20
    each = want_product(x[at[:220]], w, types[:220])  # repeats after 20 x 11 rows
    close(got, each.repeat(-(-types.numel() // 220), 1, 1)[: types.numel()], k)


@pytest.mark.parametrize("name", ["mixed", "skewed", "many_types"])
@pytest.mark.parametrize(("k", "j"), [(64, 33), (64, 1), (9, 2)])
def test_the_number_of_threads_changes_no_bit(name: str, k: int, j: int) -> None:
    types, num = TYPES[name]
    types = types.repeat(8)
    x, w, y = (draw(*s, dtype=torch.float32) for s in ((types.numel(), k), (num, k, j), (types.numel(), j)))
    results = []
    for n in (1, 2):
        with threads(n):
            product = TypedProduct(1, k, j, DType.f32)(x, w, Index(types, num))
            results.append((product, TypedGram(1, k, j, DType.f32)(x, y, Index(types, num))))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def test_what_is_not_finite_stays_with_its_row() -> None:
    types, num = TYPES["mixed"]
    for j in (1, 5):
        x, w = draw(types.numel(), 33, dtype=torch.float32), draw(num, 33, j, dtype=torch.float32)
        x[11], w[4] = float("inf"), float("nan")
        got = TypedProduct(1, 33, j, DType.f32)(x, w, Index(types, num))
        assert torch.equal(got.isfinite().all(1), (types != 4) & (torch.arange(types.numel()) != 11))


_SANITIZED = """
import torch
from graphweave.compiler import typed
from tests import test_typed_kernels as tests
typed.FEW = -1
for name in ("no_rows", "one_row", "mixed", "sorted", "empty_types"):
    tests.check(name, {})
"""
CHECKED = {
    "tiles": "1, 31, 33, torch.float32, gathers=False, transposed=True",
    "blocks": "2, 7, 3, torch.float32, gathers=True, transposed=False",
}


@pytest.mark.slow  # tests/test_typed_scatter.py has one by default
@pytest.mark.sanitize
@pytest.mark.parametrize("kernels", CHECKED)
def test_kernels_are_clean_under_sanitizers(kernels: str) -> None:
    run_sanitized(_SANITIZED.format(CHECKED[kernels]))
