"""Products with a weight for each type, by DGL's names, in plain PyTorch that the compiler reads as one operation."""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.core.ranges import range_error
from graphweave.udf import run


def gather_mm(a: Tensor, b: Tensor, *, idx_b: Tensor) -> Tensor:
    """out[n] = a[n] @ b[idx_b[n]]. [N, K], [R, K, J], types [N] -> [N, J].

    With blocks (heads), which DGL's function does not have: out[n, i] = a[n, i] @ b[idx_b[n], i].
    [N, B, K], [R, B, K, J] -> [N, B, J].

    A compiled model computes this as one typed product, which copies no weights. Eager mode sorts rows by type (unless
    they are sorted) and multiplies type by type, which copies no weights either. If there are no rows, the result has
    none; types without rows get a gradient of 0. Raises DataError for shapes that do not fit, IndexRangeError for types
    outside 0 .. R - 1.
    """
    _check(a, b)
    if idx_b.dim() != 1 or idx_b.is_floating_point():
        raise DataError(
            f"idx_b must be integers [N] (got {idx_b.dtype} of shape {tuple(idx_b.shape)}). Convert it with .long()."
        )
    if torch.compiler.is_compiling() or run.inside_kernel.get():
        return _gathered(a, b, idx_b)
    if idx_b.shape[0] != a.shape[0]:
        raise DataError(f"idx_b has {idx_b.shape[0]} types, but a has {a.shape[0]} rows. Give each row one.")
    if (other := run.host.get()) is not None and other.holds(idx_b):
        return other.on_rows(lambda rows, types: _gathered(rows, b, types), a, idx_b)
    if idx_b.numel() == 0:
        return _segments(a, b, [0] * b.shape[0])
    lowest, highest = (int(x) for x in idx_b.aminmax())
    if lowest < 0 or highest >= b.shape[0]:
        raise range_error(idx_b, b.shape[0], what="idx_b", of="types", do="Correct it, or pass a matrix for each type.")
    counts = torch.bincount(idx_b, minlength=b.shape[0]).tolist()
    if bool((idx_b[1:] >= idx_b[:-1]).all()):
        return _segments(a, b, counts)
    order = idx_b.argsort(stable=True)
    back = torch.empty_like(order)
    back[order] = torch.arange(order.shape[0], device=order.device)
    return _segments(a.index_select(0, order), b, counts).index_select(0, back)


def segment_mm(a: Tensor, b: Tensor, seglen_a: Tensor) -> Tensor:
    """The concatenation of a_r @ b[r], where a_r are the next seglen_a[r] rows of a. [N, K], [R, K, J] -> [N, J].

    With blocks as in `gather_mm`: [N, B, K], [R, B, K, J] -> [N, B, J]. `seglen_a` [R]: integers, not negative, that
    add up to N (DataError otherwise). This is `gather_mm` for rows that are sorted by type, without its sort.
    """
    _check(a, b)
    if seglen_a.shape != b.shape[:1] or seglen_a.is_floating_point():
        raise DataError(
            f"seglen_a must be integers [{b.shape[0]}] (got {seglen_a.dtype} of shape {tuple(seglen_a.shape)})."
            " Convert it with .long()."
        )
    if torch.compiler.is_compiling():
        types = torch.arange(b.shape[0], device=a.device)
        # The compiled code checks that the lengths add up to this size.
        return _gathered(a, b, types.repeat_interleave(seglen_a.to(a.device), output_size=a.shape[0]))
    counts = seglen_a.tolist()
    if sum(counts) != a.shape[0] or min(counts, default=0) < 0:
        raise DataError(
            f"seglen_a must be non-negative and add up to the {a.shape[0]} rows of a (got {counts})."
            " Correct the lengths."
        )
    return _segments(a, b, counts)


def _check(a: Tensor, b: Tensor) -> None:
    fits = a.dim() in (2, 3) and b.dim() == a.dim() + 1 and a.shape[1:] == b.shape[1:-1]
    if not fits:
        raise DataError(
            "expected a [N, K] and b [R, K, J], or a [N, B, K] and b [R, B, K, J] "
            f"(got shapes {tuple(a.shape)} and {tuple(b.shape)})."
            " Reshape them."
        )


def _gathered(a: Tensor, b: Tensor, types: Tensor) -> Tensor:
    """The product in the form that the compiler recognises. It does not make a copy of the weights for each row."""
    weights = b.index_select(0, types)
    if a.dim() == 2:
        return torch.bmm(a.unsqueeze(1), weights).squeeze(1)
    return torch.einsum("nbk,nbkj->nbj", a, weights)


def _segments(a: Tensor, b: Tensor, counts: list[int]) -> Tensor:
    """The product for rows sorted by type, `counts` of each type.

    `split` and `unbind` make the parts because their backward concatenates the parts' gradients. Slices would each add
    a gradient of full size.
    """
    parts = [
        rows @ weight if rows.dim() == 2 else torch.einsum("nbk,bkj->nbj", rows, weight)
        for rows, weight in zip(a.split(counts), b.unbind(0), strict=True)
        if rows.shape[0]
    ]
    # Without rows there is nothing to concatenate, but the result must still depend on a and b for autograd.
    return torch.cat(parts) if parts else _gathered(a, b, torch.zeros(0, dtype=torch.int64, device=a.device))
