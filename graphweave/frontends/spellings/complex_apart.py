"""Writes complex numbers that move along edges as their real and imaginary parts.

Programs have no complex numbers: a call on them stays a call of PyTorch, with a row for each edge in memory. Each part
of a complex tensor is a tensor of the algebra, and a sum of products of complex numbers is one of real numbers. From
each gather or scatter of complex rows, calls that have a rule here are written for the parts. Where no row moves along
an index (a Fourier transform of each row, a product with complex weights), one call on complex numbers is as good.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import fx
from torch.fx.node import Argument, Target

from graphweave.frontends.calls.call_facts import facts
from graphweave.frontends.calls.captured_graph import copy_of
from graphweave.frontends.calls.captured_sizes import argument, is_tensor, val

aten = torch.ops.aten

Parts: TypeAlias = tuple[fx.Node, fx.Node]
"""The real and the imaginary part of a tensor."""


def complex_apart(gm: fx.GraphModule) -> fx.GraphModule:
    """`gm`, or a copy in which complex rows that move along an index, and what is computed with them, are two real
    tensors each."""
    if not _region(gm.graph):
        return gm
    copy = copy_of(gm)
    _Apart(copy.graph, _region(copy.graph)).run()
    return copy


def _region(graph: fx.Graph) -> set[fx.Node]:
    """The calls on complex tensors that are connected with one that moves complex rows along an index."""
    found: set[fx.Node] = set()
    todo = [n for n in graph.nodes if n.op == "call_function" and _is_complex(n) and facts(n.target).index and _rule(n)]
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            near = [x for x in node.all_input_nodes if _is_complex(x)]
            near += list(node.users) if _is_complex(node) else []
            todo += [x for x in near if x.op == "call_function" and _rule(x)]
    return found


def _is_complex(node: object) -> bool:
    return is_tensor(node) and val(node).is_complex()


class _Apart:
    """Writes the calls of a region for the parts of their operands."""

    def __init__(self, graph: fx.Graph, region: set[fx.Node]) -> None:
        self.graph, self.region = graph, region
        self.known: dict[fx.Node, Parts] = {}

    def run(self) -> None:
        for node in list(self.graph.nodes):
            with self.graph.inserting_before(node):
                if node in self.region:
                    self._rewrite(node)
                else:
                    whole = {x: self._whole(x) for x in node.all_input_nodes if x in self.region and _is_complex(x)}
                    for x, new in whole.items():
                        node.replace_input_with(x, new)
        for node in reversed(list(self.graph.nodes)):
            if node in self.region and not node.users:
                self.graph.erase_node(node)

    def _rewrite(self, node: fx.Node) -> None:
        self.like = node
        rule = _rule(node)
        assert rule is not None
        made = rule(self, node)
        if isinstance(made, tuple):
            self.known[node] = made
        else:
            node.replace_all_uses_with(made)

    def _whole(self, node: fx.Node) -> fx.Node:
        """The complex tensor of which the region has the parts."""
        self.like = node
        return self.call(aten.complex.default, *self.known[node])

    def parts(self, x: Any) -> tuple[Any, Any]:
        """The parts of a tensor or number. A real one has zeros as its imaginary part."""
        if not isinstance(x, fx.Node):
            return complex(x).real, complex(x).imag
        if x not in self.known:
            if _is_complex(x):
                plain = self.call(aten.resolve_conj.default, x) if x.op == "call_function" else x
                pairs = self.call(aten.view_as_real.default, plain)
                self.known[x] = self.call(aten.select.int, pairs, -1, 0), self.call(aten.select.int, pairs, -1, 1)
            else:
                self.known[x] = x, self.call(aten.zeros_like.default, x)
        return self.known[x]

    def call(self, target: Target, *args: Any, **kwargs: Argument) -> fx.Node:
        """A call from the user's line of the call that is being written."""
        assert callable(target)
        node = self.graph.call_function(target, args, kwargs)
        node.meta.update(self.like.meta)
        given, named = fx.map_arg((args, kwargs), val)
        node.meta["val"] = target(*given, **named)
        return node

    def each(self, node: fx.Node) -> Parts:
        """The call `node` on each part of its complex operands."""
        real, imaginary = (self._on_part(node, k) for k in (0, 1))
        return real, imaginary

    def _on_part(self, node: fx.Node, k: int) -> fx.Node:
        def part(x: fx.Node) -> fx.Node:
            found: fx.Node = self.parts(x)[k] if _is_complex(x) else x
            return found

        args, kwargs = fx.map_arg((node.args, node.kwargs), part)
        kwargs = {n: v.to_real() if isinstance(v, torch.dtype) else v for n, v in kwargs.items()}
        return self.call(node.target, *args, **kwargs)


Rule: TypeAlias = Callable[[_Apart, fx.Node], "Parts | fx.Node"]
"""How a call is written for parts: the parts of its complex result, or its real result."""


def _rule(node: fx.Node) -> Rule | None:
    """How to write `node` for parts; None if that is not known."""
    tensors = [x for x in node.all_input_nodes if is_tensor(x)]
    if node.target in _EACH:
        floats = [x for x in tensors if val(x).is_floating_point() or _is_complex(x)]
        zero = not any(argument(node, name) for name in _EACH[node.target])
        whole = zero and _is_complex(node) and all(map(_is_complex, floats))
        return _Apart.each if whole else None
    if node.target in _TERMS and (argument(node, "alpha", 1) != 1 or not any(map(_is_complex, tensors))):
        return None
    if node.target is aten.div.Tensor and (_is_complex(node.args[1]) or isinstance(node.args[1], complex)):
        return None
    return _RULES.get(node.target) if tensors else None


