"""Values of the rows that a loop runs over: a tensor [rows, *features] that behaves like the features of one row.

`rowwise` and `matmul` define PyTorch's functions, methods and operators on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor

from graphweave.core.errors import LoopError
from graphweave.loops.scope import FOLDS, End, Loop, Number, RowFields, as_rows
from graphweave.tensorlike.answers import Handler, TensorLike, constant
from graphweave.tensorlike.views import transpose

Operand: TypeAlias = Any
"""A `LoopValue`, a tensor or a number, wherever PyTorch's functions and Python's operators take all of these alike. The
types of these know nothing of classes that answer PyTorch's functions themselves."""


class LoopValue(TensorLike):
    """`data` [rows, *features] for the rows of `loop`, or a number that all rows have."""

    def __init__(self, data: Tensor | Number, loop: Loop) -> None:
        self._data, self.loop = data, loop

    @classmethod
    def unknown(cls, name: str) -> LoopError:
        return LoopError(
            f"PyTorch's {name} is not known for values of edges and nodes (docs/loops.md)."
            " Use one of those, or call it outside the loop."
        )

    @classmethod
    def unwritten(cls, name: str) -> LoopError:
        return LoopError(
            "a value of edges or nodes cannot be written into a tensor (out=...). Take the result instead."
        )

    @classmethod
    def unchanged(cls) -> LoopError:
        return LoopError(
            "values are not edited in place. Make a new one (where, concat, arithmetic) and set the field."
        )

    def read(self) -> Tensor | Number:
        """The value for the rows of `self.loop`."""
        return self._data

    def within(self, loop: Loop) -> Tensor | Number:
        """The value for the rows of `loop`, which is the loop of this value or one inside it."""
        if not self.loop.is_running():
            raise LoopError(
                "a variable holds the value of an edge or a node of a loop that is over. Keep it in a field, as in "
                'e["x"] = ..., or gather it at the node: n["x"] += ...'
            )
        data = self.read()
        if loop is self.loop or not isinstance(data, Tensor):
            return data
        if loop.parent is not self.loop:
            raise LoopError("a value of an edge is used for the node around it. Gather it: n['x'] += ... in the loop.")
        return data.index_select(0, loop.index_of_parent())

    def tensor(self, loop: Loop | None = None) -> Tensor:
        """Like `within`, but always as a tensor [rows, *features], even for a number."""
        loop = self.loop if loop is None else loop
        return as_rows(self.within(loop), loop.store.rows)

    def like(self, data: Tensor) -> LoopValue:
        return LoopValue(data, self.loop)

    def wrapped(self, dim: object, more: int = 0) -> int:
        dim, ndim = constant(dim), self.ndim + more
        if not isinstance(dim, int) or not -ndim <= dim < ndim:
            raise LoopError(
                f"dim {dim} of features of shape {self.shape}: one edge or node has dims {-ndim} to {ndim - 1}."
                " Choose one of these."
            )
        return dim if dim >= 0 else dim + ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the features of one row."""
        return tuple(self.tensor().shape[1:])

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor().dtype

    @property
    def device(self) -> torch.device:
        return self.tensor().device

    @property
    def T(self) -> TensorLike:
        return transpose(self, 0, 1)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return self.ndim

    def __repr__(self) -> str:
        return f"Value of {'edges' if self.loop.over_edges else 'nodes'}"

    def __bool__(self) -> bool:
        raise LoopError(
            "a branch on the value of an edge or a node: the loop is run once, for all of them. "
            "Choose between values with where(condition, a, b)."
        )

    def __iter__(self) -> NoReturn:
        raise LoopError("a loop over the features of an edge or a node. Use an operation on all of them, or x[i].")

    def __len__(self) -> int:
        return self.shape[0]

    def __float__(self) -> float:
        raise LoopError(
            "the value of an edge or a node is no number in Python: the loop is run once, for all of them."
            " Keep it in a field."
        )

    def __int__(self) -> int:
        raise LoopError(
            "the value of an edge or a node is no number in Python: the loop is run once, for all of them."
            " Keep it in a field."
        )

    def __setitem__(self, index: object, value: object) -> None:
        raise self.unchanged()

    def __matmul__(self, other: object) -> LoopValue:
        if isinstance(other, LoopValue):
            raise LoopError(
                "`@` of two values of edges or nodes, which cannot be compiled. Write torch.matmul(x, y), "
                "dot_prd(x, y), or, with a matrix for each type, x * W[e.etype] or linear(x, W[e.etype])."
            )
        return self.answers["matmul"](self, other)

    def __invert__(self) -> NoReturn:
        raise LoopError("`~` of a value of an edge or a node, which cannot be compiled. Write torch.logical_not(x).")


class FieldRead(LoopValue):
    """The field of a node at `end` of each edge, inside a loop over edges. It is pulled when it is used.

    It may turn out to be the field in which values of edges are gathered (`n["s"] += ...`), which does not read it.
    """

    def __init__(self, loop: Loop, store: RowFields, name: str, end: End) -> None:
        super().__init__(store.get(name), loop)
        self.store, self.name, self.end = store, name, end
        self._is_read = False

    def read(self) -> Tensor | Number:
        if not self._is_read:
            self.loop.log.read(self.store, self.name, self.loop, self.end)
            self._is_read = True
            if isinstance(self._data, Tensor):
                self._data = self._data.index_select(0, self.loop.structure.index(self.end))
        return self._data

    def is_of(self, store: RowFields, name: str, end: End) -> bool:
        return self.store is store and self.name == name and self.end == end


class Folded(LoopValue):
    """`compute(left, right)`, where one operand may be the field that gathers the other. It is computed when it is
    used.

    `function` is the name of `compute`.
    """

    def __init__(self, loop: Loop, function: str, compute: Handler, left: Operand, right: Operand) -> None:
        super().__init__(0, loop)
        self.function, self.compute, self.left, self.right = function, compute, left, right
        self._is_read = False

    def read(self) -> Tensor | Number:
        if not self._is_read:
            self._data = self.compute(self.left, self.right).within(self.loop)
            self._is_read = True
        return self._data

    def terms(self, op: str, sign: bool = False) -> list[tuple[Operand, bool]]:
        """The operands of a chain of `op`, each with whether it is subtracted. `sign` says this for the whole chain."""
        out: list[tuple[Any, bool]] = []
        for x, minus in ((self.left, sign), (self.right, sign != (self.function == "sub"))):
            chained = isinstance(x, Folded) and base_of(x.function) == op
            out += x.terms(op, minus) if chained else [(x, minus)]
        return out


def base_of(function: str) -> str:
    """The operation whose chain `function` continues. Differences and sums form one chain."""
    return "add" if function == "sub" else function


def may_gather(function: str, compute: Handler) -> Handler:
    """A handler for `compute`, named `function`. It defers the computation if an operand is a field of a node at an
    edge."""

    def handler(left: object, right: object, **kwargs: object) -> LoopValue:
        later = isinstance(left, (FieldRead, Folded)) or isinstance(right, (FieldRead, Folded))
        if not later or kwargs:
            return compute(left, right, **kwargs)
        return Folded(innermost((left, right)), function, compute, left, right)

    return handler


def innermost(operands: Sequence[Operand]) -> Loop:
    """The innermost of the operands' loops."""
    loop: Loop | None = None
    for x in operands:
        if isinstance(x, LoopValue) and (loop is None or x.loop.parent is loop):
            loop = x.loop
    assert loop is not None
    return loop


