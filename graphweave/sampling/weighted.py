"""Numbers drawn with probabilities that are proportional to weights."""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave.core.errors import DataError


def checked_weights(weights: Tensor, what: str, of: str) -> Tensor:
    """`weights` as float64 [k] on the CPU. DataError, which names the first of the bad ones, unless they are finite and
    not negative. `of` is what one belongs to."""
    found = weights.detach().reshape(-1).to("cpu", torch.float64).contiguous()
    bad = ~(torch.isfinite(found) & (found >= 0))
    if bool(bad.any()):
        at = int(bad.nonzero()[0])
        raise DataError(
            f"{what} must be finite and not negative (got {found[at].item()} at {of} {at})."
            f" Pass 0 for {of}s that are never drawn."
        )
    return found


def scaled(weights: Tensor) -> Tensor:
    """Weights in the same proportions, the largest of which lies from 1/2 to 1: their sum does not overflow, and small
    ones lose no bits as denormals. The factor is a power of 2, so that no other bit changes. float64 [k], not
    negative; all 0 stays so."""
    if not weights.numel():
        return weights
    exponent = int(torch.frexp(weights.max()).exponent)
    half = -exponent // 2  # in two steps, since the power of 2 that scales denormals is beyond float64
    return weights * 2.0**half * 2.0 ** (-exponent - half)


def weighted_numbers(weights: Tensor, count: int, generator: torch.Generator) -> Tensor | None:
    """int64 [count]: positions drawn with replacement, with probabilities proportional to `weights`, float64 [k],
    finite and not negative. None if all of these are 0, or there are none."""
    if not weights.numel() or float(weights.max()) <= 0:
        return None
    weights = scaled(weights)
    sums = weights.cumsum(0)
    drawn = torch.rand(count, generator=generator, dtype=torch.float64, device="cpu") * sums[-1]
    return torch.searchsorted(sums, drawn, right=True).clamp(max=int(weights.nonzero().max()))
