"""Gradients of gradients of a compiled graph: its joint graph is compiled again, as a function that has gradients.

AOTAutograd's graph of the backward consists of eager mode's operators, so autograd derives from it the second
derivatives of eager mode. It is compiled when it is first needed, and its own gradients of gradients likewise, so that
there are derivatives of any order. Only the inputs of a call are kept for this. Random masks are made again from the
seeds that the compiled forward drew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pickle import PicklingError
from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from graphweave.compiler.report import record_eager
from graphweave.core.counters import bump
from graphweave.core.errors import DerivativeError, ShardError
from graphweave.core.log import warn_once
from graphweave.frontends.calls.captured_graph import ancestors, is_random
from graphweave.frontends.calls.captured_sizes import fixed, is_tensor, shape
from graphweave.frontends.calls.declared import with_derivative
from graphweave.frontends.halves.graph_bytes import dumped, loaded
from graphweave.frontends.halves.missing_tangents import reaching, tangents_of, without
from graphweave.frontends.halves.stops import stops
from graphweave.frontends.halves.twice import depends_on_layout, derivable
from graphweave.frontends.tracing.reasons import graph_place
from graphweave.ir.philox import uniform

aten = torch.ops.aten

Compile: TypeAlias = Callable[[fx.GraphModule], Callable[..., Any]]
"""Makes a compiled function of a graph of operators."""

REMEDY = (
    "Take gradients of gradients through the function as it was before graphweave compiled it, or call it under "
    '`torch.compiler.set_stance("force_eager")`.'
)
"""Advice to a user where gradients of gradients cannot be computed."""


class JointGraph:
    """The gradients of a compiled function as a differentiable function of its inputs and tangents.

    `reached[i]` holds the positions of the tangents on which the gradient of input i depends, `reads` the positions of
    the inputs that the gradients read. `draws` names random calls. `again` compiles such a function; it is stored with
    the graph.
    """

    def __init__(self, joint: fx.GraphModule, num_forward: int, again: Compile) -> None:
        results = tree_leaves(joint.graph.output_node().args[0])
        forward = ancestors(n for n in results[:num_forward] if isinstance(n, fx.Node))
        self.about = graph_place(joint)
        self.reached = _reached(joint.graph, results[num_forward:])
        self._bytes, self._again = b"", again
        self._compiled: dict[frozenset[int], Callable[..., Any]] = {}
        graph = fx.Graph()
        env: dict[fx.Node, Any] = dict.fromkeys(_tokens(joint.graph))
        given: dict[str, fx.Node] = {}
        for node in joint.graph.nodes:
            if node.op == "output":
                break
            if node in env:
                continue
            if node.target is aten.detach.default and not (node in forward and stops(node)):
                env[node] = env[node.args[0]]
                continue
            if is_random(node):
                given[node.name] = graph.placeholder(f"drawn_{node.name}")
                env[node] = _drawn(graph, node, env, given[node.name])
                continue
            env[node] = graph.node_copy(node, env.__getitem__)
            if node.op == "call_function":
                env[node].meta["captured"] = node.target
                env[node].target = derivable(node)
        graph.output([env[n] if isinstance(n, fx.Node) else n for n in results[num_forward:]])
        for made in reversed(graph.nodes):
            if (made.op == "call_function" or made in given.values()) and not made.users:
                graph.erase_node(made)
        given_tangents = set(tangents_of(joint.graph))
        primals = [
            n for n in joint.graph.find_nodes(op="placeholder") if n not in given_tangents and env[n] is not None
        ]
        self.reads = frozenset(i for i, n in enumerate(primals) if env[n].users)
        self._modules = {frozenset[int](): fx.GraphModule(joint, graph)}
        self.draws = tuple(name for name, made in given.items() if made.users)

    def __getstate__(self) -> dict[str, object]:
        """The graph as bytes, with operators in place of their formulas, which have no names."""
        if not self._bytes:
            if any(depends_on_layout(n.meta.get("captured")) for n in self._module().graph.nodes):
                raise PicklingError("an operator's derivative depends on how its operand lies in memory")
            self._bytes = dumped(self._module())
        return {name: value for name, value in vars(self).items() if name not in ("_modules", "_compiled")}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, _modules={}, _compiled={})

    def _module(self) -> fx.GraphModule:
        """The graph without what is missing. One that was stored is made when it is first needed."""
        if frozenset() not in self._modules:
            module = loaded(self._bytes)
            for node in module.graph.nodes:
                if node.op == "call_function":
                    node.target = derivable(node)
            module.recompile()
            self._modules[frozenset()] = module
        return self._modules[frozenset()]

    def __call__(
        self, primals: Sequence[object], tangents: Sequence[object], drawn: Mapping[str, object],
        missing: frozenset[int] = frozenset(),
    ) -> list[Tensor | None]:  # fmt: skip
        """The gradients of all inputs, to which the tangents in `missing` add nothing. `drawn` holds for each random
        call its seed or the numbers that it drew."""
        results: list[Tensor | None] = self._without(missing)(
            *primals, *tangents, *(drawn[name] for name in self.draws)
        )
        return results

    def compiled(
        self,
        primals: Sequence[object],
        tangents: Sequence[object],
        drawn: Mapping[str, object],
        missing: frozenset[int],
    ) -> list[Tensor | None]:
        """The same gradients by compiled code, recorded by autograd."""
        if missing not in self._compiled:
            module = self._without(missing)
            own = with_derivative.__module__
            called = [n for n in module.graph.nodes if getattr(n.target, "__module__", "") == own]
            if called:
                tell_eager(_not_traced(self.about, called[0]))
            self._compiled[missing] = module if called else self._again(module)
        results: list[Any] = self._compiled[missing](*primals, *tangents, *(drawn[name] for name in self.draws))
        return results

    def _without(self, missing: frozenset[int]) -> fx.GraphModule:
        whole = self._module()
        if missing not in self._modules:
            self._modules[missing] = without(whole, missing)
        return self._modules[missing]


def without_unreached(joint: fx.GraphModule, num_forward: int, reached: Iterable[frozenset[int]]) -> None:
    """Replace gradients in the joint graph that depend on no tangent by None, since eager mode does not compute
    them.

    If a tangent has no elements, nothing is replaced: some of PyTorch's decompositions then give zeros in its place.
    Nor is a sparse gradient, which depends on no tangent if no row was looked up.
    """
    if any(0 in map(fixed, shape(t)) for t in tangents_of(joint.graph) if is_tensor(t)):
        return
    output = joint.graph.output_node()
    results = tree_leaves(output.args[0])
    ends = [n if by or _is_sparse(n) else None for n, by in zip(results[num_forward:], reached, strict=True)]
    output.args = ([*results[:num_forward], *ends],)


def _is_sparse(gradient: object) -> bool:
    value = gradient.meta.get("val") if isinstance(gradient, fx.Node) else None
    return isinstance(value, Tensor) and value.layout is not torch.strided


def _drawn(graph: fx.Graph, node: fx.Node, env: Mapping[fx.Node, fx.Node], given: fx.Node) -> fx.Node:
    """The numbers of the random call `node`, which the argument `given` holds, or of which it holds the seed."""
    if node.target is not aten.rand_like.default:
        return given
    return graph.call_function(_uniform_like, (env[node.args[0]], given, node.meta["val"].dtype))  # type: ignore[index]


def _tokens(graph: fx.Graph) -> list[fx.Node]:
    """The arguments that order calls with effects, such as checks. The caller of the function does not give them."""
    calls = graph.find_nodes(op="call_function", target=torch.ops.higher_order.with_effects)
    return [n.args[0] for n in calls if isinstance(n.args[0], fx.Node) and n.args[0].op == "placeholder"]


def _uniform_like(like: Tensor, seed: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers that kernels draw from `seed` in place of `rand_like`."""
    position = torch.arange(math.prod(like.shape), device=seed.device)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    return uniform(seed, position, wide).view(like.shape).to(dtype)


