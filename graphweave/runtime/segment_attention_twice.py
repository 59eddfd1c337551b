"""Gradients of the gradients of attention within segments, by products of PyTorch, one segment after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def gradients_twice(
    tangents: Sequence[Tensor],
    rows: Sequence[Tensor],
    ends: tuple[Tensor, Tensor],
    scale: float,
    bias: Tensor | None,
    hidden: Tensor | None,
    fill: float,
    *,
    undefined: bool,
) -> list[Tensor]:
    """The gradients of g, q, k, v, which are `rows`, and of the bias, if `tangents` are those of dq, dk, dv and the
    bias's own gradient. Without a bias its tangent is not read, and its gradient is empty.

    With weights p = softmax(scale * q k' + bias), a = g v', and ds = p (a - sum(p a)), the first gradients are
    dq = scale * ds k, dk = scale * ds' q, dv = p' g, and ds for the bias. All that follows are their derivatives.
    """
    found = [torch.zeros_like(x) for x in rows]
    of_bias = rows[0].new_zeros(0 if bias is None else bias.shape)
    (at_q, at_k), starts = (e.tolist() for e in ends), ("q", "k", "k")
    for s in range(len(at_q) - 1):
        queries, keys = slice(at_q[s], at_q[s + 1]), slice(at_k[s], at_k[s + 1])
        if queries.start == queries.stop or keys.start == keys.stop:
            continue
        g, q, k, v = (x[at].transpose(0, 1) for x, at in zip(rows, (queries, queries, keys, keys), strict=True))
        tq, tk, tv = (
            t[queries if start == "q" else keys].transpose(0, 1) for t, start in zip(tangents[:3], starts, strict=True)
        )
        shape = q.shape[1], k.shape[1]
        terms = (None if x is None else _of_segment(x, s, shape) for x in (bias, hidden))
        p = _weights(scale * q @ k.mT, next(terms), next(terms), fill, undefined)
        a, slope = g @ v.mT, scale * (tq @ k.mT + q @ tk.mT)
        if bias is not None:
            slope = slope + _of_segment(tangents[3], s, shape)
        slope = _shown(slope, hidden, s)
        apart, mean = a - (p * a).sum(-1, keepdim=True), (p * slope).sum(-1, keepdim=True)
        ds, of_a = _shown(p * apart, hidden, s), p * (slope - mean)
        of_p = slope * apart - a * mean + g @ tv.mT
        of_s = _shown(p * (of_p - (p * of_p).sum(-1, keepdim=True)), hidden, s)
        parts = of_a @ v + p @ tv, scale * (of_s @ k + ds @ tk), scale * (of_s.mT @ q + ds.mT @ tq), of_a.mT @ g
        for whole, at, part in zip(found, (queries, queries, keys, keys), parts, strict=True):
            whole[at] = part.transpose(0, 1)
        if bias is not None:
            own = of_bias[s if bias.shape[0] != 1 else 0]
            own = own[:, : shape[0], : shape[1]]
            own += of_s.sum_to_size(own.shape)
    return [*found, of_bias]


def _of_segment(x: Tensor, segment: int, shape: tuple[int, int]) -> Tensor:
    """[heads, queries, keys] of one segment, of which any may be 1."""
    return x[segment if x.shape[0] != 1 else 0][:, : shape[0], : shape[1]]


def _weights(scores: Tensor, bias: Tensor | None, hidden: Tensor | None, fill: float, undefined: bool) -> Tensor:
    scores = scores if bias is None else scores + bias
    scores = scores if hidden is None else scores.masked_fill(hidden, fill)
    weights = scores.softmax(-1)
    return weights if undefined else weights.masked_fill((scores == -torch.inf).all(-1, keepdim=True), 0)


def _shown(x: Tensor, hidden: Tensor | None, segment: int) -> Tensor:
    """`x`, without what a mask hides."""
    return x if hidden is None else x.masked_fill(_of_segment(hidden, segment, (x.shape[1], x.shape[2])), 0)
