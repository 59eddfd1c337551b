"""Batch normalisation by the rows of all ranks, on any device, so that results do not depend on the number of ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class _SumOverRanks(torch.autograd.Function):
    """x -> the sum of x over ranks. The gradient of a rank's x is the sum of the gradients of all results."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total


class RankBatchNorm1d(nn.BatchNorm1d):
    """`nn.BatchNorm1d` of x [rows, F] by the mean and variance of the rows of all ranks (Ioffe and Szegedy, "Batch
    Normalization", 2015, algorithm 1). Its state is that of `nn.BatchNorm1d`.

    In training mode a call is collective. PyTorch's `SyncBatchNorm` does the same on a GPU alone. It is not compiled:
    ranks whose compiled programs differ would make their collective calls in different orders.

    `takes_part`: whether the rows of this rank count. A rank without rows of its own computes on others, whose results
    nobody uses.
    """

    takes_part = True

    @torch.compiler.disable
    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        weight = 1.0 if self.takes_part else 0.0
        rows = x.new_tensor([weight * x.size(0)])
        sums: Tensor = _SumOverRanks.apply(torch.cat([weight * x.sum(0), rows]))
        count = sums[-1].detach()
        mean = sums[:-1] / count
        centred = x - mean
        squares: Tensor = _SumOverRanks.apply(weight * centred.square().sum(0))
        variance = squares / count
        self._remember(mean.detach(), variance.detach() * count / (count - 1).clamp(min=1))
        out = centred * (variance + self.eps).rsqrt()
        return out if self.weight is None else out * self.weight + self.bias

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        rate = self.momentum if self.momentum is not None else 1 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean, rate)
        self.running_var.lerp_(variance, rate)


def over_ranks(module: nn.Module) -> nn.Module:
    """`module` with every `nn.BatchNorm1d` in it replaced by one over ranks, with the same parameters and buffers."""
    for name, child in module.named_children():
        if type(child) is nn.BatchNorm1d:
            other = RankBatchNorm1d(child.num_features, child.eps, child.momentum, child.affine,
                                    child.track_running_stats)  # fmt: skip
            for key, value in (*child.named_parameters(), *child.named_buffers()):
                setattr(other, key, value)
            setattr(module, name, other.train(child.training))
        else:
            over_ranks(child)
    return module


def take_part(module: nn.Module, whether: bool) -> None:
    """Say whether the rows of this rank count in the next call of the normalisations within `module`."""
    for part in module.modules():
        if isinstance(part, RankBatchNorm1d):
            part.takes_part = whether
