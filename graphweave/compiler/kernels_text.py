"""The code of a graph's kernels as text for people."""

from __future__ import annotations

from graphweave.compiler.report import GraphNote


def kernels_text(graph: GraphNote, *, wrapper: bool) -> str:
    """The values that each kernel computes, and its code; kernels that run once for each graph come first.

    With `wrapper`, the text that calls the kernels follows.
    """
    lines = []
    for k in (*graph.once, *graph.kernels):
        along = f", edges along {k.along}" if k.along else ""
        lines += [
            f"== {graph.name}, kernel {k.name}: rows of {k.rows}{along}",
            *(f"   {c}" for c in k.computes),
            k.text,
        ]
    if wrapper:
        lines += [f"== {graph.name}, the calls in order", graph.wrapper]
    return "\n".join(lines)