class Twice(torch.autograd.Function):
    """A compiled backward whose results can be differentiated again, by what `again` gives. All arguments but the first
    two are tensors.

    So nothing is compiled for a caller who asks for a graph of the gradients (`create_graph=True`) and does not use it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        backward: Callable[[], tuple[Tensor, ...]],
        again: Callable[[Sequence[object]], list[object]],
        *tensors: object,
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.again = again
        ctx.save_for_backward(*tensors)
        return backward()

    @staticmethod
    @torch.compiler.disable
    def backward(ctx: Any, *wanted: Tensor | None) -> tuple[Tensor | None, ...]:
        deeper = torch.is_grad_enabled()
        with torch.enable_grad():
            given = [_alias(t) if deeper else _leaf(t) for t in ctx.saved_tensors]
            by = [t for t in given if t.requires_grad]
            results = ctx.again(given)
            pairs = [
                (r, w) for r, w in zip(results, wanted, strict=True)
                if w is not None and isinstance(r, Tensor) and r.requires_grad
            ]  # fmt: skip
            found: Sequence[Any] = [None] * len(by)
            if pairs:
                made, weights = zip(*pairs, strict=True)
                found = torch.autograd.grad(made, by, weights, create_graph=deeper, allow_unused=True)
        of = iter(found)
        return (None, None, *(next(of) if t.requires_grad else None for t in given))


class Alias(torch.autograd.Function):
    """The same tensor in the same memory, behind a node of its own in the graph of gradients."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.detach()

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return grad


