"""What torch.compile(backend="graphweave") says of sparse tensors, which PyTorch meets there before this package."""

from __future__ import annotations

from collections.abc import Callable

from torch._dynamo.utils import counters, graph_break_reasons

from graphweave.frontends.dynamo.polyfills import in_place

_SPARSE = "Attempted to wrap sparse Tensor"
"""How Dynamo begins the reason of such a break."""


_told = 0
"""How many of these breaks have been looked at; PyTorch counts those of a whole process."""


def tell_of_sparse_tensors(say: Callable[[str], None]) -> None:
    """`say`, where sparse tensors have broken graphs anew outside of graphweave.compile, what takes them."""
    global _told
    counts = (counters["graph_break"], counters["unimplemented"])
    found = sum(n for count in counts for reason, n in count.items() if str(reason).startswith(_SPARSE))
    new, _told = found > _told, found
    if in_place() or not new:
        return
    say(
        f"graphweave: a torch.sparse tensor breaks graphs{_where()} and what takes it runs eagerly, since "
        "torch.compile takes no sparse tensors. Use graphweave.compile(model), which reads them as graphs, instead of "
        'torch.compile(model, backend="graphweave").'
    )


def _where() -> str:
    """The innermost line that is no library's, of the first such break that Dynamo has placed."""
    for reason in graph_break_reasons:
        own = [f for f in reason.user_stack if "site-packages" not in f.filename and not f.filename.startswith("<")]
        if str(reason.reason).startswith(_SPARSE) and own:
            return f" (at {own[-1].filename}:{own[-1].lineno})"
    return ""
