"""Products and grams by type in Triton: kernels of loop IR for every float type and width, in Triton's interpreter."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from torch import Tensor

from graphweave.codegen.triton import programs_of_a_row
from graphweave.core.options import options_for
from graphweave.core.types import DType
from graphweave.execute import region_step
from graphweave.execute.executable import Executable
from graphweave.execute.triton_launch import PIECES_BYTES, launches_of
from graphweave.ir.loop import interp as loops
from graphweave.ir.loop.nodes import Alloc, Kernel, Role, Rows, TileArray, TileGram, TileMatMul
from graphweave.ir.loop.parse import parse as parse_kernel
from graphweave.ir.loop.show import show
from graphweave.ir.loop.walk import statements
from graphweave.ir.message.nodes import Program
from graphweave.ir.message.parse import parse
from graphweave.lower.schedule import Region
from graphweave.runtime.triton_kernel import interpreted
from tests.codegen.test_triton_typed import TYPES
from tests.codegen.test_typed_kernels import DTYPES, close, draw, want_gram, want_product
from tests.codegen.test_typed_regions import tensor_of
from tests.codegen.triton_support import needs_interpreter
from tests.program_support import built, in_order
from tests.typed_programs import GRAM, PRODUCT, computed_rows, typed_program


@lru_cache(maxsize=64)
def made(blocks: int, k: int, j: int, dtype: DType, options: frozenset[tuple[str, object]]) -> Executable:
    return by_kernels(typed_program(blocks, k, j, dtype, **dict(options)))  # type: ignore[arg-type]


def by_kernels(program: Program) -> Executable:
    """The program's executable, in which kernels compute everything."""
    executable = built(program, options_for("triton"))
    assert not executable.plan.refused
    assert all(isinstance(step, Region) for step in executable.plan.schedule.steps)
    return executable


def kernels_of(executable: Executable) -> list[Kernel]:
    return [k.lowered.kernel for k in executable.plan.kernels.values()]


def check(
    name: str, blocks: int, k: int, j: int, dtype: torch.dtype = torch.float32, *, gathers: bool, transposed: bool
) -> None:
    types, num = TYPES[name]
    rows, b, kind = types.numel(), (blocks,) if blocks > 1 else (), DTYPES[dtype]
    w, y = draw(num, blocks, k, j, dtype=dtype), draw(rows, blocks, j, dtype=dtype)
    at = torch.arange(rows) * 7 % 11
    held = draw(11 if gathers else rows, blocks, k, dtype=dtype)
    x = held[at] if gathers else held
    matrices = (w.mT if transposed else w).contiguous()
    given = {"x": held.view(-1, *b, k), "t": types, "y": y.view(rows, *b, j), "src": at}
    given["w"] = matrices.view(num, *b, *matrices.shape[2:])
    executable = made(blocks, k, j, kind, frozenset({"gathers": gathers, "transposed": transposed}.items()))
    product, gram = executable(in_order(executable.plan.program, given))
    assert product.dtype is dtype and gram.dtype is dtype
    near(product.view(rows, blocks, j), want_product(x, w, types), k)
    near(gram.view(num, blocks, k, j), want_gram(x, y, types, num), rows)


def near(got: Tensor, want: Tensor, terms: int) -> None:
    """Half precision is rounded once: the error is that of the largest number, however many terms there are."""
    close(got, want, 4 if got.dtype in (torch.bfloat16, torch.float16) else terms)


@needs_interpreter
@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_rows_of_every_distribution(name: str, gathers: bool) -> None:
    check(name, 1, 31, 33, gathers=gathers, transposed=gathers)


WIDTHS = [(1, 1, 1), (1, 64, 1), (1, 33, 70), (1, 130, 70), (1, 20, 150), (3, 5, 2), (3, 33, 31), (9, 3, 4)]


@needs_interpreter
@pytest.mark.parametrize(("blocks", "k", "j"), WIDTHS)
def test_widths_and_blocks(blocks: int, k: int, j: int) -> None:
    """Several programs share grams of 70 or more columns, and those of 9 blocks."""
    check("sorted", blocks, k, j, torch.float64, gathers=True, transposed=blocks == 1)


@needs_interpreter
def test_wide_rows_are_read_part_by_part() -> None:
    check("one_row", 1, 600, 20, gathers=True, transposed=False)
    check("one_row", 1, 20, 600, gathers=False, transposed=True)


@needs_interpreter
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: torch.dtype) -> None:
    check("skewed", 1, 5, 33, dtype, gathers=True, transposed=False)
    check("skewed", 2, 17, 6, dtype, gathers=False, transposed=True)
    check("sorted", 1, 80, 72, dtype, gathers=True, transposed=False)


