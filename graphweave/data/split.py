"""Seeded train/validation/test masks."""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave.data.node_data import NO_LABEL


def random_split(y: Tensor, seed: int, train: float = 0.6, val: float = 0.2) -> tuple[Tensor, Tensor, Tensor]:
    """Bool masks [N] for train, validation and test (the rest), drawn from the labelled nodes of `y` [N]."""
    generator = torch.Generator().manual_seed(seed)
    labelled = (y != NO_LABEL).nonzero().flatten()
    order = labelled[torch.randperm(labelled.numel(), generator=generator)]
    first, second = round(train * order.numel()), round((train + val) * order.numel())
    return (
        mask_of(order[:first], y.numel()),
        mask_of(order[first:second], y.numel()),
        mask_of(order[second:], y.numel()),
    )


def mask_of(index: Tensor, num_nodes: int) -> Tensor:
    """Bool mask [num_nodes], true at `index`."""
    mask = torch.zeros(num_nodes, dtype=torch.bool)
    mask[index] = True
    return mask
