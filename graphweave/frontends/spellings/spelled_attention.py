"""Attention that is spelled out -> one call of `graphweave.softmax_attention`, in Dynamo's graph.

    scores = q @ k.transpose(-1, -2) / sqrt(d) + bias
    scores = scores.masked_fill(mask, -inf)              ->   out = softmax_attention(q, k, v, bias, mask, -inf, ...)
    out = dropout(scores.softmax(-1)) @ v

Products may be `matmul`, `bmm`, `baddbmm` or `einsum` with any letters. Nothing else may read the scores or the
weights. The call stores no tensor of all pairs (`tracing/dense_batches.py`), and `segment_attention.py` leaves out the
padding of a dense batch in it. Its results are those of the softmax: NaN where all keys of a query are at -inf.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from graphweave.frontends.calls.captured_graph import ancestors
from graphweave.frontends.calls.captured_sizes import dim_of, fixed, hint
from graphweave.frontends.calls.dynamo_calls import ORIGIN, call_name, example, writes
from graphweave.frontends.spellings.spelled_products import LetterProduct, Letters, product_of, spreads

FEW_KEYS = 64
"""With so many keys or fewer in the call that is captured, the graph stays: its products are as fast, and the weights
are hardly larger than the rows. Where data decides the keys, they may be many."""

_NUMBERS = (torch.float32, torch.float64)
_SAME_VALUES = ("float", "double", "to", "type", "type_as", "contiguous", "clone")
"""Calls that give their operand's elements, if they give its dtype."""
_UNREAD = (
    *_SAME_VALUES,
    "view",
    "reshape",
    "flatten",
    "unflatten",
    "squeeze",
    "unsqueeze",
    "transpose",
    "permute",
    "getitem",
    "mean",
    "sum",
    "detach",
)
"""Calls that are not made if nobody reads their result: averages of weights, above all."""
_SUMS, _DIFFERENCES = ("add", "iadd", "add_"), ("sub", "isub", "sub_")
_PRODUCTS, _QUOTIENTS = ("mul", "imul", "mul_"), ("truediv", "itruediv", "div", "div_")
_FILLS = ("masked_fill", "masked_fill_")
_OF_EACH = (*_SUMS, *_DIFFERENCES, *_PRODUCTS, *_QUOTIENTS, *_FILLS, *_SAME_VALUES, "where")


def join_attention(gm: fx.GraphModule) -> bool:
    """In Dynamo's graph, replace attention that is spelled out by one call; whether there was any."""
    names = {call_name(node) for node in gm.graph.nodes}
    if "softmax" not in names or torch.is_autocast_enabled("cpu") or any(map(_needs_parts, gm.graph.nodes)):
        return False
    changed = False
    for node in list(gm.graph.nodes):
        found = _found(node)
        if found is not None:
            found.replace()
            changed = True
    if changed:
        gm.recompile()
    return changed


def _needs_parts(node: fx.Node) -> bool:
    """Whether a call changes the dtype of the calls that follow, or transforms or differentiates a part of the graph.
    The call that we make has no second derivative."""
    text = f"{getattr(node.target, '__module__', '')}.{node.target}"
    return "autocast" in text or "functorch" in text or node.target is torch.autograd.grad


@dataclass(frozen=True, slots=True)
class _Scores:
    """scale * product + the sum of factor * term, of which `fill` takes the place where a mask hides it. A mask hides
    where it is true, or else where it is false."""

    product: LetterProduct
    terms: tuple[tuple[float, fx.Node], ...]
    masks: tuple[tuple[fx.Node, bool], ...]
    fill: float
    scale: float


@dataclass(frozen=True, slots=True)
class _AttentionDims:
    """The letters of an attention's dims."""

    batch: Letters
    query: str
    key: str
    inner: str
    value: str

    @staticmethod
    def of(scores: LetterProduct, last: LetterProduct) -> _AttentionDims | None:
        """The dims of q @ k, scores, and of the product of weights with values, if that is what the two are."""
        batch, inner, key = scores.shared(), scores.summed(), last.summed()
        query, value = set(last.of_left) - batch - key, set(last.of_right) - batch - key
        if any(len(letters) != 1 for letters in (inner, key, query, value)) or len(batch) > 2:
            return None
        operands = (
            (scores.of_left, batch | query | inner),
            (scores.of_right, batch | key | inner),
            (last.of_left, batch | query | key),
            (last.of_right, batch | key | value),
            (last.of_out, batch | query | value),
        )
        if any(set(has) != wanted for has, wanted in operands):
            return None
        return _AttentionDims(tuple(x for x in last.of_left if x in batch), *query, *key, *inner, *value)


