"""The part of `explain` about a measured step: the time of each kernel and call, and of what runs outside of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from graphweave.compiler.report import GraphNote
from graphweave.frontends.dynamo.explain_summary import size
from graphweave.frontends.dynamo.step_profile import StepProfile, TimedWork
from graphweave.pages.explained.data import ShownMeasured, ShownWork

_NONE: Mapping[str, str] = MappingProxyType({})

_KINDS = {
    "kernel": "kernels",
    "call": "calls of PyTorch's in compiled code",
    "other": "all else: Python, autograd, eager calls",
}
"""Kind of work -> its heading."""

_SHORT = 0.005
"""Calls of PyTorch that take less than this share of a step (views, sizes) are shown together."""


def measured_step(
    step: StepProfile, graphs: Sequence[GraphNote], keys: Mapping[str, str] = _NONE, names: Mapping[str, str] = _NONE
) -> ShownMeasured:
    """A step as data. `keys` has the key of each kernel by its label, and `names` what follows the name of a call of
    each graph."""
    does = {k.label: k.does for g in graphs for k in (*g.once, *g.kernels)}
    ran = sorted((w for w in step.work if w.runs), key=lambda w: -w.seconds)
    work, short = list[ShownWork](), list[TimedWork]()
    for w in ran:
        if w.label in does:
            work.append(ShownWork("kernel", w.label, does[w.label], w.runs, w.seconds, keys.get(w.label, "")))
        elif w.seconds >= _SHORT * step.seconds:
            work.append(ShownWork("call", _call_name(w.label, names), "", w.runs, w.seconds, ""))
        else:
            short.append(w)
    if short:
        what = f"{len(short)} short call{'s' * (len(short) != 1)} of PyTorch's"
        work.append(ShownWork("call", what, "", sum(w.runs for w in short), sum(w.seconds for w in short), ""))
    other = max(0.0, step.seconds - sum(w.seconds for w in work))
    work.append(ShownWork("other", _KINDS["other"], "", 1, other, ""))
    return ShownMeasured(_about(step), step.seconds, tuple(work), step.peak, step.above)


def _call_name(label: str, names: Mapping[str, str]) -> str:
    graph, _, call = label.partition(".")
    return f"{call}{names[graph]}" if graph in names else label


def step_text(step: StepProfile, graphs: Sequence[GraphNote]) -> str:
    """A step as text."""
    shown = measured_step(step, graphs)
    return "\n".join([f"== time of a step: {_ms(shown.seconds)}", f"-- {shown.about}", *_lines(shown)]) + "\n"


def memory_words(shown: ShownMeasured) -> str:
    """The peak memory of a step; "" if it is not known."""
    if shown.peak is None or shown.above is None:
        return ""
    return f"{size(shown.peak)} at most in use, {size(shown.above)} of it taken in the step"


def _about(step: StepProfile) -> str:
    what = "from the end of one step of the optimizer to the end of the next" if step.trains else (
        "from one call of the compiled function to the next")  # fmt: skip
    if not step.warm:
        return f"the last step, which includes compilation, as no other was measured ({what})"
    return f"the median of {step.steps} step{'s' * (step.steps != 1)} without compilation, {what}"


def _lines(shown: ShownMeasured) -> Iterator[str]:
    for kind, heading in _KINDS.items():
        of_kind = [w for w in shown.work if w.kind == kind]
        if not of_kind:
            continue
        yield f"-- {heading:<48} {_share(sum(w.seconds for w in of_kind), shown)}"
        for w in of_kind if kind != "other" else ():
            times = f" x{w.runs:g}" if w.runs != 1 else ""
            yield f"--   {w.name + times:<46} {_share(w.seconds, shown)}  {w.does}".rstrip()
    words = memory_words(shown)
    if words:
        yield f"-- memory: {words}"


def _share(seconds: float, shown: ShownMeasured) -> str:
    return f"{_ms(seconds):>12}  {100 * seconds / shown.seconds if shown.seconds else 0:3.0f} %"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f} ms"
