"""PyG's EdgePooling, whose loop over the edges in the order of their scores is one native call."""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave.runtime.matching import match_edges


@torch.library.custom_op("graphweave::match_edges", mutates_args=())
def _matched(src: Tensor, dst: Tensor, order: Tensor, num_nodes: int) -> Tensor:
    return match_edges(src, dst, order, num_nodes)


@_matched.register_fake
def _matched_fake(src: Tensor, dst: Tensor, order: Tensor, num_nodes: int) -> Tensor:
    return torch.empty_like(order, dtype=torch.bool)


def merge_edges(
    self: object, x: Tensor, edge_index: Tensor, batch: Tensor, edge_score: Tensor
) -> tuple[Tensor, Tensor, Tensor, object]:
    """EdgePooling's contraction of edges, of which those with the largest scores come first. Edges of equal score keep
    their order, which the original leaves open."""
    from torch_geometric.nn.pool.edge_pool import UnpoolInfo  # optional, but already imported if this is called
    from torch_geometric.utils import scatter

    src, dst, nodes = edge_index[0], edge_index[1], x.size(0)
    order = edge_score.detach().argsort(descending=True, stable=True)
    merged = order[_matched(src, dst, order, nodes)]
    pairs = merged.size(0)
    number = torch.arange(pairs, device=x.device)
    cluster = torch.full_like(batch, -1)
    cluster[src[merged]] = number
    cluster[dst[merged]] = number
    alone = cluster < 0
    left = int(alone.sum())
    cluster = torch.where(alone, pairs - 1 + alone.cumsum(0), cluster)
    count = pairs + left
    score = torch.cat([edge_score[merged], x.new_ones(left)])
    new_x = scatter(x, cluster, dim=0, dim_size=count, reduce="sum") * score.view(-1, 1)
    ends = torch.unique(cluster[src] * count + cluster[dst])
    new_batch = torch.zeros(count, dtype=torch.long, device=x.device).scatter_(0, cluster, batch)
    info = UnpoolInfo(edge_index=edge_index, cluster=cluster, batch=batch, new_edge_score=score)
    return new_x, torch.stack([ends // count, ends % count]), new_batch, info
