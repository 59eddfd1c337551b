"""`dgl.ops`: functions of a graph and tensors, without fields: sparse-dense products, functions of the ends of edges,
softmax over edges, reductions of segments, and products with a matrix for each type.

`u_mul_e_sum(g, x, y)`, `copy_u_max(g, x)`, `u_dot_v(g, x, y)` and the like are made from `gspmm` and `gsddmm`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from graphweave.core.edge_functions import OPERATIONS
from graphweave.core.errors import DataError
from graphweave.dgl.graph import DGLGraph
from graphweave.dgl.slices import take_relations
from graphweave.graph import messaging, query
from graphweave.graph.readout import owners, reduce_rows
from graphweave.graph.relation import CanonicalEtype, Etype
from graphweave.graph.softmax import edge_softmax as softmax_of_edges
from graphweave.graph.softmax import softmax
from graphweave.graph.structure import Structure
from graphweave.ops import gather_mm as gather_mm
from graphweave.ops import segment_mm as segment_mm
from graphweave.udf import run
from graphweave.udf.arguments import Frames
from graphweave.udf.builtin import BinaryMessage, CopyMessage, ReduceMessages
from graphweave.udf.mailbox import Received

Operand: TypeAlias = Any
"""A tensor, or a tensor or None for each type of a graph of several; None if the operator has one operand."""

_REDUCERS = ("sum", "max", "min", "mean")


def gspmm(g: Structure, op: str, reduce_op: str, lhs_data: Operand, rhs_data: Operand) -> Any:
    """out[v] = reduce over the edges e that end in v of op(lhs[src[e]], rhs[e]). [nodes, ...], [edges, ...] ->
    [destinations, ...], with 0 where no edge ends.

    `op`: "add", "sub", "mul", "div", "copy_lhs" (of the source) or "copy_rhs" (of the edge). `reduce_op`: "sum", "max",
    "min" or "mean". On a graph of several relations, `lhs_data` holds a tensor (or None) for each of `g.ntypes`,
    `rhs_data` for each of `g.canonical_etypes`, and the result is a tuple over `g.ntypes`.
    """
    if reduce_op not in _REDUCERS:
        raise DataError(f"expected one of {', '.join(_REDUCERS)} as reduce_op (got {reduce_op!r}). Pass one of these.")
    if len(g.relations) == 1:
        return _pushed(g, g.relation().key, op, reduce_op, lhs_data, rhs_data)
    found: dict[str, list[tuple[Tensor, Tensor | None]]] = {}
    for i, (key, r) in enumerate(g.relations.items()):
        x = None if lhs_data is None else lhs_data[list(g.node_frames).index(r.srctype)]
        y = None if rhs_data is None else rhs_data[i]
        if (x is None and op != "copy_rhs") or (y is None and op != "copy_lhs"):
            continue
        ends = messaging.ends_of(g, key)
        arrived = messaging.mask_of_rows(ends.dst_rows, ends.dst) if reduce_op in ("max", "min") else None
        found.setdefault(r.dsttype, []).append((_pushed(g, key, op, reduce_op, x, y), arrived))
    return tuple(
        messaging.across_types([x for x, _ in found[t]], reduce_op, [a for _, a in found[t]]) if t in found else None
        for t in g.node_frames
    )


def _pushed(g: Structure, key: CanonicalEtype, op: str, reduce_op: str, x: Operand, y: Operand) -> Tensor:
    message = _message(op, "u", "e")
    frames = Frames({"x": x} if x is not None else {}, {}, {"y": y} if y is not None else {}, {}, {}, key)
    return run.update_all(messaging.ends_of(g, key), frames, message, ReduceMessages(reduce_op, "m", "out"))["out"]


def gsddmm(
    g: Structure, op: str, lhs_data: Operand, rhs_data: Operand, lhs_target: str = "u", rhs_target: str = "v"
) -> Any:
    """out[e] = op(lhs at one end of e, rhs at another). [rows, ...], [rows, ...] -> [edges, ...].

    `lhs_target`, `rhs_target`: "u" for the source, "v" for the destination, "e" for the edge. `op` as in `gspmm`, and
    "dot", which sums the last dim and keeps it with size 1. On a graph of several relations, operands are given by node
    type or relation as in `gspmm`, and the result is a tuple over `g.canonical_etypes`.
    """
    message = _message(op, lhs_target, rhs_target)
    if len(g.relations) == 1:
        return _at_ends(g, g.relation().key, message, (lhs_target, lhs_data), (rhs_target, rhs_data))
    out = []
    for i, (key, r) in enumerate(g.relations.items()):
        place = {"u": list(g.node_frames).index(r.srctype), "v": list(g.node_frames).index(r.dsttype), "e": i}
        x = None if lhs_data is None else lhs_data[place[lhs_target]]
        y = None if rhs_data is None else rhs_data[place[rhs_target]]
        missing = (x is None and op != "copy_rhs") or (y is None and op != "copy_lhs")
        out.append(None if missing else _at_ends(g, key, message, (lhs_target, x), (rhs_target, y)))
    return tuple(out)


def _at_ends(
    g: Structure,
    key: CanonicalEtype,
    message: CopyMessage | BinaryMessage,
    lhs: tuple[str, object],
    rhs: tuple[str, object],
) -> Tensor:
    fields: dict[str, dict[str, Any]] = {"u": {}, "v": {}, "e": {}}
    for name, (target, x) in zip("xy", (lhs, rhs), strict=True):
        if x is not None:
            fields[target][name] = x
    frames = Frames(fields["u"], fields["v"], fields["e"], {}, {}, key)
    return run.apply_edges(messaging.ends_of(g, key), frames, message)["m"]


def _message(op: str, lhs: str, rhs: str) -> CopyMessage | BinaryMessage:
    if op in ("copy_lhs", "copy_u", "copy_rhs", "copy_e"):
        return CopyMessage(lhs, "x", "m") if op in ("copy_lhs", "copy_u") else CopyMessage(rhs, "y", "m")
    if op not in OPERATIONS or lhs not in "uve" or rhs not in "uve":
        raise DataError(
            f"expected one of {', '.join(OPERATIONS)}, copy_lhs, copy_rhs between 'u', 'v' and 'e' (got {op!r} between"
            f" {lhs!r} and {rhs!r}). Pass one of these."
        )
    return BinaryMessage(lhs, op, rhs, "x", "y", "m")


def copy_u(g: Structure, x: Tensor, etype: Etype | None = None) -> Tensor:
    """out[e] = x[src[e]]. [sources, ...] -> [edges, ...]."""
    return gsddmm(_of(g, etype), "copy_lhs", x, None)


def copy_v(g: Structure, x: Tensor, etype: Etype | None = None) -> Tensor:
    """out[e] = x[dst[e]]. [destinations, ...] -> [edges, ...]."""
    return gsddmm(_of(g, etype), "copy_rhs", None, x)


def copy_e(g: Structure, x: Tensor) -> Tensor:
    """x itself."""
    return x


def edge_softmax(graph: DGLGraph, logits: object, eids: Tensor | str = query.ALL, norm_by: str = "dst") -> Any:
    """`graphweave.edge_softmax`: softmax of `logits` over the edges that end (or start) in the same node. A dict
    of several relations' logits gives a dict by canonical relation."""
    if isinstance(logits, Mapping):
        logits = {graph.to_canonical_etype(etype): x for etype, x in logits.items()}
    return softmax_of_edges(graph, logits, None if isinstance(eids, str) else eids, norm_by)


