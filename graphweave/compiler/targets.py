"""What runs the kernels of each target."""

from __future__ import annotations

from graphweave.compiler.cpp_push import CppPushStep
from graphweave.compiler.cpp_step import CppStep
from graphweave.compiler.plan import KernelPlan
from graphweave.compiler.region_step import RegionStep
from graphweave.compiler.triton_step import TritonStep
from graphweave.schedule.options import Target

STEPS: tuple[type[RegionStep], ...] = (CppStep, CppPushStep, TritonStep)


def step_of(plan: KernelPlan, target: Target) -> type[RegionStep]:
    if target == "triton":
        return TritonStep
    return CppStep if plan.lowered.types is None else CppPushStep
