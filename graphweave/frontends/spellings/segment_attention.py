"""Attention over a dense batch -> attention of each row to the rows of its own graph, without the padding.

    h, mask = to_dense_batch(x, batch)                    q, k, v = linear(x)
    h = attention(linear(h), ..., mask)              ->   h = segment_attention(q, k, v, ptr, ptr)
    h = linear(h)[mask]                                   h = linear(h)

All calls between the batch and the choice of its real rows must keep rows apart (`padded_rows.py`); others leave the
graph as it is. What is computed for the padding is never read, so results are the same.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from graphweave.frontends.calls.captured_sizes import fixed, same
from graphweave.frontends.spellings.padded_rows import (
    GRAPHS,
    PLACES,
    RULES,
    Dims,
    Mask,
    Padded,
    Padding,
    Value,
    as_dim,
    call_name,
    example,
    features,
    is_features,
    masked,
    width,
    writes,
)

_ATTENTION, _FUSED = "scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu"
_ROWS, _MASK = "graphweave.dense_rows", "graphweave.dense_mask"
_ORIGIN = ("stack_trace", "nn_module_stack", "source_fn_stack")
"""The fields in which PyTorch notes where a call comes from."""
_NUMBERS = (torch.float32, torch.float64)


def attention_by_segments(gm: fx.GraphModule) -> bool:
    """In Dynamo's graph, replace attention over dense batches by attention over the segments of their rows; whether
    there was such."""
    names = [call_name(node) for node in gm.graph.nodes]
    if _ROWS not in names or not {_ATTENTION, _FUSED}.intersection(names) or torch.is_autocast_enabled("cpu"):
        return False
    search = _PaddedAttention(gm.graph)
    found = search.run()
    if found:
        for node, new in search.replaced.items():
            node.replace_all_uses_with(new)
    else:
        for node in reversed(search.made):
            gm.graph.erase_node(node)
    gm.recompile()
    return found


@dataclass(slots=True)
class _PaddedAttention:
    """The known values of the calls of a graph, the nodes that were `made` on the way, and which nodes they replace."""

    graph: fx.Graph
    known: dict[fx.Node, Value] = field(default_factory=dict)
    made: list[fx.Node] = field(default_factory=list)
    replaced: dict[fx.Node, fx.Node] = field(default_factory=dict)
    attended: list[fx.Node] = field(default_factory=list)
    """Calls of attention whose rows are known."""
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
                at.meta.update({key: node.meta[key] for key in _ORIGIN if key in node.meta})
                self.made.append(at)
                at = at.next
        return bool(self.attended) and not self._live(nodes).intersection(self.attended)

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
        if name in (_ATTENTION, _FUSED):
            return self._attention(node, name)
        if name == "getitem" and isinstance(node.args[1], fx.Node):
            self._choose(node)
            return None
        rule = RULES.get(name)
        return None if rule is None else rule(node, self.known)

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

    def _attention(self, node: fx.Node, name: str) -> Value | None:
        call = _DenseAttention.of(node, name)
        several = name == _FUSED  # results, of which the first is wanted
        k, v, mask = (self.known.get(a) if isinstance(a, fx.Node) else None for a in (call.k, call.v, call.mask))
        if not isinstance(k, Padded) or not isinstance(v, Padded) or not isinstance(mask, Mask) or not call.is_plain():
            return None
        if not mask.padding == k.padding == v.padding or not _hides_padding(mask, len(k.dims)):
            return None
        q, keys, values = self.known.get(call.q), _heads(k), _heads(v)
        if keys is None or values is None or k.dims[:-1] != v.dims[:-1]:
            return None
        ptr = k.padding.ptr
        if isinstance(q, Padded):
            queries = _heads(q)
            if queries is None or q.padding != k.padding or q.dims[:-1] != k.dims[:-1]:
                return None
            self.attended.append(node)
            rows = self._call(queries, keys, values, ptr, ptr, call)
            dims = tuple(as_dim(width(dim)) if is_features(dim) else dim for dim in v.dims)
            padded = Padded(self.graph.call_method("reshape", (rows, (-1, *features(dims)))), dims, v.padding)
            return (padded,) if several else padded
        wanted = list(node.users) if several else [node]
        count = call.queries_of_each(k.padding)
        if count and (not several or all(call_name(n) == "getitem" and n.args[1] == 0 for n in wanted)):
            self.attended.append(node)
            out = self._attend_from_others(call, keys, values, ptr, count)
            for each in wanted:
                self.replaced[each] = out
        return None

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
        self, q: fx.Node, k: fx.Node, v: fx.Node, q_ptr: fx.Node, k_ptr: fx.Node, call: _DenseAttention
    ) -> fx.Node:
        attend = torch.ops.graphweave.segment_attention.default
        both = self.graph.call_function(attend, (q, k, v, q_ptr, k_ptr, call.factor()))
        return self.graph.call_function(operator.getitem, (both, 0))

    def _live(self, nodes: list[fx.Node]) -> set[fx.Node]:
        """The nodes that are still computed once those that are `replaced` are."""
        roots = [node for node in nodes if not node.users and node not in self.made]
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
    ptr, graphs, places = node.args[-3:]
    assert isinstance(ptr, fx.Node)
    padding = Padding(ptr, example(graphs), example(places))
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


def _hides_padding(mask: Mask, rank: int) -> bool:
    """Whether attention with this mask reads real keys only, all of them, in all heads and for all queries."""
    dims = mask.dims
    return (
        mask.kind in ("real", "added") and len(dims) == rank and dims[0] == (GRAPHS,) and dims[-1] == (PLACES,)
        and all(map(is_features, dims[1:-1]))
    )  # fmt: skip


def _heads(x: Padded) -> fx.Node | None:
    """The rows [rows, heads, width] of operands [graphs, heads, places, width], or [graphs, places, width]."""
    dims = x.dims if len(x.dims) == 4 else (*x.dims[:1], (), *x.dims[1:])
    fits = len(dims) == 4 and dims[0] == (GRAPHS,) and dims[2] == (PLACES,)
    if not fits or not is_features(dims[1]) or not is_features(dims[3]):
        return None
    return x.rows.graph.call_method("reshape", (x.rows, (-1, width(dims[1]), width(dims[3]))))


@dataclass(frozen=True, slots=True)
class _DenseAttention:
    """The operands of a call of attention, and other arguments by their names."""

    q: fx.Node
    k: fx.Node
    v: fx.Node
    mask: Any
    others: Mapping[str, Any]

    @staticmethod
    def of(node: fx.Node, name: str) -> _DenseAttention:
        names = ("attn_mask", "dropout_p", "is_causal") if name == _ATTENTION else ("dropout_p", "is_causal")
        q, k, v, *rest = [*node.args, *(node.kwargs[n] for n in ("query", "key", "value") if n in node.kwargs)][:6]
        given = dict(zip(names, rest, strict=False)) | dict(node.kwargs)
        return _DenseAttention(q, k, v, given.pop("attn_mask", None), given)  # type: ignore[arg-type]

    def is_plain(self) -> bool:
        """Whether it is attention as we compute it: of float32 or float64 on the CPU, without dropout."""
        asked = [self.others.get(name) for name in ("dropout_p", "is_causal", "enable_gqa")]
        q = example(self.q)
        scale = self.others.get("scale")
        return not any(asked) and q.is_cpu and q.dtype in _NUMBERS and isinstance(scale, int | float | None)

    def factor(self) -> float:
        """The number with which scores are multiplied."""
        scale = self.others.get("scale")
        return float(example(self.q).shape[-1]) ** -0.5 if scale is None else float(scale)

    def queries_of_each(self, padding: Padding) -> int | None:
        """How many queries each graph has, if they are [graphs, heads, queries, width] and not padded."""
        shape = example(self.q).shape
        return fixed(shape[2]) if len(shape) == 4 and same(shape[0], padding.graphs) else None
