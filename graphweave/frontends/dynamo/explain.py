"""`graphweave.explain`: what became of a function, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo

from graphweave.compiler.report import GraphNote, RewriteNote, collect
from graphweave.core.counters import counters
from graphweave.frontends.dynamo.compile import compile
from graphweave.passes.rewritten import Step


@dataclass(frozen=True, slots=True)
class Explanation:
    """`rewrites` has one entry a captured graph, `graphs` one a compiled one (forward, backward, inference).

    Printing it gives the whole story."""

    rewrites: tuple[RewriteNote, ...]
    graphs: tuple[GraphNote, ...]
    eager: tuple[str, ...]
    graph_breaks: int

    def __str__(self) -> str:
        parts = [f"{len(self.graphs)} compiled graphs, {self.graph_breaks} graph breaks"]
        parts += [f"runs eagerly: {why}" for why in self.eager]
        parts += [_rewrites_text(r) for r in self.rewrites]
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
    return Explanation(tuple(report.rewrites), tuple(report.graphs), tuple(report.eager), breaks)


def _rewrites_text(note: RewriteNote) -> str:
    taken = [s for s in note.steps if s.taken]
    refused = [s for s in note.steps if not s.taken]
    lines = [f"== rewriting: {len(taken)} choices taken, {len(refused)} refused for their cost"]
    for word, steps in (("taken", taken), ("refused", refused)):
        lines += [f"-- {word}: {_step_text(s)}" for s in steps]
    return "\n".join([*lines, "-- message IR before", note.before, "-- message IR after", note.after])


def _step_text(step: Step) -> str:
    rules = " ".join(f"{rule} x{n}" if n > 1 else rule for rule, n in Counter(step.rules).items())
    units = ("MB moved", 1e6), ("Mflop on vectors", 1e6), ("Mflop in products", 1e6)
    costs = ", ".join(
        f"{b / scale:.4g} -> {a / scale:.4g} {unit}"
        for (unit, scale), b, a in zip(units, step.before, step.after, strict=True)
        if b != a
    )
    return f"{rules}: {costs}; {'gains' if step.taken else 'would lose'} {1e3 * abs(step.seconds):.3g} ms [{step.loc}]"


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
