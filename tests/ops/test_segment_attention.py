"""`ops.segment_attention` against attention segment by segment, forward and every gradient, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave
from graphweave import ops
from graphweave.core.errors import DataError, DerivativeError
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


def terms_of(kind: str, ptr: Tensor, key_ptr: Tensor, heads: int) -> dict[str, Any]:
    """The terms that are added to the scores of pairs, or take their place."""
    random, sizes = torch.Generator().manual_seed(1), (ptr.diff(), key_ptr.diff())
    segments, most = len(ptr) - 1, [int(n.max()) if n.numel() else 0 for n in sizes]
    drawn = lambda *shape: torch.randn(shape, generator=random, dtype=torch.float64)  # noqa: E731
    found: dict[str, Any] = {}
    if kind in ("bias", "all"):
        found["bias"] = drawn(segments, heads, most[0] + 1, most[1]).transpose(2, 3).contiguous().transpose(2, 3)
    if kind == "bias of keys":
        found["bias"] = drawn(segments, 1, 1, most[1])
    if kind == "mask":
        found["bias"] = drawn(1, heads, most[0], most[1])
        found["bias"] = found["bias"].masked_fill(found["bias"] > 0.5, -torch.inf)
        found["bias"][..., :1, :] = -torch.inf
    if kind == "hidden":
        found["hidden"] = torch.rand(segments, heads, most[0], most[1] + 1, generator=random)[..., :-1] < 0.4
        found["hidden"][..., :1, :] = True
        found["bias"], found["fill"] = drawn(1, 1, *most), -1.5
    if kind == "hidden keys":
        found["hidden"], found["fill"] = torch.rand(segments, 1, 1, most[1], generator=random) < 0.5, -torch.inf
    if kind in ("table", "all"):
        found["table"] = drawn(4, heads)
        found["codes"] = torch.randint(4, (segments, *most), generator=random)
    if kind in ("edges", "all"):
        pairs = [
            (a, b)
            for s in range(segments)
            for a in range(ptr[s], ptr[s + 1])
            for b in range(key_ptr[s], key_ptr[s + 1])
        ]
        chosen = torch.randint(max(len(pairs), 1), (2 * len(pairs),), generator=random)
        found["edges"] = torch.tensor(pairs, dtype=torch.long).view(-1, 2)[chosen].T
        found["numbers"] = drawn(len(chosen), heads)
    return found


def attend(
    q: Tensor, k: Tensor, v: Tensor, ptr: Tensor, key_ptr: Tensor, seed: int | None = None, **terms: Any
) -> Tensor:
    drop = {} if seed is None else {"seed": torch.tensor(seed), "dropped": 0.4}
    return native.segment_attention(q, k, v, ptr, key_ptr, 0.7, **drop, **terms)[0]


def reference_with(
    q: Tensor, k: Tensor, v: Tensor, ptr: Tensor, key_ptr: Tensor, kept: Tensor | None = None,
    bias: Tensor | None = None, codes: Tensor | None = None, table: Tensor | None = None, edges: Tensor | None = None,
    numbers: Tensor | None = None, hidden: Tensor | None = None, fill: float = 0.0, undefined: bool = False,
) -> Tensor:  # fmt: skip
    """Attention over one matrix of all pairs [heads, queries, keys], of which those of other segments are hidden."""
    own, others = (torch.arange(len(p) - 1).repeat_interleave(p.diff()) for p in (ptr, key_ptr))
    at, to = torch.arange(len(q)) - ptr[own], torch.arange(len(k)) - key_ptr[others]
    near = own[:, None] == others
    row, key = near.nonzero().unbind(1)
    scores = torch.einsum("ihd,jhd->hij", q, k) * 0.7
    pairs = q.new_zeros(len(row), q.shape[1])
    if bias is not None:
        wide = bias.expand(len(ptr) - 1, q.shape[1], *bias.shape[2:])
        wide = wide.expand(-1, -1, max(bias.shape[2], int(at.max()) + 1), -1) if len(at) else wide
        pairs = pairs + wide[own[row], :, at[row], to[key]]
    if codes is not None and table is not None:
        pairs = pairs + table[codes[own[row], at[row], to[key]]]
    scores = scores.index_put((torch.arange(q.shape[1])[:, None], row, key), pairs.T, accumulate=True)
    if edges is not None and numbers is not None:
        scores = scores.index_put((torch.arange(q.shape[1])[:, None], *edges), numbers.T, accumulate=True)
    if hidden is not None:
        wide = hidden.expand(len(ptr) - 1, q.shape[1], *hidden.shape[2:])
        of_pairs = torch.zeros(scores.shape, dtype=torch.bool)
        of_pairs[:, row, key] = wide[own[row], :, at[row] % wide.shape[2], to[key] % wide.shape[3]].T
        scores = scores.masked_fill(of_pairs, fill)
    scores = scores.masked_fill(~near, -torch.inf)
    dead = (scores == -torch.inf).all(-1, keepdim=True)
    weights = scores.masked_fill(dead, 0).softmax(-1).masked_fill(dead, torch.nan if undefined else 0)
    return torch.einsum("hij,jhd->ihd", weights if kept is None else weights * kept, v)


@pytest.mark.parametrize(
    "kind",
    by_default(
        ["bias", "bias of keys", "mask", "table", "edges", "all", "hidden", "hidden keys"], "mask", "all", "hidden"
    ),
)
@pytest.mark.parametrize("lengths", by_default(LENGTHS, "mixed", "no segments", "no rows", "other keys"))
def test_scores_are_shifted_by_what_is_given_for_pairs(lengths: str, kind: str) -> None:
    tensors, ptr, key_ptr = operands(lengths, "odd")
    keys = ptr if key_ptr is None else key_ptr
    terms = terms_of(kind, ptr, keys, tensors[0].shape[1])
    learned = [name for name, x in terms.items() if isinstance(x, Tensor) and x.is_floating_point()]
    leaves = [*tensors, *(terms[name] for name in learned)]

    def through(function: Callable[..., Tensor]) -> list[Tensor]:
        return with_gradients(
            lambda q, k, v, *x: function(q, k, v, ptr, keys, **terms | dict(zip(learned, x, strict=True))), leaves
        )

    torch.testing.assert_close(through(attend), through(reference_with))


def test_scores_that_are_multiplied_with_0_are_equal() -> None:
    """The columns that pad a vector of keys had NaN: 0 times the -inf that hid them."""
    tensors, ptr, key_ptr = operands("other keys", "odd")
    got = with_gradients(lambda q, k, v: ops.segment_attention(q, k, v, ptr, key_ptr=key_ptr, scale=0.0), tensors)
    want = with_gradients(lambda q, k, v: reference(q, k, v, ptr, key_ptr, 0.0), tensors)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("kind", ["added", "hidden"])
def test_undefined_weights_are_those_of_a_softmax(kind: str) -> None:
    """One query of one segment reads nothing. NaN reaches what it reaches in eager mode, and nothing else."""
    q, k, v = (torch.randn(2, 1, n, 3, dtype=torch.float64) for n in (4, 5, 5))
    hidden = torch.rand(2, 1, 4, 5) < 0.3
    hidden[..., 0], hidden[1, 0, 2] = False, True
    shift = torch.zeros(hidden.shape, dtype=torch.float64).masked_fill(hidden, -torch.inf)

    def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1)
        return (scores + shift if kind == "added" else scores.masked_fill(hidden, -torch.inf)).softmax(-1) @ v

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)]
        term = {"bias": shift} if kind == "added" else {"hidden": hidden, "fill": -torch.inf}
        ends = torch.tensor([0, 4, 8]), torch.tensor([0, 5, 10])
        out = native.segment_attention(*rows, *ends, 1.0, undefined=True, **term)[0]
        return out.unflatten(0, (2, 4)).transpose(1, 2)

    got, want = with_gradients(ours, [q, k, v]), with_gradients(eager, [q, k, v])
    torch.testing.assert_close(got, want, equal_nan=True)
    assert got[0].isnan().any() and not got[0].isnan().all()


def test_dropped_weights_are_dropped_in_the_derivative() -> None:
    tensors, ptr, _ = operands("longer than a block of queries", "odd")
    q, k, v = tensors
    places = torch.eye(len(k), dtype=q.dtype)[:, None].expand(-1, q.shape[1], -1)
    count = ptr.diff().repeat_interleave(ptr.diff())[:, None, None]
    equal = torch.zeros_like(q), torch.zeros_like(k)  # so that weights are 1 / count
    padded = torch.nn.functional.pad(places, (0, 2)).split(v.shape[2], -1)
    kept = torch.cat([attend(*equal, part, ptr, ptr, seed=5) for part in padded], -1)[..., : len(k)] * count
    kept = kept.permute(1, 0, 2)
    near = kept[:, :70, :70]
    assert set(near.unique().round(decimals=9).tolist()) == {0.0, round(1 / 0.6, 9)}
    assert abs(float((near == 0).double().mean()) - 0.4) < 0.02  # about five standard deviations
    for other in (near[1], near[0].T, near[0].roll(1, 0), near[0].roll(1, 1)):
        assert abs(float(((near[0] == 0) == (other == 0)).double().mean()) - 0.52) < 0.05, "draws depend on each other"
    assert not torch.equal(attend(q, k, v, ptr, ptr, seed=6), attend(q, k, v, ptr, ptr, seed=5))
    terms = terms_of("all", ptr, ptr, q.shape[1])
    got = with_gradients(lambda q, k, v: attend(q, k, v, ptr, ptr, seed=5, **terms), tensors)
    want = with_gradients(lambda q, k, v: reference_with(q, k, v, ptr, ptr, kept, **terms), tensors)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("kind", ["bias", "mask", "edges"])
def test_shifts_and_dropout_of_the_function(kind: str) -> None:
    """Masks of bools, and the form for other devices, on the CPU."""
    tensors, ptr, key_ptr = operands("other keys", "odd")
    assert key_ptr is not None
    terms = terms_of(kind, ptr, key_ptr, 2)
    given = {"edge_bias" if name == "numbers" else name: x for name, x in terms.items()}
    want = with_gradients(lambda q, k, v: reference_with(q, k, v, ptr, key_ptr, **terms), tensors)
    got = with_gradients(lambda *x: ops.segment_attention(*x, ptr, key_ptr=key_ptr, scale=0.7, **given), tensors)
    torch.testing.assert_close(got, want)
    got = with_gradients(lambda *x: _padded(*x, ptr, key_ptr, 0.7, **given), tensors)
    torch.testing.assert_close(got, want)
    near = torch.rand(1, 1, 4, 40) < 0.5
    shift = torch.zeros(near.shape, dtype=torch.float64).masked_fill(~near, -torch.inf)
    got, want = (ops.segment_attention(*tensors, ptr, key_ptr=key_ptr, bias=x) for x in (near, shift))
    torch.testing.assert_close(got, want)
    once, again, other = (
        (torch.manual_seed(s), ops.segment_attention(*tensors, ptr, key_ptr=key_ptr, dropout=0.5))[1] for s in (0, 0, 1)
    )
    assert torch.equal(once, again)
    assert not torch.equal(once, other)


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
    edges = torch.tensor([[0, 3, 6], [2, 3, 11]])
    seed = torch.tensor(7)
    added = torch.randn(1, 2, 7, 7).double(), torch.zeros(5, 7, 7).long(), torch.randn(3, 2).double()
    hidden = torch.rand(5, 1, 1, 7) < 0.3
    terms = *added, edges, torch.randn(3, 2).double(), hidden, -1.0, True, seed, 0.3
    for given in ((), terms):
        out, lse = native.segment_attention(q, k, v, ptr, ptr, 0.5, *given)
        args = q, k, v, ptr, ptr, 0.5, *given
        torch.library.opcheck(native.segment_attention, args)
        leaves = [x.detach().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x for x in args]
        torch.library.opcheck(native.segment_attention, leaves, test_utils="test_aot_dispatch_dynamic")
        wanted = [bool(given)] * 3
        torch.library.opcheck(
            torch.ops.graphweave.segment_attention_backward.default,
            (out, q, k, v, out, lse, ptr, ptr, 0.5, wanted, *given),
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


@pytest.mark.parametrize("kind", ["none", "bias", "bias of keys", "hidden"])
def test_gradients_of_gradients(kind: str) -> None:
    tensors, ptr, key_ptr = operands("other keys", "odd")
    assert key_ptr is not None
    terms = terms_of(kind, ptr, key_ptr, 2)
    leaves = [*tensors, *(terms[name] for name in ("bias",) if name in terms)]

    def norms(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def of(q: Tensor, k: Tensor, v: Tensor, *bias: Tensor) -> Tensor:
            out = function(q, k, v, ptr, key_ptr, **terms | dict(zip(("bias",), bias, strict=False)))
            grads = torch.autograd.grad(out.sin().sum(), [q, k, v, *bias], create_graph=True)
            return torch.stack([g.square().sum() for g in grads])

        return of

    torch.testing.assert_close(with_gradients(norms(attend), leaves), with_gradients(norms(reference_with), leaves))


def test_gradients_of_gradients_of_what_is_dropped_are_refused() -> None:
    tensors, ptr, _ = operands("mixed", "odd")
    q, k, v = (x.detach().requires_grad_() for x in tensors)
    out = ops.segment_attention(q, k, v, ptr, dropout=0.5)
    (first,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(DerivativeError, match="dropout"):
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
ODD = [torch.randn(4, 2, width, dtype=torch.float64) for width in (5, 5, 3)]
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
    "bias of a segment": (
        lambda: ops.segment_attention(Q, K, V, PTR, bias=torch.zeros(2, 2, 2, 3)),
        "up to 3 queries and 3 keys",
    ),
    "bias of heads": (lambda: ops.segment_attention(Q, K, V, PTR, bias=torch.zeros(2, 3, 4, 4)), "2 heads, queries"),
    "edges alone": (lambda: ops.segment_attention(Q, K, V, PTR, edges=torch.zeros(2, 1).long()), "Pass both"),
    "edges of heads": (
        lambda: ops.segment_attention(Q, K, V, PTR, edges=torch.zeros(2, 1).long(), edge_bias=torch.zeros(1, 3)),
        r"edge_bias \[edges, 2 heads\]",
    ),
    "edges between segments": (
        lambda: ops.segment_attention(*ODD, PTR, edges=torch.tensor([[0], [1]]), edge_bias=torch.zeros(1, 2)),
        "of the same segment",
    ),
    "dropout": (lambda: ops.segment_attention(Q, K, V, PTR, dropout=1.0), "less than 1"),
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
        most = max(lengths, default=0)
        bias = torch.randn(len(lengths), 1, most, most, dtype=dtype, generator=random).requires_grad_()
        edges = torch.arange(n).flip(0).expand(2, -1)
        numbers = torch.randn(n, heads, dtype=dtype, generator=random).requires_grad_()
        given = {"bias": bias, "edges": edges, "edge_bias": numbers, "dropout": 0.3}
        ops.segment_attention(q, k, v, ptr, **given).sum().backward()
"""


@pytest.mark.slow
@pytest.mark.sanitize
def test_native_code_is_clean_under_sanitizers() -> None:
    run_sanitized(PROGRAM)
