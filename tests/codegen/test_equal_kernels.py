"""Kernels that do the same are one text, wherever their values stand and whatever they are called."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import graphweave
from graphweave.codegen.cpp import print_kernel, shared_text
from graphweave.core.settings import override
from graphweave.core.types import DType, Fold
from graphweave.ir.loop.canonical import canonical
from graphweave.ir.loop.nodes import (
    Accum,
    Alloc,
    Buffer,
    Comment,
    Csr,
    Edges,
    IndexSum,
    Kernel,
    Lanes,
    Load,
    Role,
    Store,
    Var,
)
from graphweave.ir.loop.verify import verify
from graphweave.runtime import toolchain
from tests import patience

needs_cxx = pytest.mark.skipif(toolchain.available() is None, reason="no C++ compiler")
LANE = IndexSum((("j1", 1),))


def kernel(name: str, x: str, value: str, column: str, fold: Fold = Fold.sum, width: int = 8) -> Kernel:
    """The sum over the edges of each row of `x`, kept in the array `value`."""
    gathered = Load(x, (Load(column, (Var("k"),)), LANE))
    start = {Fold.sum: 0.0, Fold.max: -float("inf")}[fold]
    body = (
        Comment(f"a line of {name}"),
        Alloc(f"{value}_v", DType.f32, (width,), start),
        Edges("k", "csr", "v", (), (Lanes((("j1", width),), (Accum(f"{value}_v", (LANE,), fold, gathered),)),)),
        Lanes((("j1", width),), (Store(f"{value}_out", (Var("v"), LANE), Load(f"{value}_v", (LANE,))),)),
    )
    buffers = (
        Buffer(x, Role.input, DType.f32, "num_V0", (width,)),
        Buffer(column, Role.column, DType.i32, "num_E0", ()),
        Buffer(f"{value}_out", Role.output, DType.f32, "num_V0", (width,)),
    )
    return Kernel(name, "v", ("num_V0", "num_E0"), DType.i32, (Csr("csr"),), buffers, (), body, (f"made for {name}",))


def test_kernels_that_differ_by_names_and_comments_alone_are_one_text() -> None:
    one, other = kernel("forward_1", "primals_5_4", "push_84", "map_81_column"), kernel("b_9", "x_7", "push_3", "m_2")
    verify(one)
    assert canonical(one, "k") == canonical(other, "k")
    verify(canonical(one, "k"))
    assert shared_text(one) == shared_text(other)
    assert print_kernel(one) != print_kernel(other)
    text, symbol = shared_text(one)
    assert f'extern "C" int32_t {symbol}(' in text and "primals" not in text and "a line of" not in text


@pytest.mark.parametrize("changed", [{"fold": Fold.max}, {"width": 16}])
def test_kernels_that_do_something_else_are_other_texts(changed: dict[str, Fold | int]) -> None:
    one = kernel("forward_1", "primals_5_4", "push_84", "map_81_column")
    other = kernel("forward_1", "primals_5_4", "push_84", "map_81_column", **changed)  # type: ignore[arg-type]
    verify(other)
    assert shared_text(one).symbol != shared_text(other).symbol


def test_what_reads_one_tensor_twice_is_not_what_reads_two() -> None:
    one = kernel("forward_1", "x_1", "push_2", "m_3")
    second = Buffer("x_9", Role.input, DType.f32, "num_V0", (8,))
    again = Lanes((("j1", 8),), (Accum("push_2_v", (LANE,), Fold.sum, Load("x_1", (Var("v"), LANE))),))
    both = replace(one, buffers=(*one.buffers, second), body=(*one.body[:3], again, *one.body[3:]))
    other = Lanes((("j1", 8),), (Accum("push_2_v", (LANE,), Fold.sum, Load("x_9", (Var("v"), LANE))),))
    apart = replace(both, body=(*one.body[:3], other, *one.body[3:]))
    verify(both)
    verify(apart)
    assert canonical(both, "k") != canonical(apart, "k")


def test_a_canonical_kernel_is_its_own_form_and_no_two_names_become_one() -> None:
    made = canonical(kernel("f", "in_1", "size_0", "out_2"), "k")
    assert canonical(made, "k") == made
    names = [*made.sizes, *(b.name for b in made.buffers), "csr", "v"]
    assert len(set(names)) == len(names)
    verify(made)


def layer(h: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return torch.tanh(torch.zeros_like(h).index_add(0, dst, torch.sigmoid(h[src]) * h[src]) @ w)


def layers(h: Tensor, ws: list[Tensor], src: Tensor, dst: Tensor) -> Tensor:
    for w in ws:
        h = layer(h, w, src, dst)
    return h


def arguments(count: int, *, grad: bool) -> tuple[Tensor, list[Tensor], Tensor, Tensor]:
    torch.manual_seed(0)
    ws = [torch.randn(16, 16, dtype=torch.float64, requires_grad=grad) for _ in range(count)]
    src, dst = torch.randint(2000, (2, 6000))
    return torch.randn(2000, 16, dtype=torch.float64), ws, src, dst


@needs_cxx
def test_equal_layers_are_compiled_once_and_an_evaluation_compiles_what_is_new(tmp_path: Path) -> None:
    def builds() -> int:
        for thread in threading.enumerate():
            if thread.name == "graphweave-early":  # it builds the runtime's library, if this process has another one
                thread.join(patience.seconds())
        return graphweave.counters()["kernel_builds"]

    with override(cache_dir=tmp_path):
        compiled, begun, seen = graphweave.compile(layers), builds(), dict[int, int]()
        for count in (3, 6):
            given = arguments(count, grad=True)
            y = compiled(*given)
            grads = torch.autograd.grad(y.square().sum(), given[1])
            expected = torch.autograd.grad(layers(*given).square().sum(), given[1])
            torch.testing.assert_close(grads, expected)
            seen[count] = builds() - begun
        assert 0 < seen[3] == seen[6], "the kernels of three more equal layers are those that there are"
        with torch.no_grad():
            torch.testing.assert_close(compiled(*given), layers(*given))
            first = builds() - begun
            given = arguments(4, grad=False)
            torch.testing.assert_close(compiled(*given), layers(*given))
        assert builds() - begun == first
