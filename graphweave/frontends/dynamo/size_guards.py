"""Guards on the sizes of a compiled function's features, made while PyTorch traces the function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._dynamo.variables import TensorVariable, VariableTracker
from torch.utils._pytree import SUPPORTED_NODES, tree_leaves

from graphweave.frontends.dynamo.arguments import Widths, is_features
from graphweave.frontends.tracing.call_under_way import under_way


def guard_sizes(context: Any, widths: Widths, *, any_rows: bool) -> None:
    """Guard the sizes of all features among `args` and `kwargs` of the frame that is being traced.

    `context` is what PyTorch passes to a function that it calls in a trace (`comptime`). So only the arguments are
    traced, and compiled code has no guards on how they are searched.
    """
    translator, call = context._ComptimeContext__tx, under_way.get()
    given = [translator.symbolic_locals[name] for name in ("args", "kwargs")]
    for i, tensor in enumerate(tensor for traced in given for tensor in _features(traced, translator)):
        fixed = call is None or widths.are_fixed(i, call.arguments)
        guard_sizes_of(tensor, of_nodes=i == 0, any_rows=any_rows, fixed_width=fixed)


def _features(traced: VariableTracker, translator: object) -> list[torch.Tensor]:
    """The fake tensors that stand for features inside a traced value, in the order of `features_in`."""
    fakes = (leaf.as_proxy().node.meta["example_value"] for leaf in _tensors(traced, translator))
    return [fake for fake in fakes if is_features(fake)]


def _tensors(traced: VariableTracker, translator: object) -> Iterator[TensorVariable]:
    """The traced tensors inside a traced value, in the order of `tree_leaves`."""
    value = traced.realize()
    if isinstance(value, TensorVariable):
        yield value
        return
    try:
        kind = value.python_type()
    except NotImplementedError:  # nothing that has parts
        return
    if kind in (list, tuple):
        parts = value.unpack_var_sequence(translator)
    elif kind is dict:
        parts = value.call_method(translator, "values", [], {}).unpack_var_sequence(translator)
    elif kind in SUPPORTED_NODES or issubclass(kind, tuple):
        flatten = VariableTracker.build(translator, tree_leaves)
        parts = flatten.call_function(translator, [value], {}).unpack_var_sequence(translator)
    else:
        return
    for part in parts:
        yield from _tensors(part, translator)


def guard_sizes_of(features: torch.Tensor, *, of_nodes: bool, any_rows: bool = False, fixed_width: bool = True) -> None:
    """Turn comparisons of sizes into guards of the compiled code. Call it in a trace, with a fake tensor.

    `of_nodes` is True for the first features of a call, which are those of nodes; others may be those of edges. With
    `any_rows` the number of rows is not compared, without `fixed_width` the width is not.
    """
    # A graph with one row gets compiled code of its own, since squeeze() would take the dim of rows for a feature dim.
    if any_rows:
        pass
    elif not of_nodes:
        if features.size(0) == 1:
            pass
    # If the number of nodes is known not to be 0, neither is the number of nodes plus a data-dependent number of edges,
    # and "if index.numel() == 0" does not break the graph of a layer that inserts self-loops. The comparison is "fewer
    # than 2", which PyTorch remembers as a range; from "not 0 and not 1" it would conclude nothing about the sum.
    elif features.size(0) < 2 and features.size(0) == 1:
        pass
    if fixed_width and features.dim() == 2:
        _compile_in(features.size(1))


def _compile_in(width: int | torch.SymInt) -> None:
    """Guard a width, so that its value stands in all shapes. PyTorch would keep the symbol of a width of 1, since it
    takes no size for 1 in questions that are to have the same answer for all sizes."""
    if isinstance(width, torch.SymInt):
        width.node.shape_env.size_like.discard(width.node.expr)
        int(width)