def segment_reduce(seglen: Tensor, value: Tensor, reducer: str = "sum") -> Tensor:
    """out[s] = reduce over the next seglen[s] rows of `value`. [rows, ...] -> [segments, ...], 0 for empty segments.

    `reducer`: "sum", "mean", "max" or "min". DataError for another, or if lengths do not add up to the rows.
    """
    if reducer not in _REDUCERS:
        raise DataError(f"expected one of {', '.join(_REDUCERS)} as reducer (got {reducer!r}). Pass one of these.")
    out: Tensor = run.call(reduce_rows, value, None, _segments(seglen, value), reducer)
    return out


def segment_softmax(seglen: Tensor, value: Tensor) -> Tensor:
    """Softmax of each feature over the rows of each segment. [rows, ...] -> [rows, ...]."""
    to = _segments(seglen, value)
    out: Tensor = run.call(softmax, value, to.dst, to.rows)
    return out


def _segments(seglen: Tensor, value: Tensor) -> Received:
    lengths = seglen.to(device=value.device, dtype=torch.int64)
    if not torch.compiler.is_compiling() and int(lengths.sum()) != value.shape[0]:
        raise DataError(
            f"expected lengths that add up to the {value.shape[0]} rows (got {int(lengths.sum())}). Correct them."
        )
    return owners(lengths, value, lengths.shape[0])


def _of(g: Structure, etype: Etype | None) -> Structure:
    return g if etype is None else take_relations(g, etype)


def _spmm(op: str, reducer: str) -> Callable[..., object]:
    def function(g: Structure, x: object, y: object) -> object:
        return gspmm(g, op, reducer, x, y)

    function.__doc__ = f"`gspmm`: the {reducer} over incoming edges of {op} of the source's x and the edge's y."
    return _named(function, f"u_{op}_e_{reducer}")


def _copied(target: str, reducer: str) -> Callable[..., object]:
    def function(g: Structure, x: object) -> object:
        return gspmm(g, "copy_lhs", reducer, x, None) if target == "u" else gspmm(g, "copy_rhs", reducer, None, x)

    function.__doc__ = (
        f"`gspmm`: the {reducer} over incoming edges of x at the {'source' if target == 'u' else 'edge'}."
    )
    return _named(function, f"copy_{target}_{reducer}")


def _sddmm(lhs: str, op: str, rhs: str) -> Callable[..., object]:
    def function(g: Structure, x: object, y: object, etype: Etype | None = None) -> object:
        return gsddmm(_of(g, etype), op, x, y, lhs, rhs)

    function.__doc__ = f"`gsddmm`: {op} of x at {lhs} and y at {rhs} of each edge."
    return _named(function, f"{lhs}_{op}_{rhs}")


def _named(function: Callable[..., object], name: str) -> Callable[..., object]:
    function.__name__ = function.__qualname__ = name
    return function


def _make_functions() -> Sequence[Callable[..., object]]:
    return [
        *(_spmm(op, reducer) for op in OPERATIONS[:-1] for reducer in _REDUCERS),
        *(_copied(target, reducer) for target in "ue" for reducer in _REDUCERS),
        *(_sddmm(x, op, y) for op in OPERATIONS for x, y in itertools.permutations("uve", 2)),
    ]


globals().update({function.__name__: function for function in _make_functions()})
