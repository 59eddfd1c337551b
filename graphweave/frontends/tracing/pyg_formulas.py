"""Formulas for functions and methods of PyG and PyTorch that look into tensors to choose a branch, which breaks the
graph. Each computes the same as the function for which it is traced."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from graphweave.frontends.sparse.sparse_matrix import compressed
from graphweave.frontends.sparse.sparse_products import sparse_product
from graphweave.frontends.tracing.dense_batches import dense_edges, dense_mask, dense_rows
from graphweave.frontends.tracing.edge_pooling import merge_edges
from graphweave.frontends.tracing.recurrent_formulas import recurrent


def _no_segments(num_segments: int, max_segment_size: int, in_channels: int, out_channels: int) -> bool:
    """RGCNConv asks this to decide whether to sort edges by type. The answer depends on sizes that data decides, so it
    is no."""
    return False


def _typed_linear(self: Any, x: Tensor, type_vec: Tensor) -> Tensor:
    """HeteroLinear, as products of rows with matrices of their types; the original sorts rows and loops over types."""
    type_vec = type_vec.to(x.device)  # HGTConv makes it on the CPU
    out = x.unsqueeze(1).bmm(self.weight.index_select(0, type_vec)).squeeze(1)
    return out if self.bias is None else out + self.bias.index_select(0, type_vec)


def _num_nodes(edge_index: object, num_nodes: int | None = None) -> Any:
    """The number of nodes for a softmax over edges: the largest index plus 1, also for an index without edges.

    The original branches on whether there are edges. Its trace for an index with edges would also run for one without.
    """
    from torch_geometric.utils.num_nodes import maybe_num_nodes  # optional, but already imported if this is called

    if num_nodes is not None or type(edge_index) is not Tensor or edge_index.is_sparse:
        return maybe_num_nodes(edge_index, num_nodes)
    return int(torch.cat([edge_index.reshape(-1), edge_index.new_full((1,), -1)]).max()) + 1


def _sorted_index(self: object, index: Tensor | None) -> None:
    """Replaces Aggregation's check for sorted indices by one in the program, which raises RuntimeError, not
    ValueError."""
    if index is not None:
        message = "Can not perform aggregation since the 'index' tensor is not sorted."
        torch._assert_async(torch.all(index[:-1] <= index[1:]), message)


def _places(index: Tensor, segments: Any) -> tuple[Tensor, Tensor]:
    """For sorted rows: how many rows each segment has, and the place of each row in its segment."""
    count = torch.zeros(segments, dtype=torch.long, device=index.device).index_add(0, index, torch.ones_like(index))
    return count, torch.arange(index.size(0), device=index.device) - (count.cumsum(0) - count)[index]


def _sorted_rows(
    self: Any, x: Tensor, index: Tensor | None = None, ptr: Tensor | None = None, dim_size: int | None = None,
    dim: int = -2, max_num_elements: int | None = None,
) -> Tensor:  # fmt: skip
    """Replaces SortAggregation, which pads each segment to the longest and branches on lengths: sorts rows by segment
    and last feature, and keeps the first k places of each segment."""
    self.assert_index_present(index)
    _sorted_index(self, index)
    self.assert_two_dimensional_input(x, dim)
    assert index is not None
    segments = int(index.max()) + 1 if dim_size is None else dim_size
    _, place = _places(index, segments)
    if max_num_elements is not None:
        fits = place < max_num_elements
        x, index, place = x[fits], index[fits], place[fits]
    order = x[:, -1].argsort(descending=True, stable=True)
    order = order[index[order].argsort(stable=True)]  # index[order] is index, which is sorted
    first = place < self.k
    out = x.new_zeros(segments * self.k, x.size(1))
    return out.index_add(0, (index * self.k + place)[first], x[order[first]]).view(segments, self.k * x.size(1))


def _two_hops(self: object, edge_index: Tensor, edge_weight: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """The edges of A A for GraphUNet, with loops in A and none in the result, without the original's sparse tensors."""
    proper = edge_index[0] != edge_index[1]
    loops = torch.arange(num_nodes, device=edge_index.device)
    row, col = torch.cat([edge_index[:, proper], loops.expand(2, -1)], dim=1)
    weight = torch.cat([edge_weight[proper], edge_weight.new_ones(num_nodes)])
    start, end, total = sparse_product(row, col, weight, row, col, weight, num_nodes, num_nodes, num_nodes)
    apart = start != end
    return torch.stack([start[apart], end[apart]]), total[apart]


