"""The sparse formats of a graph, as DGL lets a script choose them.

Formats are built where they are needed, whatever a script chooses. What it chooses decides only what `formats` answers
and which queries are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from graphweave.core.errors import DataError
from graphweave.dgl import matrices
from graphweave.graph import transform
from graphweave.graph.graph import Graph

FORMATS: tuple[str, ...] = ("coo", "csr", "csc")


class FormattedGraph(Graph):
    """A graph that knows which formats it may have, and which of these it has."""

    _formats = FORMATS
    _created: tuple[str, ...] = ("coo",)

    def formats(self, formats_: str | Iterable[str] | None = None) -> Any:
        """Which formats exist already and which do not (None), or a graph that has only the given ones."""
        if formats_ is not None:
            return _restricted(self, [formats_] if isinstance(formats_, str) else list(formats_))
        return {
            "created": [name for name in FORMATS if name in self._created],
            "not created": [name for name in FORMATS if name in self._formats and name not in self._created],
        }

    def create_formats_(self) -> None:
        """Build the formats that the graph may have, so that no call needs to do so later."""
        for name in self._formats:
            if name != "coo":
                for key in self.relations:
                    matrices.adj_tensors(self, name, key)
        self._created = self._formats

    def require_format(self, wanted: tuple[str, ...], who: str) -> None:
        """DataError if the graph was restricted to formats among which is none of `wanted`."""
        if not set(wanted) & set(self._formats):
            raise DataError(
                f"{who} needs one of the formats {', '.join(wanted)} (the graph has only {', '.join(self._formats)})."
                " Call g.formats([...]) with one of them."
            )

    def local_var(self: F) -> F:
        """`Graph.local_var`, with the same formats."""
        out = transform.local_var(self)
        out._formats, out._created = self._formats, self._created
        return out


F = TypeVar("F", bound=FormattedGraph)


def _restricted(g: F, names: list[str]) -> F:
    wrong = [name for name in names if name not in FORMATS]
    if wrong or not names:
        raise DataError(f"expected formats among {', '.join(FORMATS)} (got {names}). Name at least one of these.")
    out = g.local_var()
    out.node_frames, out.edge_frames = g.node_frames, g.edge_frames
    out._formats = tuple(name for name in FORMATS if name in names)
    out._created = tuple(name for name in g._created if name in names) or out._formats[:1]
    return out
