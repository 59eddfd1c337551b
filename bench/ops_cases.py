"""The cases of `bench.ops`: each in graphweave, in PyG, as MKL's product if it is one, and by its definition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import softmax

from bench.graphs import csr_matrix
from graphweave import ops

HIDDEN = 8
"""Width of a node's features in the MLP aggregation, as in FeatGraph's evaluation. Lengths are those of its result."""

HEADS = 4

CASES = ("gcn", "weighted", "weighted-own", "mlp", "dot", "attend")
"""gcn: the sum of source rows. weighted: the same with a weight for each edge, by the built-in message; weighted-own:
by a function of one's own. mlp: the maximum of relu((x_u + x_v) W). dot: the inner product of both ends of each edge.
attend: the softmax of the inner products of 4 heads, times the source rows."""

BLOCK = 100_000
"""Number of edges that a definition computes at a time."""


@dataclass(frozen=True)
class Data:
    """A graph of `nodes` and the operands of all cases, float32: x [N, F], narrow [N, 8], weight [E], matrix [8, F]."""

    index: Tensor
    nodes: int
    x: Tensor
    narrow: Tensor
    weight: Tensor
    matrix: Tensor

    def as_tensors(self) -> dict[str, Tensor]:
        return {
            "edge_index": self.index, "x": self.x, "narrow": self.narrow, "weight": self.weight, "matrix": self.matrix
        }  # fmt: skip


def data_of(index: Tensor, nodes: int, length: int) -> Data:
    generator = torch.Generator().manual_seed(1)
    shapes = ((nodes, length), (nodes, HIDDEN), (index.shape[1],), (HIDDEN, length))
    return Data(index, nodes, *(torch.randn(shape, generator=generator) for shape in shapes))


def _heads(x: Tensor) -> Tensor:
    return x.view(-1, HEADS, x.shape[-1] // HEADS)


def graphweave_call(case: str, d: Data, schedule: str = "auto") -> Callable[[], Tensor]:
    g, n, w = (d.index[0].contiguous(), d.index[1].contiguous()), d.nodes, d.matrix
    x = d.x
    calls: dict[str, Callable[[], Tensor]] = {
        "gcn": lambda: ops.spmm(g, "copy_u", src=x, schedule=schedule),
        "weighted": lambda: ops.spmm(g, "u_mul_e", src=x, edge=d.weight, schedule=schedule),
        "weighted-own": lambda: ops.spmm(
            g, lambda src, dst, edge: src * edge[:, None], src=x, edge=d.weight, schedule=schedule
        ),
        "mlp": lambda: ops.spmm(
            g, lambda src, dst, edge: torch.relu((src + dst) @ w), "max", src=d.narrow, dst=d.narrow, num_dst=n,
            schedule=schedule,
        ),
        "dot": lambda: ops.sddmm(g, lambda src, dst, edge: (src * dst).sum(-1), src=x, dst=x, schedule=schedule),
        "attend": lambda: ops.attend(
            g, lambda src, dst, edge: (_heads(src) * _heads(dst)).sum(-1), lambda src, dst, edge: _heads(src), src=x,
            dst=x, schedule=schedule,
        ).flatten(1),
    }  # fmt: skip
    return calls[case]


class _Sum(MessagePassing):
    def __init__(self) -> None:
        super().__init__(aggr="sum")

    def forward(self, x: Tensor, index: Tensor, weight: Tensor | None) -> Any:
        return self.propagate(index, x=x, weight=weight)

    def message(self, x_j: Tensor, weight: Tensor | None) -> Tensor:
        return x_j if weight is None else x_j * weight[:, None]


class _Mlp(MessagePassing):
    def __init__(self, matrix: Tensor) -> None:
        super().__init__(aggr="max")
        self.matrix = matrix

    def forward(self, x: Tensor, index: Tensor) -> Any:
        return self.propagate(index, x=x)

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        return torch.relu((x_i + x_j) @ self.matrix)


class _Dot(MessagePassing):
    def forward(self, x: Tensor, index: Tensor) -> Any:
        return self.edge_updater(index, x=x)

    def edge_update(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        return (x_i * x_j).sum(-1)


class _Attend(MessagePassing):
    def __init__(self) -> None:
        super().__init__(aggr="sum", node_dim=0)

    def forward(self, x: Tensor, index: Tensor) -> Any:
        return self.propagate(index, x=_heads(x)).flatten(1)

    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int | None) -> Tensor:
        return x_j * softmax((x_i * x_j).sum(-1), index, num_nodes=size_i)[..., None]


def pyg_call(case: str, d: Data) -> Callable[[], Tensor]:
    total, mlp, dot, attend = _Sum(), _Mlp(d.matrix), _Dot(), _Attend()
    calls: dict[str, Callable[[], Tensor]] = {
        "gcn": lambda: total(d.x, d.index, None),
        "weighted": lambda: total(d.x, d.index, d.weight),
        "mlp": lambda: mlp(d.narrow, d.index),
        "dot": lambda: dot(d.x, d.index),
        "attend": lambda: attend(d.x, d.index),
    }
    return calls[case.removesuffix("-own")]


def pyg_bytes(case: str, edges: int, length: int) -> int:
    """About how many bytes PyG's eager gathers and messages take at once."""
    rows = {"gcn": 2, "weighted": 3, "mlp": 3, "dot": 4, "attend": 5}[case.removesuffix("-own")]
    return rows * edges * length * 4


