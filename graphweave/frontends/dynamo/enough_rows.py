"""Guards on sizes that a capture assumes. For instance, `x[1:]` has one row less than x, but x may have no rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.fx.experimental import _config as shape_config
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._pytree import tree_leaves
from torch.utils._sympy.value_ranges import bound_sympy

from graphweave.frontends.dynamo.captured_sizes import hint, unbacked


class TooFewRows(Exception):
    """This call has fewer rows than a slice in it leaves out, so it has to be captured for its own sizes."""


def guard_sizes(module: fx.GraphModule) -> None:
    """Add a guard for every size in a captured graph that smaller arguments would make negative.

    Under `backed_size_oblivious` PyTorch assumes that a slice lies within its tensor, whatever the tensor's size is.
    With the guard, a call with fewer rows is compiled again. If this call has fewer rows, its capture is wrong, and
    TooFewRows is raised.
    """
    seen: set[Any] = set()
    # With the setting every size counts as 2 or more, so no guard would be added.
    with shape_config.patch(backed_size_oblivious=False):  # type: ignore[attr-defined]
        for value in (v for node in module.graph.nodes for v in tree_leaves(node.meta.get("val"))):
            for size in value.shape if isinstance(value, torch.Tensor) else ():
                if isinstance(size, torch.SymInt) and size.node.expr not in seen and not unbacked(size):
                    seen.add(size.node.expr)
                    _guard(size)


def _guard(size: torch.SymInt) -> None:
    rows, env = hint(size), size.node.shape_env
    if rows is None or bound_sympy(size.node.expr, env.var_to_range).lower >= 0:
        return
    if rows < 0:
        raise TooFewRows(
            f"a slice of a captured tensor has {size} = {rows} rows. Report this: the trace that follows, with "
            "0 and 1 rows apart, must not come to it."
        )
    # sympy takes the symbol of a size as positive, so "s - 1 >= 0" would be no guard; one row has its own code anyway.
    bool(size >= (1 if rows and statically_known_true(size >= 0) else 0))
