"""Loops executed literally, edge after edge and node after node: what functions written in loops mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


class Weights:
    """A tensor whose rows are multiplied as Hector says: `x * W[e.etype]` is a product where that has more dims."""

    def __init__(self, data: Tensor) -> None:
        self.data = data

    def __getitem__(self, index: Any) -> Slice:
        return Slice(self.data[index])


class Rows:
    """A tensor with a row for each node or edge: x[n], x[e.src]."""

    def __init__(self, data: Tensor) -> None:
        self.data = data

    def __getitem__(self, row: Row) -> Tensor:
        return self.data[row.__dict__["i"]]


class Slice:
    def __init__(self, data: Tensor) -> None:
        self.data = data

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [a.data if isinstance(a, Slice) else a for a in args]
        x, y = (*plain, None)[:2]
        if func.__name__ in ("mul", "__mul__") and isinstance(args[1], Slice) and 1 <= x.dim() < y.dim():
            return product(x, y)
        return func(*plain, **(kwargs or {}))

    def __add__(self, other: Any) -> Any:
        return self.data + other

    def __mul__(self, other: Any) -> Any:
        return self.data * (other.data if isinstance(other, Slice) else other)

    __radd__, __rmul__ = __add__, __mul__

    def __getitem__(self, index: Any) -> Tensor:
        return self.data[index]

    def dim(self) -> int:
        return self.data.dim()


def product(x: Tensor, w: Tensor) -> Tensor:
    """[..., K] by [..., K, M], written out."""
    return (x.unsqueeze(-1) * w).sum(-2)


class Fields:
    """name -> list of what each row has."""

    def __init__(self, rows: int, fields: Mapping[str, Tensor]) -> None:
        self.rows = rows
        self.lists: dict[str, list[Any]] = {name: list(x.unbind(0)) for name, x in fields.items()}

    def __getitem__(self, name: str) -> Tensor:
        return stacked(self.lists.get(name, []))  # without rows, the field is never set

    def __setitem__(self, name: str, value: Tensor) -> None:
        self.lists[name] = list(value.unbind(0))


def stacked(rows: list[Any]) -> Tensor:
    """Stacks the rows. Rows to which nothing was added may still be numbers, which broadcast."""
    tensors = [x if isinstance(x, Tensor) else torch.tensor(x) for x in rows]
    if not tensors:
        return torch.zeros(0)
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))
    dtype = torch.float64 if any(x.dtype == torch.float64 for x in tensors) else tensors[0].dtype
    return torch.stack([x.to(dtype).expand(shape) for x in tensors])


class Row:
    def __init__(self, g: LiteralGraph, fields: Fields, i: int) -> None:
        self.__dict__.update(g=g, fields=fields, i=i)

    def __getitem__(self, name: str) -> Any:
        value = self.fields.lists[name][self.i]
        return value.clone() if isinstance(value, Tensor) else value  # later edits change no field

    def __setitem__(self, name: str, value: Any) -> None:
        value = value.data if isinstance(value, Slice) else value
        self.fields.lists.setdefault(name, [None] * self.fields.rows)[self.i] = value

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Node(Row):
    @property
    def ntype(self) -> int:
        return int(self["_TYPE"])

    def incoming_edges(self) -> Iterator[Edge]:
        return (Edge(self.g, self.g.e, k) for k in range(self.g.num_edges()) if self.g.dst[k] == self.i)

    def outgoing_edges(self) -> Iterator[Edge]:
        return (Edge(self.g, self.g.e, k) for k in range(self.g.num_edges()) if self.g.src[k] == self.i)


class Edge(Row):
    @property
    def etype(self) -> int:
        return int(self["_TYPE"])

    @property
    def src(self) -> Node:
        return Node(self.g, self.g.s, self.g.src[self.i])

    @property
    def dst(self) -> Node:
        return Node(self.g, self.g.d, self.g.dst[self.i])


class LiteralGraph:
    """The parts of a graph that a function written in loops uses."""

    def __init__(
        self, src: Tensor, dst: Tensor, sizes: tuple[int, int] | int, ndata: Mapping[str, Tensor],
        edata: Mapping[str, Tensor], dstdata: Mapping[str, Tensor] | None = None,
    ) -> None:  # fmt: skip
        self.src, self.dst = src.tolist(), dst.tolist()
        both = isinstance(sizes, int)
        num_src, num_dst = (sizes, sizes) if isinstance(sizes, int) else sizes
        self.s = Fields(num_src, ndata)
        self.d = self.s if both else Fields(num_dst, dstdata or {})
        self.e = Fields(len(self.src), edata)
        self.ndata, self.srcdata, self.dstdata, self.edata = self.s, self.s, self.d, self.e

    def num_edges(self) -> int:
        return len(self.src)

    def edges(self) -> Iterator[Edge]:
        return (Edge(self, self.e, k) for k in range(len(self.src)))

    def src_nodes(self) -> Iterator[Node]:
        return (Node(self, self.s, i) for i in range(self.s.rows))

    def dst_nodes(self) -> Iterator[Node]:
        return (Node(self, self.d, i) for i in range(self.d.rows))

    nodes = dst_nodes


def literally(function: Callable[..., Any], g: LiteralGraph, *args: Any) -> Any:
    """Runs `function`, without its decorator, one iteration of its loops after the other."""
    return getattr(function, "__wrapped__", function)(g, *args)
