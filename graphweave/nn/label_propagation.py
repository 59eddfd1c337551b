"""Labels that spread along edges."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

import graphweave.function as fn
from graphweave.core.errors import DataError
from graphweave.graph.graph import Graph
from graphweave.nn.ends import inverse_power, on_rows, one_of


class LabelPropagation(nn.Module):
    """y <- alpha S y + (1 - alpha) y0 for `k` steps, with S = D^-1/2 A D^-1/2 ("sym") or D^-1 A ("row").

    D are in-degrees, which count as at least 1. y0 are the labels, 0 for nodes outside of the mask. After each step
    `clamp` limits y to 0..1, `normalize` divides each row by its sum (at least 1e-12), and `reset` sets nodes of the
    mask to their labels. It has no parameters. Source: Zhu and Ghahramani, "Learning from Labeled and Unlabeled Data
    with Label Propagation", 2002.

    >>> graph = gw.graph(([0, 1, 2], [1, 2, 2]))
    >>> LabelPropagation(2, 0.5)(graph, torch.tensor([0, 1, 0]), torch.tensor([True, True, False])).shape
    torch.Size([3, 2])
    """

    def __init__(
        self, k: int, alpha: float, norm_type: str = "sym", clamp: bool = True, normalize: bool = False,
        reset: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.k, self.alpha, self.norm_type = k, alpha, one_of("norm_type", norm_type, ("sym", "row"))
        self.clamp, self.normalize, self.reset = clamp, normalize, reset

    @torch.no_grad()
    def forward(self, graph: Graph, labels: Tensor, mask: Tensor | None = None) -> Tensor:
        """Class numbers [N], or labels [N, C]; a mask or numbers of nodes -> [N, C]."""
        if self.reset and mask is None:
            raise DataError("reset=True needs a mask of the nodes whose labels are known (got None). Pass one.")
        given = (
            functional.one_hot(labels.view(-1)).float() if labels.dim() == 1 or labels.shape[1] == 1 else labels.float()
        )
        y0 = given
        if mask is not None:
            y0 = torch.zeros_like(given)
            y0[mask] = given[mask]
        y, scale = y0, inverse_power(graph.in_degrees(), 0.5 if self.norm_type == "sym" else 1.0, y0.dtype)
        with graph.local_scope():
            for _ in range(self.k):
                graph.ndata["h"] = on_rows(scale, y) * y if self.norm_type == "sym" else y
                graph.update_all(fn.copy_u("h", "m"), fn.sum("m", "h"))
                y = (1 - self.alpha) * y0 + self.alpha * on_rows(scale, y) * graph.ndata["h"]
                y = y.clamp(0, 1) if self.clamp else y
                y = functional.normalize(y, p=1, dim=1) if self.normalize else y
                if self.reset and mask is not None:
                    y[mask] = given[mask]
        return y
