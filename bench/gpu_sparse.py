"""GCN and GraphSAGE in torch.sparse, by products with the adjacency and its transpose as CSR, which are made once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from bench.graphs import Workload

SPARSE = ("gcn", "sage")
"""Models that are linear in their messages, with weights of edges that do not depend on features."""


class Product(torch.autograd.Function):
    """A x, and A^T grad in the backward, from CSRs of A and of A^T. Autograd would transpose A at every step."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, transposed: Tensor, x: Tensor) -> Tensor:
        ctx.transposed = transposed
        return matrix @ x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor]:
        return None, None, ctx.transposed @ grad.contiguous()


class _SparseLayers(nn.Module):
    """Layers with ReLU between them. It takes the model's arguments, of which it reads only the features."""

    def __init__(self, layers: nn.ModuleList, pair: tuple[Tensor, Tensor]) -> None:
        super().__init__()
        self.layers = layers
        self.pair = pair

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = self.layer(layer, x if i == 0 else x.relu())
        return x

    def layer(self, layer: Any, x: Tensor) -> Tensor:
        raise NotImplementedError


class _Gcn(_SparseLayers):
    def layer(self, layer: Any, x: Tensor) -> Tensor:
        out: Tensor = Product.apply(*self.pair, layer.lin(x)) + layer.bias
        return out


class _Sage(_SparseLayers):
    def layer(self, layer: Any, x: Tensor) -> Tensor:
        out: Tensor = layer.lin_l(Product.apply(*self.pair, x)) + layer.lin_r(x)
        return out


def sparse_model(model: Any, work: Workload) -> nn.Module:
    """A module that computes the same as `model` (Layers of GCNConv or SAGEConv) with the same parameters."""
    nodes, index = work.x.size(0), work.edge_index
    if type(model.layers[0]).__name__ == "GCNConv":
        index, weight = gcn_norm(index, None, nodes, False, True, "source_to_target", torch.float32)
        return _Gcn(model.layers, both_ways(index, weight, nodes, work.x.dtype))
    degree = torch.bincount(index[1], minlength=nodes).clamp(min=1)
    return _Sage(model.layers, both_ways(index, degree[index[1]].float().reciprocal(), nodes, work.x.dtype))


def both_ways(index: Tensor, weight: Tensor, nodes: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A [nodes, nodes], where A[dst, src] is the sum of these edges' weights, and its transpose; 32-bit indices."""
    return _csr(index[1], index[0], weight, nodes, dtype), _csr(index[0], index[1], weight, nodes, dtype)


def _csr(rows: Tensor, columns: Tensor, weight: Tensor, nodes: int, dtype: torch.dtype) -> Tensor:
    found = torch.sparse_coo_tensor(torch.stack([rows, columns]), weight, (nodes, nodes)).coalesce().to_sparse_csr()
    parts = found.crow_indices().int(), found.col_indices().int(), found.values().to(dtype)
    return torch.sparse_csr_tensor(*parts, size=(nodes, nodes), dtype=dtype, device=rows.device)
