"""Triton kernels compiled for GPUs that need not be present: they compile, fit, and keep all values in registers."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import graphweave
from graphweave.codegen.triton import print_kernel
from graphweave.compiler.request import Halves
from graphweave.core.errors import CompileError, IRError, ToolchainError
from graphweave.core.options import options_for
from graphweave.core.types import DType, Fold, Op
from graphweave.execute.build import build
from graphweave.execute.executable import Executable
from graphweave.execute.triton_launch import launches_of
from graphweave.frontends.dynamo import graph_compilation
from graphweave.ir.loop.nodes import Kernel, Role
from graphweave.ir.loop.parse import parse
from graphweave.lower.divide import divided
from graphweave.runtime import triton_kernel
from graphweave.runtime.triton_kernel import Launch, interpreted, module, triton_version
from tests.codegen.test_cpp_kernels import all_operators
from tests.codegen.triton_resources import Resources, Variant, compile_text, constants, resources_of, signature
from tests.loop_support import TORCH, attention, case_for, online_attention, sddmm, spmm, totals, two_ends
from tests.support import random_graph

WHY_NOT = "Triton is not installed" if triton_version() is None else "TRITON_INTERPRET=1: kernels are not compiled"
needs_compiler = pytest.mark.skipif(triton_version() is None or interpreted(), reason=WHY_NOT)

SHARED = {80: 163 << 10, 90: 227 << 10}
"""Bytes of shared memory that a program may have (CUDA C++ Programming Guide, "Compute Capabilities")."""

CAPABILITIES = tuple(SHARED)


def edge_products(inner: int, hidden: int, outer: int) -> Kernel:
    """y[v] = max over edges of relu((x[src] - x[v]) w) w2, and the gradient-like g = sum over edges of r outer m."""
    return parse(f"""
