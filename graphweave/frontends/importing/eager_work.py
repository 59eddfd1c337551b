"""The calls of PyTorch's operators that eager mode makes for a captured graph, and the bytes that each moves.

They are counted on the captured graph with the sizes of this call. A compound operator that the capture took apart (a
softmax, a loss) counts as one call. Views, sizes and checks are free. A gather reads as many rows as it returns; an
expanded tensor is read at its size in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import sympy
import torch
from torch import fx

from graphweave.compiler.report import EagerCall
from graphweave.core.types import Space
from graphweave.frontends.calls.call_facts import facts
from graphweave.frontends.calls.captured_sizes import Size, is_tensor, val
from graphweave.frontends.calls.numbering import number
from graphweave.frontends.importing.importer import location_of

aten = torch.ops.aten

_ALLOCATE = frozenset({"aten::empty", "aten::empty_like", "aten::new_empty", "aten::empty_strided", "aten::detach"})
"""Names of calls that compute nothing."""


def eager_calls(
    module: fx.GraphModule, sizes: Mapping[Space, Size], rows: Mapping[Space, int]
) -> tuple[EagerCall, ...]:
    """The calls of `module` in order; `sizes` are the symbolic row counts of its spaces, `rows` those of this call."""
    known = _symbols(module, sizes, rows)
    return tuple(EagerCall(_name(group), _moved(group, known), location_of(group[0])) for group in _groups(module))


def _moved(group: list[fx.Node], known: Mapping[sympy.Symbol, int]) -> int | None:
    """The bytes that a call reads and writes; None if they depend on unknown sizes that data decides."""
    inside = set(group)
    reading = [n for n in group if not _reads_shape_only(n)]
    read = {_base(a): a for n in reading for a in n.all_input_nodes if is_tensor(a) and _base(a) not in inside}
    gathered = {n.args[0] for n in group if _gathers(n)}
    written = [n for n in group if not inside.issuperset(n.users)]
    try:
        return sum(_bytes(a, known) for a in read.values() if a not in gathered) + sum(
            _bytes(n, known) * (2 if _gathers(n) else 1) for n in written
        )
    except KeyError:
        return None


def _name(group: list[fx.Node]) -> str:
    """The name of the operator that the user called: "aten::index_select"."""
    called = group[0].meta.get("original_aten", group[0].target)
    return called.name().split(".")[0] if isinstance(called, torch._ops.OpOverload) else str(called)


def _groups(module: fx.GraphModule) -> list[list[fx.Node]]:
    """The calls that compute a tensor, in groups: calls that were one call before the capture took it apart are one
    group."""
    groups: list[list[fx.Node]] = []
    last: Any = None
    for node in module.graph.nodes:
        if not _works(node):
            continue
        # compared by name, since a joint graph holds copies of operators
        origin = str(node.meta.get("original_aten", node.target))
        key = (origin, node.meta.get("seq_nr")) if origin != str(node.target) else None
        if key is not None and key == last:
            groups[-1].append(node)
        else:
            groups.append([node])
        last = key
    return groups


def _gathers(node: fx.Node) -> bool:
    """Whether the call reads as many rows of its first operand as it returns."""
    index = facts(node.target).index
    return index is not None and not index.pushes


def _works(node: fx.Node) -> bool:
    """Whether `node` is a call that computes a tensor."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or op.name().split(".")[0] in _ALLOCATE:
        return False
    return _tensors(node) and not _is_view(op)


def _reads_shape_only(node: fx.Node) -> bool:
    """Whether the call reads only the shape of its operand, as zeros_like and new_full do."""
    name = str(node.target).split(".")[1]
    return name.endswith("_like") or name.startswith("new_")


def _tensors(node: fx.Node) -> bool:
    value = val(node)
    return isinstance(value, torch.Tensor) or (
        isinstance(value, list | tuple) and any(isinstance(v, torch.Tensor) for v in value)
    )


def _is_view(op: torch._ops.OpOverload) -> bool:
    returns = op._schema.returns
    return bool(returns) and returns[0].alias_info is not None and not returns[0].alias_info.is_write


def _base(node: fx.Node) -> fx.Node:
    """The tensor whose memory `node` is a view of, or `node` itself."""
    while isinstance(node.target, torch._ops.OpOverload) and _is_view(node.target) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _bytes(node: fx.Node, known: Mapping[sympy.Symbol, int]) -> int:
    value = val(node)
    tensors = value if isinstance(value, list | tuple) else [value]
    return sum(_tensor_bytes(t, known) for t in tensors if isinstance(t, torch.Tensor))


def _tensor_bytes(t: torch.Tensor, known: Mapping[sympy.Symbol, int]) -> int:
    strided = t.layout is torch.strided
    dims = (n for d, n in enumerate(t.shape) if not strided or _number(t.stride(d), known) != 0)
    return math.prod(_number(n, known) for n in dims) * t.element_size()


def _number(size: int, known: Mapping[sympy.Symbol, int]) -> int:
    """`size` as a number; KeyError if it depends on a symbol that is not known."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    expr = size.node.expr
    unknown = [s for s in expr.free_symbols if s not in known]
    if unknown:
        raise KeyError(unknown[0])
    return int(expr.xreplace({s: sympy.Integer(known[s]) for s in expr.free_symbols}))


def _symbols(module: fx.GraphModule, sizes: Mapping[Space, Size], rows: Mapping[Space, int]) -> dict[sympy.Symbol, int]:
    """The values that symbols in sizes have in this call, as far as arguments and row counts determine them."""
    known: dict[sympy.Symbol, int] = {}
    for size in _sizes_of(module.graph.find_nodes(op="placeholder")):
        if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol and size.node.has_hint():
            known[size.node.expr] = int(size.node.hint)
    for space, size in sizes.items():
        if space not in rows or not isinstance(size, torch.SymInt):
            continue
        expr = size.node.expr.xreplace({s: sympy.Integer(n) for s, n in known.items()})
        free = list(expr.free_symbols)
        if len(free) == 1 and expr.coeff(free[0]) == 1:
            known[free[0]] = rows[space] - int(expr - free[0])
    for node, first in number(module.graph).items():  # equal calls have different symbols for equal sizes
        for size, other in zip(_sizes_of([node]), _sizes_of([first]), strict=False):
            if isinstance(size, torch.SymInt) and isinstance(other, torch.SymInt) and other.node.expr in known:
                known.setdefault(size.node.expr, known[other.node.expr])
    return known


def _sizes_of(nodes: Iterable[fx.Node]) -> Iterable[object]:
    for node in nodes:
        value = val(node)
        if isinstance(value, torch.Tensor):
            yield from value.shape
        else:
            yield value