class Refused(torch.autograd.Function):
    """A compiled backward whose results cannot be differentiated again, with the error that says why."""

    @staticmethod
    def forward(
        ctx: Any, backward: Callable[[], tuple[Tensor, ...]], error: Exception, *tensors: object
    ) -> tuple[Tensor, ...]:
        ctx.error = error
        return backward()

    @staticmethod
    def backward(ctx: Any, *wanted: object) -> NoReturn:
        raise ctx.error


def uncomputable(about: str, why: str) -> DerivativeError:
    """The error of a function whose gradients have no gradients in this call."""
    return DerivativeError(f"gradients of gradients of {about} cannot be computed: {why}. {REMEDY}")


def _not_traced(about: str, call: fx.Node) -> str:
    """The notice of gradients of gradients that need the declared derivative of a custom operator."""
    return (
        f"graphweave: gradients of gradients of {about} are not compiled, since PyTorch cannot trace the derivative "
        f"that was declared for an operator ({call.name}): it computes them in eager mode, at each call."
    )


def left_out(about: str) -> str:
    """The notice of gradients that are computed in eager mode since a result is left out that has no finite
    derivative."""
    return (
        f"graphweave: the gradients of {about} are computed in eager mode in calls whose loss leaves out a result with "
        "a derivative that is not finite, such as a norm at 0. Return that result only where it is used."
    )


def over_parts(about: str) -> ShardError:
    """The error of a function that runs on a part of a graph."""
    return ShardError(
        f"gradients of gradients of {about} cannot be computed: what computes them sees only the rows of one"
        " rank. Take them on the whole graph, in one process."
    )


def tell_eager(why: str) -> None:
    """Count and report derivatives that PyTorch computes in eager mode."""
    bump("eager_fallbacks")
    record_eager(why)
    warn_once(why)


def _leaf(t: Tensor) -> Tensor:
    return t.detach().requires_grad_(t.requires_grad)


def _alias(t: Tensor) -> Tensor:
    """`t` behind a node of its own, so that derivatives by it do not include those by tensors of which it is a
    function: a tangent may depend on the inputs, and one input on another. Autograd goes these ways by itself."""
    return Alias.apply(t) if t.requires_grad else t


def _reached(graph: fx.Graph, results: Sequence[object]) -> tuple[frozenset[int], ...]:
    many, masks = len(tangents_of(graph)), reaching(graph)
    found = [masks[n] if isinstance(n, fx.Node) else 0 for n in results]
    return tuple(frozenset(i for i in range(many) if mask >> i & 1) for mask in found)
