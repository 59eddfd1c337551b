"""The text that `explain` prints after its short form: choices by cost, passes, message IR, the code of kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from graphweave.compiler.report import GraphNote, PassNote, RewriteNote
from graphweave.core.break_even import BreakEven
from graphweave.passes.rewritten import Step


class Compiled(Protocol):
    """The parts of an Explanation that have an IR."""

    @property
    def rewrites(self) -> Sequence[RewriteNote]: ...
    @property
    def graphs(self) -> Sequence[GraphNote]: ...


def costs_text(note: RewriteNote) -> str:
    """The choices that rewriting made by cost, both taken and refused, each with both costs, and by measuring."""
    taken = [s for s in note.steps if s.taken]
    refused = [s for s in note.steps if not s.taken]
    lines = [f"== rewriting: {len(taken)} choices taken, {len(refused)} refused for their cost"]
    for word, steps in (("taken", taken), ("refused", refused)):
        lines += [f"-- {word}: {_step_text(s)}" for s in steps]
    lines += [f"-- measured: {note}" for note in note.measured]
    return "\n".join(lines) + "\n"


def ir_text(explanation: Compiled) -> str:
    """The message IR of each captured graph before and after rewriting, and of each compiled graph."""
    lines = []
    for note in explanation.rewrites:
        lines += ["== message IR before rewriting", note.before, "== message IR after rewriting", note.after]
    for graph in explanation.graphs:
        lines += [f"== message IR of {graph.name}", graph.ir]
    return "\n".join(lines)


def passes_text(passes: Sequence[PassNote]) -> str:
    """The passes that ran, in order: the stage, what each changed, and how long it took."""
    lines = [f"== passes: {len(passes)}, of which {sum(p.changed for p in passes)} changed a program"]
    width = max((len(str(p)) for p in passes), default=0)
    lines += [f"-- {p.stage:<10} {p!s:<{width}}  {1e3 * p.seconds:8.2f} ms" for p in passes]
    return "\n".join(lines) + "\n"


def break_even_text(measured: BreakEven | None, *, compiled: bool) -> str:
    """When the first call has paid. A program of which nothing is `compiled` can never gain."""
    if measured is None:
        return '== break-even: not measured; pass detail="break-even" to explain\n'
    if not compiled:
        return "== break-even: nothing is compiled, so nothing can be gained: run it as PyTorch's own\n"
    return f"== break-even: {measured.text()}\n"


def loops_text(graph: GraphNote) -> str:
    """The loop IR of each kernel, those of the prelude first, and the fields of a schedule that the kernel ignores."""
    lines = []
    for k in (*graph.once, *graph.kernels):
        left_out = (f"   without {name} of the schedule: {why}" for name, why in k.not_taken)
        lines += [f"== {graph.name}, loop IR of kernel {k.name}", *left_out, k.loops]
    return "\n".join(lines)


def _step_text(step: Step) -> str:
    rules = " ".join(f"{rule} x{n}" if n > 1 else rule for rule, n in Counter(step.rules).items())
    units = ("MB moved", 1e6), ("Mflop on vectors", 1e6), ("Mflop in products", 1e6)
    costs = ", ".join(
        f"{b / scale:.4g} -> {a / scale:.4g} {unit}"
        for (unit, scale), b, a in zip(units, step.before, step.after, strict=True)
        if b != a
    )
    gain = f"{'gains' if step.taken else 'would lose'} {1e3 * abs(step.seconds):.3g} ms"
    return f"{rules}: {costs}; {gain} [{step.loc.shown or 'generated'}]"
