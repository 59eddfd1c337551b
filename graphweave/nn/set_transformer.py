"""Attention between the nodes of each graph of a batch (Set Transformer)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphweave.core.errors import DataError
from graphweave.graph.graph import Graph
from graphweave.nn.ends import one_of
from graphweave.ops.segment_attention import in_places, real_places, segment_attention

Widths = tuple[int, int, int, int]
"""The width of rows, the number of heads, the width of a head, and that inside of the network after attention."""


class SetAttention(nn.Module):
    """z = norm(x + O softmax(q k^T / sqrt(d_head)) v), then norm(z + ffn(z)): each row x of a set reads the rows of the
    memory's set. A row whose memory is empty reads 0.
    """

    def __init__(
        self, d_model: int, num_heads: int, d_head: int, d_ff: int, *, dropouth: float = 0.0, dropouta: float = 0.0
    ) -> None:
        super().__init__()
        self.num_heads, self.d_head = num_heads, d_head
        self.proj_q, self.proj_k, self.proj_v = (nn.Linear(d_model, num_heads * d_head, bias=False) for _ in range(3))
        self.proj_o = nn.Linear(num_heads * d_head, d_model, bias=False)
        self.ffn = _network(d_model, d_ff, dropouth)
        self.dropa = nn.Dropout(dropouta)
        self.norm_in, self.norm_inter = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Matrices are drawn from Glorot's uniform distribution."""
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    def forward(self, x: Tensor, mem: Tensor, lengths_x: Tensor, lengths_mem: Tensor) -> Tensor:
        """[sum of lengths_x, d_model], [sum of lengths_mem, d_model] -> [sum of lengths_x, d_model]."""
        q = self._heads(self.proj_q(x))
        k, v = self._heads(self.proj_k(mem)), self._heads(self.proj_v(mem))
        of_x, of_mem = _pointers(lengths_x), _pointers(lengths_mem)
        if self.training and self.dropa.p:
            read = self._dropped(q, k, v, real_places(of_x), real_places(of_mem))
        else:
            read = segment_attention(q, k, v, of_x, key_ptr=of_mem)
        z = self.norm_in(x + self.proj_o(read.flatten(1)))
        out: Tensor = self.norm_inter(z + self.ffn(z))
        return out

    def _dropped(self, q: Tensor, k: Tensor, v: Tensor, of_x: Tensor, of_mem: Tensor) -> Tensor:
        """Attention with dropout on its weights, over padded sets. [rows, heads, d_head] each, and of the result."""
        q, k, v = in_places(q, of_x), in_places(k, of_mem), in_places(v, of_mem)
        score = q @ k.transpose(-1, -2) / self.d_head**0.5  # [B, heads, X, M]
        readable = of_mem[:, None, None]
        weight = score.masked_fill(~readable, torch.finfo(score.dtype).min).softmax(-1) * readable
        return (self.dropa(weight) @ v).transpose(1, 2)[of_x]

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, self.d_head))


class SetAttentionBlock(nn.Module):
    """The rows of each set read each other."""

    def __init__(self, widths: Widths, dropouth: float = 0.0, dropouta: float = 0.0) -> None:
        super().__init__()
        self.mha = SetAttention(*widths, dropouth=dropouth, dropouta=dropouta)

    def forward(self, feat: Tensor, lengths: Tensor) -> Tensor:
        """[sum of lengths, d_model] -> the same shape."""
        out: Tensor = self.mha(feat, feat, lengths, lengths)
        return out


class InducedSetAttentionBlock(nn.Module):
    """`m` trained rows read each set, and each set reads what they found."""

    def __init__(self, m: int, widths: Widths, dropouth: float = 0.0, dropouta: float = 0.0) -> None:
        super().__init__()
        self.m = m
        self.inducing_points = nn.Parameter(torch.empty(m, widths[0]))
        nn.init.xavier_uniform_(self.inducing_points)
        self.mha = nn.ModuleList(SetAttention(*widths, dropouth=dropouth, dropouta=dropouta) for _ in range(2))

    def forward(self, feat: Tensor, lengths: Tensor) -> Tensor:
        """[sum of lengths, d_model] -> the same shape."""
        query, counts = self.inducing_points.repeat(len(lengths), 1), torch.full_like(lengths, self.m)
        memory = self.mha[0](query, feat, counts, lengths)
        out: Tensor = self.mha[1](feat, memory, lengths, counts)
        return out


