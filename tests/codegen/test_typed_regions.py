"""Typed products as parts of kernels: which nodes join them, their loop IR, equal numbers on both targets."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graphweave.codegen.cpp import print_kernel
from graphweave.core.options import options_for
from graphweave.core.types import DType
from graphweave.execute.executable import Executable
from graphweave.execute.triton_launch import Launches, launches_of
from graphweave.ir.loop import interp as loops
from graphweave.ir.loop.nodes import Buffer, Edges, Kernel, Role, Rows, TileArray, TileGram, TileMatMul, Tiles
from graphweave.ir.loop.parse import parse as parse_kernel
from graphweave.ir.loop.show import show as show_kernel
from graphweave.ir.loop.verify import verify as verify_kernel
from graphweave.ir.loop.walk import statements
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import Program
from graphweave.ir.message.parse import parse
from graphweave.lower.divide import divided
from graphweave.lower.schedule import Region
from graphweave.runtime import long_rows
from graphweave.runtime.triton_kernel import interpreted
from tests.codegen.triton_support import needs_interpreter
from tests.program_support import built, in_order
from tests.programs.compare import assert_all_close
from tests.support import threads
from tests.typed_programs import GRAM, PRODUCT, typed_program

SPECS = {
    "gathered": typed_program(1, 5, 7, gathers=True),
    "transposed": typed_program(1, 17, 9, DType.f64, transposed=True),
    "blocks": typed_program(3, 4, 2, gathers=True, transposed=True),
    "narrow": typed_program(1, 9, 1, gathers=True),
    "exchanged": typed_program(1, 6, 20, gathers=True, results=(GRAM,), swapped=True),
}

HEAD = """space V = s0
space R = s1
space E = s2
%0: E[] i64 = input src
%1: E[] i64 = input t
%2: V[6] f32 = input x
%3: R[6, 4] f32 = input w
%4: E -> V = map %0 to V
%5: E -> R = map %1 to R
%6: E[4] f32 = input y
"""
IN_FRONT = "%7: V[6] f32 = relu %2\n%8: E[6] f32 = pull %7, %4\n%9: E[4] f32 = matmul %8, %3, %5\nreturn %9\n"
OF_EDGES = """%7: E[6] f32 = pull %2, %4
%8: E[1] f32 = input s
%9: E[6] f32 = mul %7, %8
%10: E[4] f32 = matmul %9, %3, %5
%11: R[6, 4] f32 = gram %9, %6, %5
%12: R[4] f32 = push.sum %6, %5
return %10, %11, %12
"""
OWN_MATRIX = """%7: E[6] f32 = pull %2, %4
%8: R[6, 4] f32 = tanh %3
%9: E[4] f32 = matmul %7, %8, %5
return %9
"""
BOTH_WAYS = """%7: E[6] f32 = pull %2, %4
%8: E[4] f32 = matmul %7, %3, %5
%9: R[4, 6] f32 = permute %3 [1, 0]
%10: E[6] f32 = matmul %6, %9, %5
return %8, %10
"""


def given_for(program: Program, types: int, edges: int, nodes: int = 7) -> dict[str, Tensor]:
    """The last type has no rows; the first has half of them."""
    generator = torch.Generator().manual_seed(types)
    rows = {"V": nodes, "R": types, "E": edges}
    given = {}
    for node in program.nodes:
        if (name := getattr(node, "name", None)) is None:
            continue
        if name in ("t", "src"):
            most = max(1, types - 1) if name == "t" else nodes
            value = torch.randint(most, (edges,), generator=generator)
            given[name] = torch.where(torch.rand(edges, generator=generator) < 0.5, 0, value) if name == "t" else value
        else:
            shape = rows[node.type.space.name], *node.type.shape
            value = torch.randn(shape, generator=generator, dtype=torch.float64)
            given[name] = value.to({DType.f32: torch.float32, DType.f64: torch.float64}[node.type.dtype])
    return given


def compiled(program: Program) -> Executable:
    """Compiles for C++, whatever the target of the run."""
    made = built(program, options_for("cpp"))
    assert not made.plan.refused
    return made


def kernels_of(made: Executable) -> list[Kernel]:
    return [k.plan.lowered.kernel for k in made.kernels.values()]


def check(made: Executable, program: Program, types: int, edges: int) -> None:
    given = given_for(program, types, edges)
    assert_all_close(made(in_order(made.plan.program, given)), interp(program, given), reduction_length=max(edges, 20))


@pytest.mark.parametrize("spec", SPECS)
def test_kernels_are_shown_parsed_verified_and_divided(spec: str) -> None:
    (kernel,) = kernels_of(compiled(SPECS[spec]))
    assert parse_kernel(show_kernel(kernel)) == kernel
    found = divided(kernel)
    assert found is not None
    for part in found.kernels:
        verify_kernel(part)
        assert parse_kernel(show_kernel(part)) == part
        assert print_kernel(part)
    assert found.finish is None or any(isinstance(s, TileGram) for s in statements(kernel.body))


@pytest.mark.parametrize("spec", SPECS)
def test_the_interpreter_of_loops_and_cpp_agree(spec: str) -> None:
    program = SPECS[spec]
    made = compiled(program)
    (kernel,) = kernels_of(made)
    for types, edges in ((4, 70), (3, 0), (1, 9)):
        given = given_for(program, types, edges)
        got = made(in_order(made.plan.program, given))
        order = torch.argsort(given["t"], stable=True)
        counts = torch.bincount(given["t"], minlength=types)
        indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).int()
        formats = {"perm": order.int(), "map": given.get("src", order)[order].int()}
        tensors = {b.name: tensor_of(b, given, formats) for b in kernel.buffers}
        loops.run(kernel, tensors, {"csr": indptr}, {kernel.sizes[0]: types})
        outputs = sorted(b.name for b in kernel.buffers if b.role is Role.output)  # the gram's before the product's
        assert len(outputs) == len(got)
        for name, tensor in zip(outputs, reversed(got), strict=True):
            torch.testing.assert_close(tensor.reshape(tensors[name].shape), tensors[name], rtol=1e-4, atol=1e-4)


def tensor_of(buffer: Buffer, given: dict[str, Tensor], formats: dict[str, Tensor]) -> Tensor:
    """The contents of a kernel's buffer, by its name: a format, an input, an output, or the reshaped matrices."""
    name = buffer.name.partition("_")[0]
    if name in formats:
        return formats[name]
    if buffer.role is Role.output:
        rows = len(given["w"]) if name == "gram" else len(given["t"])
        return torch.full((rows, *buffer.shape), float("nan"), dtype=given["x"].dtype)
    found = given.get(name, given["w"])
    return found.reshape(len(found), *buffer.shape).clone()


