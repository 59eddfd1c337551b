"""Layers as a user of DGL writes them: user-defined message and reduce functions, called by `graph.update_all`.

Nothing but PyTorch is imported: `graph` is DGL's or graphweave's, and both run these very lines. Parameters have the
names of PyG's layers, so that weights and gradients of all systems can be compared. If a layer needs self-loops, the
graph has them already; `ndata["norm"]` [N, 1] is 1 / sqrt(in-degree). N nodes, E edges, H heads of C channels, D
messages of a node.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HIDDEN, HEADS, CHANNELS = 64, 4, 16

SLOPE = 0.2
"""Negative slope of the attention's leaky ReLU."""

ZETA = 0.1
"""Margin of C-GAT: a neighbour of the node's class should have this much more attention than any other neighbour."""

LAMBDA = 0.5
"""Weight of C-GAT's margins in the loss."""


class Linear(nn.Module):
    """x W^T, without bias: the `lin` of PyG's layers. [N, inputs] -> [N, outputs]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / math.sqrt(inputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.t()


class Gcn(nn.Module):
    """h_v = sum over u of norm_u norm_v W x_u, + b."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.lin = Linear(inputs, outputs)
        self.bias = nn.Parameter(torch.zeros(outputs))

    @staticmethod
    def message(edges: Any) -> dict[str, Any]:
        return {"m": edges.src["z"] * (edges.src["norm"] * edges.dst["norm"])}

    @staticmethod
    def reduce(nodes: Any) -> dict[str, Any]:
        return {"h": nodes.mailbox["m"].sum(1)}

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        with graph.local_scope():
            graph.ndata["z"] = self.lin(x)
            graph.update_all(self.message, self.reduce)
            return graph.ndata["h"] + self.bias


class Sage(nn.Module):
    """h_v = W_l mean of x_u + b + W_r x_v."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.lin_l = nn.Linear(inputs, outputs)
        self.lin_r = Linear(inputs, outputs)

    @staticmethod
    def message(edges: Any) -> dict[str, Any]:
        return {"m": edges.src["x"]}

    @staticmethod
    def reduce(nodes: Any) -> dict[str, Any]:
        return {"h": nodes.mailbox["m"].mean(1)}

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        with graph.local_scope():
            graph.ndata["x"] = x
            graph.update_all(self.message, self.reduce)
            return self.lin_l(graph.ndata["h"]) + self.lin_r(x)


class Gin(nn.Module):
    """h_v = MLP(x_v + sum of x_u)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.nn = nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs))

    @staticmethod
    def message(edges: Any) -> dict[str, Any]:
        return {"m": edges.src["x"]}

    @staticmethod
    def reduce(nodes: Any) -> dict[str, Any]:
        return {"h": nodes.mailbox["m"].sum(1)}

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        with graph.local_scope():
            graph.ndata["x"] = x
            graph.update_all(self.message, self.reduce)
            return self.nn(x + graph.ndata["h"])


class Attention(nn.Module):
    """The parameters of GAT. `project` sets the fields that its functions read: z [N, H, C], left and right [N, H]."""

    def __init__(self, inputs: int, heads: int = HEADS, channels: int = CHANNELS) -> None:
        super().__init__()
        self.heads, self.channels = heads, channels
        self.lin = Linear(inputs, heads * channels)
        self.att_src = nn.Parameter(torch.randn(1, heads, channels) / math.sqrt(channels))
        self.att_dst = nn.Parameter(torch.randn(1, heads, channels) / math.sqrt(channels))
        self.bias = nn.Parameter(torch.zeros(heads * channels))

    def project(self, graph: Any, x: Tensor) -> None:
        z = self.lin(x).view(-1, self.heads, self.channels)
        graph.ndata["z"] = z
        graph.ndata["left"] = (z * self.att_src).sum(-1)
        graph.ndata["right"] = (z * self.att_dst).sum(-1)