@needs_interpreter
def test_tables_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No graph that fits into a test needs tables of 64 bits."""
    monkeypatch.setattr(region_step, "INT32_MAX", 10)
    check("skewed", 1, 5, 3, gathers=True, transposed=False)
    check("skewed", 1, 80, 72, gathers=False, transposed=False)


@needs_interpreter
@pytest.mark.parametrize("k", [33, 90])
def test_two_runs_give_the_same_bits(k: int) -> None:
    types, num = TYPES["skewed"]
    executable = made(1, k, 64, DType.f32, frozenset())
    x, w, y = (draw(*shape, dtype=torch.float32) for shape in ((90, k), (num, k, 64), (90, 64)))
    given = in_order(executable.plan.program, {"x": x, "w": w, "t": types, "y": y})
    assert all(torch.equal(a, b) for a, b in zip(executable(list(given)), executable(list(given)), strict=True))


@needs_interpreter
def test_what_is_not_finite_stays_with_its_row_and_type() -> None:
    types, num = TYPES["skewed"]
    for k in (33, 90):
        executable = made(1, k, 50, DType.f32, frozenset())
        x, w, y = (draw(*shape, dtype=torch.float32) for shape in ((90, k), (num, k, 50), (90, 50)))
        x[int((types == 0).nonzero()[0])], w[4] = float("inf"), float("nan")
        product, gram = executable(in_order(executable.plan.program, {"x": x, "w": w, "t": types, "y": y}))
        assert torch.equal(product.isfinite().all(1), ~((types == 4) | x.isinf().any(1)))
        assert torch.equal(gram.isfinite().all((1, 2)), torch.arange(num) != 0)


@needs_interpreter
def test_sums_of_half_precision_are_rounded_once() -> None:
    """Partial sums exceed the range of float16 and come back into it."""
    x, y = torch.full((40, 16), 200.0), torch.full((40, 16), 150.0)
    y[20:] = -149.0
    w = torch.full((1, 16, 16), 1000.0)
    w[:, 8:] = -999.0
    executable = made(1, 16, 16, DType.f16, frozenset())
    given = {"x": x.half(), "w": w.half(), "t": torch.zeros(40, dtype=torch.int64), "y": y.half()}
    product, gram = executable(in_order(executable.plan.program, given))
    assert torch.equal(product, torch.full((40, 16), 1600.0).half())
    assert torch.equal(gram, torch.full((1, 16, 16), 4000.0).half())


# ---------------------------------------------------------------- what kernels hold, and what they read

OWN_MATRIX = """space V = s0
space R = s1
space E = s2
%0: E[] i64 = input src
%1: E[] i64 = input t
%2: V[17] f32 = input x
%3: R[17, 33] f32 = input w
%4: E -> V = map %0 to V
%5: E -> R = map %1 to R
%6: E[17] f32 = pull %2, %4
%7: R[17, 33] f32 = tanh %3
%8: E[33] f32 = matmul %6, %7, %5
return %8, %7
"""


def check_computed(blocks: int, k: int, j: int, dtype: torch.dtype) -> Executable:
    executable = by_kernels(computed_rows(blocks, k, j, DTYPES[dtype]))
    b, (types, num) = (blocks,) if blocks > 1 else (), TYPES["skewed"]
    x, w, y = draw(11, blocks, k, dtype=dtype), draw(num, blocks, k, j, dtype=dtype), draw(90, blocks, j, dtype=dtype)
    s, src = draw(90, 1, 1, dtype=dtype), torch.arange(90) * 7 % 11
    given = {"x": x.view(11, *b, k), "w": w.view(num, *b, k, j), "y": y.view(90, *b, j), "src": src, "t": types}
    given["s"] = s.view(90, 1, 1) if b else s.view(90, 1)
    product, gram = executable(in_order(executable.plan.program, given))
    scaled = (x.double()[src] * s.double()).to(dtype)
    near(product.view(90, blocks, j), want_product(scaled, w, types), k)
    near(gram.view(num, blocks, k, j), want_gram(scaled, y, types, num), 90)
    return executable


@needs_interpreter
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("blocks", "k", "j"), [(1, 6, 5), (1, 100, 40), (3, 5, 4)])
def test_rows_that_are_computed_on_the_way(blocks: int, k: int, j: int, dtype: torch.dtype) -> None:
    kernels = kernels_of(check_computed(blocks, k, j, dtype))
    held = [s for kernel in kernels for s in statements(kernel.body) if isinstance(s, TileArray)]
    assert bool(held) == (blocks == 1)  # rows of several blocks are stored by a kernel of their own


@needs_interpreter
def test_wide_rows_are_stored_before_they_are_multiplied() -> None:
    stored, *others = kernels_of(check_computed(1, 300, 4, torch.float32))
    assert not any(isinstance(s, TileMatMul | TileGram) for s in statements(stored.body))
    assert not any(isinstance(s, TileArray) for kernel in others for s in statements(kernel.body))


@needs_interpreter
def test_matrices_are_made_by_a_kernel_before() -> None:
    executable = by_kernels(parse(OWN_MATRIX))
    types, num = TYPES["skewed"]
    x, w, src = draw(11, 17, dtype=torch.float32), draw(num, 17, 33, dtype=torch.float32), torch.arange(90) % 11
    given = {"x": x, "w": w, "src": src, "t": types}
    product, made_of = executable(in_order(executable.plan.program, given))
    torch.testing.assert_close(made_of, w.tanh(), rtol=1e-5, atol=1e-6)
    close(product.unsqueeze(1), want_product(x[src].unsqueeze(1), w.double().tanh().unsqueeze(1), types), 17)


@needs_interpreter
def test_a_constant_is_an_operand() -> None:
    text = (
        OWN_MATRIX[: OWN_MATRIX.index("%7")]
        + "%7: E[1] f32 = const 0.5\n%8: R[17, 1] f32 = gram %6, %7, %5\nreturn %8\n"
    )
    executable = by_kernels(parse(text))
    types, num = TYPES["skewed"]
    x, src = draw(11, 17, dtype=torch.float32), torch.arange(90) % 11
    given = {"x": x, "w": torch.empty(num, 17, 33), "src": src, "t": types}
    (gram,) = executable(in_order(executable.plan.program, given))
    close(gram, torch.zeros(num, 17, 1).double().index_add(0, types, 0.5 * x[src].double().unsqueeze(2)), 90)


def test_a_narrow_gram_shares_a_kernel_and_a_wide_one_does_not() -> None:
    assert len(kernels_of(made(1, 64, 64, DType.f32, frozenset()))) == 1
    kernels = kernels_of(made(1, 128, 64, DType.f32, frozenset()))
    products = [[type(s) for s in statements(k.body) if isinstance(s, TileMatMul | TileGram)] for k in kernels]
    assert sorted(products, key=str) == [[TileGram], [TileMatMul]]
    assert [programs_of_a_row(k) for k in kernels] == [1 if found == [TileMatMul] else 2 for found in products]


@pytest.mark.skipif(interpreted(), reason="the interpreter divides all rows into short pieces")
def test_what_pieces_leave_takes_bounded_memory() -> None:
    """Wide grams have few, long pieces, and only some of many types are divided."""
    for k in (16, 128, 512):
        (kernel,) = kernels_of(made(1, k, k, DType.f32, frozenset({"results": (GRAM,)}.items())))
        how, size = launches_of(kernel), k * k * 4
        for edges in (10_000, 1_000_000, 100_000_000):
            pieces = edges // how.piece_size(edges)
            assert pieces * size <= 2 * max(PIECES_BYTES, how.num_divided(1 << 20, 0) * size)
        assert how.piece_size(1000) == how.size and how.num_divided(1 << 20, 0) * size <= PIECES_BYTES + size
    (kernel,) = kernels_of(made(1, 64, 64, DType.f32, frozenset({"results": (PRODUCT,)}.items())))
    assert launches_of(kernel).piece_size(1 << 30) == launches_of(kernel).size


# ---------------------------------------------------------------- loop IR


@needs_interpreter
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_interpreter_of_loops_rounds_as_triton_does(dtype: torch.dtype) -> None:
    options = frozenset({"gathers": True, "transposed": True}.items())
    executable = made(1, 20, 6, DTYPES[dtype], options)
    (kernel,) = kernels_of(executable)
    assert isinstance(next(s for s in statements(kernel.body) if isinstance(s, TileMatMul)).out, Rows)
    assert {s.dtype for s in kernel.body if isinstance(s, Alloc)} == {DType.f32}
    assert {b.dtype for b in kernel.buffers if b.role in (Role.input, Role.output)} == {DTYPES[dtype]}
    assert parse_kernel(show(kernel)) == kernel
    edges, num, generator = 50, 3, torch.Generator().manual_seed(1)
    types, src = (torch.randint(n, (edges,), generator=generator) for n in (num, 11))
    given = {"x": draw(11, 20, dtype=dtype), "w": draw(num, 6, 20, dtype=dtype), "y": draw(edges, 6, dtype=dtype)}
    given |= {"t": types, "src": src}
    product, gram = executable(in_order(executable.plan.program, given))
    order = torch.argsort(types, stable=True)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(types, minlength=num).cumsum(0)]).int()
    tensors = {b.name: tensor_of(b, given, {"perm": order.int(), "map": src[order].int()}) for b in kernel.buffers}
    loops.run(kernel, tensors, {"csr": indptr}, {kernel.sizes[0]: num})
    outputs = {b.name.partition("_")[0]: tensors[b.name] for b in kernel.buffers if b.role is Role.output}
    rounding = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}[dtype]  # Triton's interpreter truncates
    for name, got in (("matmul", product), ("gram", gram)):
        want = outputs[name]
        assert want.dtype is dtype
        torch.testing.assert_close(got.reshape(want.shape), want, rtol=rounding, atol=1e-3)