@dataclass(frozen=True, slots=True)
class _Attention:
    """Attention whose result is `node`, and the calls that only it needs."""

    node: fx.Node
    last: LetterProduct
    scores: _Scores
    dims: _AttentionDims
    dropped: float
    parts: frozenset[fx.Node]

    def replace(self) -> None:
        """Let one call take the place of all."""
        scores, dims, graph = self.scores, self.dims, self.node.graph
        before = self.node.prev
        with graph.inserting_before(self.node):
            q = _ordered(scores.product.left, scores.product.of_left, (*dims.batch, dims.query, dims.inner))
            k = _ordered(scores.product.right, scores.product.of_right, (*dims.batch, dims.key, dims.inner))
            v = _ordered(self.last.right, self.last.of_right, (*dims.batch, dims.key, dims.value))
            terms = [self._pairs(x if factor == 1 else _call(x, "mul", factor)) for factor, x in scores.terms]
            masks = [self._pairs(x if hides else _call(x, "logical_not")) for x, hides in scores.masks]
            bias, hidden = _join_parts(terms, "add"), _join_parts(masks, "logical_or")
            args = q, k, v, bias, hidden, scores.fill, scores.scale, self.dropped
            out = graph.call_function(torch.ops.graphweave.softmax_attention.default, args)
            order = (*dims.batch, dims.query, dims.value)
            out.meta["example_value"] = example(self.node).permute([self.last.of_out.index(x) for x in order])
            result = _ordered(out, order, self.last.of_out)
        while (before := before.next) is not self.node:
            before.meta.update({key: self.node.meta[key] for key in ORIGIN if key in self.node.meta})
        self.node.replace_all_uses_with(result)
        for node in sorted({self.node, *self.parts}, reverse=True):
            graph.erase_node(node)

    def _pairs(self, x: fx.Node) -> fx.Node:
        """A term or a mask of the scores, in our order of their dims."""
        order = (*self.dims.batch, self.dims.query, self.dims.key)
        if order != self.last.of_left:
            for _ in range(len(order) - example(x).dim()):
                x = _call(x, "unsqueeze", 0)
        return _ordered(x, self.last.of_left, order)


def _found(node: fx.Node) -> _Attention | None:
    last = product_of(node) if node.op.startswith("call") else None
    if last is None or last.term is not None:
        return None
    for side in (last, last.swapped()):
        found = _SearchOfScores(node).attention(side)
        if found is not None:
            return found
    return None


@dataclass(slots=True)
class _SearchOfScores:
    """The way back from a product to the scores of which its left operand is the softmax, and the calls on that way."""

    node: fx.Node
    parts: set[fx.Node] = field(default_factory=set)

    def attention(self, last: LetterProduct) -> _Attention | None:
        softmax, dropped = self._given(last.left, self.node), 0.0
        if softmax is not None and call_name(softmax) == "dropout":
            dropped = _dropped(softmax)
            softmax = self._given(softmax.args[0], softmax)
        if softmax is None or call_name(softmax) != "softmax" or not 0 <= dropped < 1:
            return None
        dim = softmax.args[1] if len(softmax.args) > 1 else softmax.kwargs.get("dim")
        if not isinstance(dim, int) or {last.of_left[dim_of(dim, len(last.of_left))]} != last.summed():
            return None
        scores = self._scores(softmax)
        if scores is None or example(softmax).dtype != example(scores.product.left).dtype:
            return None
        product = scores.product.renamed(dict(zip(scores.product.of_out, last.of_left, strict=True)))
        for side in (product, product.swapped()):
            dims = _AttentionDims.of(side, last)
            if dims is not None:
                scores = _Scores(side, scores.terms, scores.masks, scores.fill, scores.scale)
                self._add_unread()
                found = _Attention(self.node, last, scores, dims, dropped, frozenset(self.parts))
                return found if _is_possible(found) and self._is_alone() else None
        return None

    def _given(self, x: object, reader: fx.Node) -> fx.Node | None:
        """The call that gave `x` the elements that `reader` reads: the last one to write to it, or the one that made
        it, or from which it differs in strides alone."""
        if not isinstance(x, fx.Node) or not x.op.startswith("call"):
            return None
        node = max([x, *(u for u in x.users if u < reader and u.args and u.args[0] is x and writes(u))])
        self.parts.add(node)
        if call_name(node) in _SAME_VALUES and node.args and isinstance(node.args[0], fx.Node):
            before, after = example(node.args[0]), example(node)
            if before.dtype == after.dtype and before.device == after.device:
                return self._given(node.args[0], node)
        return node

    def _scores(self, softmax: fx.Node) -> _Scores | None:
        """The product, terms and masks of which the operand of a softmax is made, from the outside."""
        terms: list[tuple[float, fx.Node]] = []
        masks: list[tuple[fx.Node, bool]] = []
        fill, scale, reader = 0.0, 1.0, softmax
        inner: Any = softmax.args[0]
        while (node := self._given(inner, reader)) is not None:
            name, reader = call_name(node), node
            product = product_of(node)
            if product is not None:
                own = () if product.term is None else ((scale, product.term),)
                return _Scores(product, (*terms, *own), tuple(masks), fill, scale)
            masked = _masked(node)
            if masked is not None:
                inner, mask, hides, number = masked
                if terms or (masks and fill != number * scale):
                    return None
                masks.append((mask, hides))
                fill = number * scale
                continue
            inner, other = _operands(node, swap=name in (*_SUMS, *_PRODUCTS))
            if name in (*_SUMS, *_DIFFERENCES) and isinstance(other, fx.Node):
                terms.append((scale if name in _SUMS else -scale, other))
            elif name in (*_PRODUCTS, *_QUOTIENTS) and isinstance(other, int | float) and other > 0:
                scale = scale * other if name in _PRODUCTS else scale / other
            else:
                return None
        return None

    def _add_unread(self) -> None:
        """Add the calls on our way's results whose own results are never read."""
        unread: set[fx.Node] = set()
        for node in reversed(self.node.graph.nodes):
            if call_name(node) in _UNREAD and node not in self.parts and unread.issuperset(node.users):
                unread.add(node)
        self.parts |= {node for node in unread if not ancestors([node]).isdisjoint(self.parts)}

    def _is_alone(self) -> bool:
        """Whether nobody else reads what these calls give, and no other call writes while they are made."""
        at = min(self.parts)
        while at is not self.node:
            if at not in self.parts and writes(at):
                return False
            at = at.next
        return all(user is self.node or user in self.parts for part in self.parts for user in part.users)


