"""Typed products of edges summed by row, without a value of edges: against float64, for every number of threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from graphweave.core.errors import IndexRangeError, IRError
from graphweave.core.options import options_for
from graphweave.execute.cpp_push import CppPushStep
from graphweave.execute.executable import Executable
from graphweave.ir.loop import interp as loops
from graphweave.ir.loop.nodes import TileMatMul
from graphweave.ir.loop.parse import parse as parse_kernel
from graphweave.ir.loop.show import show as show_kernel
from graphweave.ir.loop.verify import verify as verify_kernel
from graphweave.ir.loop.walk import statements
from graphweave.ir.message.nodes import Input, Program
from graphweave.lower.fused_push import CSRS
from graphweave.lower.parameters import Column, NodeTensor, Perm, Table
from graphweave.runtime import formats, long_rows, typed_blocks
from graphweave.runtime.index import Index
from graphweave.runtime.push_tables import column
from graphweave.runtime.typed_pieces import typed_pieces
from tests.codegen.test_typed_kernels import DTYPES, TYPES, close, draw, want_product
from tests.program_support import built
from tests.sanitizer_support import run_sanitized
from tests.support import by_default, threads
from tests.typed_programs import pushed_program

NODES = 61


@pytest.fixture(autouse=True)
def several_blocks_for_few_edges_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_blocks, "BLOCK_EDGES", 100)


def ends(edges: int, *, shape: str) -> Tensor:
    """Rows of the result: some have no edges, and one may have most edges."""
    generator = torch.Generator().manual_seed(edges)
    dst = torch.randint(NODES, (edges,), generator=generator)
    match shape:
        case "hub":
            return torch.where(torch.rand(edges, generator=generator) < 0.7, 13, dst)
        case "sorted":
            return dst.sort().values
        case "one_row":
            return torch.full_like(dst, 13)
        case "ends_empty":
            return dst.clamp(7, NODES - 9)
    return dst


def made_of(program: Program, **options: bool) -> Executable:
    """A program that is compiled to a single kernel."""
    made = built(program, options_for("cpp"), verify=options.get("verify", False))
    kernels = [plan.lowered.kernel for plan in made.plan.kernels.values()]
    assert not made.plan.refused and any(s.add == s.out for k in kernels for s in statements(k.body)
                                         if isinstance(s, TileMatMul))  # fmt: skip
    return made


def run(made: Executable, given: Mapping[str, Tensor]) -> Tensor:
    (out,) = made([given[n.name] for n in made.plan.program.nodes if isinstance(n, Input)])
    assert isinstance(out, Tensor)
    return out.clone()


def given_for(
    name: str, blocks: int, k: int, j: int, dtype: torch.dtype, *, shape: str = "any", along: str | None = "src"
) -> dict[str, Tensor]:
    types, num = TYPES[name]
    edges = types.numel()
    b = (blocks,) if blocks > 1 else ()
    return {
        "t": types, "dst": ends(edges, shape=shape), "src": torch.arange(edges) * 7 % 50,
        "x": draw(edges if along is None else NODES, *b, k, dtype=dtype), "w": draw(num, *b, k, j, dtype=dtype),
        "s": draw(edges, dtype=dtype), "v": draw(NODES, dtype=dtype),
    }  # fmt: skip


def want_scatter(given: Mapping[str, Tensor], along: str | None, scaled: bool) -> Tensor:
    x, w, blocks = given["x"], given["w"], given["x"].dim() == 3
    rows = x if along is None else x[given[along]]
    messages = want_product(rows if blocks else rows.unsqueeze(1), w if blocks else w.unsqueeze(1), given["t"])
    if scaled:
        messages = messages * given["s"].double().reshape(-1, 1, 1)
    out = torch.zeros(NODES, *messages.shape[1:], dtype=torch.float64).index_add(0, given["dst"], messages)
    return out if blocks else out.squeeze(1)


def check(
    name: str, blocks: int, k: int, j: int, dtype: torch.dtype, *, shape: str = "any", scaled: bool = False,
    along: str | None = "src", transposed: bool = False, verify: bool = False,
) -> None:  # fmt: skip
    given = given_for(name, blocks, k, j, dtype, shape=shape, along=along)
    program = pushed_program(blocks, k, j, DTYPES[dtype], along=along, transposed=transposed, scaled=scaled)
    want = want_scatter(given, along, scaled)
    if transposed:
        given["w"] = given["w"].mT.contiguous()
    close(run(made_of(program, verify=verify), given), want, k * max(1, given["t"].numel()))


@pytest.mark.parametrize("shape", ["any", "hub", "sorted", "ends_empty"])
@pytest.mark.parametrize("name", TYPES)
def test_edges_of_every_distribution(name: str, shape: str) -> None:
    check(name, 1, 31, 33, torch.float32, shape=shape, scaled=True)
    check(name, 3, 4, 2, torch.float64, shape=shape, along=None)


@pytest.mark.parametrize(
    ("blocks", "k", "j"), [(1, 1, 1), (1, 64, 64), (1, 33, 2), (1, 5, 100), (4, 8, 16), (2, 64, 1), (1, 1, 64)]
)
@pytest.mark.parametrize("transposed", [False, True])
def test_widths_and_scales(blocks: int, k: int, j: int, transposed: bool) -> None:
    for scaled in (False, True):
        check("mixed", blocks, k, j, torch.float32, scaled=scaled, transposed=transposed)


@pytest.mark.parametrize("scaled", [False, True])
def test_rows_of_the_destination_itself(scaled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    check("mixed", 1, 5, 7, torch.float64, shape="hub", along="dst", scaled=scaled)
    few_edges_are_many(monkeypatch)  # a piece reads what its row does
    check("mixed", 1, 5, 7, torch.float64, shape="hub", along="dst", scaled=scaled)


def test_verify_compares_a_fused_push_with_the_interpreter() -> None:
    check("mixed", 2, 5, 7, torch.float32, shape="hub", scaled=True, verify=True)


@pytest.mark.parametrize("width", [512, 513])
def test_wide_matrices_are_no_kernels(width: int) -> None:
    program = pushed_program(1, 4, width)
    made = built(program, options_for("cpp"))
    fused = [s for plan in made.plan.kernels.values() for s in statements(plan.lowered.kernel.body)]
    assert any(isinstance(s, TileMatMul) and s.add is not None for s in fused) is (width == 512)
    given = given_for("mixed", 1, 4, width, torch.float32)
    close(run(made, given), want_scatter(given, "src", False), 4 * given["t"].numel())


@pytest.mark.parametrize("shape", ["any", "hub"])
def test_the_number_of_threads_changes_no_bit(shape: str) -> None:
    given = given_for("skewed", 1, 33, 16, torch.float32, shape=shape)
    made, results = made_of(pushed_program(1, 33, 16)), []
    for n in (1, 2, 3):
        with threads(n):
            results.append(run(made, given))
    assert all(torch.equal(result, results[0]) for result in results)


def few_edges_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    formats.clear()
    monkeypatch.setattr(long_rows, "LONG", 40)
    monkeypatch.setattr(long_rows, "PIECE", 16)


@pytest.mark.parametrize("shape", ["any", "hub", "one_row"])
def test_long_rows_are_divided(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few_edges_are_many(monkeypatch)
    check("mixed", 2, 31, 33, torch.float32, shape=shape, scaled=True)
    check("skewed", 1, 4, 2, torch.float64, shape=shape, along=None, transposed=True)
    test_the_number_of_threads_changes_no_bit(shape)
    types, num = TYPES["skewed"]
    dst = ends(types.numel(), shape=shape)
    pieces, _ = typed_pieces(Index(types, num), Index(dst, NODES))
    assert bool(pieces.divided) is (int(torch.bincount(dst).max()) > 40)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("shape", ["any", "one_row"])
def test_the_loop_ir_of_a_fused_push_says_what_it_computes(
    shape: str, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compares the loop IR's interpreter, on the tables of the kernel, with the message IR's, and checks the text."""
    few_edges_are_many(monkeypatch)
    program = pushed_program(2, 3, 5, DTYPES[torch.float64], scaled=True, transposed=True)
    made = made_of(program)
    (step,) = (step for step in made.kernels.values() if isinstance(step, CppPushStep))
    plan = step._wide_plan() if wide else step.plan
    kernel, lowered = plan.lowered.kernel, plan.lowered
    assert parse_kernel(show_kernel(kernel)) == kernel
    given = given_for("mixed", 2, 3, 5, torch.float64, shape=shape)
    given = {name: t[:70] if name in ("t", "dst", "src", "s") else t for name, t in given.items()}
    types, dst = Index(given["t"], len(given["w"])), Index(given["dst"], NODES)
    found = typed_blocks.typed_blocks(types, dst, 4, wide)
    out = torch.full((found.pieces.num_all, 10), torch.nan, dtype=torch.float64)
    tensors: dict[str, Tensor] = {}
    for buffer, binding in zip(kernel.buffers, lowered.bindings, strict=True):
        match binding:
            case NodeTensor() if buffer.name.endswith("_out"):
                value = out
            case NodeTensor():
                kind = buffer.name.partition("_")[0]
                value = given["w"].flatten(1) if kind == "permute" else given[kind].reshape(len(given[kind]), -1)
            case Perm():
                value = found.order
            case Column():
                value = column(found, types, dst, Index(given["src"], NODES), 4, wide)
            case Table(name):
                value = getattr(found, name)
        tensors[buffer.name] = value
    csrs = {csr: found.edges if csr == CSRS[-1] else getattr(found, csr) for csr in CSRS}
    loops.run(kernel, tensors, csrs, {kernel.sizes[0]: found.block.numel() - 1})
    close(found.pieces.folded(out).view(NODES, 2, 5), want_scatter(given, "src", True), 3 * 70)


