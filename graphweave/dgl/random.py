"""`dgl.random`: the seed of random numbers, and choices with given probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.sampling.weighted import scaled

__all__ = ["choice", "seed"]


def seed(val: int) -> None:
    """Seed PyTorch's random numbers, from which this package draws all of its own."""
    torch.manual_seed(val)


def choice(a: object, size: int, replace: bool = True, prob: Tensor | None = None) -> Tensor:
    """`size` elements of `a`, or of 0 .. a - 1 if it is a number; with or without replacement. [size].

    `prob` [k] are proportional to their probabilities; all are equally likely if it is None. DataError if more are
    wanted without replacement than there are.
    """
    population = torch.as_tensor(a)
    count = int(population) if population.dim() == 0 else population.shape[0]
    if not replace and size > count:
        raise DataError(f"choice: expected at most {count} elements without replacement (got {size}). Ask for fewer.")
    if prob is not None:
        drawn = torch.multinomial(scaled(torch.as_tensor(prob).double()), size, replace)
    else:
        drawn = torch.randint(count, (size,)) if replace else torch.randperm(count)[:size]
    return drawn if population.dim() == 0 else population[drawn]
