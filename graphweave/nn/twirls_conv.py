"""Graph convolution by unfolded descent of an energy (TWIRLS)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

import graphweave.function as fn
from graphweave.graph.graph import Graph
from graphweave.graph.transform import add_self_loop, remove_self_loop
from graphweave.nn.ends import on_rows, one_of
from graphweave.udf.arguments import EdgeBatch

_SMALL, _SMALLER = 1e-7, 1e-9


class TWIRLSConv(nn.Module):
    """`prop_step` times Y <- (1 - a) Y + a lam C^-1/2 A C^-1/2 Y + a C^-1 X, C = lam D + 1 - lam, between two MLPs.

    X is the result of the first MLP; A has exactly one loop at each node, and D its in-degrees. Without `precond`: Y <-
    (1 - a lam - a) Y + a lam D^-1/2 A D^-1/2 Y + a X. a is `alp`, or 1 / (lam + 1) if `alp` is 0. With `attention`, the
    edges have weights after half of the steps, with `attn_bef` also before the first: 1 / w + 1e-9 for w = (|y_j -
    y_i|^2 + 1e-7)^(1 - p / 2), at least `tau`, and 1e-9 where w is above `T` > 0. With `use_eta`, features of y have
    trained factors there. `norm`: "none", "batch" or "layer", in the MLPs. Source: Yang et al., "Graph Neural
    Networks Inspired by Classical Iterative Algorithms", ICML 2021, sections 3 and 4.

    >>> graph = gw.graph(([0, 1, 1, 2], [1, 0, 2, 1]))
    >>> TWIRLSConv(5, 2, 8, prop_step=4)(graph, torch.randn(3, 5)).shape
    torch.Size([3, 2])
    """

    def __init__(
        self, input_d: int, output_d: int, hidden_d: int, prop_step: int, num_mlp_before: int = 1,
        num_mlp_after: int = 1, norm: str = "none", precond: bool = True, alp: float = 0.0, lam: float = 1.0,
        attention: bool = False, tau: float = 0.2, T: float = -1, p: float = 1, use_eta: bool = False,
        attn_bef: bool = False, dropout: float = 0.0, attn_dropout: float = 0.0, inp_dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        one_of("norm", norm, ("none", "batch", "layer"))
        before = output_d if num_mlp_after == 0 else hidden_d
        after = input_d if num_mlp_before == 0 else hidden_d
        self.inp_dropout = nn.Dropout(inp_dropout)
        self.mlp_bef = NormedMLP((input_d, hidden_d, before), num_mlp_before, dropout, norm, first=False)
        self.unfolding = Unfolding(
            hidden_d, alp if alp > 0 else 1 / (lam + 1), lam, prop_step, precond=precond,
            attend_at=(0,) * attn_bef + (prop_step // 2,) * attention,
            weights=EdgeWeights(tau, T, p, attn_dropout), use_eta=use_eta,
        )  # fmt: skip
        both = num_mlp_before > 0 and num_mlp_after > 0
        self.mlp_aft = NormedMLP((after, hidden_d, output_d), num_mlp_after, dropout, norm, first=both)

    def forward(self, graph: Graph, feat: Tensor) -> Tensor:
        """[N, input_d] -> [N, output_d]."""
        x = self.mlp_bef(self.inp_dropout(feat))
        out: Tensor = self.mlp_aft(self.unfolding(add_self_loop(remove_self_loop(graph)), x))
        return out


class Unfolding(nn.Module):
    """The steps of `TWIRLSConv`. `attend_at`: the numbers of steps after which edges get weights."""

    def __init__(
        self, width: int, alp: float, lam: float, steps: int, *, precond: bool, attend_at: tuple[int, ...],
        weights: EdgeWeights, use_eta: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.alp, self.lam, self.steps, self.precond = alp, lam, steps, precond
        self.attend_at, self.weights = attend_at, weights
        self.etas = nn.Parameter(torch.ones(width)) if use_eta else None

    def forward(self, graph: Graph, x: Tensor) -> Tensor:
        """[N, F] -> [N, F]."""
        with graph.local_scope():
            graph.edata["w"] = x.new_ones(graph.num_edges(), 1)
            degree = graph.in_degrees().to(x.dtype)
            if 0 in self.attend_at:
                degree = self._weigh(graph, x)
            y = x
            for step in range(1, self.steps + 1):
                y = self._step(graph, y, x, degree)
                if step in self.attend_at:
                    degree = self._weigh(graph, y)
            return y

    def _weigh(self, graph: Graph, y: Tensor) -> Tensor:
        """Sets the weights of edges, and returns the sums of those into each node, [N]."""
        degree: Tensor = self.weights(graph, y if self.etas is None else y * self.etas)
        return degree

    def _step(self, graph: Graph, y: Tensor, x: Tensor, degree: Tensor) -> Tensor:
        alp, lam = self.alp, self.lam
        scale = on_rows(lam * degree + (1 - lam) if self.precond else degree, x)
        graph.ndata["h"] = y * scale**-0.5
        graph.update_all(fn.u_mul_e("h", "w", "m"), fn.sum("m", "h"))
        near = graph.ndata["h"] * scale**-0.5
        if self.precond:
            return (1 - alp) * y + alp * lam * near + alp * x / scale
        return (1 - alp * lam - alp) * y + alp * lam * near + alp * x


class EdgeWeights(nn.Module):
    """The attention of `TWIRLSConv`: weights of edges by the distances of their ends."""

    def __init__(self, tau: float, upper: float, p: float, dropout: float) -> None:
        super().__init__()
        self.tau, self.upper, self.p, self.dropout = tau, upper, p, nn.Dropout(dropout)

    def forward(self, graph: Graph, y: Tensor) -> Tensor:
        """[N, F] -> the sums of the weights of edges into each node, [N]. Weights are `graph.edata["w"]`, [E, 1]."""
        graph.ndata["y"] = y
        graph.apply_edges(_distance)
        w = (graph.edata["z"] + _SMALL).pow(1 - 0.5 * self.p).clamp(min=self.tau)
        inverse = 1 / w
        inverse = torch.where(w > self.upper, torch.zeros_like(w), inverse) if self.upper > 0 else inverse
        graph.edata["w"] = inverse + _SMALLER
        graph.update_all(fn.copy_e("w", "m"), fn.sum("m", "degree"))
        degree = graph.ndata["degree"].squeeze(-1)
        graph.edata["w"] = self.dropout(graph.edata["w"])
        return degree


def _distance(edges: EdgeBatch) -> dict[str, Tensor]:
    return {"z": (edges.src["y"] - edges.dst["y"]).square().sum(-1, keepdim=True)}


class NormedMLP(nn.Module):
    """`num_layers` linear layers with norm, ReLU and dropout between them, and before the first with `first`.

    `widths`: of the input, between layers, and of the result. Without layers it returns its input.
    """

    def __init__(self, widths: tuple[int, int, int], num_layers: int, dropout: float, norm: str, first: bool) -> None:
        super().__init__()
        sizes = [widths[0], *[widths[1]] * (num_layers - 1), widths[2]]
        self.first, self.dropout = first, dropout
        self.layers = nn.ModuleList(nn.Linear(sizes[i], sizes[i + 1]) for i in range(num_layers))
        kinds = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}
        count = num_layers - 1 + first
        self.norms = nn.ModuleList(kinds[norm](widths[1]) for _ in range(count)) if norm != "none" else None
        for name, parameter in self.layers.named_parameters():
            nn.init.zeros_(parameter) if name.endswith("bias") else nn.init.xavier_normal_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """[N, widths[0]] -> [N, widths[2]]."""
        for i, layer in enumerate(self.layers):
            if i or self.first:
                x = x if self.norms is None else self.norms[i - 1 + self.first](x)
                x = functional.dropout(functional.relu(x), self.dropout, self.training)
            x = layer(x)
        return x
