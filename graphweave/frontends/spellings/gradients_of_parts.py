"""Puts the gradients of a tensor's parts one after the other, instead of padding each with zeros and adding all up.

Autograd adds up a gradient of the whole tensor for each part that a program takes out of it: x[:, t] for every step t
of a sequence, or x[start:end] for every graph of a batch. Each of them has the size of the whole tensor, and is zero
but for its part. Where the parts do not overlap, the sum is a concatenation.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from graphweave.frontends.calls.captured_graph import call, copy_of
from graphweave.frontends.calls.captured_sizes import argument, dim_of, fixed, is_tensor, rank, same, shape, val
from graphweave.frontends.calls.row_unions import bound

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class _PartGradient:
    """`node` is the gradient of a tensor: `grad` in start..end along `dim`, and zero elsewhere. `start` and `end` are
    in the form of `bound`."""

    node: fx.Node
    grad: fx.Node
    dim: int
    start: Any
    end: Any

    @property
    def is_item(self) -> bool:
        """Whether the part is one item of the dim, so that `grad` does not have the dim."""
        return self.node.target is aten.select_backward.default

    @property
    def is_whole(self) -> bool:
        return self.start == 0 and self.end == bound(shape(self.node)[self.dim])


@dataclass(frozen=True, slots=True)
class _Sum:
    """`calls` add up `terms`, of which `parts` can be put one after the other. The first call gives the sum."""

    calls: list[fx.Node]
    terms: list[fx.Node]
    parts: list[_PartGradient]


def join_gradients_of_parts(gm: fx.GraphModule) -> fx.GraphModule:
    """`gm`, or a copy in which a sum of gradients of parts is one concatenation, and the gradient of a part that is the
    whole tensor is the gradient itself."""
    if not _sums(gm.graph):
        return gm
    copy = copy_of(gm)
    for total in _sums(copy.graph):
        root, left = total.calls[0], list(total.terms)
        for part in total.parts:
            left.remove(part.node)
        with copy.graph.inserting_before(root):
            new = _join_parts(copy.graph, total.parts)
            for term in left:
                new = call(copy.graph, root, aten.add.Tensor, (new, term), val(root))
        root.replace_all_uses_with(new)
        for node in dict.fromkeys((*total.calls, *(part.node for part in total.parts))):
            if not node.users:
                copy.graph.erase_node(node)
    return join_gradients_of_parts(copy)  # what was left may hold parts that overlap with these


def _sums(graph: fx.Graph) -> list[_Sum]:
    """The sums of two or more gradients of parts, and the gradients of parts that are the whole."""
    inner: set[fx.Node] = set()
    found: list[_Sum] = []
    for node in reversed(graph.nodes):
        if node not in inner:
            total = _sum(node)
            inner.update(total.calls)
            if len(total.parts) > 1 or (len(total.terms) == 1 and total.parts and total.parts[0].is_whole):
                found.append(total)
    return found


def _sum(node: fx.Node) -> _Sum:
    """The terms that `node` adds up, through sums that nothing else reads; `node` itself if it is no sum."""
    calls, terms, todo = [node], list[fx.Node](), [node]
    while todo:
        x = todo.pop()
        if _adds(x) and (x is node or len(x.users) == 1):
            calls += [] if x is node else [x]
            todo += reversed(x.args[:2])  # type: ignore[arg-type]
        else:
            terms.append(x)
    return _Sum(calls, terms, _one_after_the_other([part for part in map(_part, terms) if part is not None]))


def _adds(node: fx.Node) -> bool:
    """Whether `node` is the sum of two tensors of its own shape and type."""
    if node.target is not aten.add.Tensor or argument(node, "alpha", 1) != 1:
        return False
    return all(is_tensor(x) and _alike(x, node) for x in node.args[:2])  # type: ignore[arg-type]


def _alike(x: fx.Node, y: fx.Node) -> bool:
    alike = val(x).dtype == val(y).dtype and rank(x) == rank(y)
    return alike and all(same(m, n) for m, n in zip(shape(x), shape(y), strict=True))


def _part(node: fx.Node) -> _PartGradient | None:
    """The part whose gradient `node` is; None for other calls, and for a part whose place is not known."""
    item = node.target is aten.select_backward.default
    if not item and (node.target is not aten.slice_backward.default or fixed(val(argument(node, "step"))) != 1):
        return None
    grad: Any = node.args[0]
    dim = dim_of(argument(node, "dim"), rank(node))
    start, size = val(argument(node, "index" if item else "start")), shape(node)[dim]
    if (fixed(start) or 0) < 0:
        start = start + size
    end = start + (1 if item else shape(grad)[dim])
    told = fixed(end) is not None or bound(end) in (bound(size), bound(argument(node, "index" if item else "end")))
    if not told or bound(start) == bound(end) or val(grad).dtype != val(node).dtype:
        return None
    return _PartGradient(node, grad, dim, bound(start), bound(end))


def _one_after_the_other(parts: Sequence[_PartGradient]) -> list[_PartGradient]:
    """Those of `parts` along the first one's dim that follow one another without overlapping, from the front on."""
    starts: dict[Any, _PartGradient] = {}
    for part in parts:
        if part.dim == parts[0].dim:
            starts.setdefault(part.start, part)
    found: list[_PartGradient] = []
    end: Any = 0
    while True:
        if end not in starts and isinstance(end, int):
            end = min((s for s in starts if isinstance(s, int) and s > end), default=end)
        if end not in starts:
            return found
        found.append(starts.pop(end))
        end = found[-1].end


def _join_parts(graph: fx.Graph, parts: Sequence[_PartGradient]) -> fx.Node:
    """The gradients of `parts` one after the other, with zeros where there are none."""
    last = parts[-1].node
    dim, size = parts[0].dim, shape(last)[parts[0].dim]
    if len(parts) > 1 and len(parts) == fixed(size) and all(part.is_item for part in parts):
        return call(graph, last, aten.stack.default, ([part.grad for part in parts], dim), val(last))
    pieces: list[fx.Node] = []
    end: Any = 0
    for part in parts:
        if part.start != end:
            pieces.append(_zeros(graph, part, part.start - end))
        pieces.append(_with_dim(graph, part))
        end = part.end
    if end != bound(size):
        pieces.append(_zeros(graph, parts[-1], _behind(graph, parts[-1])))
    return pieces[0] if len(pieces) == 1 else call(graph, last, aten.cat.default, (pieces, dim), val(last))


def _with_dim(graph: fx.Graph, part: _PartGradient) -> fx.Node:
    """The gradient of a part, with the dim along which it is one."""
    if not part.is_item:
        return part.grad
    return call(graph, part.node, aten.unsqueeze.default, (part.grad, part.dim), val(part.grad).unsqueeze(part.dim))


def _behind(graph: fx.Graph, part: _PartGradient) -> fx.Node | int:
    """How many items of the dim follow the part."""
    sizes: Any = argument(part.node, "input_sizes")
    end = part.end if isinstance(part.end, int) else argument(part.node, "end")
    rest = shape(part.node)[part.dim] - val(end)
    number = fixed(rest)
    return call(graph, part.node, operator.sub, (sizes[part.dim], end), rest) if number is None else number


def _zeros(graph: fx.Graph, part: _PartGradient, count: fx.Node | int) -> fx.Node:
    """A gradient, of zeros, for `count` items next to a part."""
    sizes: Any = list(argument(part.node, "input_sizes"))
    sizes[part.dim] = count
    value = val(part.grad).new_empty([val(size) for size in sizes])
    return call(graph, part.node, aten.new_zeros.default, (part.grad, sizes), value)
