"""Calls a reduce function on ragged mailboxes, and says why that was not possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphweave.compiler.report import record_eager
from graphweave.core.lines import raised_at, shown_path
from graphweave.core.log import warn_once
from graphweave.tensorlike.answers import NotExpressible
from graphweave.udf.arguments import Frames, NodeBatch, RelationEdges
from graphweave.udf.bucket import one_row
from graphweave.udf.mailbox import Mailbox, Received

Reduce = Callable[[NodeBatch], Mapping[str, Any]]
REFUSALS = (NotExpressible, TypeError, AttributeError)
"""Errors that show that a ragged mailbox cannot stand for a tensor. The last two come from PyTorch, NumPy and
Python."""

_FOLDER = Path(__file__).parent
_FOLDERS_NOT_OF_USERS = (
    *(str(_FOLDER.parent / room) for room in ("udf", "tensorlike", "jax")),
    *(str(Path(torch.__file__).parents[1] / package) for package in ("torch", "numpy", "jax")),
)
"""Lines in these folders are skipped when an error is traced to one of the user's lines."""


def ragged(received: Received, frames: Frames, messages: Mapping[str, Tensor], reduce: Reduce) -> Mapping[str, Tensor]:
    """The result of `reduce` called once, on the mailboxes of all nodes."""
    mailbox = {name: Mailbox(m, received) for name, m in messages.items()}
    return reduce(NodeBatch(None, received.rows, frames, frames.dst, mailbox))


def refusal(
    ends: RelationEdges, frames: Frames, messages: Mapping[str, Tensor], reduce: Reduce
) -> BaseException | None:
    """The error, with its traceback, of a `reduce` that does what a ragged mailbox cannot do; None if there is none.

    `reduce` is tried on one message of one node (zeros if there is no message), because a trace knows that an operation
    was refused, but not at which line.
    """
    dst = {name: one_row(x) for name, x in frames.dst.items()}
    one = Received(ends.dst.new_zeros(1), ends.dst_rows.new_empty((1, 0)))
    few = Frames(frames.src, dst, frames.edge, frames.ntype, frames.etype, frames.relation)
    return tried(one, few, {name: one_row(m) for name, m in messages.items()}, reduce)


def tried(received: Received, frames: Frames, messages: Mapping[str, Tensor], reduce: Reduce) -> BaseException | None:
    """The error of `ragged` if it refuses. It runs without gradients, and the random state is restored afterwards."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            ragged(received, frames, messages, reduce)
        except REFUSALS as error:
            return error
    return None


def report_bucketing(reduce: Reduce, why: BaseException | None) -> None:
    """Warn once for each function and reason, and record it for `explain`."""
    name = getattr(reduce, "__qualname__", type(reduce).__name__)
    reason = f"{why} ({_line(why)})" if why is not None else "an operation that it met in a trace"
    record_eager(f"the reduce function {name} runs in buckets of nodes with equally many messages: {reason}")
    warn_once(
        f"graphweave: {name} cannot reduce all mailboxes at once: {reason}. It is called for each number of messages, "
        "which is exact and slow. Write it as reductions along dim 1 (sum, mean, max, softmax, matmul, ...)."
    )


def _line(error: BaseException) -> str:
    at = raised_at(error, _FOLDERS_NOT_OF_USERS)
    return "no line of the function" if at is None else f"{shown_path(at.path)}:{at.line}: {at.text}"
