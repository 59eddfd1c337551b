"""Chooses the class of steps that runs the kernels of each target."""

from __future__ import annotations

from graphweave.compiler.plan import KernelPlan
from graphweave.core.options import Target
from graphweave.execute.cpp_push import CppPushStep
from graphweave.execute.cpp_step import CppStep
from graphweave.execute.region_step import RegionStep
from graphweave.execute.triton_push import TritonPushStep
from graphweave.execute.triton_step import TritonStep

_STEPS: dict[Target, type[RegionStep]] = {"cpp": CppStep, "triton": TritonStep}
_PUSHES: dict[Target, type[RegionStep]] = {"cpp": CppPushStep, "triton": TritonPushStep}
STEPS = (*_STEPS.values(), *_PUSHES.values())
"""All classes of steps."""


def step_of(plan: KernelPlan, target: Target) -> type[RegionStep]:
    return (_STEPS if plan.lowered.types is None else _PUSHES)[target]
