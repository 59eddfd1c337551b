"""Products with a matrix for each type of row: kernels, and the library's product for each type, against float64."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from torch import Tensor

from graphweave.core.counters import counters
from graphweave.core.errors import DataError, IndexRangeError
from graphweave.core.types import DType
from graphweave.execute import region_step, typed_products
from graphweave.execute.executable import Executable
from graphweave.execute.typed_products import TypedGram, TypedProduct
from graphweave.ir.loop.nodes import TileGram, TileMatMul
from graphweave.ir.loop.walk import statements
from graphweave.ir.message.nodes import MatMul
from graphweave.lower.schedule import Region
from graphweave.runtime.index import Index
from tests.program_support import compiled, in_order
from tests.sanitizer_support import run_sanitized
from tests.support import by_default, threads
from tests.typed_programs import GRAM, PRODUCT, typed_program

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


@lru_cache(maxsize=64)
def made(blocks: int, k: int, j: int, dtype: DType, options: frozenset[tuple[str, object]]) -> Executable:
    """A compiled program of `typed_program`, in which kernels compute everything."""
    executable = compiled(typed_program(blocks, k, j, dtype, **dict(options)))  # type: ignore[arg-type]
    assert all(isinstance(step, Region) for step in executable.plan.schedule.steps)
    return executable


def run(blocks: int, k: int, j: int, given: dict[str, Tensor], **options: object) -> list[Tensor]:
    """The program's results for x, w, t, y and src."""
    dtype = next(DTYPES[t.dtype] for t in given.values() if t.dtype in DTYPES)
    executable = made(blocks, k, j, dtype, frozenset(options.items()))
    return executable(in_order(executable.plan.program, given))


def check(name: str, blocks: int, k: int, j: int, dtype: torch.dtype, *, gathers: bool, transposed: bool) -> None:
    """Checks the product and the gram in one kernel, and a gram with exchanged operands in a kernel of its own."""
    types, num = TYPES[name]
    rows, b = types.numel(), (blocks,) if blocks > 1 else ()
    w, y = draw(num, blocks, k, j, dtype=dtype), draw(rows, blocks, j, dtype=dtype)
    at = torch.arange(rows) * 7 % 50
    held = draw(50 if gathers else rows, blocks, k, dtype=dtype)
    x = held[at] if gathers else held
    matrices = (w.mT if transposed else w).contiguous()
    given = {"x": held.view(-1, *b, k), "t": types, "y": y.view(rows, *b, j), "src": at}
    given["w"] = matrices.view(num, *b, *matrices.shape[2:])
    product, gram = run(blocks, k, j, given, gathers=gathers, transposed=transposed)
    close(product.view(rows, blocks, j), want_product(x, w, types), k)
    want = want_gram(x, y, types, num)
    close(gram.view(num, blocks, k, j), want, rows)
    if gathers:
        (exchanged,) = run(blocks, k, j, given, gathers=True, results=(GRAM,), swapped=True)
        close(exchanged.view(num, blocks, j, k), want.mT, rows)


def check_library(
    name: str, blocks: int, k: int, j: int, dtype: torch.dtype, *, gathers: bool, transposed: bool
) -> None:
    types, num = TYPES[name]
    rows, kind = types.numel(), DTYPES[dtype]
    w, y = draw(num, blocks, k, j, dtype=dtype), draw(rows, blocks, j, dtype=dtype)
    given = w.mT.contiguous() if transposed else w
    held, gather = draw(50 if gathers else rows, blocks, k, dtype=dtype), None
    x = held
    if gathers:
        at = torch.arange(rows) * 7 % 50
        gather, x = Index(at, 50), held[at]
    product = TypedProduct(blocks, k, j, kind, transposed)(held, given, Index(types, num), gather)
    close(product, want_product(x, w, types), k)
    want = want_gram(x, y, types, num)
    close(TypedGram(blocks, k, j, kind)(held, y, Index(types, num), gather), want, rows)
    if gathers:
        swapped = TypedGram(blocks, j, k, kind)(y, held, Index(types, num), None, gather)
        close(swapped, want.mT, rows)


