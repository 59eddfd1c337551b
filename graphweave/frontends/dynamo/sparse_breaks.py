"""What torch.compile(backend="graphweave") says of sparse tensors, which PyTorch meets there before this package."""

from __future__ import annotations

from collections.abc import Callable

from torch._dynamo.utils import counters, graph_break_reasons

from graphweave.frontends.dynamo.polyfills import in_place

_SPARSE = "Attempted to wrap sparse Tensor"
"""How Dynamo begins the reason of such a break."""


def tell_of_sparse_tensors(say: Callable[[str], None]) -> None:
    """`say`, where sparse tensors have broken graphs outside of graphweave.compile, what takes them."""
    reasons = (*counters["graph_break"], *counters["unimplemented"])
    if in_place() or not any(str(reason).startswith(_SPARSE) for reason in reasons):
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
