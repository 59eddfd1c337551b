"""What runs the kernels of each target."""

from __future__ import annotations

from graphweave.compiler.cpp_step import CppStep
from graphweave.compiler.region_step import RegionStep
from graphweave.compiler.triton_step import TritonStep
from graphweave.schedule.options import Target

STEPS: dict[Target, type[RegionStep]] = {"cpp": CppStep, "triton": TritonStep}
