"""The product of two sparse matrices, as one operator on the indices and values of their entries.

Written in gathers, it would make a row for each pair of entries that meet, and sort these rows to find equal results.
SciPy adds them up in place (Gustavson, "Two fast algorithms for sparse matrices", TOMS 1978). It has no kernels for a
GPU, where PyTorch multiplies.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

_Entries: TypeAlias = tuple[Tensor, Tensor, Tensor, int, int]
"""A matrix: the row, the column and the value of each entry, the number of rows, the number of columns."""


@torch.library.custom_op("graphweave::sparse_product", mutates_args=())
def sparse_product(
    row: Tensor, col: Tensor, value: Tensor, other_row: Tensor, other_col: Tensor, other_value: Tensor,
    rows: int, inner: int, cols: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The entries of A B, for A [rows, inner] and B [inner, cols] given by entries in any order, repeats being added.

    Entry k of A is value[k] at (row[k], col[k]). The result has distinct entries in the order of rows, those of a row
    in any order: to sort them would take longer than to compute them. An index out of range is a ValueError, on a GPU a
    RuntimeError.
    """
    a, b = (row, col, value, rows, inner), (other_row, other_col, other_value, inner, cols)
    found_row, found_col, found = _entries(a, b)
    return found_row.to(row.dtype), found_col.to(row.dtype), found.to(value.dtype)


@sparse_product.register_fake
def _sparse_product_fake(
    row: Tensor, col: Tensor, value: Tensor, other_row: Tensor, other_col: Tensor, other_value: Tensor,
    rows: int, inner: int, cols: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    entries = torch.library.get_ctx().new_dynamic_size()
    return row.new_empty(entries), row.new_empty(entries), value.new_empty(entries)


@torch.library.custom_op("graphweave::sampled_sparse_product", mutates_args=())
def sampled(
    row: Tensor, col: Tensor, left_row: Tensor, left_col: Tensor, left: Tensor, right_row: Tensor, right_col: Tensor,
    right: Tensor, rows: int, inner: int, cols: int,
) -> Tensor:  # fmt: skip
    """The values of L R at (row[k], col[k]), [entries]; 0 where the product has no entry."""
    found_row, found_col, found = _entries(
        (left_row, left_col, left, rows, inner), (right_row, right_col, right, inner, cols)
    )
    if not found.numel():
        return left.new_zeros(row.shape)
    keys, order = (found_row.long() * cols + found_col).sort()
    wanted = row.long() * cols + col
    place = torch.searchsorted(keys, wanted).clamp_max(keys.numel() - 1)
    return torch.where(keys[place] == wanted, found[order[place]], 0).to(left.dtype)


@sampled.register_fake
def _sampled_fake(
    row: Tensor, col: Tensor, left_row: Tensor, left_col: Tensor, left: Tensor, right_row: Tensor, right_col: Tensor,
    right: Tensor, rows: int, inner: int, cols: int,
) -> Tensor:  # fmt: skip
    return left.new_empty(row.shape)


def _setup(ctx: Any, inputs: tuple[object, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, ctx.rows, ctx.inner, ctx.cols = inputs
    ctx.mark_non_differentiable(output[0], output[1])
    ctx.save_for_backward(*tensors, output[0], output[1])


def _backward(ctx: Any, _: Tensor, __: Tensor, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """With G the gradient of A B: that of A is G B^T at A's entries, that of B is A^T G at B's."""
    row, col, value, other_row, other_col, other_value, out_row, out_col = ctx.saved_tensors
    first = second = None
    if ctx.needs_input_grad[2]:
        first = sampled(
            row, col, out_row, out_col, gradient, other_col, other_row, other_value, ctx.rows, ctx.cols, ctx.inner
        )
    if ctx.needs_input_grad[5]:
        second = sampled(
            other_row, other_col, col, row, value, out_row, out_col, gradient, ctx.inner, ctx.rows, ctx.cols
        )
    return None, None, first, None, None, second, None, None, None


sparse_product.register_autograd(_backward, setup_context=_setup)


def _entries(a: _Entries, b: _Entries) -> tuple[Tensor, Tensor, Tensor]:
    """The row, column and value of each entry of the product of two matrices."""
    if a[2].device.type == "cpu":
        first, second = _in_scipy(*a), _in_scipy(*b)
        product = (first @ second).tocoo()
        row, col, value = map(torch.from_numpy, (product.row, product.col, product.data))
        if (first.data > 0).all() and (second.data > 0).all():
            return row, col, value
        # SciPy leaves out sums that are 0, but weights that are 0 have gradients
        all_row, all_col, count = _entries(
            (*a[:2], torch.ones_like(a[2]), *a[3:]), (*b[:2], torch.ones_like(b[2]), *b[3:])
        )
        keys, order = (all_row.long() * b[4] + all_col).sort()
        place = order[torch.searchsorted(keys, row.long() * b[4] + col)]
        return all_row, all_col, torch.zeros_like(count).index_put((place,), value)
    made = torch.sparse.mm(_in_pytorch(*a), _in_pytorch(*b)).coalesce()
    row, col = made.indices().clone()
    return row.clone(), col.clone(), made.values().clone()


def _in_scipy(row: Tensor, col: Tensor, value: Tensor, rows: int, cols: int) -> Any:
    from scipy.sparse import coo_array  # SciPy takes long to load

    wide = value.float() if value.dtype in (torch.float16, torch.bfloat16) else value  # SciPy has no half precision
    return coo_array((wide.numpy(), (row.numpy(), col.numpy())), shape=(rows, cols)).tocsr()


def _in_pytorch(row: Tensor, col: Tensor, value: Tensor, rows: int, cols: int) -> Tensor:
    return torch.sparse_coo_tensor(torch.stack([row, col]), value, (rows, cols))
