"""Degree bucketing: a reduce function is called once for each number of messages, on dense mailboxes.

DGL runs every user-defined reduce function this way (Wang et al., "Deep Graph Library", section 4.1). Here, only those
functions run this way that do more with a mailbox than a ragged one can: an LSTM over messages, a sort.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from graphweave.udf.arguments import Frames, NodeBatch, RelationEdges
from graphweave.udf.returned import check_fields

Reduce = Callable[[NodeBatch], Mapping[str, Any]]


def reduce_in_buckets(
    ends: RelationEdges, frames: Frames, messages: Mapping[str, Tensor], reduce: Reduce
) -> dict[str, Tensor]:
    """The fields that `reduce` computes from the messages [edges, ...] of each node, in the order of edges.

    Nodes without messages get zeros.
    """
    dst, rows = ends.dst.long(), ends.dst_rows
    if not dst.numel():
        return _of_no_messages(rows, frames, messages, reduce)
    degrees = torch.bincount(dst, minlength=rows.shape[0])
    by_row = torch.argsort(dst, stable=True)
    starts = degrees.cumsum(0) - degrees
    nodes: list[Tensor] = []
    results: list[dict[str, Tensor]] = []
    for size in torch.unique(degrees[degrees > 0]).tolist():
        members = (degrees == size).nonzero().squeeze(1)
        received = by_row[(starts[members].unsqueeze(1) + torch.arange(size, device=dst.device)).flatten()]
        mailbox = {k: m.index_select(0, received).unflatten(0, (members.numel(), size)) for k, m in messages.items()}
        data = {k: x.index_select(0, members) for k, x in frames.dst.items()}
        batch = NodeBatch(members, rows.index_select(0, members), frames, data, mailbox)
        results.append(check_fields(reduce(batch), members.numel(), "the reduce function", "nodes of a bucket"))
        nodes.append(members)
    where = torch.cat(nodes)
    return {name: _gathered(name, results, where, rows.shape[0]) for name in results[0]}


def _of_no_messages(rows: Tensor, frames: Frames, messages: Mapping[str, Tensor], reduce: Reduce) -> dict[str, Tensor]:
    """Zeros. Their names and widths come from calling `reduce` for one node that receives one message of zeros."""
    mailbox = {k: one_row(m).unsqueeze(1) for k, m in messages.items()}
    data = {k: one_row(x) for k, x in frames.dst.items()}
    batch = NodeBatch(rows.new_zeros(1, dtype=torch.int64), rows.new_empty((1, 0)), frames, data, mailbox)
    out = check_fields(reduce(batch), 1, "the reduce function", "node of a bucket")
    nowhere = rows.new_zeros(0, dtype=torch.int64)
    return {name: _gathered(name, [{name: x[:0]}], nowhere, rows.shape[0]) for name, x in out.items()}


def one_row(x: Tensor) -> Tensor:
    """[1, ...]: the first row, or zeros if there is none. Gradients flow in either case."""
    return x[:1] if x.shape[0] else x.sum(0, keepdim=True, dtype=x.dtype)


def _gathered(name: str, results: list[dict[str, Tensor]], where: Tensor, num_rows: int) -> Tensor:
    values = torch.cat([r[name] for r in results])
    return values.new_zeros((num_rows, *values.shape[1:])).index_copy(0, where, values)