def _cluster_pooling(
    self: Any, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None, batch: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
    """ASAPooling, whose original multiplies PyTorch's sparse tensors: the edges between clusters are S^T A S, for the
    share S[r, c] of node r in cluster c."""
    from torch_geometric.utils import add_remaining_self_loops, remove_self_loops, scatter, softmax  # optional

    nodes = x.size(0)
    edges, weight = add_remaining_self_loops(edge_index, edge_weight, fill_value=1.0, num_nodes=nodes)
    src, dst = edges[0], edges[1]
    batch = edges.new_zeros(nodes) if batch is None else batch
    x = x.unsqueeze(-1) if x.dim() == 1 else x
    inner = self.gnn_intra_cluster
    near = (x if inner is None else inner(x=x, edge_index=edges, edge_weight=weight))[src]
    query = self.lin(scatter(near, dst, 0, nodes, "max"))[dst]
    logit = self.att(torch.cat([query, near], dim=-1)).view(-1)
    share = softmax(torch.nn.functional.leaky_relu(logit, self.negative_slope), dst, num_nodes=nodes)
    share = torch.nn.functional.dropout(share, self.dropout, self.training)
    x = scatter(x[src] * share.view(-1, 1), dst, 0, nodes, "sum")
    fitness = self.gnn_score(x, edges).sigmoid().view(-1)
    kept = self.select(fitness, batch).node_index
    clusters = kept.size(0)
    place = kept.new_full((nodes,), -1)
    place[kept] = torch.arange(clusters, device=kept.device)
    chosen = place[dst] >= 0
    node, cluster, share = src[chosen], place[dst][chosen], share[chosen]
    ones = torch.ones(src.size(0), dtype=share.dtype, device=share.device)
    row, col, value = sparse_product(
        src, dst, ones if weight is None else weight, node, cluster, share, nodes, nodes, clusters
    )
    row, col, value = sparse_product(cluster, node, share, row, col, value, clusters, nodes, clusters)
    edges, weight = torch.stack([row, col]), None if weight is None else value
    if self.add_self_loops:
        edges, weight = add_remaining_self_loops(edges, weight, num_nodes=clusters)
    else:
        edges, weight = remove_self_loops(edges, weight)
    return x[kept] * fitness[kept].view(-1, 1), edges, weight, batch[kept], kept


def _scatter(src: Tensor, index: Tensor, dim: int = 0, dim_size: int | None = None, reduce: str = "sum") -> Tensor:
    """scatter without a size, for an index whose length data decides. The original branches on whether it is empty."""
    from torch_geometric.utils import scatter  # optional, but already imported if this is called

    if dim_size is None:
        dim_size = int(torch.cat([index.reshape(-1), index.new_full((1,), -1)]).max()) + 1
    return scatter(src, index, dim, dim_size, reduce)


def _dense_batch(
    x: Tensor, batch: Tensor | None = None, fill_value: object = 0.0, max_num_nodes: int | None = None,
    batch_size: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """to_dense_batch without the additional row for nodes that do not fit, whose position data would decide."""
    if batch is None:
        if max_num_nodes is None:
            return x.unsqueeze(0), torch.ones(1, x.size(0), dtype=torch.bool, device=x.device)
        batch = torch.zeros(x.size(0), dtype=torch.long, device=x.device)
    if batch_size is None:
        batch_size = int(batch.max()) + 1
    count, place = _places(batch, batch_size)
    if max_num_nodes is None:
        max_num_nodes = int(count.max())
    else:
        fits = place < max_num_nodes
        x, batch, place = x[fits], batch[fits], place[fits]
        count = count.clamp(max=max_num_nodes)
    ptr = torch.nn.functional.pad(count.cumsum(0), (1, 0))
    where = batch * max_num_nodes + place, batch, ptr, batch_size, max_num_nodes
    fill = torch.as_tensor(fill_value, device=x.device, dtype=x.dtype)
    return dense_rows(x, fill, *where), dense_mask(*where)


def _dense_adjacency(
    edge_index: Tensor, batch: Tensor | None = None, edge_attr: Tensor | None = None, max_num_nodes: int | None = None,
    batch_size: int | None = None,
) -> Tensor:  # fmt: skip
    """to_dense_adj without a branch on whether there are edges, and on whether all of them fit."""
    if batch is None:
        batch, batch_size = edge_index.new_zeros(_num_nodes(edge_index)), 1 if batch_size is None else batch_size
    if batch_size is None:
        batch_size = int(torch.cat([batch, batch.new_zeros(1)]).max()) + 1
    count, place = _places(batch, batch_size)
    if max_num_nodes is None:
        max_num_nodes = int(count.max())
    else:
        fits = (place[edge_index] < max_num_nodes).all(0)
        edge_index, edge_attr = edge_index[:, fits], None if edge_attr is None else edge_attr[fits]
    if edge_attr is None:
        edge_attr = torch.ones(edge_index.size(1), device=edge_index.device)
    ptr = torch.nn.functional.pad(count.cumsum(0), (1, 0))
    return dense_edges(edge_attr, edge_index, batch, ptr, batch_size, max_num_nodes)


def _check_padding(key_padding_mask: Tensor, src_len: object, bsz: object) -> None:
    """MultiheadAttention's check of a mask, with a message that does not name sizes that data may decide."""
    message = "expected a key_padding_mask of shape [batch, rows of key]"
    torch._check_with(AssertionError, key_padding_mask.size(0) == bsz, lambda: message)
    torch._check_with(AssertionError, key_padding_mask.size(1) == src_len, lambda: message)


def _attention(
    self: Any, alpha_j: Tensor, alpha_i: Tensor | None, edge_attr: Tensor | None, index: Tensor, ptr: Tensor | None,
    dim_size: int | None,
) -> Tensor:  # fmt: skip
    """GATConv's attention weights: the softmax over the edges of a destination, of a leaky ReLU of the ends' scores.

    The original asks first whether there are edges, which a rank or a relation without edges would answer in its own
    way. Without edges, this computes on no rows.
    """
    from torch_geometric.utils import softmax  # optional, but already imported if this is called

    scores = alpha_j if alpha_i is None else alpha_i + alpha_j
    if edge_attr is not None and self.lin_edge is not None:
        rows = self.lin_edge(edge_attr if edge_attr.dim() > 1 else edge_attr.unsqueeze(1))
        scores = scores + (rows.view(-1, self.heads, self.out_channels) * self.att_edge).sum(-1)
    weights = softmax(torch.nn.functional.leaky_relu(scores, self.negative_slope), index, ptr, dim_size)
    return torch.nn.functional.dropout(weights, self.dropout, self.training)


def _mapped(
    src: Tensor, index: Tensor, max_index: object = None, inclusive: bool = False
) -> tuple[Tensor, Tensor | None]:
    """`map_index`: the place in `index` of each number of `src`, found by a search in sorted numbers. The original asks
    how large the numbers are, and calls pandas for large ones."""
    if src.is_floating_point() or index.is_floating_point():
        raise ValueError(f"map_index: expected integers (got {src.dtype}, {index.dtype}). Convert them with .long().")
    order = index.argsort(stable=True)
    numbers = torch.cat([index.new_full((1,), -1), index[order]])
    place = torch.searchsorted(numbers, src.to(index.dtype), right=True) - 1
    found = (numbers[place.clamp(min=0)] == src) & (place > 0)
    out = torch.cat([order.new_full((1,), -1), order])[place.clamp(min=0)].to(src.dtype)
    if not inclusive:
        return out[found], found
    torch._assert_async(found.all(), "Found invalid entries in 'src' that have no corresponding entry in 'index'.")
    return out, None


def _not_compiled(name: str, why: str) -> Callable[..., object]:
    """A function of `torch_geometric.utils`, whole and not compiled: one place where Python runs, and not one for each
    statement in it that cannot be traced."""

    @torch._dynamo.disable(reason=why)
    def run(*args: object, **kwargs: object) -> object:
        from torch_geometric import utils  # optional, but already imported if this is called

        answer: object = getattr(utils, name)(*args, **kwargs)
        return answer

    return run


_DRAWN = "Python and NumPy draw negative edges"
_LISTED = "data decides how many tensors there are"
_ASKED = "the answer is a bool of Python"
_UNCOMPILED = (
    ("_negative_sampling", "negative_sampling", _DRAWN),
    ("_negative_sampling", "batched_negative_sampling", _DRAWN),
    ("_negative_sampling", "structured_negative_sampling", _DRAWN),
    ("_unbatch", "unbatch", _LISTED),
    ("_unbatch", "unbatch_edge_index", _LISTED),
    ("undirected", "is_undirected", _ASKED),
)
"""Files and functions of `torch_geometric.utils` whose trace would break, and the reason. A trace of sampling would
also make a graph with a node for each number that Python's generator draws."""


_Table = tuple[tuple[str, str, Callable[..., Any]], ...]


def _pointers(index: Tensor, size: int | None = None) -> Tensor:
    """`index2ptr`. The original calls PyTorch's conversion, which takes no number of rows that data decides."""
    return compressed(index, _num_nodes(index, size))


def _pointers_of_clouds(batch: Tensor | None, batch_size: int | None = None) -> Tensor | None:
    return None if batch is None else _pointers(batch, batch_size)


def _copied(x: Any) -> Any:
    """`copy.copy`, of which Dynamo knows all but the copies of containers. PyG's `Data.clone` makes some."""
    return x.copy() if type(x) in (dict, list, set) else copy.copy(x)


FORMULAS: _Table = (
    ("copy", "copy", _copied),
    ("torch_geometric.index", "index2ptr", _pointers),
    ("torch_geometric.nn.pool", "_batch_to_ptr", _pointers_of_clouds),
    *(("torch.nn.modules.rnn", f"{kind}.forward", recurrent) for kind in ("RNN", "LSTM", "GRU")),
    ("torch.nn.functional", "_check_key_padding_mask", _check_padding),
    ("torch_geometric.backend", "use_segment_matmul_heuristic", _no_segments),
    ("torch_geometric.nn.dense.linear", "HeteroLinear.forward", _typed_linear),
    ("torch_geometric.utils._to_dense_batch", "to_dense_batch.__wrapped__", _dense_batch),
    ("torch_geometric.utils._to_dense_adj", "to_dense_adj", _dense_adjacency),
    ("torch_geometric.nn.aggr.base", "Aggregation.assert_sorted_index", _sorted_index),
    ("torch_geometric.nn.aggr.sort", "SortAggregation.forward", _sorted_rows),
    *((f"torch_geometric.utils.{file}", name, _not_compiled(name, why)) for file, name, why in _UNCOMPILED),
    ("torch_geometric.utils.map", "map_index", _mapped),
    ("torch_geometric.nn.models.graph_unet", "GraphUNet.augment_adj", _two_hops),
    ("torch_geometric.nn.pool.edge_pool", "EdgePooling._merge_edges", merge_edges),
    ("torch_geometric.nn.pool.asap", "ASAPooling.forward", _cluster_pooling),
)
"""Module, function or method, and the formula that is traced in its place."""

IN_MODULE: _Table = (
    ("torch_geometric.utils._softmax", "maybe_num_nodes", _num_nodes),
    ("torch_geometric.nn.pool.select.topk", "scatter", _scatter),
    ("torch_geometric.nn.pool.glob", "scatter", _scatter),
)
"""Like `FORMULAS`, for calls from the module itself, which has imported the function."""

WITHOUT_BRANCHES: _Table = (("torch_geometric.nn.conv.gat_conv", "GATConv.edge_update", _attention),)
"""Like `FORMULAS`, for functions that run over the parts of a graph, or on relations of which some have no edges:
without branches on how many rows there are."""
