"""Judges whether a compiled function gives eager mode's results and gradients over a sequence of calls."""

from __future__ import annotations

import itertools
import linecache
import random
import re
import traceback
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters

import graphweave
from graphweave.compiler.report import collect
from graphweave.core.errors import DerivativeError
from graphweave.frontends.tracing.capture_settings import CAPTURE
from tests.fuzz.case import Call, Case, draw, namespace
from tests.fuzz.device import chosen, on_device, placed

TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 3e-2, torch.bfloat16: 1e-1}
"""Largest difference that is accepted, relative to the largest number of the tensor. Faults cause far larger ones."""

UNSTABLE = 1e-10
"""Relative size of the noise that is added to arguments to see whether a program is a fair one."""

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Finding:
    """`kind` in one word, `what` in a sentence, `where` the innermost place in graphweave if it raised something."""

    kind: str
    what: str
    where: str = ""
    fallbacks: tuple[str, ...] = ()


@dataclass(slots=True)
class Outcome:
    """The results of one call."""

    outputs: list[Any] = field(default_factory=list)
    grads: list[Tensor | None] = field(default_factory=list)
    again: list[Tensor | None] = field(default_factory=list)
    second: list[Tensor | None] = field(default_factory=list)
    arguments: list[Any] = field(default_factory=list)
    error: Exception | None = None
    stage: str = "forward"


class Unfair(Exception):
    """Eager mode does not tell what is right: it raises at the first sizes, or its result depends on rounding."""


def load(source: str) -> Callable[..., Any]:
    """The function of that text, with a file name of its own, so that errors can show its lines."""
    name = f"/fuzzed/program_{next(_numbers)}.py"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    found = namespace()
    exec(compile(source, name, "exec"), found)
    return found["f"]


def through_door(case: Case) -> Callable[..., Any]:
    """The function compiled as the case says."""
    function = load(on_device(case.source))
    torch._dynamo.reset()
    if case.door == "graphweave":
        return graphweave.compile(function)
    return torch.compile(function, backend="graphweave", dynamic=_dynamic(case))


def judge(case: Case, compiled: Callable[[Case], Callable[..., Any]] = through_door) -> Finding | None:
    """The first fault of the case. Raises Unfair if eager mode gives nothing to compare with."""
    found = _compare(case, compiled(case))
    if found is not None and found.kind.startswith("wrong") and _unstable(case):
        raise Unfair("results depend on rounding")
    return found


def is_of_pytorch(case: Case, found: Finding) -> bool:
    """Whether the same fault occurs if PyTorch captures the function and no compiler follows, under PyTorch's settings
    or under ours, which put more into one graph."""
    if found.kind in ("fallback", "refused"):
        return False
    return any(_is_without_compiler(case, found, dict(settings)) for settings in ({}, CAPTURE))


def _is_without_compiler(case: Case, found: Finding, settings: dict[str, Any]) -> bool:
    counters.clear()
    try:
        with torch._dynamo.config.patch(settings):
            other = _compare(case, _by_pytorch(case))
    except Unfair:
        return False
    if found.kind == "untraced" and any(why in found.what for why in _left_to_python()):
        return True
    if other is None or found.kind == "untraced":
        return other is not None and other.kind == "crash"
    # What is raised depends on who asks for the graph, but not where. PyTorch alone has no second derivatives.
    if found.kind == other.kind == "crash" and "second derivative" not in found.what:
        return _stage(found) == _stage(other)
    return (other.kind, without_numbers(other.what)) == (found.kind, without_numbers(found.what))


def _left_to_python() -> list[str]:
    """Why PyTorch has left frames to Python whose graphs it could not give to a backend, as if ours had been asked."""
    told = "\n".join(map(str, counters["unimplemented"])).replace("aot_eager", "graphweave")
    return re.findall(r"Backend compiler `graphweave` failed with [^\n]*(?=\.\n)", told)


def _stage(crash: Finding) -> str:
    """The call and the part of it in which something was raised: "call 1: second backward"."""
    return crash.what.partition(" raises ")[0]


def without_numbers(text: str) -> str:
    """The text without numbers and names of variables, so that it is equal for all programs with one fault."""
    return re.sub(r"'[^']*'|[\d.]+(e-?\d+)?", "#", text)[:150]


