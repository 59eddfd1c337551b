"""Directional graph networks (DGN)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph.graph import Graph
from graphweave.nn.pna_conv import AGGREGATORS, PNAConv, PNATower
from graphweave.udf.arguments import EdgeBatch, NodeBatch

_TINY = 1e-30
_FIELDS = 3
"""Number of eigenvectors that aggregators can follow: "dir1-av" to "dir3-dx"."""

_DIRECTIONAL = tuple(f"dir{k}-{kind}" for k in range(1, _FIELDS + 1) for kind in ("av", "dx"))


class DGNTower(PNATower):
    """One of the towers of `DGNConv`. The graph's nodes have the eigenvectors as "eig"."""

    def _message(self, edges: EdgeBatch) -> dict[str, Tensor]:
        out = super()._message(edges)
        for k in sorted({_field(name) for name in self.aggregators if name in _DIRECTIONAL}):
            out[f"d{k}"] = edges.src["eig"][:, k] - edges.dst["eig"][:, k]
        return out

    def _reduce(self, nodes: NodeBatch) -> dict[str, Tensor]:
        m = nodes.mailbox["m"]
        found = []
        for name in self.aggregators:
            if name not in _DIRECTIONAL:
                found.append(AGGREGATORS[name](m))
                continue
            field = nodes.mailbox[f"d{_field(name)}"]
            weight = field / (field.abs().sum(1, keepdim=True) + _TINY)
            if name.endswith("av"):
                found.append((weight.abs().unsqueeze(-1) * m).sum(1))
            else:
                along = (weight.unsqueeze(-1) * m).sum(1)
                found.append((along - weight.sum(1).unsqueeze(-1) * nodes.data["h"]).abs())
        return {"agg": torch.cat(found, dim=-1)}


class DGNConv(PNAConv):
    """`PNAConv` with aggregators along the gradient of eigenvectors v_k of the Laplacian, k = 1, 2, 3.

    With w_ji = (v_k(j) - v_k(i)) / (sum over edges into i of abs(v_k(j) - v_k(i)) + 1e-30), "dir<k>-av" is the sum of
    abs(w_ji) m_ji, and "dir<k>-dx" is abs(sum w_ji m_ji - (sum w_ji) h_i). Both are 0 at nodes without incoming edges.
    Source: Beaini et al., "Directional Graph Networks", ICML 2021, section 2.4.

    >>> graph = gw.graph(([0, 1, 2], [1, 2, 2]))
    >>> DGNConv(4, 6, ["dir1-av", "mean"], ["identity"], 2.5)(graph, torch.randn(3, 4), eig_vec=torch.randn(3, 1)).shape
    torch.Size([3, 6])
    """

    tower: ClassVar[type[PNATower]] = DGNTower
    known: ClassVar[tuple[str, ...]] = (*AGGREGATORS, *_DIRECTIONAL)

    def forward(
        self, graph: Graph, node_feat: Tensor, edge_feat: Tensor | None = None, eig_vec: Tensor | None = None
    ) -> Tensor:
        """[N, in], [E, edge_feat_size], and eigenvectors [N, k], for aggregators that follow them -> [N, out].

        DataError where these are missing.
        """
        # not by `max(..., default=0)`, which Dynamo does not trace
        needed = max([0, *(_field(name) + 1 for name in self.aggregators if name in _DIRECTIONAL)])
        if needed and (eig_vec is None or eig_vec.shape[-1] < needed):
            got = None if eig_vec is None else list(eig_vec.shape)
            raise DataError(f"eig_vec: expected {needed} eigenvectors [N, {needed}] (got {got}). Pass laplacian_pe's.")
        with graph.local_scope():
            if needed:
                graph.ndata["eig"] = eig_vec
            return super().forward(graph, node_feat, edge_feat)


def _field(name: str) -> int:
    """The number of the eigenvector that a directional aggregator follows, from 0."""
    return int(name[3]) - 1
