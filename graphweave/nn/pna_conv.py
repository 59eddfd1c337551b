"""Principal neighbourhood aggregation (PNA)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from graphweave.core.errors import DataError
from graphweave.graph.graph import Graph
from graphweave.graph.readout import broadcast_nodes
from graphweave.nn.ends import on_rows
from graphweave.udf.arguments import EdgeBatch, NodeBatch

_TINY = 1e-30


def _moment(n: int) -> Callable[[Tensor], Tensor]:
    def of(m: Tensor) -> Tensor:
        central = (m - m.mean(1, keepdim=True)).pow(n).mean(1)
        return central.sign() * (central.abs() + _TINY) ** (1 / n)

    return of


def _variance(m: Tensor) -> Tensor:
    return torch.relu(m.square().mean(1) - m.mean(1).square())


AGGREGATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda m: m.mean(1),
    "sum": lambda m: m.sum(1),
    "max": lambda m: m.amax(1),
    "min": lambda m: m.amin(1),
    "var": _variance,
    "std": lambda m: (_variance(m) + _TINY).sqrt(),
    "moment3": _moment(3),
    "moment4": _moment(4),
    "moment5": _moment(5),
}
"""Name -> function from the messages [nodes, in-degree, F] to [nodes, F]."""

_SCALERS = ("identity", "amplification", "attenuation")


class PNATower(nn.Module):
    """One of the towers of `PNAConv`."""

    def __init__(
        self, in_size: int, out_size: int, aggregators: Sequence[str], scalers: Sequence[str], delta: float,
        dropout: float, edge_feat_size: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self.aggregators, self.scalers = tuple(aggregators), tuple(scalers)
        self.delta, self.edge_feat_size = delta, edge_feat_size
        self.M = nn.Linear(2 * in_size + edge_feat_size, in_size)
        self.U = nn.Linear((len(self.aggregators) * len(self.scalers) + 1) * in_size, out_size)
        self.dropout, self.batchnorm = nn.Dropout(dropout), nn.BatchNorm1d(out_size)

    def forward(self, graph: Graph, node_feat: Tensor, edge_feat: Tensor | None = None) -> Tensor:
        """[N, in], and [E, edge_feat_size] -> [N, out]."""
        with graph.local_scope():
            graph.ndata["h"] = node_feat
            if edge_feat is not None and self.edge_feat_size:
                graph.edata["f"] = edge_feat
            graph.update_all(self._message, self._reduce)
            degree = torch.log(graph.in_degrees().to(node_feat.dtype) + 1)
            found = [graph.ndata["h"], *self._scaled(graph.ndata["agg"], degree)]
            size = broadcast_nodes(graph, graph.batch_num_nodes().to(node_feat.dtype).unsqueeze(-1))
        out: Tensor = self.dropout(self.batchnorm(self.U(torch.cat(found, dim=1)) * size**-0.5))
        return out

    def _message(self, edges: EdgeBatch) -> dict[str, Tensor]:
        parts = [edges.src["h"], edges.dst["h"], *([edges.data["f"]] if "f" in edges.data else [])]
        return {"m": self.M(torch.cat(parts, dim=-1))}

    def _reduce(self, nodes: NodeBatch) -> dict[str, Tensor]:
        m = nodes.mailbox["m"]
        return {"agg": torch.cat([AGGREGATORS[name](m) for name in self.aggregators], dim=-1)}

    def _scaled(self, x: Tensor, degree: Tensor) -> list[Tensor]:
        factors = {
            "identity": torch.ones_like(degree),
            "amplification": degree / self.delta,
            "attenuation": torch.where(degree > 0, self.delta / degree.clamp(min=_TINY), torch.zeros_like(degree)),
        }
        return [x * on_rows(factors[name], x) for name in self.scalers]


class PNAConv(nn.Module):
    """h' = leaky_relu(W [towers]) + h, with towers U [h_i ; scale_s(aggregate_a over edges j -> i of M [h_j ; h_i ;
    f_e])].

    `aggregators`: of mean, sum, max, min, var, std, moment3, moment4, moment5; `scalers`: "identity", "amplification"
    log(d + 1) / delta, "attenuation" delta / log(d + 1), for the in-degree d; all of these are concatenated. Each of
    `num_towers` reads its part of the features, and is divided by the root of the number of nodes of its graph; a batch
    norm and dropout follow. `residual`: adds h where
    widths are equal. Nodes without incoming edges aggregate to 0. Source: Corso et al., "Principal Neighbourhood
    Aggregation for Graph Nets", NeurIPS 2020, section 2.

    >>> graph = gw.graph(([0, 1, 2], [1, 2, 2]))
    >>> PNAConv(4, 6, ["mean", "max"], ["identity", "amplification"], 2.5)(graph, torch.randn(3, 4)).shape
    torch.Size([3, 6])
    """

    tower: ClassVar[type[PNATower]] = PNATower
    known: ClassVar[tuple[str, ...]] = tuple(AGGREGATORS)

    def __init__(
        self, in_size: int, out_size: int, aggregators: Sequence[str], scalers: Sequence[str], delta: float,
        dropout: float = 0.0, num_towers: int = 1, edge_feat_size: int = 0, residual: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        wrong = [a for a in aggregators if a not in self.known] + [s for s in scalers if s not in _SCALERS]
        if wrong:
            known = ", ".join((*self.known, *_SCALERS))
            raise DataError(f"expected aggregators and scalers among {known} (got {wrong[0]!r}). Pass some of these.")
        if in_size % num_towers or out_size % num_towers:
            raise DataError(
                f"num_towers must divide in_size and out_size (got {num_towers}, {in_size}, {out_size})."
                " Choose another number."
            )
        self.aggregators = tuple(aggregators)
        self.tower_in, self.residual = in_size // num_towers, residual and in_size == out_size
        self.towers = nn.ModuleList([
            self.tower(self.tower_in, out_size // num_towers, aggregators, scalers, delta, dropout, edge_feat_size)
            for _ in range(num_towers)
        ])  # fmt: skip
        self.mixing_layer = nn.Sequential(nn.Linear(out_size, out_size), nn.LeakyReLU())

    def forward(self, graph: Graph, node_feat: Tensor, edge_feat: Tensor | None = None) -> Tensor:
        """[N, in], and [E, edge_feat_size] -> [N, out]."""
        parts = node_feat.split(self.tower_in, dim=1)
        found = [tower(graph, x, edge_feat) for tower, x in zip(self.towers, parts, strict=True)]
        out: Tensor = self.mixing_layer(torch.cat(found, dim=1))
        return out + node_feat if self.residual else out
