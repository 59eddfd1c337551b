"""Chooses the target of a graph: C++ for tensors on the CPU, Triton for tensors on a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import fx

from graphweave.core.choices import Choices
from graphweave.core.kernel_schedules import KernelSchedules
from graphweave.core.options import Options, options_for
from graphweave.core.schedule import COMPILERS_CHOICE, Schedule
from graphweave.core.settings import settings
from graphweave.runtime import early, toolchain
from graphweave.runtime.triton_kernel import interpreted, triton_version


def options_of(module: fx.GraphModule, choices: Choices) -> Options | str:
    """The options for the device of a graph's inputs, including those of the user's schedule; or the reason why this
    machine cannot compile the graph.

    CPU tensors without dims may be combined with tensors on any device. GRAPHWEAVE_TARGET=triton compiles graphs of CPU
    tensors for Triton's interpreter.
    """
    schedule = choices.schedule if isinstance(choices.schedule, Schedule) else COMPILERS_CHOICE
    found = _on_device(module, schedule)
    by_name = choices.schedule if isinstance(choices.schedule, KernelSchedules) else None
    if isinstance(found, Options):
        return replace(found, fuse=choices.fuse, chunks=choices.chunks, schedules=by_name)
    return found


def _on_device(module: fx.GraphModule, schedule: Schedule) -> Options | str:
    vals = [n.meta.get("val") for n in module.graph.find_nodes(op="placeholder")]
    tensors = [v for v in vals if isinstance(v, torch.Tensor)]
    devices = {v.device for v in tensors if v.dim() or v.device.type != "cpu"}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        return f"its tensors lie on {names}, and graphs of one device are compiled. Move them to one device."
    device = next(iter(devices), torch.device("cpu"))
    if device.type == "cpu":
        return _on_cpu(schedule)
    if device.type != "cuda":
        return f"its tensors lie on {device}, and kernels run on CPU and CUDA devices. Move it to one."
    if triton_version() is None:
        return "there is no Triton, which compiles for a GPU. Install it: pip install graphweave[gpu]."
    return options_for("triton", str(device), schedule)


def begin_early(values: Iterable[object]) -> None:
    """Let the C++ compiler start on what every kernel needs, if a function called with `values` is compiled to C++."""
    if settings().target != "triton" and all(v.device.type == "cpu" for v in values if isinstance(v, torch.Tensor)):
        early.begin()


def _on_cpu(schedule: Schedule) -> Options | str:
    if settings().target == "triton":
        if triton_version() is not None and interpreted():
            return options_for("triton", schedule=schedule)
        return (
            "GRAPHWEAVE_TARGET=triton compiles CPU tensors for Triton's interpreter, which is not there. Install "
            "triton and set TRITON_INTERPRET=1, or unset GRAPHWEAVE_TARGET."
        )
    if toolchain.available() is None:
        sought = "$GRAPHWEAVE_CXX, $CXX, g++, clang++, the package ziglang"
        return f"there is no C++ compiler (looked for {sought}). {toolchain.REMEDY}"
    return options_for("cpp", schedule=schedule)
