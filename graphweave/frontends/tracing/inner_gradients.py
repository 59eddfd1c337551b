"""Gradients that a compiled function takes inside itself, by `torch.autograd.grad`: what Dynamo does not trace of them.

Forces are such gradients: a function computes an energy from positions, and gives the energy and its derivative. Dynamo
traces this under the setting `trace_autograd_ops`; each function here closes one gap that this leaves. They replace
methods of Dynamo's classes while it traces for this backend (`tracer_gaps.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import Any, TypeAlias, TypeVar

import torch
import torch._dynamo
from torch import Tensor, fx
from torch._dynamo import variables
from torch._dynamo.exc import RestartAnalysis
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables import TensorVariable, TorchInGraphFunctionVariable
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builder import VariableBuilder
from torch._guards import Source

from graphweave.frontends.tracing.call_under_way import under_way

_RETAIN_GRAPH = 3
"""The position of `retain_graph` among the parameters of `torch.autograd.grad`."""
_R = TypeVar("_R")

Args: TypeAlias = list[VariableTracker]
Kwargs: TypeAlias = dict[str, VariableTracker]
"""The arguments of a call, as Dynamo sees them."""

Replaced: TypeAlias = Callable[..., Any]
"""A method of Dynamo's classes, or what takes its place."""

_MARK = "graphweave_requires_grad"
"""The key that the placeholder of an argument has in its `meta` if the function asks for gradients by that argument."""


def keeps_graphs(original: Replaced) -> Replaced:
    """`torch.autograd.grad` keeps the graph that it goes through, so that a result may belong to it: an energy next to
    its forces. Dynamo would break the graph there. (In eager mode such a result has gradients that raise an error.)"""

    def call_function(self: TorchInGraphFunctionVariable, tx: object, args: Args, kwargs: Kwargs) -> VariableTracker:
        if self.value is torch.autograd.grad:
            kept = variables.ConstantVariable.create(True)
            if len(args) > _RETAIN_GRAPH:
                args = [*args[:_RETAIN_GRAPH], kept, *args[_RETAIN_GRAPH + 1 :]]
            else:
                kwargs = {**kwargs, "retain_graph": kept}
        return original(self, tx, args, kwargs)

    return call_function


def makes_leaves(original: Replaced) -> Replaced:
    """A new tensor with a gradient, such as `torch.zeros(3, 3, requires_grad=True)` for a strain."""

    def call_function(
        self: TorchInGraphFunctionVariable, tx: InstructionTranslatorBase, args: Args, kwargs: Kwargs
    ) -> VariableTracker:
        asked = kwargs.get("requires_grad")
        if asked is None or not asked.is_python_constant() or asked.as_python_constant() is not True:
            return original(self, tx, args, kwargs)
        made = original(self, tx, args, {name: value for name, value in kwargs.items() if name != "requires_grad"})
        return made.call_method(tx, "requires_grad_", [], {}) if made.is_tensor() else made

    return call_function


