"""Equals that can be traced of library functions that look into tensors to choose a way, and so break the graph.

They compute the same, so that another thread that meets one meanwhile is served as well.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import has_static_value


def _no_segments(num_segments: int, max_segment_size: int, in_channels: int, out_channels: int) -> bool:
    """RGCNConv asks whether to sort edges by type, which depends on sizes that data decides, and is off when traced."""
    return False


def _typed_linear(self: Any, x: Tensor, type_vec: Tensor) -> Tensor:
    """HeteroLinear: each row times the matrix of its type, where the original sorts rows and loops over types."""
    out = x.unsqueeze(1).bmm(self.weight.index_select(0, type_vec)).squeeze(1)
    return out if self.bias is None else out + self.bias.index_select(0, type_vec)


def _num_nodes(edge_index: Any, num_nodes: int | None = None) -> Any:
    """What a softmax of some relation's edges is over: the largest index and 1, where the original asks for none first.

    A frame that asks is traced for an index that has edges, and is then run for one that has none.
    """
    from torch_geometric.utils.num_nodes import maybe_num_nodes  # optional, and there if this is called

    if num_nodes is not None or type(edge_index) is not Tensor or edge_index.is_sparse:
        return maybe_num_nodes(edge_index, num_nodes)
    return int(torch.cat([edge_index.reshape(-1), edge_index.new_full((1,), -1)]).max()) + 1


def _sorted_index(self: Any, index: Tensor | None) -> None:
    """Aggregation: the same check while the program runs, a RuntimeError where the original raises ValueError."""
    if index is not None:
        message = "Can not perform aggregation since the 'index' tensor is not sorted."
        torch._assert_async(torch.all(index[:-1] <= index[1:]), message)


def _sorted_rows(
    self: Any, x: Tensor, index: Tensor | None = None, ptr: Tensor | None = None, dim_size: int | None = None,
    dim: int = -2, max_num_elements: int | None = None,
) -> Tensor:  # fmt: skip
    """SortAggregation: pads every segment by k rows and keeps the first k, where the original asks which is longer."""
    fill = x.detach().min() - 1
    rows, _ = self.to_dense_batch(x, index, ptr, dim_size, dim, fill_value=fill, max_num_elements=max_num_elements)
    order = rows[:, :, -1].sort(dim=-1, descending=True).indices
    rows = rows.gather(1, order.unsqueeze(-1).expand(-1, -1, rows.size(2)))
    rows = torch.cat([rows, fill.expand(rows.size(0), self.k, rows.size(2))], dim=1).narrow(1, 0, self.k)
    return rows.masked_fill(rows == fill, 0.0).flatten(1)


def _two_hops(self: Any, edge_index: Tensor, edge_weight: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """GraphUNet: the edges of A A, with loops in A and none in the result, where the original takes sparse tensors.

    Each edge is followed by all edges from where it ends: of the edges sorted by their source these lie side by side.
    """
    proper = edge_index[0] != edge_index[1]
    loops = torch.arange(num_nodes, device=edge_index.device)
    row, col = torch.cat([edge_index[:, proper], loops.expand(2, -1)], dim=1)
    weight = torch.cat([edge_weight[proper], edge_weight.new_ones(num_nodes)])
    row, order = row.sort()
    col, weight = col[order], weight[order]
    degree = torch.zeros_like(loops).index_add(0, row, torch.ones_like(row))
    after = degree[col]
    first = torch.repeat_interleave(torch.arange(row.size(0), device=row.device), after)
    place = torch.arange(first.size(0), device=row.device) - (after.cumsum(0) - after)[first]
    second = (degree.cumsum(0) - degree)[col[first]] + place
    start, end, product = row[first], col[second], weight[first] * weight[second]
    apart = start != end
    keys, pair = torch.unique(start[apart] * num_nodes + end[apart], return_inverse=True)
    total = product.new_zeros(keys.size(0)).index_add(0, pair, product[apart])
    return torch.stack([keys // num_nodes, keys % num_nodes]), total


def _scatter(src: Tensor, index: Tensor, dim: int = 0, dim_size: int | None = None, reduce: str = "sum") -> Tensor:
    """scatter without a size, on an index whose length data decides: the original first asks whether it has one."""
    from torch_geometric.utils import scatter  # optional, and there if this is called

    if dim_size is None:
        dim_size = int(torch.cat([index.reshape(-1), index.new_full((1,), -1)]).max()) + 1
    return scatter(src, index, dim, dim_size, reduce)


def _dense_batch(
    x: Tensor, batch: Tensor | None = None, fill_value: Any = 0.0, max_num_nodes: int | None = None,
    batch_size: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """to_dense_batch: without the slot for rows that do not fit where all do: data would decide its place.

    It takes the place of the original's code, for other modules have imported the function by its name. So it may use
    no names but `torch`, which is one of the original's module too.
    """
    if batch is None:
        if max_num_nodes is None:
            return x.unsqueeze(0), torch.ones(1, x.size(0), dtype=torch.bool, device=x.device)
        batch = torch.zeros(x.size(0), dtype=torch.long, device=x.device)
    if batch_size is None:
        batch_size = int(batch.max()) + 1
    count = torch.zeros(batch_size, dtype=torch.long, device=x.device)
    count = count.index_add(0, batch, torch.ones_like(batch))
    place = torch.arange(batch.size(0), device=x.device) - (count.cumsum(0) - count)[batch]
    if max_num_nodes is None:
        max_num_nodes = int(count.max())
    else:
        fits = place < max_num_nodes
        x, batch, place = x[fits], batch[fits], place[fits]
    size = [batch_size * max_num_nodes, *x.shape[1:]]
    slot = batch * max_num_nodes + place
    out = torch.as_tensor(fill_value, device=x.device, dtype=x.dtype).expand(size).clone()
    out[slot] = x
    mask = torch.zeros(batch_size * max_num_nodes, dtype=torch.bool, device=x.device)
    mask[slot] = True
    return out.view([batch_size, max_num_nodes, *x.shape[1:]]), mask.view(batch_size, max_num_nodes)


_lstm_of_pytorch = torch._dynamo.disable(torch.nn.LSTM.forward)


def _lstm(self: Any, input: Any, hx: tuple[Tensor, Tensor] | None = None) -> Any:
    """LSTM over as many steps as the code says (JumpingKnowledge's are layers): gates written out step by step.

    PyTorch's own, traced, fails in training and gives other numbers in inference (2.13, by its kernel of oneDNN). Any
    other LSTM breaks the graph and runs eagerly.
    """
    plain = isinstance(input, Tensor) and input.dim() == 3 and self.proj_size == 0
    steps = input.size(1 if self.batch_first else 0) if plain else 0
    if not plain or (self.dropout and self.training) or not has_static_value(steps):
        return _lstm_of_pytorch(self, input, hx)
    sequence = list(input.unbind(1 if self.batch_first else 0))
    hidden: list[Tensor] = []
    cells: list[Tensor] = []
    for layer in range(self.num_layers):
        ways = []
        for suffix in ("", "_reverse") if self.bidirectional else ("",):
            k, place = f"_l{layer}{suffix}", len(hidden)
            w, u = getattr(self, "weight_ih" + k), getattr(self, "weight_hh" + k)
            b = getattr(self, "bias_ih" + k) + getattr(self, "bias_hh" + k) if self.bias else None
            h = sequence[0].new_zeros(sequence[0].size(0), self.hidden_size) if hx is None else hx[0][place]
            c = torch.zeros_like(h) if hx is None else hx[1][place]
            outputs = []
            for x in reversed(sequence) if suffix else sequence:
                gates = torch.nn.functional.linear(x, w, b) + torch.nn.functional.linear(h, u)
                i, f, g, o = gates.chunk(4, dim=1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
                outputs.append(h)
            hidden.append(h)
            cells.append(c)
            ways.append(outputs[::-1] if suffix else outputs)
        sequence = [torch.cat(pair, dim=1) if len(pair) > 1 else pair[0] for pair in zip(*ways, strict=True)]
    return torch.stack(sequence, 1 if self.batch_first else 0), (torch.stack(hidden), torch.stack(cells))


EQUALS: tuple[tuple[str, tuple[str, ...], Callable[..., Any] | CodeType], ...] = (
    ("torch.nn.modules.rnn", ("LSTM", "forward"), _lstm),
    ("torch_geometric.backend", ("use_segment_matmul_heuristic",), _no_segments),
    ("torch_geometric.utils._softmax", ("maybe_num_nodes",), _num_nodes),
    ("torch_geometric.nn.dense.linear", ("HeteroLinear", "forward"), _typed_linear),
    ("torch_geometric.nn.pool.select.topk", ("scatter",), _scatter),
    ("torch_geometric.nn.pool.glob", ("scatter",), _scatter),
    ("torch_geometric.utils._to_dense_batch", ("to_dense_batch", "__wrapped__", "__code__"), _dense_batch.__code__),
    ("torch_geometric.nn.aggr.base", ("Aggregation", "assert_sorted_index"), _sorted_index),
    ("torch_geometric.nn.aggr.sort", ("SortAggregation", "forward"), _sorted_rows),
    ("torch_geometric.nn.models.graph_unet", ("GraphUNet", "augment_adj"), _two_hops),
)
"""Module, attribute, and what takes its place."""
