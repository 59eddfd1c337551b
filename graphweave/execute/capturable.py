"""Whether a compiled program can be a CUDA graph, judged by the program and the calls that one run of it makes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from graphweave.analysis.flow import ancestors, is_integral
from graphweave.compiler.plan import Plan
from graphweave.core.types import DType
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.aten import resolve
from graphweave.ir.message.show import operation

_WAITING_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""Tags of operators whose results the host must wait for."""

_BY_MASK = frozenset({torch.ops.aten.index.Tensor, torch.ops.aten._unsafe_index.Tensor})
"""Calls whose result size depends on data only if an index is a mask."""


def structure(plan: Plan) -> frozenset[int]:
    """Positions, among the program's arguments, of the tensors from which formats and the values of the prelude are
    made."""
    program = plan.program
    maps = [n.index for n in program.nodes if isinstance(n, ir.MapOf)]
    needed = ancestors(program, [*maps, *plan.hoisted, *plan.facts.hoist.checks])
    inputs = [r for r, n in enumerate(program.nodes) if isinstance(n, ir.Input) and n.name not in plan.constants]
    return frozenset(i for i, r in enumerate(inputs) if r in needed and is_integral(program, r))


def why_not(plan: Plan, *, verify: bool = False) -> str | None:
    """Why no CUDA graph can hold the program: at each call it asks the device for numbers, sizes or indices.

    None if nothing in the program prevents a CUDA graph.
    """
    if verify:
        return "verify=True compares every region at every call"
    program, only = plan.program, plan.facts.flow.graph_only
    for ref in _at_each_call(plan):
        node = program.nodes[ref]
        if isinstance(node, ir.MapOf) and node.index not in only:
            return "an index is computed at each call"
        why = _why_not(program, node)
        if why is not None:
            return f"{why} ({program.locs[ref]})" if program.locs[ref] else why
    return None


def _at_each_call(plan: Plan) -> list[ir.Ref]:
    """Nodes that run outside the prelude."""
    program = plan.program
    once = {*plan.hoisted, *plan.facts.hoist.checks}
    roots = [r for r in program.outputs if r is not None and r not in once]
    return sorted(ancestors(program, roots, frozenset(once)) - once)


def _why_not(program: ir.Program, node: ir.Node) -> str | None:
    if isinstance(node, ir.Distinct | ir.JoinIndices | ir.NumbersOfSegments | ir.Places | ir.Chosen | ir.AssertIndex):
        return f"{operation(node)} asks the device for numbers"
    if not isinstance(node, ir.Aten):
        return None
    namespace = node.target.partition(".")[0]
    if namespace not in ("aten", "prims", "builtin"):
        return f"{node.target} is no operator of PyTorch's own, so what it does on the host is not known"
    op = resolve(node.target)
    if not isinstance(op, torch._ops.OpOverload) or not _WAITING_TAGS & set(op.tags):
        return None
    if op in _BY_MASK and not any(_is_mask(program, r) for r in _operands_of_index(node)):
        return None
    return f"{node.target} has a result that the host must wait for"


def _operands_of_index(node: ir.Aten) -> list[ir.Ref]:
    return [a.ref for a in tree_leaves(node.args[1]) if isinstance(a, ir.Operand)]


def _is_mask(program: ir.Program, ref: ir.Ref) -> bool:
    t = program.types[ref]
    return isinstance(t, ir.Type | ir.AnyType) and t.dtype in (DType.bool, DType.u8)


class CallWatch(TorchDispatchMode):
    """Watches the PyTorch calls that a run makes. `why` describes the first one that a CUDA graph cannot hold."""

    def __init__(self, kind: str) -> None:
        """`kind` is the type of the device on which every tensor must lie."""
        super().__init__()
        self.why: str | None = None
        self._kind = kind

    def __torch_dispatch__(self, func: OpOverload, types: object, args: Any = (), kwargs: Any = None) -> object:
        out = func(*args, **(kwargs or {}))
        if self.why is None:
            self.why = _why_not_call(func, tree_leaves((args, kwargs)), tree_leaves(out), self._kind)
        return out


def _why_not_call(func: OpOverload, given: Iterable[object], made: Iterable[object], kind: str) -> str | None:
    tensors = [t for t in given if isinstance(t, Tensor)]
    by_mask = any(t.dtype in (torch.bool, torch.uint8) for t in tensors[1:])
    if _WAITING_TAGS & set(func.tags) and (func not in _BY_MASK or by_mask):
        return f"{func} has a result that the host must wait for"
    for t in (*tensors, *made):
        if isinstance(t, Tensor) and t.device.type != kind:
            return f"{func} has a tensor on {t.device}"
    return None
