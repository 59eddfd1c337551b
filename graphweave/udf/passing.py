"""Messages along edges and their reduction at nodes, written once, to be traced into a compiled model or run
eagerly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from graphweave.core.counters import bump
from graphweave.core.errors import DataError
from graphweave.udf.arguments import EdgeBatch, Frames, NodeBatch, RelationEdges
from graphweave.udf.bucket import reduce_in_buckets
from graphweave.udf.mailbox import Received, grown
from graphweave.udf.reduce import REFUSALS, ragged, refusal, report_bucketing, tried
from graphweave.udf.returned import check_fields

Message = Callable[[EdgeBatch], Mapping[str, Any]]
Reduce = Callable[[NodeBatch], Mapping[str, Any]]


def edge_results(ends: RelationEdges, frames: Frames, function: Message, who: str) -> dict[str, Tensor]:
    """The results of `function` for all edges, each [edges, ...]."""
    return check_fields(function(EdgeBatch(ends, frames)), ends.src.shape[0], who, "edges")


def node_results(rows: Tensor, frames: Frames, data: Mapping[str, Tensor], function: Reduce) -> dict[str, Tensor]:
    """The results of `function` for all nodes, each [nodes, ...]."""
    return check_fields(function(NodeBatch(None, rows, frames, data)), rows.shape[0], "the function", "nodes")


def updated(
    ends: RelationEdges, frames: Frames, message: Message, reduce: Reduce, apply: Reduce | None
) -> dict[str, Tensor]:
    """New fields [destinations, ...]: messages reduced at each destination (zeros if it has none), then `apply`."""
    messages = edge_results(ends, frames, message, "the message function")
    return applied(ends, frames, reduce_mailboxes(ends, frames, messages, reduce), apply)


def updated_at_once(
    ends: RelationEdges, frames: Frames, message: Message, reduce: Reduce, apply: Reduce | None
) -> dict[str, Tensor] | None:
    """The result of `updated`; None if `reduce` needs more than ragged mailboxes can do."""
    messages = edge_results(ends, frames, message, "the message function")
    out = reduce_at_once(ends, frames, messages, reduce)
    return None if out is None else applied(ends, frames, out, apply)


def applied(ends: RelationEdges, frames: Frames, out: dict[str, Tensor], apply: Reduce | None) -> dict[str, Tensor]:
    """`out` together with the fields that `apply` computes from it and from the data of destinations."""
    if apply is not None:
        out.update(node_results(ends.dst_rows, frames, {**frames.dst, **out}, apply))
    return out


def reduce_mailboxes(
    ends: RelationEdges, frames: Frames, messages: Mapping[str, Tensor], reduce: Reduce
) -> dict[str, Tensor]:
    """The result of `reduce` called once on ragged mailboxes, or in buckets if it needs more than they can do."""
    out = reduce_at_once(ends, frames, messages, reduce)
    return bucketed(ends, frames, messages, reduce) if out is None else out


def reduce_at_once(
    ends: RelationEdges, frames: Frames, messages: Mapping[str, Tensor], reduce: Reduce
) -> dict[str, Tensor] | None:
    """The result of `reduce` called once on ragged mailboxes; None if it needs more than they can do."""
    received = Received(ends.dst, ends.dst_rows)
    try:
        result: Any = ragged(received, frames, messages, reduce)
    except REFUSALS:
        return None
    out = check_fields(result, ends.dst_rows.shape[0], "the reduce function", "destination nodes")
    return {name: _zero_if_empty(x, received) for name, x in out.items()}


@torch.compiler.disable(reason="a reduce function is called in buckets, whose number is data")
def bucketed(ends: RelationEdges, frames: Frames, messages: Mapping[str, Tensor], reduce: Reduce) -> dict[str, Tensor]:
    """The result of `reduce` called in buckets. This is counted, and a warning names the user's line once.

    If buckets fail too, the error is the user's. If ragged mailboxes raise a DataError, that error is raised, since it
    speaks of mailboxes.
    """
    try:
        out = reduce_in_buckets(ends, frames, messages, reduce)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        misaligned = tried(Received(ends.dst, ends.dst_rows), frames, messages, reduce)
        if isinstance(misaligned, DataError):
            raise misaligned from error
        raise
    bump("bucketed_reductions")
    report_bucketing(reduce, refusal(ends, frames, messages, reduce))
    return out


def _zero_if_empty(x: Tensor, received: Received) -> Tensor:
    """`x` with zeros for nodes without messages: DGL does not call a reduce function for them."""
    for z in received.zero_if_empty:
        if x is z:
            return x
    empty = received.count(torch.get_default_dtype()) == 0
    return torch.where(grown(empty, x.dim()), torch.zeros_like(x), x)