def leaves_backward_to_python(original: Replaced) -> Replaced:
    """`loss.backward()` writes to the parameters' `.grad`, for which PyTorch's engine has hooks: it breaks the graph,
    and what it goes through has a compiled backward."""

    def method_backward(self: TensorVariable, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        with torch._dynamo.config.patch(trace_autograd_ops=False):
            return original(self, *args, **kwargs)

    return method_backward


def asks_for_gradients(original: Replaced) -> Replaced:
    """`positions.requires_grad_()` on an argument that nothing has used yet: it is traced as one that required its
    gradient when the function was called, and each call sees to it that it does (`with_gradients`)."""

    def method_requires_grad_(
        self: TensorVariable, tx: object, requires_grad: bool | VariableTracker = True
    ) -> VariableTracker:
        asked = requires_grad if isinstance(requires_grad, bool) else requires_grad.as_python_constant()
        node = self.as_proxy().node
        value: Any = node.meta.get("example_value")
        fresh = node.op == "placeholder" and not node.users and isinstance(value, Tensor) and value.is_leaf
        if not (asked and self.source and fresh) or value.requires_grad:
            return original(self, tx, requires_grad)
        value.requires_grad_()
        self.requires_grad, node.meta[_MARK] = True, True
        return self

    return method_requires_grad_


def takes_gradients_by_arguments(original: Replaced) -> Replaced:
    """`torch.autograd.grad(energy, positions)` by an argument that requires no gradient: the function is traced again
    as if it had begun with `positions.requires_grad_()`. MACE does so only if `torch.compiler.is_compiling()` is false,
    and leaves it to the caller otherwise. (Behind a graph break, the energy was computed without: PyTorch says so.)"""

    def call_function(
        self: TorchInGraphFunctionVariable, tx: InstructionTranslatorBase, args: Args, kwargs: Kwargs
    ) -> VariableTracker:
        call = under_way.get()
        inputs = args[1] if len(args) > 1 else kwargs.get("inputs")
        if self.value is not torch.autograd.grad or call is None or inputs is None:
            return original(self, tx, args, kwargs)
        if tx.output.root_tx.f_code is not call.outermost:
            return original(self, tx, args, kwargs)
        inputs = inputs.realize()
        leaves = [inputs] if inputs.is_tensor() else inputs.unpack_var_sequence(tx)
        for leaf in (one.realize() for one in leaves):
            place = _place(tx, leaf.source)
            plain = leaf.is_tensor() and leaf.as_proxy().node.op == "placeholder" and not _value(leaf).requires_grad
            if plain and leaf.source and place not in call.inner_leaves:
                call.inner_leaves.add(place)
                raise RestartAnalysis(restart_reason="a gradient is taken by an argument")
        return original(self, tx, args, kwargs)

    return call_function


def wraps_leaves(original: Replaced) -> Replaced:
    """An argument by which an earlier trace took a gradient."""

    def wrap_tensor(self: VariableBuilder, value: Tensor) -> VariableTracker:
        made, call = original(self, value), under_way.get()
        if call is not None and made.is_tensor() and _place(self.tx, self.source) in call.inner_leaves:
            made.call_method(self.tx, "requires_grad_", [], {})
        return made

    return wrap_tensor


def _place(tx: InstructionTranslatorBase, source: Source | None) -> tuple[CodeType, str]:
    return tx.output.root_tx.f_code, source.name if source else ""


def gives_results_of_leaves(original: Replaced) -> Replaced:
    """Results that were computed from a tensor which the function itself made, with a gradient. They lose only the way
    to that tensor, which nobody else has unless it is a result, too. Dynamo would break the graph in any case."""

    def check(self: OutputGraph, results: Sequence[object], tx: object) -> None:
        leaves = {id(_value(v)) for v in self.leaf_var_creation_order if not v.source}
        given = (_value(v) for v in results if isinstance(v, variables.TensorVariable))
        if any(id(t) in leaves or id(getattr(t, "_base", None)) in leaves for t in given):
            original(self, results, tx)

    return check


def _value(variable: VariableTracker) -> Any:
    return variable.as_proxy().node.meta.get("example_value")


def asked_for(module: fx.GraphModule) -> tuple[int, ...]:
    """The positions of the arguments by which a captured graph asks for gradients itself."""
    return tuple(i for i, n in enumerate(module.graph.find_nodes(op="placeholder")) if _MARK in n.meta)


def takes_gradients(module: fx.GraphModule) -> bool:
    """Whether a captured graph takes gradients of what it computes."""
    return any(n.target is torch.autograd.grad for n in module.graph.nodes)


@contextmanager
def requiring_gradients(arguments: Sequence[Any], asked: Sequence[int]) -> Iterator[None]:
    """Within the block, the `arguments` at the positions `asked` require gradients. Dynamo guards on what they were at
    the call, so they are given back as they were."""
    for i in asked:
        arguments[i].requires_grad_()
    try:
        yield
    finally:
        for i in asked:
            arguments[i].requires_grad_(False)


def with_gradients(run: Callable[..., _R], asked: Sequence[int]) -> Callable[..., _R]:
    """`run`, whose arguments at the positions `asked` require gradients from then on, as the user's function says."""
    if not asked:
        return run

    def marked(*args: Any) -> _R:
        for i in asked:
            args[i].requires_grad_()
        return run(*args)

    return marked