class Gat(Attention):
    """alpha = softmax over the mailbox of leaky_relu(a_l . z_u + a_r . z_v); h_v = sum of alpha_u z_u, + b."""

    @staticmethod
    def message(edges: Any) -> dict[str, Any]:
        return {"z": edges.src["z"], "e": F.leaky_relu(edges.src["left"] + edges.dst["right"], SLOPE)}

    @staticmethod
    def reduce(nodes: Any) -> dict[str, Any]:
        alpha = torch.softmax(nodes.mailbox["e"], dim=1)  # [N, D, H]
        return {"h": (alpha.unsqueeze(-1) * nodes.mailbox["z"]).sum(1)}

    def forward(self, graph: Any, x: Tensor) -> Tensor:
        with graph.local_scope():
            self.project(graph, x)
            graph.update_all(self.message, self.reduce)
            return graph.ndata["h"].flatten(1) + self.bias


class CGat(Attention):
    """GAT with a margin on its attention: a neighbour of the node's class should have more than all of other classes.

    margin_v = sum over j of v's class of relu(zeta + max over k of other classes of alpha_vk - alpha_vj), for each
    head; without such a k it is 0. This is the constraint of Wang et al., "Improving Graph Attention Networks with
    Large Margin-based Constraints" (2019), over the worst pair of each j. Labels y [N] are a field of the nodes.
    """

    @staticmethod
    def message(edges: Any) -> dict[str, Any]:
        e = F.leaky_relu(edges.src["left"] + edges.dst["right"], SLOPE)
        return {"z": edges.src["z"], "e": e, "y": edges.src["y"]}

    @staticmethod
    def reduce(nodes: Any) -> dict[str, Any]:
        alpha = torch.softmax(nodes.mailbox["e"], dim=1)  # [N, D, H]
        same = (nodes.mailbox["y"] == nodes.data["y"].unsqueeze(1)).unsqueeze(-1)
        rival = torch.where(same, -1.0, alpha).amax(1, keepdim=True)  # at -1 every hinge is 0
        hinge = torch.where(same, F.relu(ZETA + rival - alpha), 0.0)
        return {"h": (alpha.unsqueeze(-1) * nodes.mailbox["z"]).sum(1), "margin": hinge.sum(1)}

    def forward(self, graph: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """[N, H * C] and the margins [N, H]."""
        with graph.local_scope():
            self.project(graph, x)
            graph.ndata["y"] = y
            graph.update_all(self.message, self.reduce)
            return graph.ndata["h"].flatten(1) + self.bias, graph.ndata["margin"]


class Stack(nn.Module):
    """Layers with ReLU between them. They compute logits from graph, x and y (which plain layers do not read)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, graph: Any, x: Tensor, y: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            x = layer(graph, x if i == 0 else x.relu())
        return x

    def loss(self, graph: Any, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self(graph, x, y), y)


class ConstrainedStack(Stack):
    """Layers that also return margins: logits [N, O], and the sum over layers of the heads' mean margin [N]."""

    def forward(self, graph: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        total = None
        for i, layer in enumerate(self.layers):
            x, margin = layer(graph, x if i == 0 else x.relu(), y)
            total = margin.mean(1) if total is None else total + margin.mean(1)
        assert total is not None
        return x, total

    def loss(self, graph: Any, x: Tensor, y: Tensor) -> Tensor:
        logits, margin = self(graph, x, y)
        return F.cross_entropy(logits, y) + LAMBDA * margin.mean()


class WithLoss(nn.Module):
    """The loss of a model as a module, which is compiled for training."""

    def __init__(self, model: Stack) -> None:
        super().__init__()
        self.model = model

    def forward(self, graph: Any, x: Tensor, y: Tensor) -> Tensor:
        return self.model.loss(graph, x, y)


def two(layer: Callable[[int], nn.Module], inputs: int, stack: type[Stack] = Stack) -> Stack:
    """Two layers, both 64 wide."""
    return stack(layer(inputs), layer(HIDDEN))


LAYERS: dict[str, Callable[[int], Stack]] = {
    "gcn": lambda inputs: two(lambda width: Gcn(width, HIDDEN), inputs),
    "gat": lambda inputs: two(Gat, inputs),
    "cgat": lambda inputs: two(CGat, inputs, ConstrainedStack),
    "sage": lambda inputs: two(lambda width: Sage(width, HIDDEN), inputs),
    "gin": lambda inputs: two(lambda width: Gin(width, HIDDEN), inputs),
}
"""Name -> two layers of user-defined functions, from the width of the input."""

SELF_LOOPS = ("gcn", "gat", "cgat")
"""Layers whose graph has one self-loop at every node."""
