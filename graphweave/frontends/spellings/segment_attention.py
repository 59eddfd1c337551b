"""Attention over a dense batch -> attention of each row to the rows of its own graph, without the padding.

    h, mask = to_dense_batch(x, batch)                    q, k, v = linear(x)
    h = attention(linear(h), ..., mask)              ->   h = segment_attention(q, k, v, ptr, ptr)
    h = linear(h)[mask]                                   h = linear(h)

All calls between the batch and the choice of its real rows must keep rows apart (`padded_rows.py`); others leave the
graph as it is. What is computed for the padding is never read, so results are the same. Masks may hide more than the
padding, and shift scores (`pair_masks.py`). What dropout drops is drawn for the rows alone.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from graphweave.frontends.calls.captured_sizes import fixed, same
from graphweave.frontends.calls.dynamo_calls import ORIGIN, call_name, example, writes
from graphweave.frontends.spellings import pair_masks
from graphweave.frontends.spellings.padded_rows import (
    GRAPHS,
    PLACES,
    RULES,
    Dims,
    Known,
    Mask,
    Padded,
    Padding,
    Value,
    as_dim,
    features,
    is_features,
    masked,
    width,
)

_SOFTMAX = "graphweave.softmax_attention"
_ATTENTION = ("scaled_dot_product_attention", "graphweave.dense_attention", _SOFTMAX)
_ROWS, _MASK = "graphweave.dense_rows", "graphweave.dense_mask"
_NUMBERS = (torch.float32, torch.float64)
_NUM_SEEDS = (1 << 63) - 1
"""Exclusive upper limit of the seeds that are drawn."""


def attention_by_segments(gm: fx.GraphModule) -> set[tuple[torch.dtype, int, int]]:
    """In Dynamo's graph, replace attention over dense batches by attention over the segments of their rows. The dtypes
    and the widths of keys and values of such attention; none if the graph stays as it is."""
    names = [call_name(node) for node in gm.graph.nodes]
    if _ROWS not in names or not set(_ATTENTION).intersection(names) or torch.is_autocast_enabled("cpu"):
        return set()
    search = _PaddedAttention(gm.graph)
    if search.run():
        kinds = {_DenseAttention.of(node).kind() for node in search.attended}
        search.replace()
    else:
        kinds = set()
        for node in reversed(search.made):
            gm.graph.erase_node(node)
    gm.recompile()
    return kinds


@dataclass(slots=True)
class _PaddedAttention:
    """The known values of the calls of a graph, the nodes that were `made` on the way, and which nodes they replace."""

    graph: fx.Graph
    known: dict[fx.Node, Value] = field(default_factory=dict)
    made: list[fx.Node] = field(default_factory=list)
    replaced: dict[fx.Node, fx.Node] = field(default_factory=dict)
    attended: list[fx.Node] = field(default_factory=list)
    """Calls of attention whose rows are known."""
    drawn: list[fx.Node] = field(default_factory=list)
    """Other calls whose rows are known, and which draw random numbers."""
    derived: set[fx.Node] = field(default_factory=set)
    """Nodes that are computed from padded tensors by calls of which nothing is known."""

    def run(self) -> bool:
        """Whether something can be replaced, and no call of attention would then be computed twice."""
        nodes = list(self.graph.nodes)
        for node, following in pairwise(nodes):
            if "autocast" in str(node.target):
                return False
            with self.graph.inserting_before(following):
                if not self._visit(node):
                    return False
            at = node.next
            while at is not following:
                at.meta.update({key: node.meta[key] for key in ORIGIN if key in node.meta})
                self.made.append(at)
                at = at.next
        return bool(self.attended) and not self._live(nodes).intersection(self.attended + self.drawn)

    def replace(self) -> None:
        """Make what was found take the place of the calls, and erase those that are then not needed: one that draws
        random numbers would be made in any case."""
        nodes = [node for node in self.graph.nodes if node not in self.made]
        unused = [node for node in nodes if node.users or node.target is getattr]
        for node, new in self.replaced.items():
            node.replace_all_uses_with(new)
        for node in reversed(unused):
            if not node.users and node.op.startswith("call") and not writes(node):
                self.graph.erase_node(node)

    def _visit(self, node: fx.Node) -> bool:
        """Learn about one call. False if it writes to a padded tensor, after which its rows are not known."""
        if writes(node):
            target = node.args[0] if node.args else None
            value = masked(node, self.known)
            if value is None and (target in self.known or target in self.derived):
                return False
        else:
            value = self._value(node)
        if value is not None:
            self.known[node] = value
        elif node not in self.replaced and any(n in self.known or n in self.derived for n in node.all_input_nodes):
            self.derived.add(node)
        return True

    def _value(self, node: fx.Node) -> Value | None:
        name = call_name(node)
        if name in (_ROWS, _MASK):
            return _dense(node, name)
        if name in _ATTENTION:
            return self._attention(node)
        if name == "getitem" and isinstance(node.args[1], fx.Node):
            self._choose(node)
            return None
        for rules in (RULES, pair_masks.RULES):
            found = rules[name](node, self.known) if name in rules else None
            if found is not None:
                if name == "dropout" and found is not self.known.get(node.args[0]):  # type: ignore[arg-type]
                    self.drawn.append(node)
                return found
        return None

    def _choose(self, node: fx.Node) -> None:
        """The real rows of a padded tensor are the rows that are known."""
        x, mask = (self.known.get(a) if isinstance(a, fx.Node) else None for a in node.args)
        if not isinstance(x, Padded) or not isinstance(mask, Mask) or mask.kind != "real" or x.padding != mask.padding:
            return
        both: Dims = ((GRAPHS,), (PLACES,))
        if mask.dims != both or x.dims[:2] != both:
            return
        rows = self.graph.call_method("reshape", (x.rows, (-1, *(width(dim) for dim in x.dims[2:]))))
        self.replaced[node] = self.graph.call_method("clone", (rows,))  # others may write to the result

    def _attention(self, node: fx.Node) -> Value | None:
        call = _DenseAttention.of(node)
        q, k, v = (self.known.get(a) for a in (call.q, call.k, call.v))
        if not isinstance(k, Padded) or not isinstance(v, Padded) or k.padding != v.padding or not call.is_possible():
            return None
        keys, values = _heads(k), _heads(v)
        if keys is None or values is None or k.dims[:-1] != v.dims[:-1] or not call.hides(self.known, k, q):
            return None
        ptr = k.padding.ptr
        if isinstance(q, Padded):
            queries = _heads(q)
            if queries is None or q.padding != k.padding or q.dims[:-1] != k.dims[:-1]:
                return None
            self.attended.append(node)
            rows = self._call(queries, keys, values, ptr, ptr, call, *self._terms(call, k, node.next))
            dims = tuple(as_dim(width(dim)) if is_features(dim) else dim for dim in v.dims)
            return Padded(self.graph.call_method("reshape", (rows, (-1, *features(dims)))), dims, v.padding)
        count = call.queries_of_each(k.padding)
        if count:
            self.attended.append(node)
            self.replaced[node] = self._attend_from_others(call, keys, values, ptr, count)
        return None

    def _terms(self, call: _DenseAttention, k: Padded, at: fx.Node) -> tuple[object, ...]:
        """The terms of the scores: a bias, codes and their table, edges and their numbers, and the mask of the pairs
        that are hidden."""
        do, q, nothing = self.graph.call_method, example(call.q), (None,) * 5
        if call.is_causal:
            shape = (1, 1, k.padding.longest, k.padding.longest)
            later = self.graph.call_function(torch.full, (shape, -math.inf), {"dtype": q.dtype})
            return do("triu", (later, 1)), *nothing
        hidden = None
        if call.hidden is not None and not _tells_padding_alone(self.known.get(call.hidden)):
            hidden = self._in_four_dims(call.hidden, k)
        mask = call.mask
        if mask is None or _tells_padding_alone(self.known.get(mask)):
            return *nothing, hidden
        if example(mask).dtype == torch.bool:
            return *nothing, do("logical_not", (self._in_four_dims(mask, k),))
        if example(mask).dim() == 4:
            parts = pair_masks.parts_of(mask, self.known, k.padding, at)
        else:
            parts = pair_masks.ShiftParts([self._in_four_dims(mask, k)])
        bias = None
        for part in parts.dense:
            bias = part if bias is None else do("add", (bias, part))
        codes, table = parts.lookup or (None, None)
        edges, numbers = parts.edges or (None, None)
        if numbers is not None:
            numbers = do("expand", (numbers, -1, q.shape[1]))
        return bias, codes, table, edges, numbers, hidden

    def _in_four_dims(self, pairs: fx.Node, k: Padded) -> fx.Node:
        """A tensor of pairs as [graphs, heads, queries, keys], of which any may be 1. Its attention to `k` may have no
        heads, or graphs and heads in one dim."""
        do, heads = self.graph.call_method, width(k.dims[0][1:])
        for _ in range(len(k.dims) - example(pairs).dim()):
            pairs = do("unsqueeze", (pairs, 0))
        if len(k.dims) == 4:
            return pairs
        whole = example(pairs).dim() == 3 and fixed(example(pairs).shape[0]) != 1
        return do("unflatten", (pairs, 0, (-1, heads))) if whole and heads > 1 else do("unsqueeze", (pairs, 1))

    def _attend_from_others(
        self, call: _DenseAttention, keys: fx.Node, values: fx.Node, ptr: fx.Node, count: int
    ) -> fx.Node:
        """Attention of `count` queries for each graph, such as the seeds of a pooling layer: [graphs, heads, count,
        width]."""
        do = self.graph.call_method
        queries = do("flatten", (do("transpose", (call.q, 1, 2)), 0, 1))
        numbers = do("cumsum", (self.graph.call_function(torch.ones_like, (ptr,)), 0))
        ends = do("mul", (do("sub", (numbers, 1)), count))
        rows = self._call(queries, keys, values, ends, ptr, call)
        return do("transpose", (do("unflatten", (rows, 0, (-1, count))), 1, 2))

    def _call(
        self, q: fx.Node, k: fx.Node, v: fx.Node, q_ptr: fx.Node, k_ptr: fx.Node, call: _DenseAttention, *terms: object
    ) -> fx.Node:
        attend = torch.ops.graphweave.segment_attention.default
        seed = self.graph.call_function(torch.randint, (_NUM_SEEDS, ())) if call.dropped else None
        shifts = terms or (None,) * 6
        args = q, k, v, q_ptr, k_ptr, call.scale, *shifts, call.fill, call.is_softmax, seed, call.dropped
        return self.graph.call_function(operator.getitem, (self.graph.call_function(attend, args), 0))

    def _live(self, nodes: list[fx.Node]) -> set[fx.Node]:
        """The nodes that are still computed once those that are `replaced` are."""
        roots = [n for n in nodes if not n.users and n not in self.made and n.target is not getattr]
        found: set[fx.Node] = set()
        while roots:
            node = roots.pop()
            node = self.replaced.get(node, node)
            if node not in found:
                found.add(node)
                roots += node.all_input_nodes
        return found


def _dense(node: fx.Node, name: str) -> Value | None:
    """The known value of a dense batch or its mask, which the operators of `tracing/dense_batches.py` make."""
    batch, ptr, graphs, places = node.args[-4:]
    assert isinstance(batch, fx.Node) and isinstance(ptr, fx.Node) and isinstance(places, fx.Node | int)
    padding = Padding(batch, ptr, places, example(graphs), example(places))
    if fixed(padding.graphs) in (0, 1) or fixed(padding.places) in (0, 1):
        return None  # a dim of one graph could not be told from a dim of one feature
    both: Dims = ((GRAPHS,), (PLACES,))
    if name == _MASK:
        return Mask("real", both, padding)
    rows = node.args[0]
    assert isinstance(rows, fx.Node)
    sizes = [fixed(size) for size in example(rows).shape[1:]]
    dims = both + tuple(as_dim(size) for size in sizes if size)
    if len(dims) != 2 + len(sizes):
        return None
    own = node.graph.call_method("clone", (rows,))  # the graph may write to x later
    return Padded(node.graph.call_method("reshape", (own, (-1, *features(dims)))), dims, padding)


def _heads(x: Padded) -> fx.Node | None:
    """The rows [rows, heads, width] of operands [graphs, heads, places, width], or [graphs * heads, places, width]."""
    dims = x.dims if len(x.dims) == 4 else (x.dims[0][:1], x.dims[0][1:], *x.dims[1:])
    fits = len(dims) == 4 and dims[0] == (GRAPHS,) and dims[2] == (PLACES,)
    if not fits or not is_features(dims[1]) or not is_features(dims[3]):
        return None
    return x.rows.graph.call_method("reshape", (x.rows, (-1, width(dims[1]), width(dims[3]))))


def _tells_padding_alone(mask: Value | None) -> bool:
    return isinstance(mask, Mask) and mask.kind in ("real", "added", "padding")


@dataclass(frozen=True, slots=True)
class _DenseAttention:
    """The operands of a call of attention. `mask` is what PyTorch's function takes, a shift of the scores or bools that
    are true where they count; where `hidden` is true, `fill` takes their place."""

    q: fx.Node
    k: fx.Node
    v: fx.Node
    mask: fx.Node | None
    hidden: fx.Node | None
    fill: float
    scale: Any
    dropped: Any
    is_causal: bool
    is_softmax: bool
    """Whether a query that reads nothing has NaN."""
    groups: bool
    """Whether several heads of queries may share one of keys."""

    @staticmethod
    def of(node: fx.Node) -> _DenseAttention:
        if call_name(node) == _SOFTMAX:
            q, k, v, bias, hidden, fill, scale, dropped = node.args
            return _DenseAttention(q, k, v, bias, hidden, fill, scale, dropped, False, True, False)  # type: ignore[arg-type]
        names = ("attn_mask", "dropout_p", "is_causal", "scale")
        operands = [*node.args, *(node.kwargs[n] for n in ("query", "key", "value") if n in node.kwargs)]
        q, k, v = operands[:3]
        given: dict[str, Any] = dict(zip(names, operands[3:], strict=False)) | dict(node.kwargs)
        scale = given.get("scale")
        scale = float(example(q).shape[-1]) ** -0.5 if scale is None else scale
        dropped, causal, groups = (
            given.get("dropout_p") or 0.0,
            bool(given.get("is_causal")),
            bool(given.get("enable_gqa")),
        )
        return _DenseAttention(q, k, v, given.get("attn_mask"), None, -math.inf, scale, dropped, causal, False, groups)  # type: ignore[arg-type]

    def is_possible(self) -> bool:
        """Whether we compute such attention: of float32 or float64 on the CPU, which drops less than everything."""
        q = example(self.q)
        return (
            q.is_cpu and q.dtype in _NUMBERS and isinstance(self.scale, int | float)
            and isinstance(self.dropped, int | float) and 0 <= self.dropped < 1 and not self.groups
        )  # fmt: skip

    def kind(self) -> tuple[torch.dtype, int, int]:
        """The dtype, and the widths of keys and values, which are numbers."""
        k, v = example(self.k), example(self.v)
        return k.dtype, int(k.shape[-1]), int(v.shape[-1])

    def hides(self, known: Known, k: Padded, q: Value | None) -> bool:
        """Whether real queries read real keys only. Under a causal mask, keys that are padding come later than they."""
        if self.is_causal:
            return self.mask is None and isinstance(q, Padded)
        mask, hidden = known.get(self.mask), known.get(self.hidden)  # type: ignore[arg-type]
        alone = ("real", "added") if self.hidden is None else ("padding",)
        found = mask if self.hidden is None else hidden
        if not isinstance(found, Mask) or found.padding != k.padding or not pair_masks.fits(found, len(k.dims)):
            return False
        if found.kind in alone and (self.hidden is None or self.fill <= pair_masks.LOWEST):
            return True
        of_pairs = found.kind == "hides" if self.hidden is None else found.kind == "hidden" and self.fill == -math.inf
        return of_pairs and isinstance(q, Padded)

    def queries_of_each(self, padding: Padding) -> int | None:
        """How many queries each graph has, if they are [graphs, heads, queries, width] and not padded. A softmax gives
        the queries of a graph without rows NaN, or the mean of its padding, which nobody reads otherwise."""
        shape = example(self.q).shape
        fits = len(shape) == 4 and same(shape[0], padding.graphs) and not self.is_softmax
        return fixed(shape[2]) if fits else None
