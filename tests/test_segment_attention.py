"""`ops.segment_attention` against attention segment by segment, forward and every gradient, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave
from graphweave import ops
from graphweave.core.errors import DataError
from graphweave.ops.segment_attention import _padded
from graphweave.runtime import segment_attention as native
from tests.sanitizer_support import run_sanitized
from tests.support import by_default

LENGTHS: dict[str, tuple[list[int], list[int] | None]] = {
    "mixed": ([5, 0, 7, 1, 0], None),
    "one": ([9], None),
    "single rows": ([1, 1, 1], None),
    "no segments": ([], None),
    "no rows": ([0, 0], None),
    "longer than a block of queries": ([70, 3], None),
    "other keys": ([3, 2, 0, 4, 2], [0, 9, 3, 40, 1]),
}
"""The queries and the keys of each segment; None where they are the same rows."""
WIDTHS = {"narrow": (1, 1, 1), "odd": (2, 5, 3), "heads": (4, 16, 16), "wide": (1, 33, 40)}
"""Heads, and the widths of keys and of values."""
DTYPES = {"float": torch.float32, "double": torch.float64}
RTOL = {torch.float32: 1e-4, torch.float64: 1e-11}
"""Sums of about a hundred products of numbers of size 1."""


def pointers(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def operands(
    lengths: str, widths: str, dtype: torch.dtype = torch.float64
) -> tuple[list[Tensor], Tensor, Tensor | None]:
    """q, k and v, and the row pointers. Keys and values are parts of one tensor, as a layer makes them."""
    queries, keys = LENGTHS[lengths]
    heads, width, values = WIDTHS[widths]
    random = torch.Generator().manual_seed(len(queries))
    ptr, key_ptr = pointers(queries), None if keys is None else pointers(keys)
    q = torch.randn(int(ptr[-1]), heads, width, dtype=dtype, generator=random)
    both = torch.randn(
        int((ptr if key_ptr is None else key_ptr)[-1]), heads, width + values, dtype=dtype, generator=random
    )
    return [q, both[..., :width], both[..., width:]], ptr, key_ptr


def reference(q: Tensor, k: Tensor, v: Tensor, ptr: Tensor, key_ptr: Tensor | None, scale: float) -> Tensor:
    outs = [q[:0] @ k.new_zeros(k.shape[2], v.shape[2]) + v[:0].sum() + k[:0].sum()]
    ends, key_ends = ptr.tolist(), (ptr if key_ptr is None else key_ptr).tolist()
    for s in range(len(ends) - 1):
        a, b, c = (x[e[s] : e[s + 1]].transpose(0, 1) for x, e in ((q, ends), (k, key_ends), (v, key_ends)))
        outs.append(((a @ b.transpose(1, 2) * scale).softmax(-1) @ c).transpose(0, 1))
    return torch.cat(outs)


def with_gradients(function: Callable[..., Tensor], tensors: list[Tensor]) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in tensors]
    out = function(*leaves)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return [out, *torch.autograd.grad(out, leaves, weight)]


@pytest.mark.parametrize("case", by_default([f"{w} {d}" for w in WIDTHS for d in DTYPES], "odd double", "heads float"))
@pytest.mark.parametrize("lengths", LENGTHS)
def test_rows_attend_the_rows_of_their_segment(lengths: str, case: str) -> None:
    widths, name = case.split()
    dtype = DTYPES[name]
    tensors, ptr, key_ptr = operands(lengths, widths, dtype)
    got = with_gradients(lambda q, k, v: ops.segment_attention(q, k, v, ptr, key_ptr=key_ptr, scale=0.7), tensors)
    want = with_gradients(lambda q, k, v: reference(q, k, v, ptr, key_ptr, 0.7), tensors)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=RTOL[dtype], atol=RTOL[dtype])


@pytest.mark.parametrize("lengths", ["mixed", "other keys", "no rows"])
def test_long_segments_are_pytorchs_calls(lengths: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors, ptr, key_ptr = operands(lengths, "heads", torch.float32)
    want = with_gradients(lambda q, k, v: ops.segment_attention(q, k, v, ptr, key_ptr=key_ptr), tensors)
    monkeypatch.setattr(native, "LONGEST", 5)
    got = with_gradients(lambda q, k, v: ops.segment_attention(q, k, v, ptr, key_ptr=key_ptr), tensors)
    torch.testing.assert_close(got, want, rtol=RTOL[torch.float32], atol=RTOL[torch.float32])


@pytest.mark.parametrize("lengths", ["mixed", "other keys"])
def test_padded_rows_give_the_same(lengths: str) -> None:
    """The form for other devices, on the CPU."""
    tensors, ptr, key_ptr = operands(lengths, "odd")
    keys = ptr if key_ptr is None else key_ptr
    got = with_gradients(lambda q, k, v: _padded(q, k, v, ptr, keys, 0.7), tensors)
    want = with_gradients(lambda q, k, v: reference(q, k, v, ptr, key_ptr, 0.7), tensors)
    torch.testing.assert_close(got, want)


def test_one_head_needs_no_dim() -> None:
    (q, k, v), ptr, _ = operands("mixed", "odd")
    out = ops.segment_attention(*(x[:, 1] for x in (q, k, v)), ptr.int())
    torch.testing.assert_close(out, reference(q, k, v, ptr, None, 5**-0.5)[:, 1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    tensors, ptr, _ = operands("mixed", "heads")
    half = [x.to(dtype) for x in tensors]
    got = with_gradients(lambda q, k, v: ops.segment_attention(q, k, v, ptr), half)
    wide = [x.float() for x in half]
    want = with_gradients(lambda q, k, v: ops.segment_attention(q, k, v, ptr).to(dtype), wide)
    torch.testing.assert_close(got, [x.to(dtype) for x in want])


def test_derivatives_are_those_of_finite_differences() -> None:
    tensors, ptr, key_ptr = operands("other keys", "odd")
    leaves = [x.detach().requires_grad_() for x in tensors]
    assert torch.autograd.gradcheck(lambda q, k, v: ops.segment_attention(q, k, v, ptr, key_ptr=key_ptr), leaves)


def test_the_operator_is_registered_as_pytorch_wants_it() -> None:
    (q, k, v), ptr, _ = operands("mixed", "odd")
    out, lse = native.segment_attention(q, k, v, ptr, ptr, 0.5)
    torch.library.opcheck(native.segment_attention, (q, k, v, ptr, ptr, 0.5))
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    torch.library.opcheck(native.segment_attention, (*leaves, ptr, ptr, 0.5), test_utils="test_aot_dispatch_dynamic")
    torch.library.opcheck(
        torch.ops.graphweave.segment_attention_backward.default, (out, q, k, v, out, lse, ptr, ptr, 0.5)
    )


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    lengths = torch.randint(40, (50,), generator=torch.Generator().manual_seed(0)).tolist()
    ptr = pointers(lengths)
    tensors = [torch.randn(int(ptr[-1]), 4, 16) for _ in range(3)]
    threads, found = torch.get_num_threads(), []
    for count in (1, 3):
        torch.set_num_threads(count)
        found.append(with_gradients(lambda q, k, v: ops.segment_attention(q, k, v, ptr), tensors))
    torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_second_derivatives_are_refused() -> None:
    tensors, ptr, _ = operands("mixed", "odd")
    q, k, v = (x.detach().requires_grad_() for x in tensors)
    (first,) = torch.autograd.grad(ops.segment_attention(q, k, v, ptr).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="segment_attention_backward"):
        first.sum().backward()


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("compiler", ["graphweave", "aot_eager"])
def test_compiled_functions_call_it(compiler: str) -> None:
    def layer(q: Tensor, k: Tensor, v: Tensor, ptr: Tensor) -> Tensor:
        return ops.segment_attention(q, torch.tanh(k), v, ptr) * 2

    compiled: Any = graphweave.compile(layer)
    if compiler != "graphweave":
        compiled = torch.compile(layer, backend=compiler, dynamic=True, fullgraph=True)
    for name in ("mixed", "one"):
        tensors, ptr, _ = operands(name, "odd")
        got = with_gradients(lambda q, k, v, ptr=ptr: compiled(q, k, v, ptr), tensors)
        torch.testing.assert_close(got, with_gradients(lambda q, k, v, ptr=ptr: layer(q, k, v, ptr), tensors))


Q, K, V = torch.randn(4, 2, 3), torch.randn(4, 2, 3), torch.randn(4, 2, 5)
PTR = torch.tensor([0, 1, 4])
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "widths": (lambda: ops.segment_attention(Q, V, V, PTR), r"expected q \[N, D\]"),
    "rows": (lambda: ops.segment_attention(Q, K, V[:3], PTR), r"\[4, 2, 3\], \[4, 2, 3\], \[3, 2, 5\]"),
    "dims": (lambda: ops.segment_attention(Q[0, 0], K[0, 0], V[0, 0], PTR), "with heads in between"),
    "dtypes": (lambda: ops.segment_attention(Q, K.double(), V, PTR), "of one dtype"),
    "whole numbers": (lambda: ops.segment_attention(Q.long(), K.long(), V.long(), PTR), "Convert them"),
    "pointers of floats": (lambda: ops.segment_attention(Q, K, V, PTR.float()), r"integers \[segments \+ 1\]"),
    "no pointers": (lambda: ops.segment_attention(Q, K, V, PTR[:0]), r"integers \[segments \+ 1\]"),
    "segments": (lambda: ops.segment_attention(Q, K, V, PTR, key_ptr=PTR[1:]), "as many segments"),
    "falling": (lambda: ops.segment_attention(Q, K, V, torch.tensor([0, 3, 2, 4])), "must rise from 0 to 4"),
    "beyond": (lambda: ops.segment_attention(Q, K, V, torch.tensor([0, 5])), r"got 0, 5\)"),
    "below": (lambda: ops.segment_attention(Q, K, V, torch.tensor([-1, 4])), "q_ptr must rise"),
    "keys": (lambda: ops.segment_attention(Q, K, V, PTR, key_ptr=torch.tensor([0, 1, 3])), "k_ptr must rise"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused(case: str) -> None:
    call, message = WRONG[case]
    with pytest.raises(DataError, match=message):
        call()


PROGRAM = """
import torch
from graphweave import ops

random = torch.Generator().manual_seed(0)
for heads, width, values, dtype in ((2, 5, 3, torch.float64), (4, 16, 16, torch.float32), (1, 33, 1, torch.float32)):
    for lengths in ([], [0], [1], [5, 0, 7], [70, 3], [31] * 9):
        ptr = torch.tensor([0, *lengths]).cumsum(0)
        n = int(ptr[-1])
        q, k = (torch.randn(n, heads, width, dtype=dtype, generator=random).requires_grad_() for _ in range(2))
        v = torch.randn(n, heads, values, dtype=dtype, generator=random).requires_grad_()
        ops.segment_attention(q, k, v, ptr).sum().backward()
"""


@pytest.mark.slow
@pytest.mark.sanitize
def test_native_code_is_clean_under_sanitizers() -> None:
    run_sanitized(PROGRAM)
