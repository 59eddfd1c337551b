"""pyg-lib's products of segments, splines and matchings of neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from graphweave.frontends.sparse import torch_sparse_functions
from graphweave.frontends.sparse.torch_sparse_matrix import SparseTensor
from graphweave.ops import gather_mm, segment_mm
from graphweave.sampling.undirected import matched


def segment_matmul(inputs: Tensor, ptr: Tensor, other: Tensor, bias: Tensor | None = None) -> Tensor:
    """The rows from ptr[i] to ptr[i + 1] times other[i], plus bias[i]. [N, K], [R + 1], [R, K, J] -> [N, J]."""
    counts = ptr.diff()
    out = segment_mm(inputs, other, counts)
    return out if bias is None else out + torch.repeat_interleave(bias, counts.to(bias.device), 0, output_size=len(out))


def grouped_matmul(
    inputs: Sequence[Tensor], others: Sequence[Tensor], biases: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """inputs[i] @ others[i] + biases[i], for all i."""
    found = [x @ w for x, w in zip(inputs, others, strict=True)]
    return found if biases is None else [y + b for y, b in zip(found, biases, strict=True)]


def spline_basis(pseudo: Tensor, kernel_size: Tensor, is_open_spline: Tensor, degree: int) -> tuple[Tensor, Tensor]:
    """The B-splines that are not 0 at each point of `pseudo` [E, D], from 0 to 1 in each dim, and the numbers of their
    weights, each [E, S] with S = (degree + 1)^D (Fey et al., "SplineCNN: fast geometric deep learning with continuous
    B-spline kernels", 2018, section 3.2)."""
    if degree not in _SPLINES:
        raise ValueError(f"expected splines of degree 1, 2 or 3 (got {degree}). Pass one of these.")
    place = pseudo * (kernel_size - degree * is_open_spline.to(kernel_size.dtype)).to(pseudo.dtype)
    first = place.detach().floor()
    parts = torch.stack([part(place - first) for part in _SPLINES[degree]], 1)  # [E, degree + 1, D]
    steps = torch.arange(degree + 1, device=pseudo.device).view(1, -1, 1)
    numbers = (first.long().unsqueeze(1) + steps) % kernel_size  # [E, degree + 1, D]
    basis, index, stride = parts[:, :, 0], numbers[:, :, 0], kernel_size[0]
    for d in range(1, pseudo.size(1)):
        basis = (parts[:, :, d].unsqueeze(2) * basis.unsqueeze(1)).flatten(1)
        index = ((numbers[:, :, d] * stride).unsqueeze(2) + index.unsqueeze(1)).flatten(1)
        stride = stride * kernel_size[d]
    return basis, index


_SPLINES: dict[int, tuple[Callable[[Tensor], Tensor], ...]] = {
    1: (lambda v: 1 - v, lambda v: v),
    2: (lambda v: 0.5 * (1 - v) ** 2, lambda v: 0.5 + v - v * v, lambda v: 0.5 * v * v),
    3: (
        lambda v: (1 - v) ** 3 / 6,
        lambda v: (3 * v**3 - 6 * v * v + 4) / 6,
        lambda v: (-3 * v**3 + 3 * v * v + 3 * v + 1) / 6,
        lambda v: v**3 / 6,
    ),
}
"""Degree -> the pieces of the B-spline, each from 0 to 1, those of earlier splines first."""


def spline_weighting(x: Tensor, weight: Tensor, basis: Tensor, weight_index: Tensor) -> Tensor:
    """out[e] = sum over s of basis[e, s] x[e] @ weight[weight_index[e, s]]. [E, K], [R, K, J], 2 x [E, S] -> [E, J]."""
    terms = [
        gather_mm(x, weight, idx_b=index) * factor.unsqueeze(1)
        for index, factor in zip(weight_index.unbind(1), basis.unbind(1), strict=True)
    ]
    out = terms[0]
    for term in terms[1:]:
        out = out + term
    return out


@torch.library.custom_op("graphweave::matched", mutates_args=())
def _matched(rowptr: Tensor, col: Tensor, weight: Tensor, order: Tensor) -> Tensor:
    found = matched(rowptr.cpu().long(), col.cpu().long(), weight.cpu().double(), order.cpu())
    return found.to(order.device)


@_matched.register_fake
def _matched_fake(rowptr: Tensor, col: Tensor, weight: Tensor, order: Tensor) -> Tensor:
    return torch.empty_like(order)


def graclus_cluster(rowptr: Tensor, col: Tensor, weight: Tensor | None = None) -> Tensor:
    """int64 [num_nodes]: the smaller number of each node and of the neighbour with which it is joined, itself for a
    node that stays alone. Nodes choose in random order: by weight, or any neighbour (Dhillon, Guan and Kulis, "Weighted
    graph cuts without eigenvectors", 2007, section 4.2)."""
    order = torch.randperm(rowptr.size(0) - 1, device=col.device)
    weight = torch.rand(col.size(0), device=col.device) if weight is None else weight.detach().view(-1)
    return _matched(rowptr, col, weight, order)


def graclus(row: Tensor, col: Tensor, weight: Tensor | None = None, num_nodes: int | None = None) -> Tensor:
    """torch_cluster's `graclus_cluster`, of edges in any order."""
    count = int(torch.cat([row, col]).max()) + 1 if num_nodes is None else num_nodes
    row, order = row.sort(stable=True)
    rowptr = torch.searchsorted(row, torch.arange(count + 1, device=row.device))
    return graclus_cluster(rowptr, col[order], None if weight is None else weight[order])


# ---------------------------------------------------------------- torch_sparse's products, which PyG's EdgeIndex calls


def _matrix(row: Tensor | None, rowptr: Tensor, col: Tensor, value: Tensor | None, mat: Tensor) -> SparseTensor:
    return SparseTensor(row, rowptr, col, value, (rowptr.size(0) - 1, mat.size(-2)), True, True)


def _spmm_sum(
    row: Tensor | None, rowptr: Tensor, col: Tensor, value: Tensor | None, colptr: object, csr2csc: object, mat: Tensor
) -> Tensor:
    return torch_sparse_functions.product_sum(_matrix(row, rowptr, col, value, mat), mat)


def _spmm_mean(
    row: Tensor | None,
    rowptr: Tensor,
    col: Tensor,
    value: Tensor | None,
    rowcount: object,
    colptr: object,
    csr2csc: object,
    mat: Tensor,
) -> Tensor:
    return torch_sparse_functions.product_mean(_matrix(row, rowptr, col, value, mat), mat)


def _spmm_min(rowptr: Tensor, col: Tensor, value: Tensor | None, mat: Tensor) -> tuple[Tensor, Tensor]:
    return torch_sparse_functions.product_min(_matrix(None, rowptr, col, value, mat), mat)


def _spmm_max(rowptr: Tensor, col: Tensor, value: Tensor | None, mat: Tensor) -> tuple[Tensor, Tensor]:
    return torch_sparse_functions.product_max(_matrix(None, rowptr, col, value, mat), mat)


TORCH_SPARSE: dict[str, Callable[..., Any]] = {
    "spmm_sum": _spmm_sum, "spmm_mean": _spmm_mean, "spmm_min": _spmm_min, "spmm_max": _spmm_max,
}  # fmt: skip
"""Operators of torch_sparse."""

OPERATORS: dict[str, Callable[..., Any]] = {
    "segment_matmul": segment_matmul, "grouped_matmul": grouped_matmul, "spline_basis": spline_basis,
    "spline_weighting": spline_weighting, "graclus_cluster": graclus_cluster,
}  # fmt: skip
"""Functions of `pyg_lib.ops`."""
