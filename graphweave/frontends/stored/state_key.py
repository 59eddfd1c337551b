"""All that a compilation depends on besides its graph: versions, switches, the machine, and PyTorch's modes."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import fields
from functools import lru_cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import torch
from torch._functorch import config as functorch_config

from graphweave.core.choices import Choices
from graphweave.core.settings import settings
from graphweave.frontends.calls import declared
from graphweave.frontends.halves import added_rules
from graphweave.frontends.stored.graph_key import Unkeyed
from graphweave.runtime import kernel_cache, toolchain

FORMAT = 1
"""Version of the entries; it is raised when their meaning changes without a change of the package's code."""

_WITHOUT_EFFECT = frozenset({
    "logs", "cache_dir", "cache_bytes", "format_bytes", "arena_bytes", "progress", "store_compilations",
})  # fmt: skip
"""Settings that do not change what a graph compiles to."""


def state_text(choices: Choices) -> str:
    """The text of the versions, switches and modes that are in force. Raises Unkeyed if something in force has no
    text."""
    if declared.is_any() or added_rules.is_any():
        raise Unkeyed("operators or rules of the user are in force")
    if settings().target == "triton":
        raise Unkeyed("kernels are Triton's")
    if toolchain.available() is None:
        raise Unkeyed("there is no C++ compiler")
    now = settings()
    switches = (f"{f.name}={getattr(now, f.name)}" for f in fields(now) if f.name not in _WITHOUT_EFFECT)
    return "\n".join((_versions(), kernel_cache.key_of("", toolchain.toolchain()), str(choices), *switches, *_modes()))


def _modes() -> Iterator[str]:
    if functorch_config.debug_assert:
        raise Unkeyed("PyTorch checks its own work (functorch.compile.config.debug_assert)")
    if torch.get_default_device().type != "cpu":
        raise Unkeyed("a default device is set")
    for mode in torch.overrides._get_current_function_mode_stack():
        if type(mode).__module__.split(".")[0] not in ("torch", "graphweave"):
            raise Unkeyed(f"a mode of the user's is in force ({type(mode).__qualname__})")
        yield f"mode {type(mode).__module__}.{type(mode).__qualname__}"
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        raise Unkeyed("hooks on saved tensors are in force")
    if torch._dynamo.compiled_autograd.in_compiled_autograd_region:
        raise Unkeyed("it is part of a compiled backward")
    yield f"grad {torch.is_grad_enabled()} {torch.is_inference_mode_enabled()}"
    for device in ("cpu", "cuda"):
        yield f"autocast {device} {torch.is_autocast_enabled(device)} {torch.get_autocast_dtype(device)}"
    yield f"autocast cache {torch.is_autocast_cache_enabled()} any {torch._C._is_any_autocast_enabled()}"
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled: Any = torch.utils.deterministic
    yield f"deterministic {deterministic} {filled.fill_uninitialized_memory}"
    yield f"default dtype {torch.get_default_dtype()} matmul {torch.get_float32_matmul_precision()}"
    yield f"mkldnn {torch.backends.mkldnn.enabled} functorch {functorch_config.get_hash().hex()}"


@lru_cache(maxsize=1)
def _versions() -> str:
    return f"format {FORMAT} torch {torch.__version__} {torch.version.git_version} {sys.version} {_sources()}"


def _sources() -> str:
    """SHA-256 of this package's code (traces enter its layers, too), and versions of what capture uses."""
    digest = hashlib.sha256()
    for path, content in _python_files(files("graphweave"), ""):
        digest.update(f"{path} {len(content)}\n".encode())
        digest.update(content)
    return f"{digest.hexdigest()} sympy {version('sympy')}"


def _python_files(folder: Any, name: str) -> Iterator[tuple[str, bytes]]:
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        path = f"{name}/{file.name}"
        if file.name.endswith(".py"):
            yield path, file.read_bytes()
        elif file.is_dir() and file.name != "__pycache__":
            yield from _python_files(file, path)