kernel edge_products_{inner}_{hidden}_{outer}(v < N, E; i32) {{
  csr by_dst
  column src: i32[E; ]
  in x: f32[N; {inner}]
  in w: f32[; {inner}, {hidden}]
  in w2: f32[; {hidden * outer}]
  out y: f32[N; {outer}]
  total g: f32[; {hidden}, {outer}] sum
  do
    alloc top: f32[{outer}] = -inf
    tiles t < 4 in by_dst[v] {{
      array a: f32[t; {inner}]
      edges k in by_dst[v] of t {{
        let u: i32 = src[k]
        lanes c < {inner} {{ a[k, c] = sub(x[u, c], x[v, c]) }}
      }}
      array h: f32[t; {hidden}]
      matmul h = a, w of t
      array r: f32[t; {hidden}]
      edges k in by_dst[v] of t {{ lanes c < {hidden} {{ r[k, c] = relu(h[k, c]) }} }}
      array m: f32[t; {outer}]
      matmul m = r, w2 of t
      gram g = r, m of t
      edges k in by_dst[v] of t {{ lanes c < {outer} {{ top[c] max= m[k, c] }} }}
    }}
    lanes c < {outer} {{ y[v, c] = top[c] }}
}}
""")


KERNELS: dict[str, Kernel] = {
    "spmm_sum_1": spmm(1),
    "spmm_sum_16": spmm(16),
    "spmm_max_33": spmm(33, Fold.max),
    "spmm_mul_31_f64_i64": spmm(31, Fold.mul, DType.f64, DType.i64),
    "sddmm_1": sddmm(1, index=DType.i32),
    "sddmm_33": sddmm(33),
    "totals_5": totals(5),
    "totals_9_f64": totals(9, DType.f64),
    "edge_products": edge_products(3, 20, 16),
}


ONE_REGISTER = 8
"""Bytes that ptxas spills if it gives up one or two registers of each thread so that more warps fit."""


def assert_fits(got: Resources, capability: int, spilled: int = ONE_REGISTER) -> None:
    """The machine code keeps its values in registers, and a device of that capability can launch it."""
    assert got.code > 1000 and got.warps >= 1
    assert 16 <= got.registers <= 255 and got.registers * 32 * got.warps <= 1 << 16
    assert got.shared <= SHARED[capability]
    assert max(got.spill_stores, got.spill_loads) <= spilled, got


@needs_compiler
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compile_and_hardly_spill(name: str, capability: int) -> None:
    assert_fits(resources_of(KERNELS[name], capability), capability)


VARIANTS = [Variant(ordered=False), Variant(one_group=False), Variant(precision="tf32")]


@needs_compiler
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_of_a_launch_compiles(variant: Variant) -> None:
    assert_fits(resources_of(KERNELS["totals_5"], 90, variant), 90, spilled=32)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_of_products_compiles(variant: Variant) -> None:
    assert_fits(resources_of(KERNELS["edge_products"], 90, variant, Launch(1, 16, 8)), 90)


@needs_compiler
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_dot_products_are_trees_over_the_threads_of_a_warp(capability: int) -> None:
    """FeatGraph's tree reduction (figure 7): Triton's own, whose shape the numbers of edges and warps decide."""
    kernel = sddmm(64, index=DType.i32)
    one, several, across = (
        resources_of(kernel, capability, how=Launch(1, edges, warps)) for edges, warps in ((1, 1), (16, 4), (1, 4))
    )
    assert (one.shuffles, one.shared) == (5, 0)  # 32 threads fold 64 products: each adds two, five exchanges the rest
    assert several.shuffles == 8  # a thread has 4 features of two edges, and 16 threads share an edge: 4 exchanges each
    assert across.shared > 0  # the threads of several warps meet in shared memory


@needs_compiler
def test_rows_gathered_from_two_ends_nearly_fit() -> None:
    for capability in CAPABILITIES:
        assert_fits(resources_of(two_ends(), capability), capability)


@needs_compiler
@pytest.mark.parametrize("dtype", [d if d is DType.f32 else pytest.param(d, marks=pytest.mark.slow) for d in TORCH])
def test_operators_compile(dtype: DType) -> None:
    kernel, _ = all_operators(dtype, without=(Op.atan2,))
    assert_fits(resources_of(kernel, 80, how=Launch(64, 1)), 80)


@needs_compiler
@pytest.mark.parametrize(("half", "pointer"), [(DType.f16, "*fp16"), (DType.bf16, "*bf16")])
def test_half_precision_is_for_storage(half: DType, pointer: str) -> None:
    kernel = spmm(16)
    stored = tuple(replace(b, dtype=half) if b.role is not Role.column else b for b in kernel.buffers)
    kernel = replace(kernel, name=f"spmm_{half.value}", buffers=stored)
    assert [t for t in signature(kernel, Variant()) if t.endswith("16")] == [pointer] * 2
    assert_fits(resources_of(kernel, 90), 90)


@needs_compiler
def test_spills_are_seen() -> None:
    """A warp has 8192 sums: 256 for each thread, which has only 255 registers."""
    got = resources_of(spmm(64), 80, how=Launch(rows=128, edges=1, warps=1))
    assert got.spill_stores > 500 and got.spill_loads > 500 and got.stack > 500
    assert got.warps == 1


@needs_compiler
def test_registers_are_limited_as_a_schedule_asks() -> None:
    free, bound = (resources_of(spmm(64), 80, how=Launch(32, 1, 1, registers=n)) for n in (None, 32))
    assert free.registers > 32 >= bound.registers
    assert bound.spill_stores > free.spill_stores


@needs_compiler
def test_more_warps_share_the_registers() -> None:
    few, many = (resources_of(spmm(64), 90, how=Launch(8, 16, warps)) for warps in (2, 8))
    assert (few.warps, many.warps) == (2, 8)
    assert few.registers > many.registers


@needs_compiler
def test_the_log_is_read_again_when_triton_has_kept_the_kernel() -> None:
    assert resources_of(spmm(16), 90) == resources_of(spmm(16), 90)


# ---------------------------------------------------------------- signatures


@needs_compiler
@pytest.mark.parametrize("name", KERNELS)
def test_signature_is_what_a_launch_would_make_of_the_tensors(name: str) -> None:
    jit = pytest.importorskip("triton.runtime.jit")
    kernel = KERNELS[name]
    case = case_for(kernel, (2, 0, 3))
    tensors = [*case.indptr.values(), *(case.buffers[b.name] for b in kernel.buffers)]
    types = signature(kernel, Variant(one_group=False))
    function = getattr(module(print_kernel(kernel)), kernel.name)
    assert len(types) == len(function.arg_names) == len(tensors) + 8
    assert list(types[: len(tensors)]) == [jit.mangle_type(tensor) for tensor in tensors]
    assert list(types[len(tensors) + 1 : -4]) == [jit.mangle_type(3)] * 3


def test_signature_and_constants() -> None:
    kernel = totals(5)
    named = dict(zip(["by_dst", *(b.name for b in kernel.buffers)], signature(kernel, Variant()), strict=False))
    assert named == {
        "by_dst": "*i64", "x": "*fp32", "gram": "*fp32", "top": "*fp32", "low": "*fp32", "prod": "*fp32",
        "count": "*i64",
    }  # fmt: skip
    assert signature(kernel, Variant())[7:] == ("*i64", "constexpr", "i32", "i32", *["constexpr"] * 4)
    unordered = Variant(ordered=False, one_group=False)
    assert signature(spmm(3), unordered) == (
        "*i32", "*i32", "*fp32", "*fp32", "*i32", "i32", "i32", "i32", *["constexpr"] * 4
    )  # fmt: skip
    assert constants(Variant(), Launch(8, 16)) == {"groups": 1, "R": 8, "K": 16, "ORDERED": True, "PRECISION": "ieee"}
    assert "groups" not in constants(Variant(one_group=False), Launch(8, 16))


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize("kernel", [attention(2, 4), online_attention(2, 4)], ids=lambda kernel: kernel.name)
def test_what_triton_cannot_say_is_refused_by_the_printer(kernel: Kernel) -> None:
    with pytest.raises(IRError, match="a Triton kernel"):
        resources_of(kernel, 80, how=Launch(8, 16))


def test_interpreted_functions_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_kernel, "triton_version", lambda: "3.9.0")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(ToolchainError, match=r"got TRITON_INTERPRET=1.*Unset TRITON_INTERPRET"):
        resources_of(spmm(3), 80)


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_kernel, "triton_version", lambda: None)
    with pytest.raises(ToolchainError, match=r"not installed.*pip install"):
        resources_of(spmm(3), 80)


TEXT = """import triton
import triton.language as tl