def _operands(node: fx.Node, *, swap: bool) -> tuple[object, object]:
    """The operand of a call of two that has the scores, and the other one."""
    if len(node.args) != 2 or node.kwargs:
        return None, None
    x, y = node.args
    for inner, other in ((x, y), (y, x)) if swap else ((x, y),):
        if isinstance(inner, fx.Node) and _holds_product(inner):
            return inner, other
    return None, None


def _holds_product(node: fx.Node) -> bool:
    """Whether the elements of a product of matrices are among those of which `node` is made, one by one."""
    todo, seen = [node], set[fx.Node]()
    while todo:
        at = todo.pop()
        if product_of(at) is not None:
            return True
        if at not in seen and call_name(at) in _OF_EACH:
            todo += at.all_input_nodes
        seen.add(at)
    return False


def _masked(node: fx.Node) -> tuple[fx.Node, fx.Node, bool, float] | None:
    """The operand of a call that hides elements of it, the mask, whether that hides where it is true, and the number
    that takes their place."""
    name, args = call_name(node), node.args
    if len(args) != 3 or node.kwargs or name not in (*_FILLS, "where"):
        return None
    x, mask, fill = args if name in _FILLS else (args[2], args[0], args[1])
    hides = not isinstance(x, int | float)
    x, fill = (x, fill) if hides else (fill, x)
    if not isinstance(x, fx.Node) or not isinstance(mask, fx.Node) or not isinstance(fill, int | float):
        return None
    return x, mask, hides, float(fill)


def _dropped(node: fx.Node) -> float:
    """The share that a call of dropout drops; -1 if it is not known."""
    given = dict(zip(("input", "p", "training"), node.args, strict=False)) | dict(node.kwargs)
    share, training = given.get("p", 0.5), given.get("training", given.get("train", True))
    if not isinstance(share, int | float) or not isinstance(training, bool):
        return -1.0
    return float(share) if training else 0.0


def _is_possible(found: _Attention) -> bool:
    """Whether we compute such attention: of float32 or float64 on the CPU, with widths that are known, and no product
    is repeated along a dim."""
    scores, last, dims = found.scores, found.last, found.dims
    q, k, v, pairs = (example(x) for x in (scores.product.left, scores.product.right, last.right, last.left))
    keys = hint(k.shape[scores.product.of_right.index(dims.key)])
    inner = fixed(k.shape[scores.product.of_right.index(dims.inner)])
    value = fixed(v.shape[last.of_right.index(dims.value)])
    if not q.is_cpu or q.dtype not in _NUMBERS or not q.dtype == k.dtype == v.dtype:
        return False
    if not inner or not value or (keys is not None and keys <= FEW_KEYS):
        return False
    terms, masks = ([example(x) for _, x in scores.terms], [example(x) for x, _ in scores.masks])
    return all(isinstance(x, Tensor) and x.dtype == q.dtype and spreads(x, pairs.shape) for x in terms) and all(
        isinstance(x, Tensor) and x.dtype == torch.bool and spreads(x, pairs.shape) for x in masks
    )


def _ordered(x: fx.Node, has: Letters, order: Letters) -> fx.Node:
    """`x`, whose dims have these letters, in another order of them."""
    return x if has == order else _call(x, "permute", *(has.index(letter) for letter in order))


def _join_parts(parts: Sequence[fx.Node], method: str) -> fx.Node | None:
    found: fx.Node | None = None
    for part in parts:
        found = part if found is None else _call(found, method, part)
    return found


def _call(x: fx.Node, method: str, *args: float | str | fx.Node) -> fx.Node:
    """A call of a tensor's method, with its value."""
    node = x.graph.call_method(method, (x, *args))
    node.meta["example_value"] = getattr(example(x), method)(*map(example, args))
    return node
