"""Modules that join layers: `Sequential`, `JumpingKnowledge`, `WeightBasis`, `Identity`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from graphweave.core.errors import DataError
from graphweave.nn.ends import one_of


class Sequential(nn.Sequential):
    """Layers one after the other, on one graph, or each on its own of a list of graphs. Several results of a layer are
    the arguments of the next.

    >>> graph = gw.graph(([0, 1, 2], [1, 2, 2]))
    >>> Sequential(GraphConv(5, 4), GraphConv(4, 2))(graph, torch.randn(3, 5)).shape
    torch.Size([3, 2])
    """

    def forward(self, graph: object, *feats: object) -> Any:
        """A graph or a list of graphs, and the first layer's features -> the last layer's result."""
        graphs = list(graph) if isinstance(graph, Sequence) else [graph] * len(self)
        if len(graphs) != len(self):
            raise DataError(f"expected a graph for each of {len(self)} layers (got {len(graphs)}). Pass as many.")
        for one, layer in zip(graphs, self, strict=True):
            feats = feats if isinstance(feats, tuple) else (feats,)
            feats = layer(one, *feats)
        return feats


class JumpingKnowledge(nn.Module):
    """The joined results of several layers: "cat" concatenates their features, "max" takes the largest of each number,
    "lstm" their mean with weights, the softmax over layers of a product of both states of a bidirectional LSTM that
    reads them.

    `in_feats`, `num_layers`: only for "lstm", whose states have num_layers * in_feats / 2 numbers each. Source: Xu et
    al., "Representation Learning on Graphs with Jumping Knowledge Networks", ICML 2018.

    >>> JumpingKnowledge("lstm", 4, 2)([torch.randn(3, 4), torch.randn(3, 4)]).shape
    torch.Size([3, 4])
    """

    def __init__(self, mode: str = "cat", in_feats: int | None = None, num_layers: int | None = None) -> None:
        super().__init__()
        self.mode = one_of("mode", mode, ("cat", "max", "lstm"))
        if mode == "lstm":
            if in_feats is None or num_layers is None:
                raise DataError(f"mode 'lstm' needs in_feats and num_layers (got {in_feats}, {num_layers}). Pass both.")
            hidden = num_layers * in_feats // 2
            self.lstm = nn.LSTM(in_feats, hidden, bidirectional=True, batch_first=True)
            self.att = nn.Linear(2 * hidden, 1)

    def reset_parameters(self) -> None:
        """Draw the weights of "lstm" anew, as PyTorch does."""
        if self.mode == "lstm":
            self.lstm.reset_parameters()
            self.att.reset_parameters()

    def forward(self, feat_list: Sequence[Tensor]) -> Tensor:
        """Tensors [N, F] -> [N, layers * F] for "cat", else [N, F]."""
        if self.mode == "cat":
            return torch.cat(list(feat_list), dim=-1)
        stacked = torch.stack(list(feat_list), dim=1)
        if self.mode == "max":
            return stacked.amax(dim=1)
        weight = self.att(self.lstm(stacked)[0]).softmax(dim=1)
        return (stacked * weight).sum(dim=1)


class WeightBasis(nn.Module):
    """W_r = sum over b of c_rb V_b: `num_outputs` matrices of `shape` from `num_bases` ones. Source: Schlichtkrull et
    al., "Modeling Relational Data with Graph Convolutional Networks", ESWC 2018, equation 3.

    >>> WeightBasis((5, 4), num_bases=2, num_outputs=3)().shape
    torch.Size([3, 5, 4])
    """

    def __init__(self, shape: tuple[int, ...], num_bases: int, num_outputs: int) -> None:
        super().__init__()
        self.shape, self.num_bases, self.num_outputs = shape, num_bases, num_outputs
        if num_outputs <= num_bases:
            raise DataError(
                f"expected fewer bases than outputs (got {num_bases} and {num_outputs}). Leave the bases out."
            )
        gain = nn.init.calculate_gain("relu")
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(num_bases, *shape), gain=gain))
        self.w_comp = nn.Parameter(nn.init.xavier_uniform_(torch.empty(num_outputs, num_bases), gain=gain))

    def forward(self) -> Tensor:
        """[num_outputs, *shape]."""
        return (self.w_comp @ self.weight.view(self.num_bases, -1)).view(self.num_outputs, *self.shape)


class Identity(nn.Identity):
    """The features as they are.

    >>> Identity()(torch.ones(2))
    tensor([1., 1.])
    """
