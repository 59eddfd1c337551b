"""Residual layers in groups whose inner values are computed again in the backward pass."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from graphweave.core.errors import DataError
from graphweave.graph.graph import Graph


class GroupRevRes(nn.Module):
    """y_1 = x_1 + f_1(x_2 + ... + x_k), y_i = x_i + f_i(y_(i-1)), for the k groups x_i of the features.

    `gnn_module` is f_1, and the other f_i are copies of it with parameters of their own; it has the width of a group.
    Only the input is kept for the backward pass, and all else computed again. DGL keeps the result, inverts the layer,
    and gives back the memory of the input, so that nobody else may read it; here it stays. Source: Li et al., "Training
    Graph Neural Networks with 1000 Layers", ICML 2021, section 3.2.

    >>> graph = gw.graph(([0, 1, 2], [1, 2, 2]))
    >>> GroupRevRes(GraphConv(4, 4), groups=2)(graph, torch.randn(3, 8)).shape
    torch.Size([3, 8])
    """

    def __init__(self, gnn_module: nn.Module, groups: int = 2) -> None:
        super().__init__()
        if groups < 2:
            raise DataError(f"groups must be at least 2 (got {groups}). Pass 2 or more.")
        self.groups = groups
        self.gnn_modules = nn.ModuleList([gnn_module, *(deepcopy(gnn_module) for _ in range(groups - 1))])

    def forward(self, g: Graph, x: Tensor, *args: Tensor) -> Tensor:
        """[N, F] -> [N, F]. Further tensors are split along their last dim, and go to the group's layer."""
        if not torch.is_grad_enabled():
            return self._grouped(g, x, *args)
        out: Tensor = checkpoint(self._grouped, g, x, *args, use_reentrant=False)
        return out

    def _grouped(self, g: object, x: Tensor, *args: Tensor) -> Tensor:
        parts = x.chunk(self.groups, dim=-1)
        of_groups = list(zip(*(arg.chunk(self.groups, dim=-1) for arg in args), strict=True)) or [()] * self.groups
        y, found = torch.stack(parts[1:]).sum(0), []
        for part, layer, more in zip(parts, self.gnn_modules, of_groups, strict=True):
            y = part + layer(g, y, *more)
            found.append(y)
        return torch.cat(found, dim=-1)
