"""Parts of graph transformers: attention with a bias for each pair, and an encoder of Laplacian positions."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from graphweave.nn.ends import one_of


class BiasedMHA(nn.Module):
    """Attention of all nodes of a graph to each other, with scores that get a bias ("add"), or are multiplied by it
    ("mul").

    `feat_size` is the width of all `num_heads` together. Source: Ying et al., "Do Transformers Really Perform Badly for
    Graph Representation?", NeurIPS 2021, section 3.1.

    >>> BiasedMHA(8, num_heads=2)(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self, feat_size: int, num_heads: int, bias: bool = True, attn_bias_type: str = "add", attn_drop: float = 0.1
    ) -> None:
        super().__init__()
        self.num_heads, self.attn_bias_type = num_heads, one_of("attn_bias_type", attn_bias_type, ("add", "mul"))
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
            nn.Linear(feat_size, feat_size, bias=bias) for _ in range(4)
        )
        self.dropout = nn.Dropout(attn_drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Projections are drawn from Glorot's uniform distribution, with gain 1 / sqrt(2) but for the last."""
        for layer in (self.q_proj, self.k_proj, self.v_proj):
            nn.init.xavier_uniform_(layer.weight, gain=2**-0.5)
        nn.init.xavier_uniform_(self.out_proj.weight)
        if self.out_proj.bias is not None:
            nn.init.zeros_(self.out_proj.bias)

    def forward(self, ndata: Tensor, attn_bias: Tensor | None = None, attn_mask: Tensor | None = None) -> Tensor:
        """[B, N, F], biases [B, N, N, heads], a mask [B, N, N] that is true where node i may not read node j ->
        [B, N, F]."""
        q, k, v = (self._heads(layer(ndata)) for layer in (self.q_proj, self.k_proj, self.v_proj))
        score = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5  # [B, heads, N, N]
        if attn_bias is not None:
            bias = attn_bias.permute(0, 3, 1, 2)
            score = score + bias if self.attn_bias_type == "add" else score * bias
        if attn_mask is not None:
            score = score.masked_fill(attn_mask.to(torch.bool)[:, None], float("-inf"))
        out = self.dropout(score.softmax(-1)) @ v
        found: Tensor = self.out_proj(out.transpose(1, 2).reshape(ndata.shape))
        return found

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)


class LapPosEncoder(nn.Module):
    """Positions from eigenvectors and eigenvalues of the Laplacian, as a set of k pairs for each node.

    Pairs are read by a "Transformer" of `num_layer` layers, or by an MLP each ("DeepSet"), and added up; NaN pairs are
    left out. `num_post_layer` layers follow. Source: Lim et al., "Sign and Basis Invariant Networks for Spectral Graph
    Representation Learning", ICLR 2023; Kreuzer et al., "Rethinking Graph Transformers with Spectral Attention", 2021.

    >>> LapPosEncoder("DeepSet", 2, k=4, dim=6)(torch.rand(3, 4), torch.randn(3, 4)).shape
    torch.Size([3, 6])
    """

    def __init__(
        self, model_type: str, num_layer: int, k: int, dim: int, n_head: int = 1, batch_norm: bool = False,
        num_post_layer: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.model_type = one_of("model_type", model_type, ("Transformer", "DeepSet"))
        self.raw_norm = nn.BatchNorm1d(k) if batch_norm else None
        if model_type == "Transformer":
            self.linear = nn.Linear(2, dim)
            layer = nn.TransformerEncoderLayer(dim, n_head, batch_first=True)
            self.pe_encoder: nn.Module = nn.TransformerEncoder(layer, num_layer, enable_nested_tensor=False)
        else:
            widths = [2, *[2 * dim] * (num_layer - 1), dim]
            self.pe_encoder = _mlp(widths)
        self.post_mlp = _mlp([dim, *[2 * dim] * (num_post_layer - 1), dim]) if num_post_layer > 0 else None

    def forward(self, eigvals: Tensor, eigvecs: Tensor) -> Tensor:
        """[N, k], [N, k] -> [N, dim]."""
        pairs = torch.stack([eigvecs, eigvals], dim=2).float()
        absent = pairs.isnan()
        pairs = pairs.masked_fill(absent, 0)
        pairs = pairs if self.raw_norm is None else self.raw_norm(pairs)
        if self.model_type == "Transformer":
            found = self.pe_encoder(self.linear(pairs), src_key_padding_mask=absent[:, :, 1])
        else:
            found = self.pe_encoder(pairs)
        total: Tensor = found.masked_fill(absent[:, :, :1], 0).sum(1)
        return total if self.post_mlp is None else self.post_mlp(total)


def _mlp(widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, o in pairwise(widths):
        layers += [nn.Linear(i, o), nn.ReLU()]
    return nn.Sequential(*layers)
