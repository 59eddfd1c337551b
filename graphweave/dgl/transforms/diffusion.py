"""Transforms that weigh edges, replace them by a diffusion, or diffuse features along them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.dgl.graph import DGLGraph
from graphweave.dgl.hops import one_relation
from graphweave.dgl.transforms.base import BaseTransform
from graphweave.graph import transform
from graphweave.graph.relation import Relation

_DIFFUSIONS = ("raw", "rw", "gcn", "ppr")


class GCNNorm(BaseTransform):
    """w[e] / sqrt(d(src) d(dst)) as the edge field `eweight_name`, where d sums w over the edges into a node, and edges
    at nodes with d = 0 get 0. w is the field where it exists, else 1. Relations between two node types stay as they
    are.
    """

    def __init__(self, eweight_name: str = "w") -> None:
        self.eweight_name = eweight_name

    def __call__(self, g: DGLGraph) -> DGLGraph:
        g = g.local_var()
        for key, r in g.relations.items():
            if key[0] == key[2]:
                frame = g.edge_frames[key]
                frame[self.eweight_name] = gcn_weights(r, g.num_destinations(r), frame.get(self.eweight_name))
        return g


def gcn_weights(r: Relation, num_nodes: int, weight: Tensor | None) -> Tensor:
    """The weights of `GCNNorm`, [num_edges]."""
    w = torch.ones(r.num_edges, device=r.src.device) if weight is None else weight
    root = w.new_zeros(num_nodes).index_add(0, r.dst.long(), w) ** -0.5
    root = torch.where(torch.isinf(root), torch.zeros_like(root), root)
    return w * root[r.src.long()] * root[r.dst.long()]


class _Sparsified(BaseTransform):
    """A dense diffusion S [N, N] whose entries S[dst, src] from a threshold on are edges, with their weights as the
    field `eweight_name`. The threshold is `eps`, or (None) the least that leaves `avg_degree` edges a node."""

    eweight_name: str
    eps: float | None
    avg_degree: int

    def __call__(self, g: DGLGraph) -> DGLGraph:
        r = one_relation(g, type(self).__name__)
        num = g.num_nodes()
        weight = g.edge_frames[r.key].get(self.eweight_name)
        matrix = torch.zeros((num, num), device=g.device)
        matrix[r.dst.long(), r.src.long()] = torch.ones(r.num_edges, device=g.device) if weight is None else weight
        diffused = self._diffused(matrix)
        dst, src = (diffused >= self._threshold(diffused)).nonzero(as_tuple=True)
        edge = Relation(*r.key, src.to(g.idtype), dst.to(g.idtype))
        return transform.replace_edges(g, {r.key: edge}, {r.key: {self.eweight_name: diffused[dst, src]}})

    def _diffused(self, matrix: Tensor) -> Tensor:
        raise NotImplementedError

    def _threshold(self, diffused: Tensor) -> float:
        num = len(diffused)
        if self.eps is not None:
            return self.eps
        if self.avg_degree > num or num == 0:
            return float("-inf")
        return float(diffused.flatten().sort(descending=True).values[self.avg_degree * num - 1])


class PPR(_Sparsified):
    """Personalised PageRank: alpha (I - (1 - alpha) A)^-1, with A[dst, src] the edges' weights. Source: Klicpera et
    al., "Predict then Propagate: Graph Neural Networks meet Personalized PageRank", section 3."""

    def __init__(
        self, alpha: float = 0.15, eweight_name: str = "w", eps: float | None = None, avg_degree: int = 5
    ) -> None:
        self.alpha, self.eweight_name, self.eps, self.avg_degree = alpha, eweight_name, eps, avg_degree

    def _diffused(self, matrix: Tensor) -> Tensor:
        one = torch.eye(len(matrix), device=matrix.device)
        return self.alpha * torch.linalg.inv(one - (1 - self.alpha) * matrix)


class HeatKernel(_Sparsified):
    """The heat kernel exp(t (A - I)). Source: Klicpera et al., "Diffusion Improves Graph Learning", section 3."""

    def __init__(self, t: float = 2.0, eweight_name: str = "w", eps: float | None = None, avg_degree: int = 5) -> None:
        self.t, self.eweight_name, self.eps, self.avg_degree = t, eweight_name, eps, avg_degree

    def _diffused(self, matrix: Tensor) -> Tensor:
        return torch.linalg.matrix_exp(self.t * (matrix - torch.eye(len(matrix), device=matrix.device)))


class GDC(_Sparsified):
    """sum over k of coefs[k] A^k. Source: Klicpera et al., "Diffusion Improves Graph Learning", equation 1."""

    def __init__(
        self, coefs: Sequence[float], eweight_name: str = "w", eps: float | None = None, avg_degree: int = 5
    ) -> None:
        self.coefs, self.eweight_name, self.eps, self.avg_degree = coefs, eweight_name, eps, avg_degree

    def _diffused(self, matrix: Tensor) -> Tensor:
        power = torch.eye(len(matrix), device=matrix.device)
        out = self.coefs[0] * power
        for coef in self.coefs[1:]:
            power = power @ matrix
            out = out + coef * power
        return out


class SIGNDiffusion(BaseTransform):
    """The node fields `out_feat_name`_1 to _k: A x, A A x, ... of the field `in_feat_name`.

    A[dst, src] are the weights of the edges (`eweight_name`, else 1) for `diffuse_op` "raw"; divided by their sum at
    the destination for "rw"; those of `GCNNorm` for "gcn". "ppr" is h <- (1 - alpha) A h + alpha x with the A of "gcn".
    Sums at nodes without edges are 0. Source: Frasca et al., "SIGN: Scalable Inception Graph Neural Networks".
    """

    def __init__(
        self,
        k: int,
        in_feat_name: str = "feat",
        out_feat_name: str = "out_feat",
        eweight_name: str | None = None,
        diffuse_op: str = "raw",
        alpha: float = 0.2,
    ) -> None:
        if diffuse_op not in _DIFFUSIONS:
            raise DataError(
                f"expected diffuse_op to be one of {', '.join(_DIFFUSIONS)} (got {diffuse_op!r}). Pass one."
            )
        self.k, self.in_feat_name, self.out_feat_name = k, in_feat_name, out_feat_name
        self.eweight_name, self.diffuse_op, self.alpha = eweight_name, diffuse_op, alpha

    def __call__(self, g: DGLGraph) -> DGLGraph:
        r, x = one_relation(g, "SIGNDiffusion"), g.ndata[self.in_feat_name]
        src, dst = r.src.long(), r.dst.long()
        weight = self._weights(g, r).to(x.dtype).reshape(-1, *[1] * (x.dim() - 1))
        h = x
        for hop in range(1, self.k + 1):
            h = torch.zeros_like(x).index_add(0, dst, h[src] * weight)
            if self.diffuse_op == "ppr":
                h = (1 - self.alpha) * h + self.alpha * x
            g.ndata[f"{self.out_feat_name}_{hop}"] = h
        return g

    def _weights(self, g: DGLGraph, r: Relation) -> Tensor:
        given = None if self.eweight_name is None else g.edge_frames[r.key].get(self.eweight_name)
        if self.diffuse_op in ("gcn", "ppr"):
            return gcn_weights(r, g.num_nodes(), given)
        weight: Tensor = torch.ones(r.num_edges, device=g.device) if given is None else given
        if self.diffuse_op == "raw":
            return weight
        total = weight.new_zeros(g.num_nodes()).index_add(0, r.dst.long(), weight)
        return weight / total[r.dst.long()]