def _by_pytorch(case: Case) -> Callable[..., Any]:
    """The function, captured without this compiler: faults that occur here too are PyTorch's."""
    torch._dynamo.reset()
    return torch.compile(load(on_device(case.source)), backend="aot_eager", dynamic=_dynamic(case))


def _dynamic(case: Case) -> bool | None:
    return {"graphweave": True, "plain": None, "plain dynamic": True, "plain static": False}[case.door]


def _compare(case: Case, compiled: Callable[..., Any]) -> Finding | None:
    eager = load(case.source)
    errors: list[Exception | None] = []
    with collect() as report, warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        for position, call in enumerate(case.calls):
            want = run(case, call, eager)
            errors.append(want.error)
            if want.error is not None and (not call.edit or chosen() != "cpu"):  # a GPU is lost by a bad index
                continue
            got = run(case, call, compiled, on_chosen=True)
            if want.error is not None:
                if got.error is None and re.search("out of (bounds|range)", str(want.error)):
                    return Finding("no error", f"eager raises {_short(want.error)} at call {position}")
                continue
            found = _difference(want, got, _floor(case)) or (None if position else _repeated(case, call, compiled, got))
            if found is not None:
                return replace(found, what=f"call {position}: {found.what}", fallbacks=tuple(report.eager))
    if all(errors):
        raise Unfair(f"eager raises {errors[0]}")
    return _fallback([why for why in report.eager if not _is_meant(why, case)])


def _is_meant(reason: str, case: Case) -> bool:
    """Whether what runs eagerly cannot be compiled."""
    if "could not be traced" in reason:
        return "torch.ops.fuzzed" in case.source
    return reason.startswith("graphweave: the gradients of")


def _fallback(reasons: list[str]) -> Finding | None:
    """What ran eagerly: functions `refused` with a reason, which is no fault, or those for which something failed."""
    if not reasons:
        return None
    failed = [why for why in reasons if "could not be compiled" in why]
    internal = [why for why in failed if "IRError" not in why]
    if internal:
        return Finding("fallback", internal[0])
    return Finding("refused" if failed else "untraced", (failed or reasons)[0])


def run(case: Case, call: Call, function: Callable[..., Any], *, on_chosen: bool = False) -> Outcome:
    """Calls `function`; in training the gradients of all arguments too, twice, from one random linear functional.

    With `on_chosen` the arguments lie on the device that was chosen for programs."""
    drawn = draw(case, call)
    out = Outcome(arguments=placed(drawn) if on_chosen else drawn)
    leaves = [a for a in out.arguments if isinstance(a, Tensor) and a.requires_grad]
    context = {"train": nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode}[case.mode]
    try:
        random.seed(call.seed)
        with context():
            result = function(*out.arguments)
            out.outputs = list(result) if isinstance(result, (tuple, list)) else [result]
        loss = _functional(out.outputs, case.left_out)
        if loss is not None and leaves and case.mode == "train":
            out.stage = "backward"
            out.grads = list(torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True))
            out.stage = "second backward"
            out.again = list(torch.autograd.grad(loss, leaves, retain_graph=case.second, allow_unused=True))
            if case.second:
                out.stage = "second derivative"
                out.second = _second(out.outputs, case.left_out, leaves)
    except Exception as error:
        out.error = error
    return out


def _second(outputs: list[Any], left_out: tuple[int, ...], leaves: list[Tensor]) -> list[Tensor | None]:
    """Gradients of the squared norm of the gradients of an energy, which is formed here from the outputs."""
    energy = _functional([v.double().sin() if isinstance(v, Tensor) else v for v in outputs], left_out)
    assert energy is not None
    grads = torch.autograd.grad(energy, leaves, create_graph=True, allow_unused=True)
    norms = [g.pow(2).sum() for g in grads if g is not None and g.requires_grad]
    return list(torch.autograd.grad(sum(norms), leaves, allow_unused=True)) if norms else []  # type: ignore[arg-type]


def _functional(outputs: list[Any], left_out: tuple[int, ...]) -> Tensor | None:
    total = None
    for position, value in enumerate(outputs):
        if position in left_out:
            continue
        if not isinstance(value, Tensor) or not value.is_floating_point() or not value.requires_grad:
            continue
        generator = torch.Generator().manual_seed(position)
        factor = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        term = (value.double() * factor.to(value.device)).sum()
        total = term if total is None else total + term
    return total


