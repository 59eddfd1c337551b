"""Layers over all pairs of nodes, encoders, sets and matrices, each beside its formula, row by row, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import graphweave as gw
from graphweave import nn as gnn
from graphweave.core.errors import DataError
from graphweave.core.settings import override

B, N, F, HEADS = 2, 4, 6, 2


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def attention(layer: Any, x: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    """`BiasedMHA`, pair by pair."""
    width = F // HEADS
    q, k, v = (part(x).view(B, N, HEADS, width) for part in (layer.q_proj, layer.k_proj, layer.v_proj))
    out = torch.zeros(B, N, HEADS, width, dtype=torch.float64)
    for b in range(B):
        for i in range(N):
            for h in range(HEADS):
                score = torch.stack([(q[b, i, h] * k[b, j, h]).sum() / width**0.5 + bias[b, i, j, h] for j in range(N)])
                a = score.masked_fill(mask[b, i], float("-inf")).softmax(0)
                out[b, i, h] = sum(a[j] * v[b, j, h] for j in range(N))
    found: Tensor = layer.out_proj(out.flatten(2))
    return found


@pytest.mark.parametrize("norm_first", [False, True])
def test_graphormer_layers_are_two_residual_parts(norm_first: bool) -> None:
    torch.manual_seed(0)
    layer = gnn.GraphormerLayer(F, 9, HEADS, norm_first=norm_first).double().eval()
    x, bias = drawn(B, N, F), drawn(B, N, N, HEADS, seed=1)
    mask = torch.zeros(B, N, N, dtype=torch.bool)
    mask[0, :, 2] = True
    one, two = layer.attn_layer_norm, layer.ffn_layer_norm
    if norm_first:
        middle = x + attention(layer.attn, one(x), bias, mask)
        want = middle + layer.ffn(two(middle))
    else:
        middle = one(x + attention(layer.attn, x, bias, mask))
        want = two(middle + layer.ffn(middle))
    torch.testing.assert_close(layer(x, bias, mask), want)


@pytest.mark.parametrize("masked", [False, True])
def test_edge_augmented_attention_pair_by_pair(masked: bool) -> None:
    torch.manual_seed(0)
    layer = gnn.EGTLayer(F, 3, HEADS, num_virtual_nodes=1).double().eval()
    x, e = 3 * drawn(B, N, F), drawn(B, N, N, 3, seed=1)
    mask = torch.zeros(B, N, N, dtype=torch.float64)
    if masked:
        mask[1, :, 3] = float("-inf")
    width = F // HEADS
    q, k, v = layer.qkv_proj(layer.mha_ln_h(x)).view(B, N, 3 * width, HEADS).split(width, 2)
    pairs = layer.mha_ln_e(e)
    score = torch.empty(B, N, N, HEADS, dtype=torch.float64)
    read = torch.zeros(B, N, width, HEADS, dtype=torch.float64)
    for b in range(B):
        for i in range(N):
            for j in range(N):
                score[b, i, j] = (q[b, i] * k[b, j]).sum(0).clamp(-5, 5) + layer.edge_input(pairs[b, i, j])
            gate = torch.sigmoid(layer.gate(pairs[b, i]) + mask[b, i, :, None])
            a = (score[b, i] + mask[b, i, :, None]).softmax(0) * gate
            scale = 1.0 if i == 0 else torch.log(1 + gate.sum(0))
            read[b, i] = sum(a[j] * v[b, j] for j in range(N)) * scale
    nodes = x + layer.node_output(read.flatten(2))
    edges = e + layer.edge_output(score)
    found = layer(x, e, mask if masked else None)
    torch.testing.assert_close(found[0], nodes + layer.node_ffn(nodes))
    torch.testing.assert_close(found[1], edges + layer.edge_ffn(edges))
    alone = gnn.EGTLayer(F, 3, HEADS, num_virtual_nodes=1, edge_update=False).double().eval()
    alone.load_state_dict({key: x for key, x in layer.state_dict().items() if not key.startswith(("edge_o", "edge_f"))})
    torch.testing.assert_close(alone(x, e, mask if masked else None), found[0])
    with pytest.raises(DataError, match="must divide"):
        gnn.EGTLayer(F, 3, 4, 0)


def test_degrees_are_cut_and_zero_is_zero() -> None:
    both = gnn.DegreeEncoder(3, 4)
    degrees = torch.tensor([[[0, 2, 9]], [[1, 0, 3]]])
    out = both(degrees)
    torch.testing.assert_close(out[0, 0], both.encoder2.weight[1])
    torch.testing.assert_close(out[0, 1], both.encoder1.weight[2])
    torch.testing.assert_close(out[0, 2], both.encoder1.weight[3] + both.encoder2.weight[3])
    one = gnn.DegreeEncoder(3, 4, "out")
    torch.testing.assert_close(one(degrees[0])[0, 2], one.encoder.weight[3])
    with pytest.raises(DataError, match=r"\[2, B, N\]"):
        both(degrees[0])
    with pytest.raises(DataError, match="direction"):
        gnn.DegreeEncoder(3, 4, "up")


def test_paths_are_means_over_their_edges() -> None:
    layer = gnn.PathEncoder(3, 5, HEADS).double()
    paths, dist = drawn(1, 2, 2, 3, 5), torch.tensor([[[0, 2], [7, -1]]])
    weight = layer.embedding_table.weight.view(3, HEADS, 5)
    out = layer(dist, paths)
    for i in range(2):
        for j in range(2):
            want = sum((paths[0, i, j, step] * weight[step]).sum(-1) for step in range(3))
            torch.testing.assert_close(out[0, i, j], want / min(max(int(dist[0, i, j]), 1), 3))


def test_distances_have_embeddings() -> None:
    flat = gnn.SpatialEncoder(2, HEADS)
    out = flat(torch.tensor([[[-1, 0], [2, 9]]]))[0]
    torch.testing.assert_close(out.flatten(0, 1), flat.embedding_table.weight[[0, 1, 3, 3]])
    assert not out[0, 0].any()

    solid = gnn.SpatialEncoder3d(3, HEADS, max_node_type=2).double()
    nn.init.normal_(solid.gamma.weight)
    nn.init.normal_(solid.beta.weight)
    x, kinds = drawn(1, 3, 3), torch.tensor([[0, 1, 1]])
    found = solid(x, kinds)
    for i in range(3):
        for j in range(3):
            rows = torch.stack([kinds[0, i] + 2, kinds[0, j] + 5])
            d = solid.gamma(rows).sum() * (x[0, i] - x[0, j]).norm() + solid.beta(rows).sum()
            density = torch.distributions.Normal(solid.means, solid.stds.abs() + 0.01).log_prob(d).exp()
            want = solid.linear_layer_2(functional.gelu(solid.linear_layer_1(density)))
            torch.testing.assert_close(found[0, i, j], want)


def set_attention(layer: Any, x: Tensor, mem: Tensor) -> Tensor:
    """One set reads another, head by head."""
    width, read = layer.d_head, []
    for h in range(layer.num_heads):
        at = slice(h * width, (h + 1) * width)
        q, k, v = (part(rows)[:, at] for part, rows in ((layer.proj_q, x), (layer.proj_k, mem), (layer.proj_v, mem)))
        read.append((q @ k.t() / width**0.5).softmax(1) @ v)
    z = layer.norm_in(x + layer.proj_o(torch.cat(read, 1)))
    out: Tensor = layer.norm_inter(z + layer.ffn(z))
    return out


def test_sets_of_a_batch_are_read_by_themselves() -> None:
    torch.manual_seed(0)
    sizes = [3, 1, 0, 2]
    graph = gw.batch([gw.graph(([], []), num_nodes=n) for n in sizes])
    x = drawn(6, F)
    sab = gnn.SetTransformerEncoder(F, HEADS, 3, 7, n_layers=2).double()
    isab = gnn.SetTransformerEncoder(F, HEADS, 3, 7, block_type="isab", m=2).double()
    decoder = gnn.SetTransformerDecoder(F, HEADS, 3, 7, 1, 2).double()
    want: list[list[Tensor]] = [[], [], []]
    for rows in x.split(sizes):
        once = set_attention(sab.layers[0].mha, rows, rows)
        want[0].append(set_attention(sab.layers[1].mha, once, once))
        block = isab.layers[0]
        want[1].append(set_attention(block.mha[1], rows, set_attention(block.mha[0], block.inducing_points, rows)))
        pooled = set_attention(decoder.pma.mha, decoder.pma.seed_vectors, decoder.pma.ffn(rows))
        want[2].append(set_attention(decoder.layers[0].mha, pooled, pooled).flatten()[None])
    for layer, parts in zip((sab, isab, decoder), want, strict=True):
        found = layer(graph, x)
        torch.testing.assert_close(found, torch.cat(parts))
        found.square().sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
    with pytest.raises(DataError, match="needs m"):
        gnn.SetTransformerEncoder(F, HEADS, 3, 7, block_type="isab")


def test_chebyshev_over_a_matrix_is_that_over_edges() -> None:
    src, dst = torch.tensor([0, 1, 1, 2, 3, 0]), torch.tensor([1, 0, 2, 1, 0, 3])
    matrix = torch.zeros(5, 5).double().index_put((dst, src), torch.ones(6).double())
    dense, sparse = gnn.DenseChebConv(F, 3, 3).double(), gnn.ChebConv(F, 3, 3, activation=None).double()
    sparse.load_state_dict({"linear.weight": dense.W.flatten(0, 1).t(), "linear.bias": dense.bias})
    x = drawn(5, F)
    graph = gw.graph((src, dst), num_nodes=5)
    with override(eager_kernels=False):
        torch.testing.assert_close(dense(matrix, x, 1.7), sparse(graph, x, 1.7))
        degree = matrix.sum(1).clamp(min=1) ** -0.5
        most = torch.linalg.eigvalsh(torch.eye(5).double() - degree[:, None] * matrix * degree).max()
        torch.testing.assert_close(dense(matrix, x), sparse(graph, x, float(most)))


def test_groups_are_residual_and_are_computed_again() -> None:
    graph = gw.graph(([0, 1, 2, 0], [1, 2, 0, 2]))
    calls: list[int] = []

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2).double()

        def forward(self, g: Any, x: Tensor, more: Tensor) -> Tensor:
            calls.append(len(x))
            return torch.tanh(self.fc(x)) * more

    layer = gnn.GroupRevRes(Layer(), groups=3)
    x, more = drawn(3, F).requires_grad_(), drawn(3, F, seed=1)
    out = layer(graph, x, more)
    parts, factors, y, want = x.split(2, 1), more.split(2, 1), x[:, 2:4] + x[:, 4:], []
    for i in range(3):
        y = parts[i] + torch.tanh(layer.gnn_modules[i].fc(y)) * factors[i]
        want.append(y)
    torch.testing.assert_close(out, torch.cat(want, 1))
    assert len(calls) == 3
    wanted = torch.autograd.grad(torch.cat(want, 1).square().sum(), [x, *layer.parameters()])
    found = torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])
    assert len(calls) == 6, "the backward pass computes the layers again"
    for got, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, expected)
    with torch.no_grad():
        torch.testing.assert_close(layer(graph, x, more), out)
    with pytest.raises(DataError, match="at least 2"):
        gnn.GroupRevRes(Layer(), groups=1)
