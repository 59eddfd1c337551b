"""Set2Set: a readout that reads the nodes of each graph repeatedly by attention."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from graphweave.graph.graph import Graph
from graphweave.graph.readout import broadcast_nodes, softmax_nodes, sum_nodes


class Set2Set(nn.Module):
    """Set2Set: Vinyals, Bengio and Kudlur, "Order Matters: Sequence to Sequence for Sets", ICLR 2016
    (https://arxiv.org/abs/1511.06391).

    In each of `n_iters` steps, for each graph b: q = LSTM([q, r] of the previous step, 0 at first),
    a = softmax of h_v . q over the nodes v of b, r = sum over v of a_v h_v. The result is the last [q, r].

    `input_dim`: features of h. `n_iters`: number of steps. `n_layers`: number of layers of the LSTM, whose parameters
    have the names and shapes of `torch.nn.LSTM`.

    A graph without nodes has r = 0.

    >>> graph = gw.batch([gw.graph(([0, 1], [1, 2])), gw.graph(([0], [1]))])
    >>> Set2Set(4, n_iters=3, n_layers=1)(graph, torch.randn(5, 4)).shape
    torch.Size([2, 8])
    """

    def __init__(self, input_dim: int, n_iters: int, n_layers: int) -> None:
        super().__init__()
        self.input_dim, self.n_iters, self.n_layers = input_dim, n_iters, n_layers
        self.lstm = LSTMStep(2 * input_dim, input_dim, n_layers)

    def reset_parameters(self) -> None:
        """Weights as in `torch.nn.LSTM`."""
        self.lstm.reset_parameters()

    def forward(self, graph: Graph, feat: Tensor) -> Tensor:
        """[N, F] -> [graphs, 2 F]."""
        with graph.local_scope():
            graph.ndata["h"] = feat
            zeros = feat.new_zeros(graph.batch_size, self.input_dim)
            state, q_star = [(zeros, zeros)] * self.n_layers, torch.cat([zeros, zeros], -1)
            for _ in range(self.n_iters):
                q, state = self.lstm(q_star, state)
                graph.ndata["e"] = (feat * broadcast_nodes(graph, q)).sum(-1, keepdim=True)
                graph.ndata["a"] = softmax_nodes(graph, "e")
                q_star = torch.cat([q, sum_nodes(graph, "h", "a")], -1)
        return q_star

    def extra_repr(self) -> str:
        return f"n_iters={self.n_iters}, n_layers={self.n_layers}"


State = list[tuple[Tensor, Tensor]]
"""For each layer (hidden state, cell state), [rows, hidden] each."""


class LSTMStep(nn.Module):
    """One step of an LSTM of several layers, in plain operations, which can be traced (`torch.nn.LSTM` cannot).

    Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997; parameters as in `torch.nn.LSTM`.
    """

    def __init__(self, inputs: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.hidden, self.layers = hidden, layers
        for i in range(layers):
            self.register_parameter(f"weight_ih_l{i}", nn.Parameter(torch.empty(4 * hidden, hidden if i else inputs)))
            self.register_parameter(f"weight_hh_l{i}", nn.Parameter(torch.empty(4 * hidden, hidden)))
            self.register_parameter(f"bias_ih_l{i}", nn.Parameter(torch.empty(4 * hidden)))
            self.register_parameter(f"bias_hh_l{i}", nn.Parameter(torch.empty(4 * hidden)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.hidden)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """[rows, inputs] -> (hidden state of the last layer [rows, hidden], the next state)."""
        new: State = []
        for i, (h, c) in enumerate(state):
            gates = functional.linear(x, getattr(self, f"weight_ih_l{i}"), getattr(self, f"bias_ih_l{i}"))
            gates = gates + functional.linear(h, getattr(self, f"weight_hh_l{i}"), getattr(self, f"bias_hh_l{i}"))
            enter, forget, candidate, leave = gates.chunk(4, -1)
            c = forget.sigmoid() * c + enter.sigmoid() * candidate.tanh()
            x = leave.sigmoid() * c.tanh()
            new.append((x, c))
        return x, new