def _difference(want: Outcome, got: Outcome, floor: float) -> Finding | None:
    if isinstance(got.error, DerivativeError):
        return Finding("refused", _short(got.error))
    if got.error is not None:
        return Finding("crash", f"{got.stage} raises {_short(got.error)}", _place(got.error))
    if len(want.outputs) != len(got.outputs):
        return Finding("wrong outputs", f"{len(got.outputs)} outputs instead of {len(want.outputs)}")
    for kind, expected, actual in (
        ("wrong output", want.outputs, got.outputs),
        ("wrong argument", want.arguments, got.arguments),
        ("wrong gradient", want.grads, got.grads),
        ("wrong second gradient", want.again, got.again),
        ("wrong second derivative", want.second, got.second),
    ):
        finite = all(not isinstance(v, Tensor) or v.isfinite().all() for v in want.outputs)
        if ("gradient" in kind or "derivative" in kind) and not finite:
            continue
        for position, (one, other) in enumerate(zip(expected, actual, strict=True)):
            why = _unequal(one, other, floor)
            if why is not None:
                return Finding(kind, f"{kind} {position}: {why}")
    return None


def _floor(case: Case) -> float:
    """The tolerance of the least exact dtype that the text names."""
    named = {"float16": ("half", "float16"), "bfloat16": ("bfloat16",), "float32": ("float()", "float32")}
    found = [TOLERANCE[getattr(torch, d)] for d, words in named.items() if any(w in case.source for w in words)]
    return max(found, default=TOLERANCE[torch.float64])


def _unequal(want: Any, got: Any, floor: float) -> str | None:
    if want is None or got is None:  # for an argument that the loss does not depend on, None and zeros mean the same
        other = got if want is None else want
        return None if other is None or not other.any() else f"expected {want}, got {got}"
    numbers = [v for v in (want, got) if not isinstance(v, Tensor)]
    if numbers:
        return None if len(numbers) == 2 and want == got else f"expected {want!r}, got {got!r}"
    if (want.dtype, want.shape) != (got.dtype, got.shape):
        return f"expected {want.dtype} {tuple(want.shape)}, got {got.dtype} {tuple(got.shape)}"
    want, got = want.detach().cpu(), got.detach().cpu()
    if not want.is_floating_point():
        return None if torch.equal(want, got) else f"expected {want.tolist()}, got {got.tolist()}"[:300]
    sure = want.isfinite()
    if not sure.any():
        return None
    scale = want[sure].abs().max().item() + 1e-3
    error = (want[sure].double() - got[sure].double()).abs().max().item() / scale
    allowed = max(TOLERANCE[want.dtype], floor)
    return None if error <= allowed else f"relative error {error:.3g}, allowed {allowed:g}"


def _repeated(case: Case, call: Call, compiled: Callable[..., Any], first: Outcome) -> Finding | None:
    """Checks that two equal calls give the same bits. On a GPU calls that are left to PyTorch need not."""
    if chosen() != "cpu":
        return None
    second = run(case, call, compiled)
    for one, other in zip([*first.outputs, *first.grads], [*second.outputs, *second.grads], strict=True):
        if isinstance(one, Tensor) and not torch.equal(one.nan_to_num(), other.nan_to_num()):
            return Finding("unequal calls", "two equal calls gave different numbers")
    return None


def _unstable(case: Case) -> bool:
    """Whether noise of the size of rounding changes eager mode's results."""
    eager = load(case.source)
    for call in case.calls:
        want = run(case, call, eager)
        noisy = run(replace(case, arguments=case.arguments), call, _disturbed(eager))
        if want.error is None and _difference(want, noisy, _floor(case)) is not None:
            return True
    return False


def _disturbed(function: Callable[..., Any]) -> Callable[..., Any]:
    def disturbed(*arguments: Any) -> Any:
        moved = []
        for value in arguments:
            if isinstance(value, Tensor) and value.is_floating_point() and value.requires_grad:
                value = value * (1 + UNSTABLE * torch.rand(value.shape, dtype=value.dtype))
            moved.append(value)
        return function(*moved)

    return disturbed


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/graphweave/" in f.filename]
    return f"{ours[-1].filename.split('/graphweave/')[-1]}:{ours[-1].name}" if ours else ""
