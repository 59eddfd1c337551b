"""Masks and shifts of the scores of attention over a dense batch: which of them hide the padding, and their parts.

A shift is a tensor of pairs of places that is added to scores: numbers of edges, rows of a table that a code of each
pair chooses, anything else. `RULES` find out whether a tensor of pairs is false, or -inf, where the key is padding.
Since such keys are never read, `parts_of` may leave out where the padding was hidden, and find the parts of which
the shift is the sum.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from graphweave.frontends.calls.captured_graph import ancestors
from graphweave.frontends.calls.captured_sizes import fixed, same
from graphweave.frontends.calls.dynamo_calls import call_name, example, writes
from graphweave.frontends.spellings.padded_rows import (
    GRAPHS,
    OTHERS,
    PLACES,
    Dims,
    Known,
    Mask,
    Padding,
    Part,
    Rule,
    as_dim,
    is_features,
)

LOWEST = -1e9
"""A score that is filled with this number or less stands for one of -inf: its exponential is 0."""
_EDGES = "graphweave.dense_edges"
_LOOKUP = inspect.signature(F.embedding)


def _filled(node: fx.Node, known: Known) -> Mask | None:
    """`masked_fill` of a tensor of pairs."""
    if call_name(node) == "masked_fill" and len(node.args) == 3:
        return _hidden(node, known, *node.args)
    return None


def _chosen(node: fx.Node, known: Known) -> Mask | None:
    """`where` with a mask of the padding, or of the real rows."""
    if len(node.args) != 3 or node.kwargs:
        return None
    mask, x, y = node.args
    kind = _mask_of(mask, known, "padding", "real")
    if kind is None:
        return None
    return _hidden(node, known, y, mask, x) if kind.kind == "padding" else _hidden(node, known, x, mask, y)


def _hidden(node: fx.Node, known: Known, x: object, mask: object, fill: object) -> Mask | None:
    """The tensor `x` of which `fill` takes the place at the padding, or at pairs that a mask of bools chooses."""
    hides, before = (isinstance(fill, int | float) and fill <= LOWEST), _mask_of(x, known, "hides", "added")
    padding = _mask_of(mask, known, "padding", "real")
    if padding is None:
        return _of_pairs(node, before) if before is not None and hides else None
    if before is not None and not hides:
        if len(padding.dims) != len(before.dims):
            return None
        apart = (m != (PLACES,) or o == (OTHERS,) for m, o in zip(padding.dims, before.dims, strict=True))
        return before if all(apart) else None
    return _of_pairs(node, padding, before) if hides else None


def _added(node: fx.Node, known: Known) -> Mask | None:
    """A sum, of which one operand hides the padding."""
    masks = [_mask_of(a, known, "hides", "added") for a in node.args]
    return _of_pairs(node, *masks) if len(masks) == 2 and not node.kwargs else None


def _both(node: fx.Node, known: Known) -> Mask | None:
    """The logical and of masks, of which one hides the padding."""
    masks = [_mask_of(a, known, "hides", "real") for a in node.args]
    found = _of_pairs(node, *masks) if len(masks) == 2 else None
    return found if found is not None and example(node).dtype == torch.bool else None


def _either(node: fx.Node, known: Known) -> Mask | None:
    """The logical or of masks, of which one is true at the padding."""
    masks = [_mask_of(a, known, "padding", "hidden") for a in node.args]
    found = _of_pairs(node, *masks) if len(masks) == 2 else None
    return replace(found, kind="hidden") if found is not None and example(node).dtype == torch.bool else None


RULES: Mapping[str, Rule] = {
    "masked_fill": _filled,
    "where": _chosen,
    "add": _added,
    **dict.fromkeys(("and", "logical_and", "mul"), _both),
    **dict.fromkeys(("or", "logical_or"), _either),
}
"""Name of a call -> its rule, for calls whose result hides the padding."""


def _mask_of(arg: object, known: Known, *kinds: str) -> Mask | None:
    found = known.get(arg) if isinstance(arg, fx.Node) else None
    return found if isinstance(found, Mask) and found.kind in kinds else None


def _of_pairs(node: fx.Node, *masks: Mask | None) -> Mask | None:
    """The result of a call that hides what the masks hide, of one padding."""
    hiding = [m for m in masks if m is not None]
    value = example(node)
    if not hiding or not isinstance(value, Tensor) or any(m.padding != hiding[0].padding for m in hiding):
        return None
    padding, rank = hiding[0].padding, value.dim()
    dims = [((),) * (rank - len(m.dims)) + m.dims for m in hiding]
    joint = [_joint(parts, size, padding) for *parts, size in zip(*dims, value.shape, strict=True)]
    return None if None in joint else Mask("hides", tuple(dim or () for dim in joint), padding)


def _joint(parts: Sequence[tuple[Part, ...]], size: int, padding: Padding) -> tuple[Part, ...] | None:
    """The parts of a dim, of which masks have these, and others what its size tells."""
    own = [dim for dim in parts if dim not in ((), (OTHERS,))]
    if own:
        return own[0] if all(dim == own[0] for dim in own) else None
    if (count := fixed(size)) is not None:
        return as_dim(count)
    return (OTHERS,) if same(size, padding.places) else None


# ---------------------------------------------------------------- the parts of a shift


@dataclass(slots=True)
class ShiftParts:
    """The parts whose sum is a shift of [graphs, heads, queries, keys]: tensors that broadcast to it, at most one
    lookup by codes [graphs, queries, keys] of rows of a table [rows, heads], and at most one matrix of edges [2, edges]
    with numbers [edges, heads or 1]."""

    dense: list[fx.Node] = field(default_factory=list)
    lookup: tuple[fx.Node, fx.Node] | None = None
    edges: tuple[fx.Node, fx.Node] | None = None


def parts_of(shift: fx.Node, known: Known, padding: Padding, at: fx.Node) -> ShiftParts:
    """The parts of a shift [graphs, heads, queries, keys] for a call that stands before `at`. Dense ones have four
    dims."""
    found = _ShiftSearch(known, padding, at)
    found.follow(shift, heads_last=False)
    apart = found.parts.lookup is not None or found.parts.edges is not None
    return found.parts if apart else ShiftParts([shift])


@dataclass(slots=True)
class _ShiftSearch:
    known: Known
    padding: Padding
    at: fx.Node
    parts: ShiftParts = field(default_factory=ShiftParts)

    def follow(self, node: Any, *, heads_last: bool) -> None:
        """Add the parts of one operand, whose dim of heads is the last or the second one."""
        name = call_name(node)
        if name == "masked_fill" and _mask_of(node.args[1], self.known, "padding") is not None:
            return self.follow(node.args[0], heads_last=heads_last)
        if name == "add" and not node.kwargs and all(isinstance(a, fx.Node) for a in node.args):
            for operand in node.args:
                if _mask_of(operand, self.known, "added") is None:
                    self.follow(operand, heads_last=heads_last)
            return None
        if name == "permute" and not heads_last and _order(node) == (0, 3, 1, 2):
            return self.follow(node.args[0], heads_last=True)
        if not self._take(node, name, heads_last=heads_last):
            self.parts.dense.append(_in_four_dims(node, heads_last=heads_last))
        return None

    def _take(self, node: fx.Node, name: str, *, heads_last: bool) -> bool:
        """Whether this is the first lookup, or the first matrix of edges, which need no tensor of pairs."""
        if example(node).dim() != 4:
            return False
        if name == "embedding" and heads_last and self.parts.lookup is None:
            self.parts.lookup = self._lookup(node)
            return self.parts.lookup is not None
        one = not heads_last and name == "unsqueeze" and node.args[1:] == (1,)
        matrix = node.args[0] if one else node
        if not isinstance(matrix, fx.Node) or call_name(matrix) != _EDGES or not (one or heads_last):
            return False
        if not self._has_edges(matrix):
            return False
        numbers, edges = matrix.args[:2]
        assert isinstance(numbers, fx.Node) and isinstance(edges, fx.Node)
        self.parts.edges = edges, node.graph.call_method("unsqueeze", (numbers, 1)) if one else numbers
        return True

    def _lookup(self, node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
        """The codes and the table of a lookup, without a gradient for its row of padding."""
        given = _LOOKUP.bind(*node.args, **node.kwargs)
        given.apply_defaults()
        asked = given.arguments
        codes, table, row = asked["input"], asked["weight"], asked["padding_idx"]
        if asked["sparse"] or asked["scale_grad_by_freq"] or asked["max_norm"] is not None:
            return None
        if not isinstance(codes, fx.Node) or not isinstance(table, fx.Node) or self._written_since(node, codes, table):
            return None
        return codes, table if row is None else node.graph.call_function(without_gradient, (table, row))

    def _has_edges(self, node: fx.Node) -> bool:
        """Whether this is the matrix of edges of the same rows, and the first one found."""
        batch = self.padding.batch
        numbers, edges = node.args[:2]
        assert isinstance(numbers, fx.Node) and isinstance(edges, fx.Node)
        same_rows = node.args[2] is batch and self.parts.edges is None
        return same_rows and not self._written_since(node, numbers, edges)

    def _written_since(self, node: fx.Node, *read: fx.Node) -> bool:
        """Whether a call between the two may write to what `node` has read."""
        sources, at = ancestors(read), node
        while at is not self.at:
            at = at.next
            if writes(at) and not ancestors(at.all_input_nodes[:1]).isdisjoint(sources):
                return True
        return False


def _order(node: fx.Node) -> tuple[int, ...]:
    given = node.args[1:] or tuple(node.kwargs.values())
    dims = given[0] if len(given) == 1 and isinstance(given[0], tuple | list) else given
    return tuple(d % 4 if isinstance(d, int) else -1 for d in dims)


def _in_four_dims(node: fx.Node, *, heads_last: bool) -> fx.Node:
    """A part as [graphs, heads, queries, keys], of which any may be 1."""
    graph = node.graph
    for _ in range(4 - example(node).dim()):
        node = graph.call_method("unsqueeze", (node, 0))
    return graph.call_method("permute", (node, 0, 3, 1, 2)) if heads_last else node


def without_gradient(table: Tensor, row: int) -> Tensor:
    """The table, of which one row has no gradient."""
    chosen = torch.arange(table.size(0), device=table.device) == row % table.size(0)
    return torch.where(chosen[:, None], table.detach(), table)


def fits(mask: Mask, rank: int) -> bool:
    """Whether a mask, [graphs, heads, queries, keys], without heads or with both in one dim, tells of all keys whether
    they are padding."""
    dims: Dims = mask.dims
    return (
        len(dims) == rank
        and dims[0][:1] == (GRAPHS,)
        and is_features(dims[0][1:])
        and dims[-1] == (PLACES,)
        and dims[-2] in ((), (PLACES,), (OTHERS,))
        and all(map(is_features, dims[1:-2]))
    )