def test_rows_that_exist_are_read_where_they_lie() -> None:
    (kernel,) = kernels_of(compiled(SPECS["gathered"]))
    inner = list(statements(kernel.body))
    assert not any(isinstance(s, TileArray | Edges) for s in inner)
    (product,) = (s for s in inner if isinstance(s, TileMatMul))
    assert isinstance(product.x, Rows) and isinstance(product.out, Rows) and product.row == "v"


def test_light_work_in_front_of_a_product_joins_it() -> None:
    program = parse(HEAD + OF_EDGES)
    made = compiled(program)
    (kernel,) = kernels_of(made)  # the product, the gram of what it multiplies, and a sum by type
    (tiles,) = (s for s in kernel.body if isinstance(s, Tiles))
    assert [type(s) for s in tiles.body].count(TileArray) == 1
    check(made, program, 5, 300)


def test_work_on_nodes_is_stored_before_it_is_gathered() -> None:
    program = parse(HEAD + IN_FRONT)
    made = compiled(program)
    (kernel,) = kernels_of(made)  # PyTorch computes a relu alone
    assert not any(isinstance(s, TileArray | Edges) for s in statements(kernel.body))
    check(made, program, 5, 300)


def test_a_matrix_that_the_kernel_computes_is_an_array_of_the_row() -> None:
    program = parse(HEAD + OWN_MATRIX)
    made = compiled(program)
    (kernel,) = kernels_of(made)
    (product,) = (s for s in statements(kernel.body) if isinstance(s, TileMatMul))
    assert product.row is None
    check(made, program, 5, 300)


@pytest.mark.parametrize("sizes", [(6, 4), (9, 17), (32, 5)])
def test_a_matrix_may_be_read_both_ways_in_one_kernel(sizes: tuple[int, int]) -> None:
    text = (HEAD + BOTH_WAYS).replace("[6", f"[{sizes[0]}").replace("[4", f"[{sizes[1]}")
    program = parse(text.replace(", 4]", f", {sizes[1]}]").replace(", 6]", f", {sizes[0]}]"))
    made = compiled(program)
    (kernel,) = kernels_of(made)
    assert {s.transposed for s in statements(kernel.body) if isinstance(s, TileMatMul)} == {False, True}
    check(made, program, 5, 300)


@pytest.mark.parametrize("body", [OF_EDGES, OWN_MATRIX])
def test_rows_of_few_types_are_divided(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_rows, "LONG", 40)
    monkeypatch.setattr(long_rows, "PIECE", 60)
    program = parse(HEAD + body)
    made = compiled(program)
    results = []
    for n in (1, 2):
        with threads(n):
            check(made, program, 4, 500)
            given = given_for(program, 4, 500)
            results.append(made(in_order(made.plan.program, given)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_pieces_of_wide_grams_are_few() -> None:
    heavy = long_rows.Weight(long_rows.PRODUCTS, 16 << 20)
    assert long_rows.piece_size(1 << 20, heavy) == 1 << 18
    assert long_rows.piece_size(1 << 20) == 1 << 12


def test_typed_products_are_regions_of_the_schedule() -> None:
    for program in SPECS.values():
        steps = compiled(program).plan.schedule.steps
        assert len(steps) == 1 and isinstance(steps[0], Region)


# ---------------------------------------------------------------- Triton


@needs_interpreter
@pytest.mark.parametrize("spec", SPECS)
def test_triton_gives_the_same(spec: str) -> None:
    program = SPECS[spec]
    made = built(program, options_for("triton"))
    assert not made.plan.refused
    for types, edges in ((3, 45), (2, 0)):
        check(made, program, types, edges)


@needs_interpreter
@pytest.mark.parametrize("body", [OF_EDGES, IN_FRONT, BOTH_WAYS])
def test_triton_computes_what_joins_products(body: str) -> None:
    program = parse(HEAD + body)
    made = built(program, options_for("triton"))
    assert not made.plan.refused
    check(made, program, 3, 50)


@pytest.mark.skipif(interpreted(), reason="the interpreter divides all rows")
def test_all_rows_of_few_types_are_divided_on_a_gpu() -> None:
    def launches(*results: str) -> Launches:
        made = built(typed_program(1, 8, 8, results=results), options_for("triton"))
        return launches_of(made.plan.kernels[0].lowered.kernel)

    assert launches(PRODUCT, GRAM).num_divided(500, 0) == 500 and launches(PRODUCT).num_divided(1 << 20, 0) == 1 << 20
    assert launches(GRAM).num_divided(1 << 20, 0) <= 1 << 12  # pieces leave matrices