def test_bad_kernels_of_fused_pushes_are_refused() -> None:
    made = made_of(pushed_program(1, 3, 5))
    (kernel,) = (plan.lowered.kernel for plan in made.plan.kernels.values())
    text = show_kernel(kernel)
    (out,) = (b.name for b in kernel.buffers if b.name.endswith("_out"))
    for before, after, message in (
        ("in pairs[g]", "in pairs[q]", "the row must be the kernel's, 'b', or a position"),
        ("in csr[p]", "in csr[b]", "those of the tile, or of its positions"),
        (f"= {out}[pair_target] + sums", f"= {out}[group_type] + sums", "added to where they lie"),
        (f"{out}[v, ", "sums2[v, ", "'sums2' is not defined here"),
        ("sums[p, ", "sums[k, ", "is not a variable here|by a position of its tile"),
    ):
        assert before in text
        with pytest.raises(IRError, match=message):
            verify_kernel(parse_kernel(text.replace(before, after)))
    without = replace(kernel, body=kernel.body[1:])
    with pytest.raises(IRError, match="is added to, and nothing is stored there"):
        verify_kernel(without)


@pytest.mark.parametrize("wide", [False, True])
def test_pieces_of_a_row_are_runs_of_its_edges_by_type(wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    few_edges_are_many(monkeypatch)
    types, num = TYPES["mixed"]
    dst = ends(types.numel(), shape="hub")
    found, values = typed_pieces(Index(types, num), Index(dst, NODES), wide)
    assert found.num_rows == NODES
    degrees = torch.bincount(dst, minlength=NODES)
    assert [row for row, _, _ in found.divided] == (degrees > 40).nonzero().flatten().tolist()
    next_piece = NODES
    for row, first, last in found.divided:
        assert first == next_piece
        mine = (dst == row).nonzero().flatten()
        in_order = mine[torch.argsort(types[mine], stable=True)]
        assert values[in_order].tolist() == [first + i // 16 for i in range(len(mine))]
        next_piece = last
    assert found.num_all == next_piece
    rest = degrees[dst] <= 40
    assert torch.equal(values[rest].long(), dst[rest])


@pytest.mark.parametrize("integers", [torch.int32, torch.int64])
def test_indices_wrap_where_they_may_and_are_refused_where_not(integers: torch.dtype) -> None:
    given = given_for("mixed", 1, 5, 3, torch.float64)
    rows = {"t": len(given["w"]), "dst": NODES, "src": NODES}
    edges, want = given["t"].numel(), want_scatter(given, "src", False)
    good = given | {name: given[name].to(integers) for name in rows}
    made = made_of(pushed_program(1, 5, 3, DTYPES[torch.float64]))
    wrapping = made_of(pushed_program(1, 5, 3, DTYPES[torch.float64], wraps=True))
    close(run(made, good), want, edges)
    close(run(wrapping, good | {name: good[name] - num for name, num in rows.items()}), want, edges)
    for name, num in rows.items():
        for value in (-1, num):
            wrong = good[name].clone()
            wrong[77] = value
            with pytest.raises(IndexRangeError, match="at position 77 is out of range"):
                run(made, good | {name: wrong})


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("shape", ["any", "hub", "sorted"])
def test_edges_come_by_block_then_type_then_row(shape: str, wide: bool) -> None:
    types, num = TYPES["mixed"]
    dst = ends(types.numel(), shape=shape)
    found = typed_blocks.typed_blocks(Index(types, num), Index(dst, NODES), 8, wide)
    assert {t.dtype for t in found.tensors} == {torch.int64 if wide else torch.int32}
    block, order = found.block.tolist(), found.order.long()
    assert block[0] == 0 and block[-1] == NODES and block == sorted(set(block))
    keys = torch.stack([torch.bucketize(dst, found.block[1:], right=True), types, dst, torch.arange(types.numel())], 1)
    assert keys[order].tolist() == sorted(keys.tolist())
    walked = []  # as the kernel does
    for b in range(len(block) - 1):
        for g in range(found.groups[b], found.groups[b + 1]):
            for p in range(found.pairs[g], found.pairs[g + 1]):
                ends_of = range(found.edges[p], found.edges[p + 1])
                walked += [(b, int(found.group_type[g]), int(found.pair_target[p]), k) for k in ends_of]
                assert len(ends_of) > 0
    assert [key[:3] for key in walked] == [tuple(key[:3]) for key in keys[order].tolist()]
    assert [key[3] for key in walked] == list(range(types.numel()))
    assert found.pair_row is found.pair_target
    assert len({key[:2] for key in walked}) == found.group_type.numel()
    assert len({key[:3] for key in walked}) == found.pair_target.numel()


def test_the_order_is_made_once_and_again_after_an_edit() -> None:
    types, num = TYPES["mixed"]
    types, dst = types.clone(), Index(ends(types.numel(), shape="any"), NODES)
    first = typed_blocks.typed_blocks(Index(types, num), dst, 4)
    assert typed_blocks.typed_blocks(Index(types, num), dst, 4) is first
    types[0] = 6 - types[0]
    again = typed_blocks.typed_blocks(Index(types, num), dst, 4)
    assert again is not first and not torch.equal(again.order, first.order)


_SANITIZED = """
import torch
from graphweave.runtime import typed_blocks
from tests.codegen import test_typed_scatter as tests
typed_blocks.BLOCK_EDGES = 100
for name in ("no_rows", "one_row", "mixed", "empty_types"):
    for shape in ("any", "hub", "ends_empty"):
        tests.check(name, {}, shape=shape)
"""
CHECKED = {
    "tiles": "1, 31, 33, torch.float32, scaled=True",
    "blocks": "2, 3, 5, torch.float64, along=None, transposed=True",
}


@pytest.mark.sanitize
@pytest.mark.parametrize("kernels", by_default(CHECKED, "blocks"))
def test_kernels_are_clean_under_sanitizers(kernels: str) -> None:
    run_sanitized(_SANITIZED.format(CHECKED[kernels]))