def meeting(given: Sequence[Operand]) -> tuple[LoopValue, list[object]]:
    """The operands `given` (values, tensors of features, numbers) with features aligned from the right.

    The first result is a value of the loop in which the operands meet.
    """
    loop = innermost(given)
    is_value = [isinstance(x, LoopValue) for x in given]
    data = [x.within(loop) if isinstance(x, LoopValue) else x for x in given]
    if not any([own and isinstance(x, Tensor) for own, x in zip(is_value, data, strict=True)]):
        first = is_value.index(True)
        data[first] = as_rows(data[first], loop.store.rows)
    dims = max([x.dim() + (not own) for own, x in zip(is_value, data, strict=True) if isinstance(x, Tensor)])
    rows = [aligned(x, dims) if own and isinstance(x, Tensor) else x for own, x in zip(is_value, data, strict=True)]
    return LoopValue(0, loop), rows


def together(parts: Sequence[Operand]) -> tuple[LoopValue, list[Tensor]]:
    """One value among `parts`, and the data of all parts. A tensor of features is repeated for every row."""
    loop = innermost(parts)
    rows = loop.store.num_rows()
    data = [x.tensor(loop) if isinstance(x, LoopValue) else x.expand(rows, *x.shape) for x in parts]
    return next(x for x in parts if isinstance(x, LoopValue)), data