def mkl_call(case: str, d: Data) -> Callable[[], Tensor] | None:
    """The product of a CSR matrix, made before, and the features; None if the case is no such product."""
    if case not in ("gcn", "weighted", "weighted-own"):
        return None
    matrix = csr_matrix(d.index, torch.ones_like(d.weight) if case == "gcn" else d.weight, (d.nodes, d.nodes))
    return lambda: matrix @ d.x


# ---------------------------------------------------------------- definitions


CHECKED = 2 * 10**8
"""About how many numbers of float64 are computed to check a result. Of larger results a sample of rows is checked."""


def sample_of(edges: int, length: int) -> int:
    """Which rows of a result are checked: those whose number is a multiple of this."""
    return 1 + edges * length // CHECKED


def expected(case: str, data: Data, sample: int) -> Tensor:
    """In float64, every row of the result whose number is a multiple of `sample`.

    If the result has a row for each edge, only these edges are computed; otherwise only edges into these nodes.
    """
    if sample == 1:
        return definition(case, data)
    edges = torch.arange(data.index.shape[1]) if case == "dot" else data.index[1]
    chosen = edges % sample == 0
    want = definition(case, replace(data, index=data.index[:, chosen], weight=data.weight[chosen]))
    return want if case == "dot" else want[::sample]


def definition(case: str, d: Data) -> Tensor:
    """Computes the operator in float64, some edges at a time."""
    wide = Data(d.index, d.nodes, *(t.double() for t in (d.x, d.narrow, d.weight, d.matrix)))
    if case == "dot":
        return torch.cat([(wide.x[src] * wide.x[dst]).sum(-1) for src, dst, _ in _blocks(wide)])
    if case == "mlp":
        out = torch.full((d.nodes, d.x.shape[1]), -torch.inf, dtype=torch.float64)
        for src, dst, _ in _blocks(wide):
            message = torch.relu((wide.narrow[src] + wide.narrow[dst]) @ wide.matrix)
            out.scatter_reduce_(0, dst[:, None].expand_as(message), message, "amax")
        return torch.where(out.isinf(), 0.0, out)
    if case == "attend":
        return _attention(wide)
    out = torch.zeros(d.nodes, d.x.shape[1], dtype=torch.float64)
    for src, dst, weight in _blocks(wide):
        out.index_add_(0, dst, wide.x[src] if case == "gcn" else wide.x[src] * weight[:, None])
    return out


def _attention(d: Data) -> Tensor:
    h = _heads(d.x)
    scores = torch.cat([(h[src] * h[dst]).sum(-1) for src, dst, _ in _blocks(d)])
    a = softmax(scores, d.index[1], num_nodes=d.nodes)
    out = torch.zeros_like(h)
    for (src, dst, _), part in zip(_blocks(d), a.split(BLOCK), strict=True):
        out.index_add_(0, dst, h[src] * part[..., None])
    return out.flatten(1)


def _blocks(d: Data) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    yield from zip(d.index[0].split(BLOCK), d.index[1].split(BLOCK), d.weight.split(BLOCK), strict=True)
