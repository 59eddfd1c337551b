"""Why a reduce function runs in buckets: found by calling it on the mailbox of one message."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphweave.compiler.report import record_eager
from graphweave.frontends.dynamo.backend import warn_once
from graphweave.udf.batch import Ends, Frames, NodeBatch
from graphweave.udf.mailbox import Mailbox, NotExpressible, Received

Reduce = Callable[[NodeBatch], Mapping[str, Any]]
_NOT_THEIRS = (str(Path(__file__).parent), str(Path(torch.__file__).parent))


def ragged(received: Received, frames: Frames, messages: Mapping[str, Tensor], reduce: Reduce) -> Mapping[str, Any]:
    """`reduce` called once, on mailboxes of all nodes."""
    mailbox = {name: Mailbox(m, received) for name, m in messages.items()}
    return reduce(NodeBatch(None, received.rows, frames, frames.dst, mailbox))


def why_in_buckets(ends: Ends, frames: Frames, messages: Mapping[str, Tensor], reduce: Reduce) -> str | None:
    """What `reduce` does that a ragged mailbox cannot, with its line; None where it is expressible.

    Tried on one message of one node, without gradients and with the random state put back. A graph without edges or
    nodes tells nothing: None.
    """
    if not ends.dst.shape[0] or not ends.dst_rows.shape[0]:
        return None
    one = Received(torch.zeros_like(ends.dst[:1]), ends.dst_rows[:1])
    few = Frames(
        frames.src, {k: x[:1] for k, x in frames.dst.items()}, frames.edge, frames.ntype, frames.etype, frames.relation
    )
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            ragged(one, few, {k: m[:1] for k, m in messages.items()}, reduce)
        except (NotExpressible, TypeError) as error:  # PyTorch's own code refuses what is no tensor by TypeError
            return f"{error} ({_line(error)})"
    return None


def report_bucketing(reduce: Reduce, why: str) -> None:
    """Said once for each function and reason, and told by `explain`."""
    name = getattr(reduce, "__qualname__", type(reduce).__name__)
    record_eager(f"the reduce function {name} runs in buckets of nodes with equally many messages: {why}")
    warn_once(
        f"graphweave cannot reduce all mailboxes at once in {name}: {why}. It is called for each number of messages, "
        "which is exact and slow; reductions along dim 1 (sum, mean, max, softmax, matmul, ...) would be compiled."
    )


def _line(error: BaseException) -> str:
    """The innermost line that is the user's."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(_NOT_THEIRS):
            text = (frame.line or linecache.getline(frame.filename, frame.lineno or 0)).strip()
            return f"{frame.filename}:{frame.lineno}: {text}"
    return "no line of the function"
