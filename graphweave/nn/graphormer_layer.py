"""Layers of graph transformers over all pairs of nodes: Graphormer and EGT."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphweave.core.errors import DataError
from graphweave.nn.ends import Attended
from graphweave.nn.transformer import BiasedMHA


class GraphormerLayer(nn.Module):
    """x = norm(h + attention(h)), h' = norm(x + ffn(x)), with the biased attention of `BiasedMHA`.

    With `norm_first`: x = h + attention(norm(h)), h' = x + ffn(norm(x)). ffn has the width `hidden_size` inside, and
    `activation`. Source: Ying et al., "Do Transformers Really Perform Badly for Graph Representation?", NeurIPS 2021.

    >>> GraphormerLayer(8, 16, num_heads=2)(torch.randn(2, 5, 8), torch.randn(2, 5, 5, 2)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self, feat_size: int, hidden_size: int, num_heads: int, attn_bias_type: str = "add", norm_first: bool = False,
        dropout: float = 0.1, attn_dropout: float = 0.1, activation: nn.Module | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.norm_first = norm_first
        self.attn = BiasedMHA(feat_size, num_heads, attn_bias_type=attn_bias_type, attn_drop=attn_dropout)
        self.ffn = nn.Sequential(
            nn.Linear(feat_size, hidden_size), nn.ReLU() if activation is None else activation, nn.Dropout(dropout),
            nn.Linear(hidden_size, feat_size), nn.Dropout(dropout),
        )  # fmt: skip
        self.dropout = nn.Dropout(dropout)
        self.attn_layer_norm, self.ffn_layer_norm = nn.LayerNorm(feat_size), nn.LayerNorm(feat_size)

    def forward(self, nfeat: Tensor, attn_bias: Tensor | None = None, attn_mask: Tensor | None = None) -> Tensor:
        """[B, N, F], biases [B, N, N, heads], a mask [B, N, N] that is true where node i may not read node j ->
        [B, N, F]."""
        first = self.norm_first
        x = self.attn_layer_norm(nfeat) if first else nfeat
        x = nfeat + self.dropout(self.attn(x, attn_bias, attn_mask))
        x = x if first else self.attn_layer_norm(x)
        out: Tensor = x + self.ffn(self.ffn_layer_norm(x) if first else x)
        return out if first else self.ffn_layer_norm(out)


class EGTLayer(nn.Module):
    """Edge-augmented attention of all nodes to each other, which updates features of pairs, too.

    Each head has s_ij = clamp(q_i . k_j, -5, 5) + E e_ij and g_ij = sigmoid(G e_ij). h'_i = h_i + O log(1 + sum_j g_ij)
    sum_j softmax_j(s_ij) g_ij v_j, and e'_ij = e_ij + O' s_ij (`edge_update`); a residual network of two layers with
    `activation` follows each. Layer norms stand in front. The first `num_virtual_nodes` nodes are not scaled by the
    logarithm. Source: Hussain, Zaki and Subramanian, "Global Self-Attention as a Replacement for Graph Convolution",
    KDD 2022, section 3.

    >>> h, e = EGTLayer(8, 4, num_heads=2, num_virtual_nodes=1)(torch.randn(2, 5, 8), torch.randn(2, 5, 5, 4))
    >>> h.shape, e.shape
    (torch.Size([2, 5, 8]), torch.Size([2, 5, 5, 4]))
    """

    def __init__(
        self, feat_size: int, edge_feat_size: int, num_heads: int, num_virtual_nodes: int, dropout: float = 0.0,
        attn_dropout: float = 0.0, activation: nn.Module | None = None, edge_update: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        if feat_size % num_heads:
            raise DataError(
                f"num_heads must divide feat_size (got {num_heads} and {feat_size}). Choose another number."
            )
        activation = nn.ELU() if activation is None else activation
        self.num_heads, self.num_virtual_nodes, self.edge_update = num_heads, num_virtual_nodes, edge_update
        self.dot_dim = feat_size // num_heads
        self.mha_ln_h, self.mha_ln_e = nn.LayerNorm(feat_size), nn.LayerNorm(edge_feat_size)
        self.edge_input, self.gate = nn.Linear(edge_feat_size, num_heads), nn.Linear(edge_feat_size, num_heads)
        self.qkv_proj, self.node_output = nn.Linear(feat_size, 3 * feat_size), nn.Linear(feat_size, feat_size)
        self.attn_dropout, self.mha_dropout_h = nn.Dropout(attn_dropout), nn.Dropout(dropout)
        self.node_ffn = _network(feat_size, activation, dropout)
        if edge_update:
            self.edge_output, self.mha_dropout_e = nn.Linear(num_heads, edge_feat_size), nn.Dropout(dropout)
            self.edge_ffn = _network(edge_feat_size, activation, dropout)

    def forward(self, nfeat: Tensor, efeat: Tensor, mask: Tensor | None = None) -> Attended:
        """[B, N, F], [B, N, N, edge_feat_size], and a mask [B, N, N] that is added to scores and gates, -inf where node
        i may not read node j -> [B, N, F], and with `edge_update` also [B, N, N, edge_feat_size]."""
        pairs = self.mha_ln_e(efeat)
        qkv = self.qkv_proj(self.mha_ln_h(nfeat)).unflatten(-1, (3 * self.dot_dim, self.num_heads))
        q, k, v = qkv.split(self.dot_dim, dim=2)  # [B, N, dot_dim, heads]
        score = torch.einsum("bldh,bmdh->blmh", q, k).clamp(-5, 5) + self.edge_input(pairs)
        gate, masked = self.gate(pairs), score
        if mask is not None:
            gate, masked = gate + mask.unsqueeze(-1), score + mask.unsqueeze(-1)
        gate = torch.sigmoid(gate)
        weight = self.attn_dropout(masked.softmax(2) * gate)
        scale = torch.log(1 + gate.sum(2, keepdim=True))  # [B, N, 1, heads]
        ones = torch.ones_like(scale[:, : self.num_virtual_nodes])
        scale = torch.cat([ones, scale[:, self.num_virtual_nodes :]], dim=1)
        read = (torch.einsum("blmh,bmkh->blkh", weight, v) * scale).flatten(2)
        nodes = nfeat + self.mha_dropout_h(self.node_output(read))
        nodes = nodes + self.node_ffn(nodes)
        if not self.edge_update:
            return nodes
        edges = efeat + self.mha_dropout_e(self.edge_output(score))
        return nodes, edges + self.edge_ffn(edges)


def _network(width: int, activation: nn.Module, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.LayerNorm(width), nn.Linear(width, width), activation, nn.Linear(width, width), nn.Dropout(dropout)
    )
