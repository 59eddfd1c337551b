"""Where a function keeps derivatives from going on: `detach`, `torch.no_grad`, an inner gradient without a graph.

Whoever differentiates the gradients of a function again sees only operators. Among them stands a `detach` for each
tensor that autograd keeps of its own results, which stops nothing, and nothing stands for a call that autograd did not
record. So before AOTAutograd takes Dynamo's graph apart, each place where derivatives stop gets a `detach` with a mark.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from graphweave.frontends.calls.dynamo_calls import ORIGIN, call_name, example, writes

aten = torch.ops.aten

_MARK = ("graphweave_stop", "detach")
"""The innermost origin (`source_fn_stack`) of a marked call. PyTorch hands it on to the operators of the call, but not
to those of its gradient."""

_DETACH = frozenset({"detach", "_get_data_attr"})
"""Calls that give an alias without a derivative."""
_GRAD_ARGUMENTS = ("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph")
_CUSTOM = torch.ops.higher_order.autograd_function_apply
_SET_GRAD_MODE = torch._C._set_grad_enabled
_TELLS_GRADIENTS = hasattr(fx.traceback, "_mark_autograd_backward")
"""Whether PyTorch tells which operators of a trace compute a gradient. PyTorch 2.11 does not."""
_ON_ITSELF = frozenset({"requires_grad_", "retain_grad", "register_hook"})
"""Methods that compute nothing."""


def stops(node: fx.Node) -> bool:
    """Whether the call of `aten.detach` in the forward of a joint graph keeps derivatives from going on.

    A call without a mark is autograd's if only gradients read it. Others are part of an operator that PyTorch composes
    of smaller ones.
    """
    if _MARK in node.meta.get("source_fn_stack", ())[-1:]:
        return True
    readers = (n for n in node.users if n.target is not aten.detach.default and n.op != "output")
    return any("autograd_backward" not in n.meta for n in readers)


def mark_stops(module: fx.GraphModule) -> str:
    """Mark in Dynamo's graph where derivatives stop; the reason why this cannot be told, or ""."""
    why, parts = "", [part for part in module.modules() if isinstance(part, fx.GraphModule)]
    for part in parts:
        why = _Marks(part.graph).set() or why
        part.recompile()
    return why


class _Marks:
    """The marks in one graph. Dynamo's fake tensors say what autograd records: a result that it did not record is a
    leaf. But they are as the last call left them, so a tensor may have been recorded later, by a write."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph, self._why, self._recording = graph, "", True
        self._recorded = {n for n in graph.nodes if any(t.requires_grad for t in _floating(n))}
        self._storages = {s for n in self._recorded for s in _storages(n)}
        self._aside: set[int] = set()  # storages of recorded tensors that have aliases which autograd does not see

    def set(self) -> str:
        """Set them; the reason why this cannot be done for all places, or ""."""
        for node in list(self._graph.nodes):
            if node.target is _SET_GRAD_MODE:
                self._recording = bool(node.args[0])
            elif node.op in ("call_function", "call_method"):
                self._visit(node)
        return self._why

    def _visit(self, node: fx.Node) -> None:
        if call_name(node) == "_autograd_grad":  # of torch.func
            self._needs_marks()
        operands = [n for n in node.all_input_nodes if n in self._recorded]
        if node.target is _CUSTOM and operands:
            self._why = "it calls an autograd function that has a backward of its own"
        if call_name(node) in _ON_ITSELF:
            return
        if writes(node):
            self._check_write(node)
        if not operands:
            return
        floating = _floating(node)
        if node.target is torch.autograd.grad:
            self._visit_gradients(node)
        elif call_name(node) in _DETACH:
            node.meta["source_fn_stack"] = [_MARK]
            self._aside.update(_storages(node))
        elif floating and self._is_unrecorded(floating, operands):
            self._aside.update(_storages(node) & {s for operand in operands for s in _storages(operand)})
            for operand in operands:
                self._stop_before(node, operand)
        elif self._recording and (floating or example(node) is None):
            self._recorded.add(node)

    def _stop_before(self, node: fx.Node, operand: fx.Node) -> None:
        if example(operand) is None:
            self._why = "it is not known what autograd records of it"
        elif isinstance(example(operand), Tensor):
            with self._graph.inserting_before(node):
                node.replace_input_with(operand, self._stopped(operand))

    def _is_unrecorded(self, results: list[Tensor], operands: list[fx.Node]) -> bool:
        if not self._recording:
            return True
        given = {id(t) for operand in operands for t in _floating(operand)}
        return all(t.is_leaf and id(t) not in given for t in results)

    def _visit_gradients(self, node: fx.Node) -> None:
        """Gradients that have no graph are results of `node`, whose operands must stay recorded."""
        given = dict(zip(_GRAD_ARGUMENTS, node.args, strict=False)) | node.kwargs
        if given.get("create_graph"):
            self._needs_marks()
            self._recorded.add(node)
            return
        for taken in list(node.users):
            self._aside.update(_storages(taken))
            with self._graph.inserting_after(taken):
                stopped = self._stopped(taken)
            for user in [user for user in taken.users if user is not stopped]:
                user.replace_input_with(taken, stopped)

    def _needs_marks(self) -> None:
        if not _TELLS_GRADIENTS:
            self._why = "it takes a gradient itself, and this PyTorch does not tell which operators compute it"

    def _stopped(self, node: fx.Node) -> fx.Node:
        stopped = self._graph.call_method("detach", (node,))
        stopped.meta = {name: node.meta[name] for name in ORIGIN if name in node.meta} | {"source_fn_stack": [_MARK]}
        value = example(node)
        if isinstance(value, Tensor) and _unwrapped(value) is value:  # a transform's wrapper is no tensor outside of it
            value = value.detach()
        stopped.meta["example_value"] = value
        return stopped

    def _check_write(self, node: fx.Node) -> None:
        """Refuse a write that autograd does not see, to memory that it reads elsewhere."""
        target = node.kwargs.get("out", node.args[0] if node.args else None)
        if not isinstance(target, fx.Node):
            return
        found = _storages(target)
        if not found.isdisjoint(self._aside) or not (self._recording or found.isdisjoint(self._storages)):
            self._why = "it writes to a tensor with a gradient where autograd does not record it"


def _floating(node: fx.Node) -> list[Tensor]:
    """The fake tensors of a node that may have gradients, without the wrappers of transforms (`torch.func`)."""
    found = (_unwrapped(v) for v in tree_leaves(example(node)) if isinstance(v, Tensor))
    return [v for v in found if v.is_floating_point() or v.is_complex()]


def _unwrapped(value: Tensor) -> Tensor:
    while torch._C._functorch.is_functorch_wrapped_tensor(value):
        value = torch._C._functorch.get_unwrapped(value)
    return value


def _storages(node: fx.Node) -> set[int]:
    return {v.untyped_storage()._cdata for v in _floating(node) if v.layout is torch.strided}
