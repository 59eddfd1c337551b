"""What torch.compile(backend="graphweave") says of sparse tensors, which PyTorch meets there before this package."""

from __future__ import annotations

from torch._dynamo.utils import counters, graph_break_reasons

from graphweave.core.lines import own_frame, shown_frame
from graphweave.core.log import warn_once
from graphweave.frontends.dynamo.polyfills import in_place

_SPARSE = "Attempted to wrap sparse Tensor"
"""How Dynamo begins the reason of such a break."""


_told = 0
"""How many of these breaks have been looked at; PyTorch counts those of a whole process."""


def tell_of_sparse_tensors() -> None:
    """Warns, where sparse tensors have broken graphs anew outside of graphweave.compile, of what takes them."""
    global _told
    counts = (counters["graph_break"], counters["unimplemented"])
    found = sum(n for count in counts for reason, n in count.items() if str(reason).startswith(_SPARSE))
    new, _told = found > _told, found
    if in_place() or not new:
        return
    warn_once(
        f"graphweave: a torch.sparse tensor breaks graphs{_where()} and what takes it runs eagerly, since "
        "torch.compile takes no sparse tensors. Use graphweave.compile(model), which reads them as graphs, instead of "
        'torch.compile(model, backend="graphweave").'
    )


def _where() -> str:
    """The innermost line that is no library's, of the first such break that Dynamo has placed."""
    for reason in graph_break_reasons:
        own = own_frame(reason.user_stack)
        if str(reason.reason).startswith(_SPARSE) and own is not None:
            return f" (at {shown_frame(own)})"
    return ""