def test_a_product_and_its_gram_are_one_kernel_that_reads_rows_where_they_lie() -> None:
    executable = made(1, 6, 5, DType.f32, frozenset({"gathers": True, "transposed": True}.items()))
    (kernel,) = (k.plan.lowered.kernel for k in executable.kernels.values())
    products = [s for s in statements(kernel.body) if isinstance(s, TileMatMul | TileGram)]
    assert len(products) == 2 and len(list(statements(kernel.body))) <= 8  # the rest stores the gram and copies nothing


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
def test_the_library_takes_what_has_no_kernel(name: str, dtype: torch.dtype) -> None:
    check_library(name, 1, 5, 6, dtype, gathers=True, transposed=False)
    check_library(name, 2, 5, 6, dtype, gathers=False, transposed=True)


def test_integers_on_a_gpu_are_multiplied_number_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch has no products of integer matrices on a GPU."""
    monkeypatch.setattr(typed_products, "_has_no_library", lambda x: True)
    types, num = TYPES["empty_types"]
    rows, dtype = types.numel(), torch.int64
    x, w, y = ((draw(*shape) * 9).to(dtype) for shape in ((50, 2, 3), (num, 2, 3, 4), (rows, 2, 4)))
    at, kinds = torch.arange(rows) % 50, Index(types, num)
    for transposed in (False, True):
        product = TypedProduct(2, 3, 4, DType.i64, transposed)
        got = product(x, w.mT if transposed else w, kinds, Index(at, 50))
        assert got.dtype is dtype and torch.equal(got.double(), want_product(x[at], w, types))
    got = TypedGram(2, 3, 4, DType.i64)(x, y, kinds, Index(at, 50))
    assert got.dtype is dtype and torch.equal(got.double(), want_gram(x[at], y, types, num))


def test_how_many_rows_a_type_has_is_asked_once_for_a_graph() -> None:
    types, num = TYPES["mixed"][0].clone(), TYPES["mixed"][1]
    x, w, product = draw(types.numel(), 8), draw(num, 8, 5), TypedProduct(1, 8, 5, DType.f64)
    before = counters()["format_builds"]
    product(x, w, Index(types, num))
    once = counters()["format_builds"]
    product(x, w, Index(types, num))
    assert counters()["format_builds"] == once > before


@pytest.mark.parametrize("widths", [(513, 2, DType.f32), (513, 4, DType.bf16), (4, 513, DType.f64)], ids=str)
def test_wide_matrices_are_calls(widths: tuple[int, int, DType]) -> None:
    made = compiled(typed_program(1, *widths, results=(PRODUCT,)))
    steps = made.plan.schedule.steps
    assert not any(isinstance(s, Region) and isinstance(made.plan.program.nodes[s.members[0]], MatMul) for s in steps)


@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
def test_integers_of_both_widths_wrap_where_they_may(integers: torch.dtype) -> None:
    types, num = TYPES["mixed"]
    x, w, y = draw(40, 8), draw(num, 8, 5), draw(types.numel(), 5)
    at = torch.arange(types.numel()) % 40
    negative = torch.where(at % 3 == 0, at - 40, at).to(integers)
    kinds = torch.where(types % 2 == 0, types - num, types).to(integers)
    given = {"x": x, "w": w, "t": kinds, "y": y, "src": negative}
    product, gram = run(1, 8, 5, given, gathers=True, wraps=True)
    want = want_product(x[at].unsqueeze(1), w.unsqueeze(1), types).squeeze(1)
    close(product, want, 8)
    close(gram, want_gram(x[at].unsqueeze(1), y.unsqueeze(1), types, num).squeeze(1), types.numel())
    wrapped, others = Index(kinds, num, wrap=True), Index(negative, 40, wrap=True)
    close(TypedProduct(1, 8, 5, DType.f64)(x, w, wrapped, others), want, 8)


def test_indices_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No graph that fits into a test needs indices of 64 bits."""
    monkeypatch.setattr(region_step, "INT32_MAX", 100)
    types, num = TYPES["skewed"]
    x, w, y = draw(types.numel(), 4), draw(num, 4, 3), draw(types.numel(), 3)
    executable = compiled(typed_program(1, 4, 3, DType.f64))
    product, gram = executable(in_order(executable.plan.program, {"x": x, "w": w, "t": types, "y": y}))
    close(product, want_product(x.unsqueeze(1), w.unsqueeze(1), types).squeeze(1), 4)
    close(gram, want_gram(x.unsqueeze(1), y.unsqueeze(1), types, num).squeeze(1), types.numel())


