"""A linear map for each type."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from graphweave.core.errors import DataError
from graphweave.nn.ends import one_of
from graphweave.ops import gather_mm

Regularizer = Literal["basis", "bdd"] | None
"""How the weights of types are tied: as sums of bases, as blocks on the diagonal, or not at all."""


class TypedLinear(nn.Module):
    """A linear map for each type: out[n] = x[n] W_t, t = type[n] (Schlichtkrull et al., ESWC 2018, section 2.2).

    `regularizer`: with None, W_t is free. With "basis", W_t = sum over b of coeff[t, b] W[b], for `num_bases` bases b.
    With "bdd", W_t has `num_bases` diagonal blocks and is 0 elsewhere; in_size and out_size must be multiples of
    `num_bases`. `num_bases`: the number of types by default.

    Parameters are DGL's: `W` [num_types, in, out], [num_bases, in, out] and `coeff` [num_types, num_bases], or
    [num_types, num_bases * in' * out'] with blocks of in' x out'.

    >>> TypedLinear(5, 4, num_types=3)(torch.randn(2, 5), torch.tensor([2, 0])).shape
    torch.Size([2, 4])
    """

    def __init__(
        self, in_size: int, out_size: int, num_types: int, regularizer: Regularizer = None, num_bases: int | None = None
    ) -> None:
        super().__init__()
        if regularizer is not None:
            one_of("regularizer", regularizer, ("basis", "bdd"))
        self.in_size, self.out_size, self.num_types = in_size, out_size, num_types
        self.regularizer, self.num_bases = regularizer, num_types if num_bases is None else num_bases
        match regularizer:
            case None:
                self.W = nn.Parameter(torch.empty(num_types, in_size, out_size))
            case "basis":
                self.W = nn.Parameter(torch.empty(self.num_bases, in_size, out_size))
                self.coeff = nn.Parameter(torch.empty(num_types, self.num_bases))
            case "bdd":
                if in_size % self.num_bases or out_size % self.num_bases:
                    raise DataError(
                        f"in_size and out_size must be multiples of num_bases (got {in_size}, {out_size} and "
                        f"{self.num_bases})."
                        " Choose another num_bases."
                    )
                self.submat_in, self.submat_out = in_size // self.num_bases, out_size // self.num_bases
                self.W = nn.Parameter(torch.empty(num_types, self.num_bases * self.submat_in * self.submat_out))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """W is drawn uniformly from +- 1 / sqrt(features that an element of the result reads), as in `nn.Linear`; coeff
        is drawn from Glorot's uniform distribution with the gain of a ReLU."""
        bound = 1 / math.sqrt(max(self.submat_in if self.regularizer == "bdd" else self.in_size, 1))
        nn.init.uniform_(self.W, -bound, bound)
        if self.regularizer == "basis":
            nn.init.xavier_uniform_(self.coeff, gain=nn.init.calculate_gain("relu"))

    def get_weight(self) -> Tensor:
        """W_t of all types: [num_types, in, out], or with "bdd" the blocks, [num_types, num_bases, in', out']."""
        match self.regularizer:
            case "basis":
                return (self.coeff @ self.W.flatten(1)).view(self.num_types, self.in_size, self.out_size)
            case "bdd":
                return self.W.view(self.num_types, self.num_bases, self.submat_in, self.submat_out)
        return self.W

    def forward(self, x: Tensor, x_type: Tensor, sorted_by_type: bool = False) -> Tensor:
        """[N, in], types [N] -> [N, out]. `sorted_by_type`: DGL's argument, without effect."""
        if self.regularizer == "bdd":
            blocks = x.reshape(-1, self.num_bases, self.submat_in)
            return gather_mm(blocks, self.get_weight(), idx_b=x_type).flatten(1)
        return gather_mm(x, self.get_weight(), idx_b=x_type)

    def extra_repr(self) -> str:
        more = "" if self.regularizer is None else f", regularizer={self.regularizer}, num_bases={self.num_bases}"
        return f"in_size={self.in_size}, out_size={self.out_size}, num_types={self.num_types}{more}"