def gather(loop: Loop, store: RowFields, name: str, end: End, value: Operand) -> None:
    """`n[name] = value` inside a loop over edges: gather a sum, product, maximum or minimum over the node's edges.

    field[v] = op(field[v], value of e for all e with end(e) = v).
    """
    field = f"{'n' if loop.via == end else f'e.{end}'}[{name!r}]"
    terms: list[tuple[Any, bool]] = value.terms(base_of(value.function)) if isinstance(value, Folded) else []
    own = [i for i, (x, _) in enumerate(terms) if isinstance(x, FieldRead) and x.is_of(store, name, end)]
    if not own or terms[own[0]][1]:
        raise LoopError(
            f"{field} is set in a loop over edges: several edges would set the same node, and the last one would stay. "
            f"Gather their values with {field} += x, -= x, *= x, or {field} = maximum({field}, x) or minimum."
        )
    op = base_of(value.function)
    total: Any = None
    for i, (x, minus) in enumerate(terms):
        if i != own[0]:
            x = -x if minus else x
            total = x if total is None else LoopValue.answers[op](total, x)
    data = total.tensor(loop) if isinstance(total, LoopValue) else _everywhere(total, loop)
    loop.log.fold(store, name, loop, end, op)
    store.set(name, _pushed(as_rows(store.get(name), store.rows), loop.structure.index(end), data, op))


def _everywhere(x: Tensor | Number, loop: Loop) -> Tensor:
    """Shared data `x`, repeated for each row of `loop`."""
    if not isinstance(x, Tensor):
        return as_rows(x, loop.store.rows)
    return x.expand(loop.store.num_rows(), *x.shape)


def _pushed(base: Tensor, index: Tensor, x: Tensor, op: str) -> Tensor:
    """`base` [nodes, *features], with `x` [edges, *features] folded into the rows that `index` [edges] names."""
    base, x = same_features(base, x)
    if op == "add":
        return base.index_add(0, index, x)
    index = index.long()  # the gradient of scatter_reduce is wrong for other integers (PyTorch 2.13)
    return base.scatter_reduce(0, index.reshape(-1, *(1,) * (x.dim() - 1)).expand_as(x), x, FOLDS[op])


def same_features(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """`a` and `b`, each with its own rows, but with the features and dtype of the result of an operation on both."""
    dims = max(a.dim(), b.dim())
    a, b = aligned(a, dims), aligned(b, dims)
    features = torch.broadcast_shapes(a.shape[1:], b.shape[1:])
    dtype = torch.promote_types(a.dtype, b.dtype)
    return a.expand(a.shape[0], *features).to(dtype), b.expand(b.shape[0], *features).to(dtype)


def aligned(x: Tensor, dims: int) -> Tensor:
    """[rows, *features] -> [rows, 1, ..., *features] with `dims` dims, so that features align from the right."""
    for _ in range(dims - x.dim()):
        x = x.unsqueeze(1)
    return x
