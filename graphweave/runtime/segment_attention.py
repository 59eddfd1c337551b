"""Attention of rows to the rows of their own segment, as one operator of PyTorch: `native/segment_attention.cpp`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from graphweave.core.errors import DataError, DerivativeError
from graphweave.core.ranges import range_error
from graphweave.runtime import early, formats, kernel_cache, sources
from graphweave.runtime.index import Index
from graphweave.runtime.native_numbers import NativeNumbers
from graphweave.runtime.segment_attention_twice import gradients_twice
from graphweave.runtime.threads import num_threads

aten = torch.ops.aten

LONGEST = 512
"""Segments of more keys are attended by PyTorch's fused call, one call a segment: there its matrix products are faster
than ours. Those with terms or dropout are attended here, whatever their length."""

NUM_SEEDS = (1 << 63) - 1
"""Exclusive upper limit of the seeds that are drawn."""

MAX_PARTS = 64
"""Upper limit on the parts of the segments that have gradients of a table of their own."""

_NUMBERS = {torch.float32: "float", torch.float64: "double"}
_POINTER, _I64 = ctypes.c_void_p, ctypes.c_int64


TERMS = (
    "Tensor? bias=None, Tensor? codes=None, Tensor? table=None, Tensor? edges=None, Tensor? numbers=None,"
    " Tensor? hidden=None, float fill=0.0, bool undefined=False, Tensor? seed=None, float dropped=0.0"
)
"""The last operands of the operator and of its derivative, which `_Terms` holds."""
_FIRST_TERM, _WITH_GRADIENTS = 6, (0, 2, 4)
"""The place of the first term among the operands, and those of terms that may have gradients among the terms."""


class _HeadRows(NativeNumbers):
    _fields_ = (("data", _POINTER), ("row", _I64), ("head", _I64))


class _OfPairs(NativeNumbers):
    _fields_ = (("data", _POINTER), ("segment", _I64), ("head", _I64), ("query", _I64), ("key", _I64))


class _EdgeNumbers(NativeNumbers):
    _fields_ = tuple((name, _POINTER) for name in ("ends", "keys", "order", "numbers", "grad"))


class _AttentionCall(NativeNumbers):
    """The structure `Call`."""

    _fields_ = (
        *((name, _HeadRows) for name in ("q", "k", "v", "out")), ("lse", _POINTER),
        *((name, _HeadRows) for name in ("grad", "q_grad", "k_grad", "v_grad")), ("q_ends", _POINTER),
        ("k_ends", _POINTER), ("segments", _I64), ("heads", _I64), ("longest", _I64), ("scale", ctypes.c_double),
        ("bias", _OfPairs), ("bias_grad", _OfPairs), ("codes", _OfPairs), ("table", _POINTER),
        ("table_grad", _POINTER), ("rows_of_table", _I64), ("edges", _EdgeNumbers), ("hidden", _OfPairs),
        ("fill", ctypes.c_double), ("undefined", _I64), ("parts", _I64), ("seed", _I64), ("dropped", ctypes.c_double),
        ("left", _I64),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Terms:
    """The terms that are added to the scores of pairs or take their place, and the weights that are dropped; see
    `segment_attention`."""

    bias: Tensor | None = None
    codes: Tensor | None = None
    table: Tensor | None = None
    edges: Tensor | None = None
    numbers: Tensor | None = None
    hidden: Tensor | None = None
    fill: float = 0.0
    undefined: bool = False
    seed: Tensor | None = None
    dropped: float = 0.0

    @property
    def added(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Those that may have gradients."""
        return self.bias, self.table, self.numbers

    def is_empty(self) -> bool:
        return all(x is None for x in (*self.added, self.hidden)) and not self.dropped


