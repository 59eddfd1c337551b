"""Whether a manifest is one that `write_partition` could have written: its types, names, paths and sizes.

A digest proves that a file is whole, not that somebody meant well: whoever alters the content can compute it again. So
arrays have exactly the names that follow from the types, none of which leads out of the part's folder, and all sizes
fit together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from graphweave.core.json_values import JsonObject

_MOST = 1 << 63
_NAME = re.compile(r"[^/\\\x00-\x1f]{1,200}")
"""A name of data, of which a file is called."""
_DIGEST = re.compile(r"[0-9a-f]{64}")

FIELDS = (
    "graph", "method", "seed", "num_classes", "node_types", "node_data", "edge_types", "num_edges", "edge_data",
    "cut_edges", "parts",
)  # fmt: skip
"""The fields of a manifest, but for its format, version and digest."""


def problem(content: dict[str, object]) -> str | None:
    """The first problem in `content`, the fields of a manifest as JSON values; None if nothing is."""
    try:
        _check(content)
    except _Wrong as wrong:
        return str(wrong)
    return None


class _Wrong(Exception):
    """Something that no manifest has; the message says what."""


def _check(content: JsonObject) -> None:
    _need(content.keys() == {*FIELDS}, "its fields are not those of a manifest")
    _need(_is_text(content["graph"]) and _is_text(content["method"]), "'graph' and 'method' must be texts")
    _need(_is_int(content["seed"]), "'seed' must be an integer")
    _need(content["num_classes"] is None or _is_count(content["num_classes"]), "'num_classes' must be a count")
    nodes, edges = content["node_types"], content["edge_types"]
    _need(isinstance(nodes, dict) and all(map(_is_count, nodes.values())), "'node_types' must be types and counts")
    _need(_is_list(edges, lambda name: _is_list(name, _is_text, 3)), "'edge_types' must be triples of texts")
    _need(len({*map(tuple, edges)}) == len(edges), "'edge_types' has one twice")
    known = all(source in nodes and target in nodes for source, _, target in edges)
    _need(known, "'edge_types' has a node type that is not in 'node_types'")
    for field, count in (("node_data", len(nodes)), ("edge_data", len(edges))):
        _need(_is_list(content[field], lambda names: _is_list(names, _is_name), count), f"'{field}' must be names")
        _need(all(len({*names}) == len(names) for names in content[field]), f"'{field}' has a name twice")
    for field in ("num_edges", "cut_edges"):
        _need(_is_list(content[field], _is_count, len(edges)), f"'{field}' must be a count for each edge type")
    pairs = zip(content["cut_edges"], content["num_edges"], strict=True)
    _need(all(cut <= all_edges for cut, all_edges in pairs), "more edges are cut than there are")
    parts = content["parts"]
    _need(_is_list(parts, lambda part: isinstance(part, dict)) and parts, "'parts' must be at least one part")
    for rank, part in enumerate(parts):
        _check_part(content, part, f"part {rank}")
    for field, totals in (("num_own", [*nodes.values()]), ("num_edges", content["num_edges"])):
        summed = [sum(counts) for counts in zip(*(part[field] for part in parts), strict=True)]
        _need(summed == totals, f"'{field}' of the parts do not add up to those of the graph")


def _check_part(content: JsonObject, part: JsonObject, what: str) -> None:
    kinds, names, ranks = len(content["node_types"]), len(content["edge_types"]), len(content["parts"])
    _need(
        part.keys() == {"num_own", "num_halo", "num_edges", "arrays"}, f"the fields of {what} are not those of a part"
    )
    for field, count in (("num_own", kinds), ("num_halo", kinds), ("num_edges", names)):
        _need(_is_list(part[field], _is_count, count), f"'{field}' of {what} must be a count for each type")
    arrays = part["arrays"]
    wanted: dict[str, tuple[int | None, ...] | None] = {}
    """The shape of each array of integers, with None for what is not known; None for one of data."""
    for i in range(kinds):
        own, halo = part["num_own"][i], part["num_halo"][i]
        shapes: dict[str, tuple[int | None, ...]] = {
            "own": (own,), "halo": (halo,), "halo_counts": (ranks,), "send": (None,), "send_counts": (ranks,)
        }  # fmt: skip
        wanted |= {f"nodes{i}.{key}": shape for key, shape in shapes.items()}
        wanted |= {f"nodes{i}.data.{key}": None for key in content["node_data"][i]}
    for i in range(names):
        size = part["num_edges"][i]
        wanted |= {f"edges{i}.index": (2, size), f"edges{i}.ids": (size,)}
        wanted |= {f"edges{i}.data.{key}": None for key in content["edge_data"][i]}
    _need(
        isinstance(arrays, dict) and arrays.keys() == wanted.keys(), f"the arrays of {what} are not those of its types"
    )
    for key, shape in wanted.items():
        _check_array(arrays[key], shape, f"{key!r} of {what}")
        if shape is None:
            _check_rows(part, key, arrays[key], what)


def _check_array(array: Any, shape: tuple[int | None, ...] | None, what: str) -> None:
    fields = isinstance(array, dict) and array.keys() == {"dtype", "shape", "sha256"}
    _need(fields and _is_list(array["shape"], _is_count), f"array {what} must have a type, a shape and a digest")
    _need(_is_text(array["sha256"]) and _DIGEST.fullmatch(array["sha256"]), f"array {what} has no digest")
    dtype = _dtype(array["dtype"])
    _need(dtype is not None, f"array {what} has the type {array['dtype']!r}")
    assert dtype is not None
    _need(math.prod(array["shape"]) * dtype.itemsize < _MOST, f"array {what} has the shape {array['shape']}")
    if shape is not None:
        _need(dtype == np.int64, f"array {what} must be of 64-bit integers (got {array['dtype']})")
        there = array["shape"]
        fits = len(there) == len(shape) and all(w in (None, n) for w, n in zip(shape, there, strict=True))
        _need(fits, f"array {what} must have the shape {_shown(shape)} (got {there})")


def _check_rows(part: JsonObject, key: str, array: JsonObject, what: str) -> None:
    """An array of data has a row for each node or edge; behind floating rows of nodes there is room for halo rows."""
    number = int(key.partition(".")[0].removeprefix("nodes").removeprefix("edges"))
    if key.startswith("edges"):
        rows = part["num_edges"][number]
    else:
        dtype = _dtype(array["dtype"])
        assert dtype is not None
        rows = part["num_own"][number] + (part["num_halo"][number] if dtype.kind == "f" else 0)
    there = array["shape"]
    _need(there and there[0] == rows, f"array {key!r} of {what} must have {rows} rows (got the shape {there})")


def _dtype(text: Any) -> np.dtype[Any] | None:
    """The type of numbers that a text names, None for anything else."""
    try:
        found = np.dtype(text) if _is_text(text) else None
    except (TypeError, ValueError, SyntaxError):
        return None
    return found if found is not None and found.kind in "biuf" and found.str == text else None


def _need(good: object, what: str) -> None:
    if not good:
        raise _Wrong(what)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_int(value) and 0 <= value < _MOST


def _is_list(value: object, each: Callable[[object], object], length: int | None = None) -> bool:
    return isinstance(value, list) and all(map(each, value)) and length in (None, len(value))


def _shown(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join('?' if n is None else str(n) for n in shape)}]"
