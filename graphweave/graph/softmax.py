"""Softmax over the edges that end, or start, in the same node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph.graph import Graph
from graphweave.graph.messaging import ends_of
from graphweave.udf import run
from graphweave.udf.mailbox import Mailbox, Received


def edge_softmax(graph: Graph, logits: Any, eids: Tensor | None = None, norm_by: str = "dst") -> Any:
    """a[e] = exp(logits[e]) / sum of exp(logits[f]) over the edges f with dst[f] = dst[e].

    `logits` [edges, ...] has a row for each edge, or for each of the edges `eids` [k]; in that case the sums run over
    these edges only. With `norm_by="src"` they run over edges with the same source. On a graph of several relations,
    `logits` may be a dict, relation -> [edges, ...]: the softmax then runs over the edges of all these relations, and
    the result is a dict, too. DataError if `logits` has another number of rows. (GAT, Velickovic et al. 2018, equation
    3.)
    """
    if norm_by not in ("src", "dst"):
        raise DataError(f"norm_by must be 'src' or 'dst' (got {norm_by!r}). Pass one of them.")
    if isinstance(logits, Mapping):
        return _over_relations(graph, logits, norm_by)
    ends = ends_of(graph, None)
    at, rows = (ends.dst, ends.dst_rows) if norm_by == "dst" else (ends.src, ends.src_rows)
    if eids is not None:
        at = at.index_select(0, eids)
    _check_rows("logits", logits, at.shape[0])
    return run.call(softmax, logits, at, rows)


def softmax(x: Tensor, at: Tensor, rows: Tensor) -> Tensor:
    """Softmax of x [edges, ...] over the edges with equal `at` [edges]. `rows` has the shape [number of nodes, 0]."""
    out: Tensor = Mailbox(x, Received(at, rows)).softmax(1).messages  # type: ignore[attr-defined]
    return out


def _over_relations(graph: Graph, logits: Mapping[Any, Tensor], norm_by: str) -> dict[object, Tensor]:
    groups: dict[str, list[tuple[Any, Tensor, Tensor, Tensor]]] = {}
    for etype, x in logits.items():
        ends, (srctype, _, dsttype) = ends_of(graph, etype), graph.to_canonical_etype(etype)
        at, rows = (ends.dst, ends.dst_rows) if norm_by == "dst" else (ends.src, ends.src_rows)
        _check_rows(f"logits[{etype!r}]", x, at.shape[0])
        groups.setdefault(dsttype if norm_by == "dst" else srctype, []).append((etype, x, at, rows))
    out: dict[Any, Tensor] = {}
    for members in groups.values():
        xs, at = [x for _, x, _, _ in members], torch.cat([a for _, _, a, _ in members])
        parts = run.call(softmax, torch.cat(xs), at, members[0][3]).split([x.shape[0] for x in xs])
        out.update((etype, part) for (etype, *_), part in zip(members, parts, strict=True))
    return {etype: out[etype] for etype in logits}


def _check_rows(name: str, x: Tensor, count: int) -> None:
    if x.shape[0] != count:
        raise DataError(
            f"{name} has {x.shape[0]} rows (shape {tuple(x.shape)}), but there are {count} edges."
            " Give it a row for each edge."
        )
