"""The sparse formats of a graph, as DGL lets a script choose them.

Formats are built where they are needed, whatever a script chooses. What it chooses decides only what `formats` answers
and which queries are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from graphweave.core.errors import DataError

if TYPE_CHECKING:
    from graphweave.dgl.graph import DGLGraph  # which imports this module

FORMATS: tuple[str, ...] = ("coo", "csr", "csc")


def created(g: DGLGraph) -> dict[str, list[str]]:
    return {
        "created": [name for name in FORMATS if name in g._created],
        "not created": [name for name in FORMATS if name in g._formats and name not in g._created],
    }


def restricted(g: DGLGraph, chosen: str | Iterable[str]) -> DGLGraph:
    names = [chosen] if isinstance(chosen, str) else list(chosen)
    wrong = [name for name in names if name not in FORMATS]
    if wrong or not names:
        raise DataError(f"expected formats among {', '.join(FORMATS)} (got {names}). Name at least one of these.")
    out = g.local_var()
    out.node_frames, out.edge_frames = g.node_frames, g.edge_frames
    out._formats = tuple(name for name in FORMATS if name in names)
    out._created = tuple(name for name in g._created if name in names) or out._formats[:1]
    return out


def create(g: DGLGraph) -> None:
    for name in g._formats:
        if name != "coo":
            for key in g.relations:
                g.adj_tensors(name, key)
    g._created = g._formats


def require(g: DGLGraph, wanted: tuple[str, ...], who: str) -> None:
    """DataError if the graph was restricted to formats among which is none of `wanted`."""
    if not set(wanted) & set(g._formats):
        raise DataError(
            f"{who} needs one of the formats {', '.join(wanted)} (the graph has only {', '.join(g._formats)})."
            " Call g.formats([...]) with one of them."
        )
