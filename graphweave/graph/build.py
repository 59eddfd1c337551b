"""`graph` and `heterograph`, which make graphs from index tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphweave.core.errors import DataError, IndexRangeError
from graphweave.core.homogeneous import HOMOGENEOUS_ETYPE, HOMOGENEOUS_NTYPE
from graphweave.core.ranges import range_error
from graphweave.graph.argument_types import Device
from graphweave.graph.assemble import assemble
from graphweave.graph.graph import Graph
from graphweave.graph.relation import CanonicalEtype, Relation

_INDEX_DTYPES = (torch.int32, torch.int64)
_INTEGERS = (torch.int8, torch.int16, torch.uint8, *_INDEX_DTYPES)


def graph(
    data: object,
    num_nodes: int | None = None,
    idtype: torch.dtype | None = None,
    device: Device | None = None,
) -> Graph:
    """A homogeneous graph with an edge src[e] -> dst[e] for every e, in this order.

    `data`: a tuple (src, dst) of two lists, arrays or tensors [num_edges]; an edge_index [2, num_edges], tensor or
    array; or a list of pairs. Indices are int32 or int64, and their dtype is the graph's; `idtype` converts them.
    `num_nodes`: one more than the largest index if None. Tensors are not copied: do not edit them afterwards.
    DataError for other shapes and dtypes, IndexRangeError for an index outside 0..num_nodes.
    """
    src, dst = _ends(data, "graph", idtype, device)
    needed = nodes_needed([("graph, src", src), ("graph, dst", dst)], num_nodes, "graph")
    relation = Relation(HOMOGENEOUS_NTYPE, HOMOGENEOUS_ETYPE, HOMOGENEOUS_NTYPE, src, dst)
    return assemble(Graph, {HOMOGENEOUS_NTYPE: needed}, {relation.key: relation})


def heterograph(
    data_dict: Mapping[CanonicalEtype, object],
    num_nodes_dict: Mapping[str, int] | None = None,
    idtype: torch.dtype | None = None,
    device: Device | None = None,
) -> Graph:
    """A graph of several relations, (source type, name, destination type) -> edges as `graph` takes them.

    Node types and relations are sorted by name. `num_nodes_dict`: the number of nodes of every type, which may list
    types without edges; None: one more than the largest index of each type. DataError if a type is missing there, or if
    relations differ in dtype or device; other errors as in `graph`.
    """
    if not data_dict:
        raise DataError("heterograph: expected one relation at least (got none). Pass one.")
    relations: dict[CanonicalEtype, Relation] = {}
    for key in data_dict:
        if not (isinstance(key, tuple) and len(key) == 3 and all(isinstance(part, str) for part in key)):
            raise DataError(
                f"heterograph: expected (source type, name, destination type) of strings (got {key!r})."
                " Name relations so."
            )
    ends: dict[str, list[tuple[str, Tensor]]] = {}
    for key in sorted(data_dict):
        src, dst = _ends(data_dict[key], f"relation {key}", idtype, device)
        relations[key] = Relation(*key, src, dst)
        ends.setdefault(key[0], []).append((f"relation {key}, src", src))
        ends.setdefault(key[2], []).append((f"relation {key}, dst", dst))
    _check_alike(relations)
    if num_nodes_dict is not None and (missing := sorted(ends.keys() - num_nodes_dict.keys())):
        raise DataError(f"heterograph: num_nodes_dict has no number for node types {', '.join(missing)}. Add them.")
    given: dict[str, int | None] = dict.fromkeys(ends) if num_nodes_dict is None else dict(num_nodes_dict)
    nodes = {
        t: nodes_needed(ends.get(t, ()), given[t], f"node type {t!r}", f"nodes of type {t!r}") for t in sorted(given)
    }
    return assemble(Graph, nodes, relations)


def _check_alike(relations: Mapping[CanonicalEtype, Relation]) -> None:
    kinds = {
        key: (relation.src.dtype, relation.src.device) for key, relation in relations.items() if relation.num_edges
    }
    if len(set(kinds.values())) > 1:
        listed = "; ".join(f"{key}: {dtype} on {device}" for key, (dtype, device) in kinds.items())
        raise DataError(
            f"heterograph: relations must have one dtype and device (got {listed}). Pass idtype= or device=."
        )
    every = {(relation.src.dtype, relation.src.device) for relation in relations.values()}
    if len(every) > 1:
        raise DataError(
            f"heterograph: relations must have one dtype and device (got {every}). Pass idtype= or device=."
        )


def _ends(data: object, what: str, idtype: torch.dtype | None, device: Device | None) -> tuple[Tensor, Tensor]:
    if idtype not in (None, *_INDEX_DTYPES):
        raise DataError(f"{what}: idtype must be torch.int32 or torch.int64 (got {idtype}). Pass one of them.")
    if isinstance(data, list):
        data = np.asarray(data).T if data else ([], [])
    if isinstance(data, (Tensor, np.ndarray)):
        if data.ndim != 2 or data.shape[0] != 2:
            raise DataError(
                f"{what}: expected an edge_index of shape [2, num_edges] (got {list(data.shape)})."
                " Transpose it, if it is [num_edges, 2]."
            )
        data = (data[0], data[1])
    if not isinstance(data, tuple) or len(data) != 2:
        raise DataError(
            f"{what}: expected (src, dst) or an edge_index [2, num_edges] (got {type(data).__name__})."
            " Pass one of these."
        )
    src, dst = (
        _index(value, f"{what}, {name}", idtype, device) for value, name in zip(data, ("src", "dst"), strict=True)
    )
    if src.shape != dst.shape or src.dtype != dst.dtype or src.device != dst.device:
        raise DataError(
            f"{what}: src and dst must agree in length, dtype and device (got {list(src.shape)} {src.dtype} on "
            f"{src.device} and {list(dst.shape)} {dst.dtype} on {dst.device})."
            " Make them alike."
        )
    return src, dst


def _index(value: Any, what: str, idtype: torch.dtype | None, device: Device | None) -> Tensor:
    try:
        stays = device is None and isinstance(value, Tensor)  # a default device is that of new tensors only
        index = value if stays else torch.as_tensor(value, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{what}: expected a list, array or tensor of integers ({error}). Pass one of these."
        ) from error
    if index.numel() == 0 and not isinstance(value, (Tensor, np.ndarray)):
        index = index.to(torch.int64)  # torch makes an empty list a tensor of floats
    if index.dtype not in (_INTEGERS if idtype else _INDEX_DTYPES):
        hint = "" if index.dtype.is_floating_point else ", or pass idtype=torch.int64"
        raise DataError(f"{what} must be int32 or int64 (got {index.dtype}). Convert it with .long(){hint}.")
    if index.dim() != 1:
        raise DataError(f"{what} must have shape [num_edges] (got {list(index.shape)}). Flatten it first.")
    if idtype == torch.int32 and index.dtype == torch.int64 and index.numel():
        high = int(index.max())
        if high > torch.iinfo(torch.int32).max:
            raise IndexRangeError(f"{what}: {high} does not fit idtype torch.int32. Use torch.int64.")
    # `detach` gives an alias that is not a view, because Dynamo's guards on a view depend on its base. The alias shares
    # the version counter, so edits in place are still noticed.
    return index.to(idtype or index.dtype).contiguous().detach()


def nodes_needed(ends: Iterable[tuple[str, Tensor]], given: int | None, what: str, of: str = "nodes") -> int:
    """The number of nodes: `given`, or one more than the largest index. Checks all indices, except under tracing."""
    counts = (int, np.integer, torch.SymInt)
    if given is not None and (isinstance(given, bool) or not isinstance(given, counts) or given < 0):
        raise DataError(f"{what}: expected a number of nodes >= 0 (got {given!r}). Pass such a number, or none.")
    if given is not None and torch.compiler.is_compiling():
        return given  # indices have no values under tracing; the compiled code checks them when it uses them
    needed = 0
    for name, index in ends:
        if index.numel() == 0:
            continue
        low, high = (int(x) for x in torch.aminmax(index))
        if low < 0 or (given is not None and high >= given):
            rows = high + 1 if given is None else given
            raise range_error(index, rows, what=name, of=of, do="Correct it, or pass another num_nodes.")
        needed = max(needed, high + 1)
    return needed if given is None else given