_ROWS = "Tensor q, Tensor k, Tensor v"
_SEGMENTS = "Tensor q_ptr, Tensor k_ptr, float scale"
_FORWARD = f"({_ROWS}, {_SEGMENTS}, {TERMS}) -> (Tensor, Tensor)"
_GRADIENTS = ", ".join(["Tensor"] * 6)
_TWICE = (
    f"(Tensor of_q, Tensor of_k, Tensor of_v, Tensor of_bias, Tensor grad, {_ROWS}, {_SEGMENTS}, {TERMS}) ->"
    " (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_BACKWARD = f"(Tensor grad, {_ROWS}, Tensor out, Tensor lse, {_SEGMENTS}, bool[] wanted, {TERMS}) -> ({_GRADIENTS})"


@torch.library.custom_op("graphweave::segment_attention", mutates_args=(), device_types="cpu", schema=_FORWARD)
def segment_attention(
    q: Tensor, k: Tensor, v: Tensor, q_ptr: Tensor, k_ptr: Tensor, scale: float, *given: Any
) -> tuple[Tensor, Tensor]:
    """(out, lse): out[i, h] = sum of p[j] v[j, h] over the keys j of the segment of query i, p being the softmax of
    scale * q[i, h] . k[j, h] + t[i, j, h]; lse[i, h] the logarithm of the sum of the exponentials of these scores.

    q [N, heads, D], k [M, heads, D], v [M, heads, E], float32 or float64, row pointers int64 [segments + 1] -> [N,
    heads, E], [N, heads]. A segment may have no queries; one without keys gives zeros. So does a query whose scores are
    all -inf, or NaN if they are `undefined`, as a softmax has it. DataError for row pointers that fall, or do not lead
    from 0 to the number of rows.

    The operands `given` are `TERMS`. t is the sum of those for query i and key j at places a and b of segment s:
    `bias[s, h, a, b]`, of which any dim may have size 1; `table[codes[s, a, b], h]`, int64 codes; and `numbers[e, h]`
    of all edges e with edges[0, e] = i and edges[1, e] = j. Where the bool `hidden[s, h, a, b]`, of which any dim may
    have size 1, is true, the score is `fill`. The share `dropped` of the weights p is 0, others are divided by 1 -
    dropped; which ones is a function of `seed`, int64.
    """
    out, lse = q.new_empty((*q.shape[:2], v.shape[2])), q.new_empty(q.shape[:2])
    q, k, v, q_ptr, k_ptr = *map(_rows, (q, k, v)), q_ptr.contiguous(), k_ptr.contiguous()
    terms = _Terms(*given)
    _check_pointers(q_ptr, "q_ptr", q.shape[0])
    _check_pointers(k_ptr, "k_ptr", k.shape[0])
    _check_terms(terms, q_ptr, k_ptr)
    longest = _longest(k, v, terms)
    none = (_HeadRows(),) * 4
    _run((q, k, v, out), lse, none, q_ptr, k_ptr, longest, scale, terms, (None,) * 3, backward=False)
    for rows, keys in _long_segments(q_ptr, k_ptr, longest):
        heads = [_as_batch(q[rows]), _as_batch(k[keys]), _as_batch(v[keys])]
        long_out, long_lse = aten._scaled_dot_product_flash_attention_for_cpu(*heads, 0.0, False, scale=scale)
        out[rows], lse[rows] = long_out[0].transpose(0, 1), long_lse[0].transpose(0, 1)
    return out, lse


@torch.library.custom_op(
    "graphweave::segment_attention_backward", mutates_args=(), device_types="cpu", schema=_BACKWARD
)
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    q_ptr: Tensor,
    k_ptr: Tensor,
    scale: float,
    wanted: Sequence[bool],
    *given: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of q, k and v, and those of `bias`, `table` and `numbers` that are `wanted`; others are empty."""
    grads = [x.new_empty(x.shape) for x in (q, k, v)]
    q, k, v, out, grad, lse = *map(_rows, (q, k, v, out, grad)), lse.contiguous()
    q_ptr, k_ptr = q_ptr.contiguous(), k_ptr.contiguous()
    terms = _Terms(*given)
    _check_pointers(q_ptr, "q_ptr", q.shape[0])
    _check_pointers(k_ptr, "k_ptr", k.shape[0])
    _check_terms(terms, q_ptr, k_ptr)
    longest = _longest(k, v, terms)
    of_terms = _room_for_gradients(terms, wanted, q_ptr, q.shape[1])
    raw = tuple(map(_raw, (grad, *grads)))
    _run((q, k, v, out), lse, raw, q_ptr, k_ptr, longest, scale, terms, of_terms, backward=True)
    for rows, keys in _long_segments(q_ptr, k_ptr, longest):
        operands = [grad[rows], q[rows], k[keys], v[keys], out[rows]]
        found = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *map(_as_batch, operands), lse[rows].transpose(0, 1).unsqueeze(0), 0.0, False, scale=scale
        )
        for whole, at, part in zip(grads, (rows, keys, keys), found, strict=True):
            whole[at] = part[0].transpose(0, 1)
    of_bias, of_table, of_numbers = (q.new_empty(0) if x is None else x for x in of_terms)
    if terms.bias is not None and wanted[0]:
        of_bias = of_bias.sum_to_size(terms.bias.shape)
    if wanted[1]:
        of_table = of_table.sum(0)
    return grads[0], grads[1], grads[2], of_bias, of_table, of_numbers


@segment_attention.register_fake
def _fake(
    q: Tensor, k: Tensor, v: Tensor, q_ptr: Tensor, k_ptr: Tensor, scale: float, *terms: object
) -> tuple[Tensor, Tensor]:
    return q.new_empty((*q.shape[:2], v.shape[2])), q.new_empty(q.shape[:2])


@_backward.register_fake
def _backward_fake(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    q_ptr: Tensor,
    k_ptr: Tensor,
    scale: float,
    wanted: Sequence[bool],
    *given: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    added = _Terms(*given).added
    of_terms = (q.new_empty(x.shape if x is not None and w else 0) for x, w in zip(added, wanted, strict=True))
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), *of_terms  # type: ignore[return-value]


def _keep(ctx: Any, inputs: tuple[object, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, q_ptr, k_ptr, ctx.scale, *given = inputs
    ctx.given = [None if isinstance(x, Tensor) else x for x in given]
    ctx.tensors = [i for i, x in enumerate(given) if isinstance(x, Tensor)]
    ctx.save_for_backward(q, k, v, *output, q_ptr, k_ptr, *(given[i] for i in ctx.tensors))


def _derivative(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    """The gradient of `lse` is not used: nothing but the derivative reads it. PyTorch passes no operands behind the
    last one that differs from its default, and wants no gradients for them."""
    tensors, given, asked = ctx.saved_tensors[:7], list(ctx.given), ctx.needs_input_grad
    for i, x in zip(ctx.tensors, ctx.saved_tensors[7:], strict=True):
        given[i] = x
    wanted = [i in ctx.tensors and asked[_FIRST_TERM + i] for i in _WITH_GRADIENTS]
    *found, bias, table, numbers = _backward(grad, *tensors, ctx.scale, wanted, *given)
    of_terms: list[Tensor | None] = [None] * len(given)
    for i, x, needed in zip(_WITH_GRADIENTS, (bias, table, numbers), wanted, strict=True):
        of_terms[i] = x if needed else None
    return (*found, None, None, None, *of_terms)[: len(asked)]


segment_attention.register_autograd(_derivative, setup_context=_keep)


@torch.library.custom_op("graphweave::segment_attention_twice", mutates_args=(), device_types="cpu", schema=_TWICE)
def _twice(
    of_q: Tensor,
    of_k: Tensor,
    of_v: Tensor,
    of_bias: Tensor,
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_ptr: Tensor,
    k_ptr: Tensor,
    scale: float,
    *given: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of `grad`, q, k, v and the bias, by the tangents of the gradients of q, k, v and the bias."""
    terms = _Terms(*given)
    if terms.table is not None or terms.numbers is not None or terms.dropped:
        raise DerivativeError(
            "gradients of gradients of attention with dropout, with codes or with numbers of edges cannot be computed."
            " Set dropout to 0, and pass numbers of pairs as a bias."
        )
    found = gradients_twice(
        (of_q, of_k, of_v, of_bias),
        (grad, q, k, v),
        (q_ptr, k_ptr),
        scale,
        terms.bias,
        terms.hidden,
        terms.fill,
        undefined=terms.undefined,
    )
    return found[0], found[1], found[2], found[3], found[4]


@_twice.register_fake
def _twice_fake(
    of_q: Tensor,
    of_k: Tensor,
    of_v: Tensor,
    of_bias: Tensor,
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_ptr: Tensor,
    k_ptr: Tensor,
    scale: float,
    *given: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    bias = _Terms(*given).bias
    of_rows = grad.new_empty(grad.shape), q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
    return *of_rows, q.new_empty(0 if bias is None else bias.shape)


def _keep_again(ctx: Any, inputs: tuple[object, ...], output: tuple[Tensor, ...]) -> None:
    grad, q, k, v, _, _, q_ptr, k_ptr, ctx.scale, _, *given = inputs
    ctx.given = [None if isinstance(x, Tensor) else x for x in given]
    ctx.tensors = [i for i, x in enumerate(given) if isinstance(x, Tensor)]
    ctx.save_for_backward(grad, q, k, v, q_ptr, k_ptr, *(given[i] for i in ctx.tensors))


def _derivative_again(
    ctx: Any, of_q: Tensor, of_k: Tensor, of_v: Tensor, of_bias: Tensor, *_: Tensor
) -> tuple[Tensor | None, ...]:
    """Results and the logarithms of sums are functions of the other operands: they add nothing of their own."""
    tensors, given = ctx.saved_tensors[:6], list(ctx.given)
    for i, x in zip(ctx.tensors, ctx.saved_tensors[6:], strict=True):
        given[i] = x
    if given[0] is not None and not of_bias.numel():
        of_bias = torch.zeros_like(given[0])
    *found, bias = _twice(of_q, of_k, of_v, of_bias, *tensors, ctx.scale, *given)
    of_terms = [bias if given[0] is not None else None, *[None] * (len(given) - 1)]
    return (*found, None, None, None, None, None, None, *of_terms)[: len(ctx.needs_input_grad)]


_backward.register_autograd(_derivative_again, setup_context=_keep_again)


def _check_terms(terms: _Terms, q_ptr: Tensor, k_ptr: Tensor) -> None:
    """DataError unless each pair has its number, and each code its row."""
    segments = q_ptr.numel() - 1
    queries, keys = (int(ptr.diff().max()) if segments else 0 for ptr in (q_ptr, k_ptr))
    for name, x, spread in (("bias", terms.bias, 1), ("hidden", terms.hidden, 1), ("codes", terms.codes, None)):
        if x is None:
            continue
        sizes = x.shape[0], x.shape[-2], x.shape[-1]
        fits = sizes[0] in (segments, spread) and all(
            size >= most or size == spread for size, most in zip(sizes[1:], (queries, keys), strict=True)
        )
        if not fits:
            raise DataError(
                f"{name} must have an element for each of {segments} segments, up to {queries} queries and {keys} keys"
                f" (got shape {list(x.shape)}). Pass one for the longest segment."
            )
    if terms.codes is not None and terms.table is not None and terms.codes.numel():
        rows, (least, most) = terms.table.shape[0], terms.codes.aminmax()
        if least < 0 or most >= rows:
            wrong = terms.codes.reshape(-1)
            raise range_error(wrong, rows, first=0, at=int(((wrong < 0) | (wrong >= rows)).nonzero()[0]))


def _room_for_gradients(
    terms: _Terms, wanted: Sequence[bool], q_ptr: Tensor, heads: int
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Zeros for the gradients that are wanted: of a bias for each segment and head, of a table for each part."""
    bias, table, numbers = (x if w else None for x, w in zip(terms.added, wanted, strict=True))
    segments = q_ptr.numel() - 1
    return (
        None if bias is None else bias.new_zeros((segments, heads, *bias.shape[2:])),
        None if table is None else table.new_zeros((_parts(segments), *table.shape)),
        None if numbers is None else torch.zeros_like(numbers, memory_format=torch.contiguous_format),
    )


def _parts(segments: int) -> int:
    return min(segments, MAX_PARTS)


def _rows(x: Tensor) -> Tensor:
    """`x`, whose rows of each head are contiguous."""
    return x if x.stride(2) == 1 or x.shape[2] == 1 else x.contiguous()


def _raw(x: Tensor) -> _HeadRows:
    return _HeadRows(x.data_ptr(), x.stride(0), x.stride(1))


def _of_pairs(x: Tensor | None, *sizes: int) -> _OfPairs:
    """A tensor [segments, heads, queries, keys], of which dims of size 1 are repeated."""
    if x is None:
        return _OfPairs()
    strides = (0 if x.shape[d] == 1 else x.stride(d) for d in range(4))
    return _OfPairs(x.data_ptr(), *strides)


def _pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _as_batch(x: Tensor) -> Tensor:
    """[rows, heads, width] -> [1, heads, rows, width]."""
    return x.transpose(0, 1).unsqueeze(0)


def _check_pointers(ptr: Tensor, name: str, rows: int) -> None:
    if ptr.numel() and int(ptr[0]) == 0 and int(ptr[-1]) == rows and bool((ptr[1:] >= ptr[:-1]).all()):
        return
    raise DataError(
        f"{name} must rise from 0 to {rows}, the number of rows (got {_shown(ptr)}). Pass row pointers, such as `ptr`"
        " of a PyG batch whose rows are sorted by graph."
    )


def _shown(ptr: Tensor) -> str:
    first = ", ".join(map(str, ptr[:8].tolist()))
    return f"{first}, ..., {int(ptr[-1])}" if ptr.numel() > 8 else first


def _longest(k: Tensor, v: Tensor, terms: _Terms) -> int:
    """The most keys of a segment that native code attends. PyTorch's call needs keys and values of one width."""
    return LONGEST if k.shape[2] == v.shape[2] and terms.is_empty() else 2**62


def _long_segments(q_ptr: Tensor, k_ptr: Tensor, longest: int) -> list[tuple[slice, slice]]:
    """The queries and the keys of each segment that is left to PyTorch."""
    if k_ptr[-1] <= longest:
        return []
    long = (k_ptr.diff() > longest).nonzero().flatten()
    ends = (q_ptr[long], q_ptr[long + 1], k_ptr[long], k_ptr[long + 1])
    return [(slice(a, b), slice(c, d)) for a, b, c, d in zip(*(x.tolist() for x in ends), strict=True) if a < b]


def _run(
    tensors: tuple[Tensor, ...],
    lse: Tensor,
    grads: tuple[_HeadRows, ...],
    q_ptr: Tensor,
    k_ptr: Tensor,
    longest: int,
    scale: float,
    terms: _Terms,
    of_terms: tuple[Tensor | None, ...],
    *,
    backward: bool,
) -> None:
    """Attend with q, k, v and the result; the gradient of the result, and those of q, k, v and the terms."""
    q, k, v = tensors[:3]
    segments, heads = q_ptr.numel() - 1, lse.shape[1]
    of_bias, of_table, of_numbers = of_terms
    table = None if terms.table is None else terms.table.contiguous()
    numbers = None if terms.numbers is None else terms.numbers.contiguous()
    ends, keys, order = (None,) * 3 if terms.edges is None else _by_query(terms.edges, q.shape[0], k.shape[0])
    call = _AttentionCall(
        *map(_raw, tensors), lse.data_ptr(), *grads, q_ptr.data_ptr(), k_ptr.data_ptr(), segments, heads, longest,
        scale, _of_pairs(terms.bias), _of_pairs(of_bias),
        _of_pairs(None if terms.codes is None else terms.codes.unsqueeze(1)), _pointer(table), _pointer(of_table),
        0 if table is None else table.shape[0],
        _EdgeNumbers(*map(_pointer, (ends, keys, order, numbers, of_numbers))), _of_pairs(terms.hidden), terms.fill,
        terms.undefined, segments if of_table is None else of_table.shape[0],
        0 if terms.seed is None else int(terms.seed), terms.dropped,
    )  # fmt: skip
    status = _library(q.dtype, q.shape[2], v.shape[2]).gw_attend(ctypes.byref(call), backward, num_threads())
    if status == 1:
        raise MemoryError(f"no memory for attention to {v.shape[0]} rows. Free some, or take smaller graphs.")
    if status:
        raise DataError("edges must lead from queries to keys of the same segment. Leave out those that do not.")


def _by_query(edges: Tensor, queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Row pointers of the queries, the key of the edge at each position, and which edge it is; None if it is that
    one."""
    rows = Index(edges[0], queries)
    return formats.csr(rows).indptr, formats.column(rows, Index(edges[1], keys)), formats.perm(rows)


@lru_cache(maxsize=64)
def _library(dtype: torch.dtype, keys: int, values: int) -> ctypes.CDLL:
    """The native functions for numbers of this type, keys and values of these widths."""
    found = kernel_cache.library(_text(dtype, keys, values))
    found.gw_attend.argtypes = (ctypes.POINTER(_AttentionCall), ctypes.c_int32, ctypes.c_int32)
    found.gw_attend.restype = ctypes.c_int32
    return found


def _text(dtype: torch.dtype, keys: int, values: int) -> str:
    begins = f"typedef {_NUMBERS[dtype]} Number;\nconstexpr int kKeys = {keys}, kValues = {values};\n"
    return begins + sources.source("segment_attention.cpp")


def begin_early(dtype: torch.dtype, keys: int, values: int) -> None:
    """Let the C++ compiler start on what attention to keys and values of these widths needs."""
    early.begin_library(_text(dtype, keys, values))