@triton.jit
def double(x, y, R: tl.constexpr):
    at = tl.arange(0, R)
    tl.store(y + at, tl.load(x + at) * {factor})
"""


@needs_compiler
def test_a_text_by_itself() -> None:
    types = ("*fp32", "*fp32", "constexpr")
    got = compile_text(TEXT.format(factor="2.0"), "double", types, {"R": 128}, 80, warps=1)
    assert (got.spill_stores, got.spill_loads, got.stack, got.shared, got.warps) == (0, 0, 0, 0, 1)
    assert got.code > 1000


@needs_compiler
def test_multiply_adds_are_asked_for() -> None:
    """x * 2.5 + 0.5 is one instruction or two, so the machine code differs."""
    types, text = ("*fp32", "*fp32", "constexpr"), TEXT.format(factor="2.5 + 0.5")
    codes = [compile_text(text, "double", types, {"R": 4096}, 80, warps=1, fuse=fuse).code for fuse in (False, True)]
    assert codes[0] > codes[1]


@needs_compiler
def test_refused_texts_carry_the_reason() -> None:
    types = ("*fp32", "*fp32", "constexpr")
    with pytest.raises(CompileError, match=r"double for sm_80: (?s:.*)two is not defined"):
        compile_text(TEXT.format(factor="two"), "double", types, {"R": 128}, 80)
    with pytest.raises(CompileError, match=r"power of 2"):
        compile_text(TEXT.format(factor="2.0"), "double", types, {"R": 100}, 80)
    with pytest.raises(CompileError, match=r"expected the types of 3 parameters \(got 2\)"):
        compile_text(TEXT.format(factor="2.0"), "double", types[1:], {"R": 128}, 80)


# ---------------------------------------------------------------- layers

W = 64


def _perceptron(inner: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inner, hidden), nn.ReLU(), nn.Linear(hidden, hidden))


LAYERS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "gcn": (lambda: pyg.GCNConv(W, W), W),
    "gat": (lambda: pyg.GATConv(W, W // 4, heads=4), W),
    "gat-dropout": (lambda: pyg.GATConv(W, W // 4, heads=4, dropout=0.5), W),
    "gatv2": (lambda: pyg.GATv2Conv(W, W // 4, heads=4), W),
    "sage": (lambda: pyg.SAGEConv(W, W), W),
    "edgeconv": (lambda: pyg.EdgeConv(_perceptron(2 * W, W)), W),
    "edgeconv-32": (lambda: pyg.EdgeConv(_perceptron(6, 32)), 3),
}


UNORDERED = Variant(ordered=False)


class Planned(Exception):
    """Raised instead of running what has been planned for a GPU."""


@pytest.fixture
def quiet() -> Iterator[None]:
    """A graph that is only planned runs eagerly, and the frontend warns about that."""
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def kernels_of(layer: nn.Module, width: int, monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """The Triton kernels of a layer's training step, forward and backward; every region must have one."""
    made: list[tuple[Executable, ...]] = []

    def plan(halves: Halves, *args: Any, **_: Any) -> tuple[Executable, ...]:
        made.append(build(halves, *args))
        raise Planned

    monkeypatch.setattr(graph_compilation, "options_of", lambda *_: options_for("triton"))
    monkeypatch.setattr(graph_compilation, "build", plan)
    x = torch.randn(200, width, requires_grad=True)
    graphweave.compile(layer)(x, random_graph(200, 200, 2000))
    assert len(made) == 1
    plans = [one.plan for one in made[0]]
    assert all(p.kernels and not p.refused for p in plans)
    return [p.kernels[i].lowered.kernel for p in plans for i in sorted(p.kernels)]


def check_layer(name: str, capability: int, monkeypatch: pytest.MonkeyPatch) -> None:
    make, width = LAYERS[name]
    for kernel in kernels_of(make(), width, monkeypatch):
        assert_fits(resources_of(kernel, capability), capability)
        parts, how = divided(kernel), launches_of(kernel)
        if parts is not None and how.pieces is not None:
            for pieces, fold in parts.passes:
                assert_fits(resources_of(pieces, capability, UNORDERED, how.pieces), capability, spilled=32)
                if fold is not None:
                    assert_fits(resources_of(fold, capability, UNORDERED), capability, spilled=32)
            if parts.finish is not None:
                assert_fits(resources_of(parts.finish, capability, UNORDERED), capability, spilled=32)


@needs_compiler
@pytest.mark.usefixtures("fresh_compiler", "quiet")
@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_layers_hardly_spill(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_layer(name, 80, monkeypatch)


@needs_compiler
@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler", "quiet")
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("name", LAYERS)
def test_all_layers_hardly_spill(name: str, capability: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check_layer(name, capability, monkeypatch)
