"""Atomic convolution over distances of atoms."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import graphweave.function as fn
from graphweave.graph.graph import Graph
from graphweave.udf.arguments import EdgeBatch


class RadialPooling(nn.Module):
    """r_k(d) = exp(-gamma_k (d - mu_k)^2) (cos(pi d / c_k) + 1) / 2 if d <= c_k, else 0, for each of K filters.

    `interaction_cutoffs` c, `rbf_kernel_means` mu, `rbf_kernel_scaling` gamma: their first values, [K].
    """

    def __init__(self, interaction_cutoffs: Tensor, rbf_kernel_means: Tensor, rbf_kernel_scaling: Tensor) -> None:
        super().__init__()
        self.interaction_cutoffs = nn.Parameter(interaction_cutoffs.reshape(-1, 1, 1))
        self.rbf_kernel_means = nn.Parameter(rbf_kernel_means.reshape(-1, 1, 1))
        self.rbf_kernel_scaling = nn.Parameter(rbf_kernel_scaling.reshape(-1, 1, 1))

    def forward(self, distances: Tensor) -> Tensor:
        """[E, 1] -> [K, E, 1]."""
        kernel = torch.exp(-self.rbf_kernel_scaling * (distances - self.rbf_kernel_means).square())
        wave = 0.5 * (torch.cos(math.pi * distances / self.interaction_cutoffs) + 1)
        return kernel * torch.where(distances <= self.interaction_cutoffs, wave, torch.zeros_like(wave))


class AtomicConv(nn.Module):
    """h'_i[c, k] = sum over edges j -> i of [h_j = a_c] r_k(d_ji), with the filters r of `RadialPooling`.

    `features_to_use`: the atomic numbers a [C]; without them h'_i[c, k] = sum of h_j[c] r_k(d_ji). Nodes without
    incoming edges get 0. Source: Gomes et al., "Atomic Convolutional Networks for Predicting Protein-Ligand Binding
    Affinity", 2017.

    >>> graph, one = gw.graph(([0, 1, 2], [1, 2, 2])), torch.ones(2)
    >>> AtomicConv(12 * one, one, one)(graph, torch.randn(3, 1), torch.rand(3, 1)).shape
    torch.Size([3, 2])
    """

    def __init__(
        self, interaction_cutoffs: Tensor, rbf_kernel_means: Tensor, rbf_kernel_scaling: Tensor,
        features_to_use: Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.radial_pooling = RadialPooling(interaction_cutoffs, rbf_kernel_means, rbf_kernel_scaling)
        self.features_to_use = None if features_to_use is None else nn.Parameter(features_to_use, requires_grad=False)

    def forward(self, graph: Graph, feat: Tensor, distances: Tensor) -> Tensor:
        """Atomic numbers [N, 1], or features [N, C], and distances [E, 1] -> [N, C K]."""
        radial = self.radial_pooling(distances).to(feat.dtype)
        if self.features_to_use is not None:
            feat = (feat == self.features_to_use).to(feat.dtype)
        with graph.local_scope():
            graph.ndata["h"], graph.edata["r"] = feat, radial.squeeze(-1).t()
            graph.update_all(_message, fn.sum("m", "out"))
            return graph.ndata["out"]


def _message(edges: EdgeBatch) -> dict[str, Tensor]:
    return {"m": (edges.src["h"].unsqueeze(-1) * edges.data["r"].unsqueeze(-2)).flatten(1)}
