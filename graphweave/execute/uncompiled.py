"""A half whose kernels cannot be compiled when it is called for the first time: its regions become calls of PyTorch."""

from __future__ import annotations

import warnings
from dataclasses import replace

from graphweave.compiler.plan import Plan
from graphweave.core.counters import bump
from graphweave.core.errors import Reason
from graphweave.core.log import logger
from graphweave.lower.schedule import Region

_log = logger(__name__)


def without_kernels(plan: Plan, why: Exception) -> Plan:
    """`plan` with calls of PyTorch in place of its kernels, those of its prelude too."""
    regions = [i for i, step in enumerate(plan.schedule.steps) if isinstance(step, Region)]
    refused = {i: Reason((f"its kernel could not be compiled: {type(why).__name__}",)) for i in regions}
    prelude = None if plan.prelude is None else without_kernels(plan.prelude, why)
    return replace(plan, kernels={}, refused={**refused, **plan.refused}, prelude=prelude)


def tell_uncompiled(plan: Plan, error: Exception) -> None:
    """Count and report a half that runs PyTorch's calls, which are always correct."""
    bump("eager_fallbacks")
    why = " ".join(f"{type(error).__name__}: {error}".split())
    _log.debug("%s could not be compiled", plan.name, exc_info=error)
    warnings.warn(
        f"graphweave: the {plan.name.half} of a compiled function runs PyTorch's calls, since its kernels could not be "
        f"compiled: {why}. The results are right; please report it, with GRAPHWEAVE_LOGS=+frontends for the traceback.",
        stacklevel=4,
    )
