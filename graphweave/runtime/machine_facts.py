"""Facts about this machine and this installation, as plain values that can be written as JSON."""

from __future__ import annotations

import os
import platform
import shlex
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from graphweave.core.errors import ToolchainError
from graphweave.runtime import toolchain, triton_kernel
from graphweave.runtime.threads import find_pool

NOT_INSTALLED = "not installed"


def versions() -> dict[str, str]:
    return {
        "graphweave": _version("graphweave"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton_kernel.triton_version() or NOT_INSTALLED,
        "torch_geometric": _version("torch_geometric"),
        "numpy": _version("numpy"),
    }


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return NOT_INSTALLED


def compiler() -> dict[str, Any]:
    """The C++ compiler that builds kernels, or `why` there is none."""
    try:
        tools = toolchain.toolchain()
    except ToolchainError as error:
        return {"why": str(error)}
    pool = find_pool()
    return {
        "command": shlex.join(tools.command),
        "version": tools.version,
        "flags": list(tools.flags),
        "openmp": None if pool is None else str(pool.file),
    }


def cpu() -> dict[str, object]:
    """The CPU's model, the `cores` of the machine, the cores `usable` by this process, and the `threads` of torch."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"model": _cpu_model(), "cores": os.cpu_count(), "usable": allowed, "threads": torch.get_num_threads()}


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def cuda() -> dict[str, object]:
    """The CUDA version with which torch was built (None for a CPU-only build), and each device."""
    return {"built_with": torch.version.cuda, "devices": [_device(i) for i in range(torch.cuda.device_count())]}


def _device(number: int) -> dict[str, object]:
    found = torch.cuda.get_device_properties(number)
    return {"name": found.name, "memory": found.total_memory, "capability": f"{found.major}.{found.minor}"}
