"""Dense batches as operators: the rows of each graph next to each other, padded to the largest graph, and their mask;
the edges of each graph as a matrix, and attention.

PyG's `to_dense_batch` and `to_dense_adj` are traced as these (`pyg_formulas.py`), so that
`spellings/segment_attention.py` finds them in Dynamo's graph. AOTAutograd replaces them by the calls of which they
consist.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from graphweave.runtime.segment_attention import NUM_SEEDS, segment_attention

aten = torch.ops.aten

_library = torch.library.Library("graphweave", "FRAGMENT")
_library.define(
    "dense_rows(Tensor x, Tensor fill, Tensor position, Tensor batch, Tensor ptr, SymInt graphs, SymInt places)"
    " -> Tensor"
)
_library.define("dense_mask(Tensor position, Tensor batch, Tensor ptr, SymInt graphs, SymInt places) -> Tensor")
_library.define(
    "dense_edges(Tensor numbers, Tensor edges, Tensor batch, Tensor ptr, SymInt graphs, SymInt places) -> Tensor"
)


_library.define(
    "dense_attention(Tensor q, Tensor k, Tensor v, Tensor? mask, float dropped, bool is_causal, float? scale) -> Tensor"
)
_library.define(
    "softmax_attention(Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? hidden, float fill, float scale,"
    " float dropped) -> Tensor"
)


def _dense_rows(
    x: Tensor, fill: Tensor, position: Tensor, batch: Tensor, ptr: Tensor, graphs: int, places: int
) -> Tensor:
    """[graphs, places, ...]: row i of x stands at `position[i]` of graphs * places, and `fill` elsewhere.

    `batch` is the graph of each row, and `ptr` [graphs + 1] says where the rows of each graph begin: graph g has the
    rows ptr[g] to ptr[g + 1] of x, in the places from 0 on.
    """
    out = fill.expand([graphs * places, *x.shape[1:]]).clone()
    out[position] = x
    return out.view([graphs, places, *x.shape[1:]])


def _dense_mask(position: Tensor, batch: Tensor, ptr: Tensor, graphs: int, places: int) -> Tensor:
    """[graphs, places]: whether a row stands there."""
    mask = torch.zeros(graphs * places, dtype=torch.bool, device=position.device)
    mask[position] = True
    return mask.view(graphs, places)


def _dense_edges(numbers: Tensor, edges: Tensor, batch: Tensor, ptr: Tensor, graphs: int, places: int) -> Tensor:
    """[graphs, places, places, ...]: the sum of the `numbers` [edges, ...] of all edges [2, edges] between two rows, at
    their graph and places; 0 where there is no edge."""
    graph = batch[edges[0]]
    first, second = edges[0] - ptr[graph], edges[1] - ptr[batch[edges[1]]]
    out = numbers.new_zeros([graphs * places * places, *numbers.shape[1:]])
    out = out.index_add(0, (graph * places + first) * places + second, numbers)
    return out.view([graphs, places, places, *numbers.shape[1:]])


def _dense_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropped: float, is_causal: bool, scale: float | None
) -> Tensor:
    """Attention of [graphs, heads, places, width] by the call that PyTorch chooses on the CPU."""
    if mask is not None and mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -math.inf)
    if dropped == 0 and (mask is None or not mask.requires_grad):
        out: Tensor = aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, is_causal, attn_mask=mask, scale=scale
        )[0]
        return out
    if is_causal:
        ahead = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
        mask = torch.zeros_like(ahead, dtype=q.dtype).masked_fill(ahead, -math.inf)
    root = math.sqrt(q.shape[-1] ** -0.5 if scale is None else scale)
    scores = (q * root) @ (k * root).transpose(-2, -1)
    weights = scores.softmax(-1) if mask is None else aten._safe_softmax(scores + mask, -1)
    return torch.nn.functional.dropout(weights, dropped) @ v


def _softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    hidden: Tensor | None,
    fill: float,
    scale: float,
    dropped: float,
) -> Tensor:
    """dropout(softmax(scores)) @ v of [..., queries, width], with at most two dims in front, where the scores are
    scale * q @ k.transpose(-1, -2) + bias, and `fill` where `hidden` is true. Each graph is a segment of the operator
    that stores no scores."""
    missing = 4 - q.dim()
    q, k, v = (_in_four_dims(x, missing) for x in (q, k, v))
    bias, hidden = (None if x is None else _in_four_dims(x, missing) for x in (bias, hidden))
    rows = [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)]
    ends = [torch.arange(x.shape[0] + 1, device=x.device) * x.shape[2] for x in (q, k)]
    seed = torch.randint(NUM_SEEDS, ()) if dropped else None
    terms = bias, None, None, None, None, hidden, fill, True, seed, dropped
    out = segment_attention(*rows, *ends, scale, *terms)[0]
    out = out.unflatten(0, (q.shape[0], q.shape[2])).transpose(1, 2)
    return out.squeeze(1) if missing == 1 else out[0, 0] if missing == 2 else out


def _in_four_dims(x: Tensor, missing: int) -> Tensor:
    """[graphs, heads, places, places or features], of which any may be 1."""
    for _ in range(4 - missing - x.dim()):
        x = x.unsqueeze(0)
    return x.unsqueeze(1) if missing == 1 else x[None, None] if missing == 2 else x


_library.impl("dense_rows", _dense_rows, "CompositeImplicitAutograd")
_library.impl("dense_mask", _dense_mask, "CompositeImplicitAutograd")
_library.impl("dense_edges", _dense_edges, "CompositeImplicitAutograd")
_library.impl("dense_attention", _dense_attention, "CompositeImplicitAutograd")
_library.impl("softmax_attention", _softmax_attention, "CompositeImplicitAutograd")

dense_rows, dense_mask = torch.ops.graphweave.dense_rows.default, torch.ops.graphweave.dense_mask.default
dense_edges, dense_attention = torch.ops.graphweave.dense_edges.default, torch.ops.graphweave.dense_attention.default
softmax_attention = torch.ops.graphweave.softmax_attention.default
