"""`graphweave.explain`: what became of a function, in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo

from graphweave.compiler.report import GraphNote, collect
from graphweave.core.counters import counters
from graphweave.frontends.dynamo.compile import compile


@dataclass(frozen=True, slots=True)
class Explanation:
    """`graphs` has one entry a compiled graph (forward, backward or inference); printing it gives the whole story."""

    graphs: tuple[GraphNote, ...]
    eager: tuple[str, ...]
    graph_breaks: int

    def __str__(self) -> str:
        parts = [f"{len(self.graphs)} compiled graphs, {self.graph_breaks} graph breaks"]
        parts += [f"runs eagerly: {why}" for why in self.eager]
        parts += [_graph_text(g) for g in self.graphs]
        return "\n\n".join(parts) + "\n"


def explain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Compile `fn` afresh for `args`, run it once, and tell what came out: IR, kernels, fallbacks with their lines.

    `fn` is a module or function, compiled already (its options are kept) or not. Where its result requires a gradient,
    a backward is compiled too. The compiled code of other functions is forgotten with it and built again at their next
    call.
    """
    target = getattr(fn, "_gw_original", fn)
    dynamic, options = getattr(fn, "_gw_arguments", (True, None))
    torch._dynamo.reset()
    before = counters()["graph_breaks"]
    with collect() as report:
        compile(target, dynamic=dynamic, options=options)(*args, **kwargs)
    breaks = counters()["graph_breaks"] - before
    torch._dynamo.reset()
    return Explanation(tuple(report.graphs), tuple(report.eager), breaks)


def _graph_text(graph: GraphNote) -> str:
    lines = [f"== {graph.name}: {len(graph.kernels)} kernels, {len(graph.fallbacks)} calls left to PyTorch"]
    if graph.hoisted:
        lines.append(f"   {graph.hoisted} values computed once per graph")
    if graph.saved:
        lines.append(f"   saved for backward (recompute={graph.recompute}): {', '.join(graph.saved)}")
    for k in graph.kernels:
        along = f", edges along {k.along}" if k.along else ""
        lines.append(f"-- kernel {k.name}: rows of {k.rows}{along}")
        lines += [f"   {c}" for c in k.computes]
    for f in graph.fallbacks:
        lines.append(f"-- left to PyTorch: {f.what}: {f.why} [{f.where or 'generated'}]")
    lines.append("-- message IR")
    lines.append(graph.ir)
    return "\n".join(lines)