@pytest.mark.parametrize("bad", [7, -1])
def test_an_index_out_of_range_is_refused(bad: int) -> None:
    types, num = TYPES["mixed"]
    wrong = types.clone()
    wrong[100] = bad
    x, w, y = draw(types.numel(), 1, 8), draw(num, 1, 8, 5), draw(types.numel(), 1, 5)
    product, gram = TypedProduct(1, 8, 5, DType.f64), TypedGram(1, 8, 5, DType.f64)
    given = {"x": x[:7].squeeze(1), "w": w.squeeze(1), "y": y.squeeze(1)}
    calls = [
        lambda: product(x, w, Index(wrong, num)),
        lambda: product(x[:7], w, Index(types, num), Index(wrong, 7)),
        lambda: gram(x, y, Index(wrong, num)),
        lambda: gram(x[:7], y, Index(types, num), Index(wrong, 7)),
        lambda: gram(x, y[:7], Index(types, num), None, Index(wrong, 7)),
        lambda: run(1, 8, 5, {**given, "t": wrong, "src": types}, gathers=True),
        lambda: run(1, 8, 5, {**given, "t": types, "src": wrong}, gathers=True),
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
    at, b = torch.arange(types.numel()) % 20, (blocks,) if blocks > 1 else ()
    y = torch.empty(types.numel(), *b, j)
    given = {"x": x.view(20, *b, k), "w": w.view(11, *b, k, j), "t": types, "src": at, "y": y}
    (got,) = run(blocks, k, j, given, gathers=True, results=(PRODUCT,))
    assert got.numel() * 4 >= 16 << 20
    each = want_product(x[at[:220]], w, types[:220])  # repeats after 20 x 11 rows
    close(got.view(-1, blocks, j), each.repeat(-(-types.numel() // 220), 1, 1)[: types.numel()], k)


@pytest.mark.parametrize("name", ["mixed", "skewed", "many_types"])
@pytest.mark.parametrize(("k", "j"), [(64, 33), (64, 1), (9, 2)])
def test_the_number_of_threads_changes_no_bit(name: str, k: int, j: int) -> None:
    """The rows of a type are divided where there are few types, and the bits stay the same."""
    types, num = TYPES[name]
    types = types.repeat(8)
    x, w, y = (draw(*s, dtype=torch.float32) for s in ((types.numel(), k), (num, k, j), (types.numel(), j)))
    results = []
    for n in (1, 2):
        with threads(n):
            results.append(run(1, k, j, {"x": x, "w": w, "t": types, "y": y}))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def test_what_is_not_finite_stays_with_its_row() -> None:
    types, num = TYPES["mixed"]
    for j in (1, 5):
        x, w = draw(types.numel(), 33, dtype=torch.float32), draw(num, 33, j, dtype=torch.float32)
        x[11], w[4] = float("inf"), float("nan")
        got, _ = run(1, 33, j, {"x": x, "w": w, "t": types, "y": torch.zeros(types.numel(), j)})
        assert torch.equal(got.isfinite().all(1), (types != 4) & (torch.arange(types.numel()) != 11))


_SANITIZED = """
import torch
from graphweave.runtime import long_rows
from tests.codegen import test_typed_kernels as tests
long_rows.LONG, long_rows.PIECE = 200, 80
for name in ("no_rows", "one_row", "mixed", "sorted", "empty_types"):
    tests.check(name, {})
"""
CHECKED = {
    "tiles": "1, 31, 33, torch.float32, gathers=False, transposed=True",
    "blocks": "2, 7, 3, torch.float32, gathers=True, transposed=False",
}


@pytest.mark.slow  # tests/codegen/test_typed_scatter.py has one by default
@pytest.mark.sanitize
@pytest.mark.parametrize("kernels", CHECKED)
def test_kernels_are_clean_under_sanitizers(kernels: str) -> None:
    run_sanitized(_SANITIZED.format(CHECKED[kernels]))
