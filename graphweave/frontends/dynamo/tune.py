"""`graphweave.tune`: a model compiled in the form and with the schedules that are fastest on its own arguments."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from graphweave.compiler.report import collect
from graphweave.core.choices import check_option
from graphweave.frontends.dynamo.captured import name_of
from graphweave.frontends.dynamo.compile import compile
from graphweave.frontends.dynamo.uncompiled import original_of
from graphweave.frontends.tracing.call_state import State
from graphweave.tuning.deadline import Deadline, shared_deadline

T = TypeVar("T", bound=Callable[..., Any])


def tune(
    model: T, *inputs: object, budget: float = 60.0, options: Mapping[str, object] | None = None, **named: object
) -> T:  # fmt: skip
    """`graphweave.compile(model)` with the best choices that measuring finds on `inputs` within `budget` seconds.

    The compiled model is called once with `inputs` and `named`. That call measures candidates of what the compiler
    would choose by itself: compaction, reordering and relabelling (`docs/switches.md`), and a `Schedule` for the
    forward and one for the backward (`docs/schedules.md`). Choices that `options` has are kept. If the result requires
    a gradient, forward and backward are measured together, as the call is then part of a training step.

    What is measured are the compiled programs, on the arguments of the call, with results that are dropped: parameters,
    gradients, buffers and random state are as before. Only what the model's own Python code does, or does to its
    arguments, happens once.

    The search ends when `budget` seconds have passed since `tune` was called; work begins only if it is expected to end
    before. Compiling and calling the model once takes the time that it takes anyway. What was found is kept on disk
    and used for similar graphs on this machine without measuring (docs/tuning.md); `graphweave.explain` of the result
    shows it, with predicted and measured times. Where nothing could be measured, such as with too small a budget, the
    compiler's choice stays, and a warning says why.

    Tuned and untuned results agree to the order of sums. Raises SettingsError for a budget that is no positive number,
    and what `graphweave.compile` and the call itself raise.
    """
    check_option("budget", budget)
    deadline = Deadline(budget)
    target, dynamic, own = original_of(model)
    chosen = {**(own or {}), **(options or {}), "schedule": "tune", "budget": budget}
    compiled = compile(target, dynamic=dynamic, options=chosen)
    before = State(target)
    token = shared_deadline.set(deadline)
    try:
        with collect() as report:
            compiled(*inputs, **named)
    finally:
        shared_deadline.reset(token)
        before.restore()
    for why in dict.fromkeys(note.why for note in report.tunings if note.why):
        warnings.warn(
            f"graphweave: {name_of(target)} runs untuned: {why}. Leave out tuning to silence this.", stacklevel=2
        )
    return cast("T", compiled)
