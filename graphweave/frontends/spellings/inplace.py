"""Rewrites writes to a transposed view, such as `v.masked_fill_(m, 0)` on a permuted v, so that AOTAutograd takes them.

AOTAutograd turns this into `v = v.masked_fill(m, 0)`, and then undoes the views to get the tensor of which v is a view.
But the result of `masked_fill` is in row-major order while v was not, and a `view` cannot be undone in other strides:
it raises "Cannot view a tensor with shape ...", under any backend. `copy_` keeps the strides of its operand.
"""

from __future__ import annotations

import torch
from torch import fx

from graphweave.frontends.calls.layout import order_of

_ROW_MAJOR = frozenset({
    "masked_fill_", "masked_scatter_", "index_add_", "index_copy_", "index_reduce_", "scatter_", "scatter_add_",
    "scatter_reduce_", "cumsum_", "cumprod_", "tril_", "triu_", "renorm_", "bernoulli_", "normal_", "addmm_",
    "addbmm_", "baddbmm_", "addmv_", "addr_",
})  # fmt: skip
"""In-place calls whose out-of-place form gives a result in row-major order, whatever the strides of the operand."""


def writes_apart(gm: fx.GraphModule) -> bool:
    """In Dynamo's graph, replace `v.f_(a)` by `v.copy_(v.clone().f_(a))` where f is in `_ROW_MAJOR` and v a transposed
    view; whether there was such a call."""
    changed = False
    for node in list(gm.graph.nodes):
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if node.op in ("call_method", "call_function") and name in _ROW_MAJOR and _is_transposed_view(node.args[0]):
            _rewrite(gm.graph, node)
            changed = True
    if changed:
        gm.recompile()
    return changed


def _is_transposed_view(x: object) -> bool:
    value = x.meta.get("example_value") if isinstance(x, fx.Node) else None
    if not isinstance(value, torch.Tensor) or not value._is_view():
        return False
    order = order_of(value)
    return order is not None and order != tuple(range(value.dim()))


def _rewrite(graph: fx.Graph, node: fx.Node) -> None:
    x = node.args[0]
    assert isinstance(x, fx.Node)
    with graph.inserting_before(node):
        own = graph.call_method("clone", (x,))
        written = graph.create_node(node.op, node.target, (own, *node.args[1:]), dict(node.kwargs))
        copied = graph.call_method("copy_", (x, written))
    for new in (own, written, copied):
        new.meta.update(node.meta)
    node.replace_all_uses_with(copied)
    graph.erase_node(node)
