"""Arrays of JAX that code written for PyTorch takes for tensors.

An `ArrayTensor` is a tensor without memory. PyTorch knows its shape and dtype, takes every function, method and module
apart into operators, and hands these over; `array_functions.py` says what each means in JAX. So layers, reduce
functions and graphs, which are written in PyTorch, compute with arrays of JAX, traced ones among them, and nothing of
them is written twice. Autograd takes no part: JAX differentiates what its functions have computed.

Along the edges of a graph, rows move by an `EndTensor`, the source or destination of each edge. These moves become the
primitives of `moves.py` inside of what is compiled (`passing.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakIdKeyDictionary
from typing_extensions import Self

from graphweave.core.errors import DataError
from graphweave.core.ranges import position, range_error
from graphweave.core.types import Fold
from graphweave.jax.array_functions import DTYPES, FUNCTIONS, WHOLE, dtype_of
from graphweave.jax.moves import End, Types, edges_of, lookup, pull, push
from graphweave.tensorlike.answers import NotExpressible
from graphweave.udf.run import inside_kernel

_TORCH_DTYPE = {jnp.dtype(name): dtype for dtype, name in DTYPES.items()}

_FOLDS = {"sum": Fold.sum, "prod": Fold.mul, "amax": Fold.max, "amin": Fold.min}
"""The reductions of `scatter_reduce`."""

_ZEROS = frozenset({"new_zeros", "zeros_like"})

_KEEPS_ENDS = ("_to_copy", "unsqueeze", "expand", "view", "alias", "detach", "clone")
"""Operators after which the ends of edges are still these, repeated along further dims at most."""


class ArrayTensor(Tensor):
    """`array` as a tensor. `is_zero` says that it has been made of zeros, into which rows are then pushed."""

    array: Array
    is_zero: bool

    @staticmethod
    def __new__(cls, array: Array, is_zero: bool = False) -> Self:
        dtype = _TORCH_DTYPE.get(jnp.dtype(array.dtype))
        if dtype is None:
            raise DataError(f"expected an array of real numbers (got {array.dtype}). Convert it with .astype(...).")
        out = Tensor._make_wrapper_subclass(cls, array.shape, dtype=dtype)
        out.array, out.is_zero = array, is_zero
        return out

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"{type(self).__name__}({self.array!r})"

    @classmethod
    def __torch_function__(cls, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        whole = WHOLE.get(func.__name__)
        if whole is not None:
            return pytree.tree_map(ArrayTensor, whole(*_arrays(args), **_arrays(kwargs or {})))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, given = func.overloadpacket.__name__, dict(kwargs or {})
        moved = _moved(name, args, given)
        if moved is not None:
            return moved
        if name not in FUNCTIONS:
            raise NotExpressible(
                f"{name} has no meaning in JAX here (got a call of it on {args[0]!r})."
                " Compute this step in jax.numpy, outside of the layer."
            )
        out = FUNCTIONS[name](*_arrays(args), **_arrays(given))
        return pytree.tree_map_only(jax.Array, lambda x: ArrayTensor(x, name in _ZEROS), out)


class KnownTensor(ArrayTensor):
    """Integers that JAX may trace, as an argument of a kernel, and that are known, too: one for each row of `rows`."""

    known: Tensor
    rows: str

    @staticmethod
    def of(array: Array, known: Tensor, rows: str) -> KnownTensor:
        out = KnownTensor(array)
        out.known, out.rows = known, rows
        return out


class EndTensor(ArrayTensor):
    """The number of the node at one end of each edge, where what is computed becomes a kernel. `known` are these
    numbers, or None if JAX traces them."""

    end: End
    known: Tensor | None

    @staticmethod
    def at(end: End, array: Array, known: Tensor | None) -> EndTensor:
        out = EndTensor(array)
        out.end, out.known = end, known
        return out


def _moved(name: str, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """The result of an operator that moves rows along edges; None for any other."""
    match name, args:
        case "index_select", (KnownTensor() as x, 0, EndTensor(known=Tensor() as known) as at):
            rows = pull(x.array, at.end, at.shape[0])
            return KnownTensor.of(rows, x.known.index_select(0, known), edges_of(at.end))
        case "index_select", (x, 0, EndTensor() as at):
            return ArrayTensor(pull(array_of(x), at.end, at.shape[0]))
        case "index_select", (x, 0, KnownTensor() as types):
            return ArrayTensor(lookup(array_of(x), _types(types, x.shape[0])))
        case "index_select", (x, 0, ArrayTensor() as types) if inside_kernel.get():
            return ArrayTensor(lookup(array_of(x), Types(None, types.shape[0], x.shape[0]), types.array))
        case "index_fill", (x, 0, EndTensor() as at, value):
            return ArrayTensor(jnp.where(_reached(array_of(x), at), jnp.asarray(value, array_of(x).dtype), array_of(x)))
        case "index_add", (x, 0, EndTensor() as at, rows):
            return _onto(x, at, array_of(rows), Fold.sum)
        case "scatter_reduce", (x, 0, EndTensor() as at, rows, fold) if not options.get("include_self", True):
            return _onto(x, at, array_of(rows), _FOLDS[fold])
        case _, (EndTensor() as at, *_) if name in _KEEPS_ENDS:
            return EndTensor.at(at.end, FUNCTIONS[name](*_arrays(args), **options), at.known)
    return None


def _onto(x: Tensor, at: EndTensor, rows: Array, fold: Fold) -> ArrayTensor:
    """Rows of edges folded into their nodes. Nodes without edges keep what they have in `x`."""
    pushed = push(rows, at.end, x.shape[0], fold)
    is_zero = x.is_zero if isinstance(x, ArrayTensor) else not bool(x.any())
    if fold is Fold.sum:
        return ArrayTensor(pushed if is_zero else array_of(x) + pushed)
    if is_zero and fold is not Fold.mul:
        return ArrayTensor(pushed)
    return ArrayTensor(jnp.where(_reached(pushed, at), pushed, array_of(x)))


def _reached(x: Array, at: EndTensor) -> Array:
    """Which rows of `x` have edges, in a shape that broadcasts with `x`."""
    count = push(jnp.ones(at.shape[0], jnp.int32), at.end, x.shape[0])
    return (count > 0).reshape(-1, *[1] * (x.ndim - 1))


_kept_types: WeakIdKeyDictionary = WeakIdKeyDictionary()


def _types(of: KnownTensor, count: int) -> Types:
    """The types that `of` holds, of `count` types, the same object for the same tensor."""
    index = of.known
    if index.numel() and position(index, count) is not None:
        raise range_error(index, count, what="types", of="types")
    found = _kept_types.setdefault(index, {})
    if (count, of.rows) not in found:
        found[count, of.rows] = Types(index, index.shape[0], count, of.rows)
    made: Types = found[count, of.rows]
    return made


def wrapped(value: Any) -> Any:
    """`value`, which may be nested, with tensors in the place of arrays. Integers that JAX does not trace are PyTorch's
    own tensors, with which code written in PyTorch may do anything."""
    return jax.tree.map(_wrapped, value, is_leaf=lambda x: not isinstance(x, (tuple, list, dict)))


def _wrapped(x: Any) -> Any:
    is_traced = isinstance(x, jax.core.Tracer)
    if isinstance(x, jax.Array) and not is_traced and not jnp.issubdtype(x.dtype, jnp.floating):
        return torch.from_numpy(np.array(x))
    return stored(x)


def stored(x: Any) -> Any:
    """An array as a tensor of a frame: integers of NumPy are PyTorch's own, arrays of JAX are data."""
    if isinstance(x, np.ndarray) and not jnp.issubdtype(x.dtype, jnp.floating):
        return torch.from_numpy(x.copy())
    return ArrayTensor(jnp.asarray(x)) if isinstance(x, (jax.Array, np.ndarray)) else x


