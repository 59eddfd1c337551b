"""Products of features with shared weights, and with W[e.etype], the slice of W for the type of each row.

A product with a matrix for each type becomes `torch.bmm(x.unsqueeze(1), W.index_select(0, types))`, or an einsum if it
has heads. The compiler recognises both, so that compiled code does not copy a matrix for each row.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from graphweave.core.errors import LoopError
from graphweave.loops.rowwise import features_at
from graphweave.loops.scope import Loop
from graphweave.loops.values import FieldRead, LoopValue, Operand, aligned, innermost, may_gather, meeting
from graphweave.tensorlike.answers import Handler, unpacked
from graphweave.tensorlike.equations import over_rows
from graphweave.tensorlike.pointwise import pointwise
from graphweave.udf.arguments import fix_sizes


class Typed(LoopValue):
    """`weight[types]`: for each row, the slice of `weight` [types, *features] for its type."""

    def __init__(self, weight: Tensor, types: LoopValue) -> None:
        super().__init__(0, types.loop)
        self.weight, self.types = weight, types

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.weight.shape[1:])

    def read(self) -> Tensor:
        return self.weight.index_select(0, self.types.tensor())

    def of(self, weight: Tensor) -> Typed:
        """The slices of another weight by the same types."""
        return Typed(weight, self.types)


def _getitem(x: Operand, index: object) -> LoopValue:
    """W[e.etype], or features of a value."""
    if isinstance(x, LoopValue):
        if isinstance(index, LoopValue):
            raise LoopError(
                "features are indexed by the value of an edge or node; only tensors are: W[e.etype]. Index a tensor."
            )
        return features_at(x, index)
    if not isinstance(index, LoopValue):
        raise LoopError("a tensor is indexed by the type alone: W[e.etype], and then W[e.etype][i]. Write it so.")
    if index.dtype not in (torch.int32, torch.int64):
        raise LoopError(
            f"a tensor is indexed by types, whole numbers of 32 or 64 bits (got {index.dtype})."
            " Convert them with .long()."
        )
    if x.dim() == 0:
        raise LoopError(
            "W[e.etype] takes a tensor W of shape [types, ...] (got one without dims). Give it a dim of types."
        )
    if torch.compiler.is_compiling():
        fix_sizes(x)
    return Typed(x, index)


def linear(x: object, weight: object, bias: Operand = None) -> Operand:
    """out[..., m] = sum_k x[..., k] weight[..., k, m] (+ bias), for each edge or node.

    `x` has features [..., K]. `weight` is W[e.etype] with W [types, K, M], or [types, H, K, M] for x [H, K] or [K]; or
    a value with such features; or a tensor [K, M] or [H, K, M] that all rows share.
    """
    out = _product(x, weight)
    return out if bias is None else out + bias


def _product(x: Operand, weight: Operand) -> LoopValue | Tensor:
    if not isinstance(x, LoopValue) and not isinstance(weight, LoopValue):
        return torch.matmul(x.unsqueeze(-2), weight).squeeze(-2)
    loop, dims = innermost((x, weight)), (_rank(x), _rank(weight))
    _check(x, weight, dims)
    match dims:
        case 1, 2:
            return LoopValue(_rows(x, weight, loop), loop)
        case _, 2:
            return LoopValue(torch.matmul(_data(x, loop), _data(weight, loop)), loop)
        case 1, 3:
            return _one_for_all_heads(x, weight, loop)
        case 2, 3:
            return LoopValue(_by_heads(x, weight, loop), loop)
    raise LoopError(
        f"a product of features {_shape(x)} with a matrix of shape {_shape(weight)} for each edge or node."
        " Make their sizes agree."
    )


def _rows(x: object, weight: object, loop: Loop) -> Tensor:
    """The product of [rows, K] with [rows, K, M] or with [K, M]."""
    data, w = _data(x, loop), _data(weight, loop)
    if not isinstance(weight, LoopValue):
        return data @ w
    if not isinstance(x, LoopValue):
        data = data.expand(w.shape[0], -1)
    return torch.bmm(data.unsqueeze(1), w).squeeze(1)


def _one_for_all_heads(x: object, weight: Typed, loop: Loop) -> LoopValue:
    """The product of [K] with [H, K, M], computed as one product with [K, H * M]."""
    heads, _, width = _shape(weight)
    if isinstance(weight, Typed):
        wide: Any = weight.of(weight.weight.transpose(1, 2).flatten(2))
    elif isinstance(weight, LoopValue):
        wide = LoopValue(weight.tensor(loop).transpose(1, 2).flatten(2), loop)
    else:
        wide = weight.transpose(0, 1).flatten(1)
    out = _rows(x, wide, loop)
    return LoopValue(out.reshape(out.shape[0], heads, width), loop)


def _by_heads(x: object, weight: object, loop: Loop) -> Tensor:
    """The product of [H, K] or [1, K] with [H, K, M], in a form that the compiler recognises as blocks of one
    product."""
    heads, data, w = _shape(weight)[0], _data(x, loop), _data(weight, loop)
    if isinstance(weight, LoopValue):
        data = data.expand(w.shape[0], heads, -1)
        return torch.einsum("nbk,nbkj->nbj", data, w)
    data = data.expand(data.shape[0], heads, -1)
    return torch.stack([data[:, h] @ w[h] for h in range(heads)], 1)


def _check(x: object, weight: object, dims: tuple[int, int]) -> None:
    a, b = _shape(x), _shape(weight)
    fits = dims[0] >= 1 and dims[1] >= 2 and a[-1] == b[-2] and (dims != (2, 3) or a[0] == 1 or a[0] == b[0])
    if not fits:
        raise LoopError(
            f"a product of features {a} with a matrix of shape {b} for each edge or node: expected [..., K] and "
            "[K, M], or [H, K] and [H, K, M]. For the product number by number give both equally many dims."
        )


def _shape(x: object) -> tuple[int, ...]:
    return tuple(x.shape) if isinstance(x, (LoopValue, Tensor)) else ()


def _rank(x: object) -> int:
    return len(_shape(x))


def _data(x: Operand, loop: Loop) -> Tensor:
    data: Tensor = x.tensor(loop) if isinstance(x, LoopValue) else x
    return data


def _mul(x: object, y: object) -> Operand:
    """`x * y`: features times the matrix of the type, as in Hector; in other cases a product number by number."""
    if isinstance(y, Typed) and 1 <= _rank(x) < _rank(y):
        return _product(x, y)
    if isinstance(x, Typed) and 1 <= _rank(y) < _rank(x):
        raise LoopError(
            f"matrices of types {_shape(x)} times features {_shape(y)}: write features * W[e.etype], features first."
            " Swap them."
        )
    return _number_by_number(x, y)


_number_by_number = pointwise(operator.mul, meeting)


def dot_prd(x: object, y: Operand) -> Operand:
    """out[...] = sum_k x[..., k] y[..., k], for each edge or node."""
    if not isinstance(x, LoopValue) and not isinstance(y, LoopValue):
        return (x * y).sum(-1)
    if min(_rank(x), _rank(y)) == 0:
        raise LoopError(
            f"a dot product of features of shapes {_shape(x)} and {_shape(y)}: expected [..., K] of both."
            " Make their sizes agree."
        )
    return _number_by_number(x, y).sum(-1)


def outer_prod(x: Operand, y: Operand) -> Operand:
    """out[..., i, j] = x[..., i] y[..., j], for each edge or node."""
    return x[..., :, None] * y[..., None, :]


def _matmul(x: Operand, y: Operand) -> Operand:
    """torch.matmul of the features of each row."""
    if isinstance(x, Tensor):
        x, y = _in_order(x, y)
    loop, dims = innermost((x, y)), (_rank(x), _rank(y))
    if dims[1] == 1 and dims[0] >= 1:
        if isinstance(x, LoopValue) or dims[0] > 2:
            return dot_prd(x, y)
        return LoopValue(_data(y, loop) @ x.t(), loop) if dims[0] == 2 else dot_prd(x, y)
    if dims[0] >= 1 and (dims[1] == 2 or (dims[0] == 1 and dims[1] == 3)):
        return _product(x, y)
    if 0 in dims:
        raise LoopError(
            f"a matrix product of features of shapes {_shape(x)} and {_shape(y)}: both need dims. Use * for numbers."
        )
    a, b = _data(x, loop), _data(y, loop)
    a = a.unsqueeze(-2) if dims[0] == 1 else a
    most = max(dims[0], dims[1], 2) + 1
    a, b = (aligned(d, most) if isinstance(v, LoopValue) else d for d, v in ((a, x), (b, y)))
    out = torch.matmul(a, b)
    return LoopValue(out.squeeze(-2) if dims[0] == 1 else out, loop)


def _in_order(tensor: Tensor, value: FieldRead) -> tuple[Operand, Operand]:
    """The operands as the user wrote them. In a trace, `value @ tensor` also arrives as matmul(tensor, value).

    Where shapes allow both orders, only value @ tensor is part of the language. A function that has run as Python has
    been checked for this; one that is traced as part of a model has not.
    """
    a, b = _shape(tensor), _shape(value)
    as_written = 0 not in (len(a), len(b)) and a[-1] == b[-2 if len(b) > 1 else -1]
    swapped = 0 not in (len(a), len(b)) and b[-1] == a[-2 if len(a) > 1 else -1]
    if len(a) == 1 and len(b) == 1:
        return value, tensor
    if as_written and swapped:
        if torch.compiler.is_compiling() and value.loop.structure.checked:
            return value, tensor
        raise LoopError(
            f"a product of a tensor {a} with features {b}, which compiled code cannot tell from features @ tensor. "
            "Write linear(x, M) for x @ M, linear(x, M.T) for M @ x."
        )
    return (value, tensor) if swapped else (tensor, value)


def _linear_layer(x: object, weight: Tensor, bias: Tensor | None = None) -> LoopValue:
    if not isinstance(x, LoopValue) or isinstance(weight, LoopValue) or isinstance(bias, LoopValue):
        raise LoopError(
            "torch's linear takes shared weights. With W[e.etype] write graphweave.loops.linear(x, W[e.etype])."
        )
    return LoopValue(functional.linear(x.tensor(), weight, bias), x.loop)


def _einsum(equation: str, *operands: object) -> LoopValue:
    operands = unpacked(operands)
    loop = innermost(operands)
    whole = _over_rows(equation, tuple(isinstance(x, LoopValue) for x in operands))
    return LoopValue(torch.einsum(whole, *[_data(x, loop) for x in operands]), loop)


# depends on letters alone, so a trace needs only the result
_over_rows = torch.compiler.assume_constant_result(over_rows)
_mul_or_gather = may_gather("mul", _mul)

PRODUCTS: dict[str, Handler] = {
    "mul": _mul_or_gather, "multiply": _mul_or_gather, "getitem": _getitem, "matmul": _matmul,
    "linear": _linear_layer, "einsum": _einsum, "dot": dot_prd, "vdot": dot_prd,
}  # fmt: skip
"""The handlers of products, by the names of PyTorch's functions."""