def _sum(apart: _Apart, node: fx.Node) -> Parts:
    a, b = map(apart.parts, node.args[:2])
    return apart.call(node.target, a[0], b[0]), apart.call(node.target, a[1], b[1])


def _product(apart: _Apart, node: fx.Node) -> Parts:
    a, b = node.args[:2] if _is_complex(node.args[0]) else reversed(node.args[:2])
    if not _is_complex(b) and not isinstance(b, complex):
        return _scaled(apart, node, a, b)
    (x, y), (u, v), mul = apart.parts(a), apart.parts(b), aten.mul.Tensor
    real = apart.call(aten.sub.Tensor, apart.call(mul, x, u), apart.call(mul, y, v))
    return real, apart.call(aten.add.Tensor, apart.call(mul, x, v), apart.call(mul, y, u))


def _scaled(apart: _Apart, node: fx.Node, a: object, b: object) -> Parts:
    x, y = apart.parts(a)
    return apart.call(node.target, x, b), apart.call(node.target, y, b)


def _conjugate(apart: _Apart, node: fx.Node) -> Parts:
    x, y = apart.parts(node.args[0])
    return x, apart.call(aten.neg.default, y)


def _polar(apart: _Apart, node: fx.Node) -> Parts:
    length, angle = node.args
    return _at_angle(apart, length, angle)


def _exp(apart: _Apart, node: fx.Node) -> Parts:
    x, y = apart.parts(node.args[0])
    return _at_angle(apart, apart.call(aten.exp.default, x), y)


def _at_angle(apart: _Apart, length: object, angle: object) -> Parts:
    cos, sin = apart.call(aten.cos.default, angle), apart.call(aten.sin.default, angle)
    return apart.call(aten.mul.Tensor, length, cos), apart.call(aten.mul.Tensor, length, sin)


def _length(apart: _Apart, x: fx.Node, y: fx.Node) -> fx.Node:
    squares = (apart.call(aten.mul.Tensor, p, p) for p in (x, y))
    return apart.call(aten.sqrt.default, apart.call(aten.add.Tensor, *squares))


def _sign(apart: _Apart, node: fx.Node) -> Parts:
    """z / |z|, and 0 for 0."""
    x, y = apart.parts(node.args[0])
    length = _length(apart, x, y)
    divisor = apart.call(aten.masked_fill.Scalar, length, apart.call(aten.eq.Scalar, length, 0), 1)
    return apart.call(aten.div.Tensor, x, divisor), apart.call(aten.div.Tensor, y, divisor)


def _of_parts(apart: _Apart, node: fx.Node) -> Parts:
    """complex(x, y), which have one shape after broadcasting."""
    x: Any
    y: Any
    x, y = node.args
    if val(x).shape != val(node).shape or val(y).shape != val(node).shape:
        x, y = (apart.call(aten.add.Tensor, p, apart.call(aten.zeros_like.default, q)) for p, q in ((x, y), (y, x)))
    return x, y


def _of_pairs(apart: _Apart, node: fx.Node) -> Parts:
    x, y = (apart.call(aten.select.int, node.args[0], -1, k) for k in (0, 1))
    return x, y


def _converted(apart: _Apart, node: fx.Node) -> Parts | fx.Node:
    x, y = apart.parts(node.args[0])
    dtype = val(node).dtype.to_real()
    if not _is_complex(node):
        return apart.call(aten._to_copy.default, x, dtype=dtype)
    return apart.call(aten._to_copy.default, x, dtype=dtype), apart.call(aten._to_copy.default, y, dtype=dtype)


_TERMS = frozenset({aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor})

_RULES: Mapping[Any, Rule] = {
    aten.add.Tensor: _sum, aten.sub.Tensor: _sum, aten.mul.Tensor: _product,
    aten.div.Tensor: lambda apart, node: _scaled(apart, node, *node.args[:2]),
    **dict.fromkeys((aten._conj.default, aten._conj_physical.default, aten.conj_physical.default), _conjugate),
    aten.polar.default: _polar, aten.exp.default: _exp, aten.sgn.default: _sign,
    aten.abs.default: lambda apart, node: _length(apart, *apart.parts(node.args[0])),
    aten.angle.default: lambda apart, node: apart.call(aten.atan2.default, *reversed(apart.parts(node.args[0]))),
    aten.complex.default: _of_parts, aten.view_as_complex.default: _of_pairs,
    aten.view_as_real.default: lambda apart, node: apart.call(aten.stack.default, list(apart.parts(node.args[0])), -1),
    aten._to_copy.default: _converted,
}  # fmt: skip
"""How to write calls that mix the parts, or take and give real numbers."""

_EACH: Mapping[Any, tuple[str, ...]] = {
    **dict.fromkeys(
        (aten.clone.default, aten.alias.default, aten.detach.default, aten.resolve_conj.default,
         aten.resolve_neg.default, aten.view.default, aten.reshape.default, aten._unsafe_view.default,
         aten.permute.default, aten.t.default, aten.transpose.int, aten.expand.default, aten.repeat.default,
         aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.slice.Tensor,
         aten.select.int, aten.flip.default, aten.roll.default, aten.cat.default, aten.stack.default,
         aten.slice_backward.default, aten.select_backward.default, aten.index_select.default, aten.index.Tensor,
         aten.gather.default, aten.embedding.default, aten.index_add.default, aten.index_put.default,
         aten.scatter_add.default, aten.embedding_dense_backward.default, aten.sum.default, aten.sum.dim_IntList,
         aten.mean.default, aten.mean.dim, aten.neg.default, aten.where.self, aten.zeros_like.default,
         aten.new_zeros.default, aten.zeros.default), ()),
    aten.masked_fill.Scalar: ("value",), aten.constant_pad_nd.default: ("value",),
}  # fmt: skip
"""Calls that do the same to each part, and the names of numbers that have to be zero."""
