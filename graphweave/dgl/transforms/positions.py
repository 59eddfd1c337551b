"""Transforms that add positions of nodes as a field, and one that normalises fields."""

from __future__ import annotations

from torch import Tensor

from graphweave.dgl.graph import DGLGraph
from graphweave.dgl.spectra import laplacian_pe, random_walk_pe, svd_pe
from graphweave.dgl.transforms.base import BaseTransform


class RandomWalkPE(BaseTransform):
    """`random_walk_pe` as the node field `feat_name`."""

    def __init__(self, k: int, feat_name: str = "PE", eweight_name: str | None = None) -> None:
        self.k, self.feat_name, self.eweight_name = k, feat_name, eweight_name

    def __call__(self, g: DGLGraph) -> DGLGraph:
        g.ndata[self.feat_name] = random_walk_pe(g, self.k, self.eweight_name)
        return g


class LapPE(BaseTransform):
    """`laplacian_pe` as the node field `feat_name`, and its eigenvalues, the same for each node, as `eigval_name`."""

    def __init__(self, k: int, feat_name: str = "PE", eigval_name: str | None = None, padding: bool = False) -> None:
        self.k, self.feat_name, self.eigval_name, self.padding = k, feat_name, eigval_name, padding

    def __call__(self, g: DGLGraph) -> DGLGraph:
        vectors, values = laplacian_pe(g, self.k, self.padding, return_eigval=True)
        g.ndata[self.feat_name] = vectors
        if self.eigval_name is not None:
            g.ndata[self.eigval_name] = values.repeat(g.num_nodes(), 1)
        return g


class LaplacianPE(LapPE):
    """`LapPE` by its former name."""


class SVDPE(BaseTransform):
    """`svd_pe` as the node field `feat_name`."""

    def __init__(self, k: int, feat_name: str = "svd_pe", padding: bool = False, random_flip: bool = True) -> None:
        self.k, self.feat_name, self.padding, self.random_flip = k, feat_name, padding, random_flip

    def __call__(self, g: DGLGraph) -> DGLGraph:
        g.ndata[self.feat_name] = svd_pe(g, self.k, self.padding, self.random_flip)
        return g


class RowFeatNormalizer(BaseTransform):
    """x / max(sum(x), 1) for each row x of the fields that are named; with `subtract_min`, of the field minus its least
    number."""

    def __init__(
        self,
        subtract_min: bool = False,
        node_feat_names: list[str] | None = None,
        edge_feat_names: list[str] | None = None,
    ) -> None:
        self.subtract_min = subtract_min
        self.node_feat_names, self.edge_feat_names = node_feat_names or [], edge_feat_names or []

    def __call__(self, g: DGLGraph) -> DGLGraph:
        for frames, names in ((g.node_frames, self.node_feat_names), (g.edge_frames, self.edge_feat_names)):
            for frame in frames.values():
                for name in names:
                    if name in frame:
                        frame[name] = self._normalized(frame[name])
        return g

    def _normalized(self, x: Tensor) -> Tensor:
        if self.subtract_min and x.numel():
            x = x - x.min()
        return x / x.sum(dim=-1, keepdim=True).clamp(min=1.0)
