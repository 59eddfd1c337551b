"""Gradients where a loss leaves out results: what these would add is absent in eager mode, and zero in compiled code.

The two differ where a derivative of such a result is not finite, since zero times infinity is no number. Then the
gradients are computed again in eager mode, from the captured graph without what the missing tangents reach.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from graphweave.frontends.calls.captured_graph import is_tangent

aten = torch.ops.aten


def tangents_of(graph: fx.Graph) -> list[fx.Node]:
    return [n for n in graph.find_nodes(op="placeholder") if is_tangent(n)]


def reaching(graph: fx.Graph) -> dict[fx.Node, int]:
    """For each node of a joint graph, the tangents on which it depends, as bits of a number."""
    masks = {n: 1 << i for i, n in enumerate(tangents_of(graph))}
    for node in graph.nodes:
        if node not in masks:
            masks[node] = functools.reduce(operator.or_, (masks[n] for n in node.all_input_nodes), 0)
    return masks


def without(module: fx.GraphModule, missing: frozenset[int]) -> fx.GraphModule:
    """The joint graph without the tangents in `missing`: what only these reach is None as a result, and zeros, which
    have no derivative, where other gradients are added to it."""
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    absent = sum(1 << i for i in missing)
    masks = reaching(module.graph)
    zeros: dict[fx.Node, fx.Node] = {}

    def is_absent(node: fx.Node) -> bool:
        return masks[node] != 0 and not masks[node] & ~absent

    def operand(node: fx.Node, *, of: fx.Node) -> fx.Node:
        if not is_absent(node) or is_absent(of) or not isinstance(node.meta.get("val"), Tensor):
            return env[node]
        if node not in zeros:
            zeros[node] = graph.call_function(aten.zeros_like.default, (env[node],))
        return zeros[node]

    for node in module.graph.nodes:
        if node.op == "output":
            ends = node.args[0]
            assert isinstance(ends, list | tuple)
            graph.output([env[n] if isinstance(n, fx.Node) and not is_absent(n) else None for n in ends])
            break
        env[node] = graph.node_copy(node, functools.partial(operand, of=node))
    return fx.GraphModule(module, graph)


def is_finite(gradients: Sequence[Any]) -> bool:
    """Whether all numbers in `gradients` are finite, by their sums: a sum of finite numbers may be infinite, too."""
    sums = [t.sum(dtype=torch.float32 if t.itemsize < 4 else None) for t in gradients if _has_floats(t)]
    return all(bool(s.isfinite()) for s in sums)


def as_finite(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether the same numbers of two lists of gradients are finite."""
    pairs = zip(one, other, strict=True)
    return all(torch.equal(a.isfinite(), b.isfinite()) for a, b in pairs if _has_floats(a) and _has_floats(b))


def _has_floats(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
