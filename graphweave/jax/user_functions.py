"""Functions of edges and nodes written in jax.numpy, as `graphweave.udf` calls them: they get and return arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from jax import Array
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.jax.tensors import unwrapped, wrapped
from graphweave.tensorlike.answers import NotExpressible
from graphweave.udf.arguments import EdgeBatch, FieldReader, NodeBatch, TypeFields
from graphweave.udf.builtin import BinaryMessage, CopyMessage, ReduceMessages
from graphweave.udf.mailbox import Mailbox

_BUILT_IN = (CopyMessage, BinaryMessage, ReduceMessages)

EdgeFunction: TypeAlias = Callable[[Any], Mapping[str, Any]]
"""A function of `ArrayEdges`, which gives arrays by name, or a message of `graphweave.function`."""

NodeFunction: TypeAlias = Callable[[Any], Mapping[str, Any]]
"""A function of `ArrayNodes`, which gives arrays by name, or a reduction of `graphweave.function`."""

_Adapted: TypeAlias = Callable[[Any], dict[str, Tensor | Mailbox]]


class ArrayFields:
    """Fields by name as arrays, and mailboxes as `ArrayMailbox`. A field is read when it is requested."""

    def __init__(self, fields: FieldReader | TypeFields) -> None:
        self._fields = fields

    def __getitem__(self, name: str) -> Any:
        return to_user(self._fields[name])

    def __contains__(self, name: object) -> bool:
        return isinstance(self._fields, FieldReader) and name in self._fields


class ArrayEdges:
    """Edges, as message functions and `apply_edges` see them: `src`, `dst` and `data` hold the features [edges, ...] of
    their ends and of themselves; `srctype`, `dsttype` and `type` the data of types."""

    def __init__(self, edges: EdgeBatch) -> None:
        self._edges = edges
        self.src, self.dst, self.data = ArrayFields(edges.src), ArrayFields(edges.dst), ArrayFields(edges.data)
        self.srctype, self.dsttype = ArrayFields(edges.srctype), ArrayFields(edges.dsttype)
        self.type = ArrayFields(edges.type)
        self.canonical_etype = edges.canonical_etype

    def batch_size(self) -> int:
        return self._edges.batch_size()


class ArrayNodes:
    """Nodes, as reduce and apply functions see them: `data` [nodes, ...] and `mailbox`, an `ArrayMailbox` of the
    messages that each has received, or, where a function does more with messages than that can, an array [nodes,
    messages, ...] of nodes that have received equally many."""

    def __init__(self, nodes: NodeBatch) -> None:
        self._nodes = nodes
        self.data, self.mailbox = ArrayFields(nodes.data), ArrayFields(nodes.mailbox)
        self.type = ArrayFields(nodes.type)
        self.ntype = nodes.ntype

    def batch_size(self) -> int:
        return self._nodes.batch_size()


class ArrayMailbox:
    """Messages [nodes, messages, ...], of which each node has its own number.

    Functions of jax.numpy do not take it. Its methods are an array's, along dim 1 and along features; nodes without
    messages get 0 from each reduction.
    """

    def __init__(self, box: Mailbox) -> None:
        self._box: Any = box

    def __repr__(self) -> str:
        return repr(self._box)

    @property
    def ndim(self) -> int:
        return self._box.ndim

    @property
    def dtype(self) -> Array:
        return unwrapped(self._box.messages).dtype

    def sum(self, axis: int, keepdims: bool = False) -> Array:
        return to_user(self._box.sum(axis, keepdims))

    def mean(self, axis: int, keepdims: bool = False) -> Array:
        return to_user(self._box.mean(axis, keepdims))

    def prod(self, axis: int, keepdims: bool = False) -> Array:
        return to_user(self._box.prod(axis, keepdims))

    def max(self, axis: int, keepdims: bool = False) -> Array:
        return to_user(self._box.amax(axis, keepdims))

    def min(self, axis: int, keepdims: bool = False) -> Array:
        return to_user(self._box.amin(axis, keepdims))

    def std(self, axis: int, keepdims: bool = False, ddof: int = 0) -> Array:
        return to_user(self._box.std(axis, correction=ddof, keepdim=keepdims))

    def var(self, axis: int, keepdims: bool = False, ddof: int = 0) -> Array:
        return to_user(self._box.var(axis, correction=ddof, keepdim=keepdims))

    def softmax(self, axis: int) -> ArrayMailbox:
        return ArrayMailbox(self._box.softmax(axis))

    def map(self, function: Callable[[Any], Any]) -> ArrayMailbox:
        """The results of `function` of all messages [edges, ...], [edges, ...]. It computes each message by itself."""
        return ArrayMailbox(self._box.like(wrapped(function(unwrapped(self._box.messages)))))

    def __getitem__(self, index: object) -> ArrayMailbox:
        return ArrayMailbox(self._box[index])

    def __array__(self, *args: object, **options: object) -> Array:
        raise NotExpressible("a function of jax.numpy of a mailbox")


def _operator(name: str) -> Callable[..., ArrayMailbox]:
    def method(self: ArrayMailbox, *others: Any) -> ArrayMailbox:
        given = [x._box if isinstance(x, ArrayMailbox) else wrapped(x) for x in others]
        return ArrayMailbox(getattr(self._box, name)(*given))

    method.__name__ = name
    return method


for _name in ("add", "sub", "mul", "truediv", "pow"):
    for _way in (f"__{_name}__", f"__r{_name}__"):
        setattr(ArrayMailbox, _way, _operator(_way))
for _name in ("neg", "abs", "lt", "le", "gt", "ge", "eq", "ne"):
    setattr(ArrayMailbox, f"__{_name}__", _operator(f"__{_name}__"))


def to_user(value: Tensor | Mailbox) -> Any:
    return ArrayMailbox(value) if isinstance(value, Mailbox) else unwrapped(value)


def on_edges(function: EdgeFunction) -> EdgeFunction:
    """`function` of `ArrayEdges` as a message function of `graphweave.udf`, which those of `graphweave.function`
    are."""
    return function if isinstance(function, _BUILT_IN) else _adapted(function, ArrayEdges)


def on_nodes(function: Any) -> Any:
    """`function` of `ArrayNodes` as a reduce or apply function of `graphweave.udf`; None as it is."""
    if function is None or isinstance(function, _BUILT_IN):
        return function
    return _adapted(function, ArrayNodes)


def _adapted(function: EdgeFunction | NodeFunction, argument: type[ArrayEdges] | type[ArrayNodes]) -> _Adapted:
    def adapted(given: Any) -> dict[str, Tensor | Mailbox]:
        return _returned(function(argument(given)))

    name = getattr(function, "__qualname__", type(function).__name__)
    adapted.__qualname__ = name  # errors and warnings say it
    return adapted


def _returned(fields: Mapping[str, Any]) -> dict[str, Tensor | Mailbox]:
    if not isinstance(fields, Mapping):
        raise DataError(
            f"expected a dict of arrays by name from the function (got {type(fields).__name__}). Return one."
        )
    return {name: x._box if isinstance(x, ArrayMailbox) else wrapped(x) for name, x in fields.items()}