class PMALayer(nn.Module):
    """`k` trained rows read each set, whose rows pass a network of two layers first."""

    def __init__(
        self, k: int, d_model: int, num_heads: int, d_head: int, d_ff: int, dropouth: float, dropouta: float
    ) -> None:
        super().__init__()
        self.k = k
        self.seed_vectors = nn.Parameter(torch.empty(k, d_model))
        nn.init.xavier_uniform_(self.seed_vectors)
        self.mha = SetAttention(d_model, num_heads, d_head, d_ff, dropouth=dropouth, dropouta=dropouta)
        self.ffn = _network(d_model, d_ff, dropouth)

    def forward(self, feat: Tensor, lengths: Tensor) -> Tensor:
        """[sum of lengths, d_model] -> [k graphs, d_model]."""
        query, counts = self.seed_vectors.repeat(len(lengths), 1), torch.full_like(lengths, self.k)
        out: Tensor = self.mha(query, self.ffn(feat), counts, lengths)
        return out


class SetTransformerEncoder(nn.Module):
    """`n_layers` times the nodes of each graph read each other ("sab"), or through `m` trained rows ("isab").

    Source: Lee et al., "Set Transformer", ICML 2019, sections 3.1 and 3.2. DataError for "isab" without `m`.

    >>> graph = gw.batch([gw.graph(([0, 1], [1, 2])), gw.graph(([0], [1]))])
    >>> SetTransformerEncoder(8, 2, 4, 16)(graph, torch.randn(5, 8)).shape
    torch.Size([5, 8])
    """

    def __init__(
        self, d_model: int, n_heads: int, d_head: int, d_ff: int, n_layers: int = 1, block_type: str = "sab",
        m: int | None = None, dropouth: float = 0.0, dropouta: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        one_of("block_type", block_type, ("sab", "isab"))
        if block_type == "isab" and m is None:
            raise DataError("block_type='isab' needs m, the number of trained rows (got None). Pass for example m=8.")
        widths = (d_model, n_heads, d_head, d_ff)
        self.layers = nn.ModuleList(
            SetAttentionBlock(widths, dropouth, dropouta) if m is None or block_type == "sab"
            else InducedSetAttentionBlock(m, widths, dropouth, dropouta)
            for _ in range(n_layers)
        )  # fmt: skip

    def forward(self, graph: Graph, feat: Tensor) -> Tensor:
        """[N, d_model] -> [N, d_model]."""
        lengths = _lengths(graph)
        for layer in self.layers:
            feat = layer(feat, lengths)
        return feat


class SetTransformerDecoder(nn.Module):
    """`k` trained rows read the nodes of each graph, then `n_layers` times each other. Source: Lee et al. 2019, section
    3.2. The rows of a graph without nodes read 0.

    >>> graph = gw.batch([gw.graph(([0, 1], [1, 2])), gw.graph(([0], [1]))])
    >>> SetTransformerDecoder(8, 2, 4, 16, n_layers=1, k=3)(graph, torch.randn(5, 8)).shape
    torch.Size([2, 24])
    """

    def __init__(
        self, d_model: int, num_heads: int, d_head: int, d_ff: int, n_layers: int, k: int, dropouth: float = 0.0,
        dropouta: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.k, self.d_model = k, d_model
        self.pma = PMALayer(k, d_model, num_heads, d_head, d_ff, dropouth, dropouta)
        self.layers = nn.ModuleList(
            SetAttentionBlock((d_model, num_heads, d_head, d_ff), dropouth, dropouta) for _ in range(n_layers)
        )

    def forward(self, graph: Graph, feat: Tensor) -> Tensor:
        """[N, d_model] -> [graphs, k d_model]."""
        lengths = _lengths(graph)
        counts = torch.full_like(lengths, self.k)
        feat = self.pma(feat, lengths)
        for layer in self.layers:
            feat = layer(feat, counts)
        return feat.view(len(lengths), self.k * self.d_model)


def _network(width: int, inside: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, inside), nn.ReLU(), nn.Dropout(dropout), nn.Linear(inside, width))


def _lengths(graph: Graph) -> Tensor:
    counts: Tensor = graph.batch_num_nodes()
    return counts.long()


def _pointers(lengths: Tensor) -> Tensor:
    return nn.functional.pad(lengths.cumsum(0), (1, 0))
