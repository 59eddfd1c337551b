"""Warns about sparse tensors in torch.compile(backend="graphweave"), where PyTorch does not pass them to the
backend."""

from __future__ import annotations

from torch._dynamo.utils import counters, graph_break_reasons

from graphweave.core.lines import own_frame, shown_frame
from graphweave.core.log import warn_once
from graphweave.frontends.tracing.call_under_way import under_way

_SPARSE = "Attempted to wrap sparse Tensor"
"""The beginning of Dynamo's reason for a graph break at a sparse tensor."""

_seen_breaks = 0
"""Number of these graph breaks that have been looked at. PyTorch counts them for the whole process."""


def tell_of_sparse_tensors() -> None:
    """Warn if sparse tensors have broken a graph outside of graphweave.compile since the last call of this function."""
    global _seen_breaks
    counts = (counters["graph_break"], counters["unimplemented"])
    found = sum(n for count in counts for reason, n in count.items() if str(reason).startswith(_SPARSE))
    new, _seen_breaks = found > _seen_breaks, found
    if under_way.get() is not None or not new:
        return
    warn_once(
        f"graphweave: a torch.sparse tensor breaks graphs{_where()} and what takes it runs eagerly, since "
        "torch.compile takes no sparse tensors. Use graphweave.compile(model), which reads them as graphs, instead of "
        'torch.compile(model, backend="graphweave").'
    )


def _where() -> str:
    """The innermost line outside libraries of the first such break that has lines, as a phrase."""
    for reason in graph_break_reasons:
        own = own_frame(reason.user_stack)
        if str(reason.reason).startswith(_SPARSE) and own is not None:
            return f" (at {shown_frame(own)})"
    return ""
