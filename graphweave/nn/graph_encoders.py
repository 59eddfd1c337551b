"""Encoders of degrees, distances and paths for graph transformers."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphweave.core.errors import DataError
from graphweave.nn.ends import one_of


class DegreeEncoder(nn.Module):
    """An embedding of each node's degree, or the sum of those of its in-degree and its out-degree ("both").

    Degrees above `max_degree` count as `max_degree`; degree 0 has the embedding 0, which is not trained. Source: Ying
    et al., "Do Transformers Really Perform Badly for Graph Representation?", NeurIPS 2021, section 3.1.1.

    >>> DegreeEncoder(5, 4, direction="in")(torch.tensor([[0, 2, 9]])).shape
    torch.Size([1, 3, 4])
    """

    def __init__(self, max_degree: int, embedding_dim: int, direction: str = "both") -> None:
        super().__init__()
        self.direction = one_of("direction", direction, ("in", "out", "both"))
        self.max_degree = max_degree
        tables = [nn.Embedding(max_degree + 1, embedding_dim, padding_idx=0) for _ in range(1 + (direction == "both"))]
        if direction == "both":
            self.encoder1, self.encoder2 = tables
        else:
            self.encoder = tables[0]

    def forward(self, degrees: Tensor) -> Tensor:
        """Degrees [B, N]; for "both" [2, B, N], in-degrees and out-degrees -> [B, N, embedding_dim].

        DataError for another number of dims.
        """
        dims = 3 if self.direction == "both" else 2
        if degrees.dim() != dims or (dims == 3 and len(degrees) != 2):
            wanted = "[2, B, N]" if dims == 3 else "[B, N]"
            raise DataError(f"degrees must be {wanted} for {self.direction!r} (got {list(degrees.shape)}). Pass these.")
        degrees = degrees.clamp(0, self.max_degree)
        if dims == 2:
            out: Tensor = self.encoder(degrees)
            return out
        both: Tensor = self.encoder1(degrees[0]) + self.encoder2(degrees[1])
        return both


class PathEncoder(nn.Module):
    """b_ij = 1 / d_ij sum over l of f_ijl . w_l of each head; f are features of edges on a shortest path i to j.

    Distances d count from 1 to `max_len`. Source: Ying et al. 2021, section 3.1.3.

    >>> PathEncoder(3, 5, num_heads=2)(torch.ones(1, 4, 4).long(), torch.randn(1, 4, 4, 3, 5)).shape
    torch.Size([1, 4, 4, 2])
    """

    def __init__(self, max_len: int, feat_dim: int, num_heads: int = 1) -> None:
        super().__init__()
        self.max_len, self.feat_dim, self.num_heads = max_len, feat_dim, num_heads
        self.embedding_table = nn.Embedding(max_len * num_heads, feat_dim)

    def forward(self, dist: Tensor, path_data: Tensor) -> Tensor:
        """Distances [B, N, N], features of edges along paths [B, N, N, max_len, feat_dim] -> [B, N, N, num_heads]."""
        weight = self.embedding_table.weight.view(self.max_len, self.num_heads, self.feat_dim)
        total = torch.einsum("bxyld,lhd->bxyh", path_data, weight)
        return total / dist.clamp(1, self.max_len).unsqueeze(-1)


class SpatialEncoder(nn.Module):
    """An embedding of the distance of each pair of nodes, one number for each head.

    Distances above `max_dist` count as `max_dist`. -1 says that there is no path, and has the embedding 0, which is not
    trained. Source: Ying et al. 2021, section 3.1.2.

    >>> SpatialEncoder(4, num_heads=2)(torch.tensor([[[0, -1], [9, 0]]])).shape
    torch.Size([1, 2, 2, 2])
    """

    def __init__(self, max_dist: int, num_heads: int = 1) -> None:
        super().__init__()
        self.max_dist, self.num_heads = max_dist, num_heads
        self.embedding_table = nn.Embedding(max_dist + 2, num_heads, padding_idx=0)

    def forward(self, dist: Tensor) -> Tensor:
        """[B, N, N] -> [B, N, N, num_heads]."""
        out: Tensor = self.embedding_table(dist.clamp(-1, self.max_dist) + 1)
        return out


class SpatialEncoder3d(nn.Module):
    """b_ij = W' gelu(W [phi_k(d_ij)]), phi_k the normal density of mean mu_k and deviation abs(sigma_k) + 0.01, d_ij =
    gamma |x_i - x_j| + beta.

    gamma and beta depend on the pair of node types, and are 1 and 0 at first; without types they are 0, as in DGL.
    Source: Shi et al., "Benchmarking Graphormer on Large-Scale Molecular Modeling Datasets", 2022.

    >>> SpatialEncoder3d(4, num_heads=2)(torch.randn(1, 3, 3), torch.tensor([[0, 1, 1]])).shape
    torch.Size([1, 3, 3, 2])
    """

    def __init__(self, num_kernels: int, num_heads: int = 1, max_node_type: int = 100) -> None:
        super().__init__()
        self.num_kernels, self.num_heads, self.max_node_type = num_kernels, num_heads, max_node_type
        self.means, self.stds = nn.Parameter(torch.empty(num_kernels)), nn.Parameter(torch.empty(num_kernels))
        self.linear_layer_1 = nn.Linear(num_kernels, num_kernels)
        self.linear_layer_2 = nn.Linear(num_kernels, num_heads)
        self.gamma = nn.Embedding(2 * max_node_type + 3, 1, padding_idx=0)
        self.beta = nn.Embedding(2 * max_node_type + 3, 1, padding_idx=0)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """mu and sigma are drawn from 0 to 3."""
        nn.init.uniform_(self.means, 0, 3)
        nn.init.uniform_(self.stds, 0, 3)
        nn.init.constant_(self.gamma.weight, 1)
        nn.init.zeros_(self.beta.weight)

    def forward(self, coord: Tensor, node_type: Tensor | None = None) -> Tensor:
        """Coordinates [B, N, 3], types [B, N] below `max_node_type` -> [B, N, N, num_heads]."""
        count = coord.shape[1]
        if node_type is None:
            pairs = torch.zeros(*coord.shape[:2], count, 2, dtype=torch.long, device=coord.device)
        else:
            of_src = node_type[:, :, None].expand(-1, -1, count) + 2
            of_dst = node_type[:, None].expand(-1, count, -1) + self.max_node_type + 3
            pairs = torch.stack([of_src, of_dst], dim=-1)
        distance = torch.cdist(coord, coord).unsqueeze(-1)
        distance = self.gamma(pairs).sum(-2) * distance + self.beta(pairs).sum(-2)
        deviation = self.stds.abs() + 0.01
        density = torch.exp(-0.5 * ((distance - self.means) / deviation).square()) / (
            math.sqrt(2 * math.pi) * deviation
        )
        out: Tensor = self.linear_layer_2(functional.gelu(self.linear_layer_1(density)))
        return out