def unwrapped(value: Any) -> Any:
    """`value`, which may be nested, with arrays in the place of tensors."""
    return pytree.tree_map_only(Tensor, array_of, value)


def known_integers(x: Tensor) -> Tensor | None:
    """The numbers of `x` if they are integers that JAX does not trace."""
    if x.is_floating_point():
        return None
    if not isinstance(x, ArrayTensor):
        return x
    return None if isinstance(x.array, jax.core.Tracer) else torch.from_numpy(np.array(x.array))


def argument(x: Tensor, array: Array, rows: str) -> ArrayTensor:
    """`array`, an argument of a kernel with a row for each of `rows`, in the place of `x`, whose numbers stay known if
    they are integers that JAX does not trace."""
    known = known_integers(x)
    return ArrayTensor(array) if known is None else KnownTensor.of(array, known, rows)


def _arrays(value: Any) -> Any:
    return pytree.tree_map_only(Tensor, _operand, value)


def array_of(x: Tensor) -> Array:
    """The array for which `x` stands, or one of the same numbers."""
    if isinstance(x, ArrayTensor):
        return x.array
    if x.dim() and (x.numel() == 0 or bool((x == x.flatten()[0]).all())):
        number = x.flatten()[0].item() if x.numel() else 0
        return jnp.full(x.shape, number, dtype_of(x.dtype, None))  # which needs no memory in a kernel
    return jnp.asarray(x.detach().numpy())


def _operand(x: Tensor) -> Any:
    """A number in place of a tensor of PyTorch's without dims: neither decides about the dtype of a result."""
    return x.item() if x.dim() == 0 and not isinstance(x, ArrayTensor) else array_of(x)
