"""Triton kernels: modules on disk, imported once per process, and their launch on PyTorch's current stream.

Triton reads source from files, so each text is a file, named by its content, next to the cache of C++ kernels, in a
folder of the user's own (`core/own_folders.py`). Modules are made from the text itself, never from what Python finds
compiled in that folder. Triton itself caches the compiled code (TRITON_CACHE_DIR). With TRITON_INTERPRET=1 in the
environment the kernels run in Triton's interpreter, on CPU tensors.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphweave.core import locks
from graphweave.core.counters import bump
from graphweave.core.errors import ToolchainError
from graphweave.core.log import logger
from graphweave.core.own_folders import check_own, in_own_folder, make_own, read_own
from graphweave.runtime import kernel_cache

log = logger(__name__)
_ENCODING = "# -*- coding: utf-8 -*-\n"
_lock = locks.lock()
_modules: dict[str, ModuleType] = {}


@dataclass(frozen=True, slots=True)
class Launch:
    """How many rows a program takes at a time, how many edges of each row, and how many warps it uses."""

    rows: int
    edges: int
    warps: int = 4
    stages: int | None = None
    """Stages of the software pipeline; None lets Triton choose."""
    registers: int | None = None
    """Upper limit on the registers of a thread; None lets the assembler choose."""

    @property
    def options(self) -> dict[str, Any]:
        """The options of Triton for the launch. Fusing into multiply-adds is off: the backward
        recomputes messages and compares them with a maximum."""
        asked = {"num_stages": self.stages, "maxnreg": self.registers}
        given = {name: value for name, value in asked.items() if value is not None}
        return {"num_warps": self.warps, "enable_fp_fusion": False, **given}


_ALIGNED = 16
"""Kernels are compiled for tensors whose addresses are multiples of this many bytes, as PyTorch allocates them."""

_MAX_I32 = (1 << 31) - 1


class TritonKernel:
    """A kernel of `codegen/triton`; see there for its parameters."""

    def __init__(self, module: ModuleType, symbol: str, parts: int = 1) -> None:
        """`parts` programs share the work of each row."""
        self.symbol, self._parts = symbol, parts
        self._function: Any = getattr(module, symbol)
        self._compiled: dict[tuple[object, ...], Any] = {}

    def prepare(
        self, tensors: Sequence[torch.dtype], order: torch.dtype | None, how: Launch, device: torch.device
    ) -> None:
        """Compile for tensors of these dtypes. Several threads may do so at the same time, for several kernels.

        It does nothing in the interpreter and on a machine without a GPU.
        """
        if interpreted() or not torch.cuda.is_available():
            return
        with on_device(device):
            made = self._function.warmup(
                *tensors, order or tensors[0], 1, 0, 1, R=how.rows, K=how.edges, ORDERED=order is not None,
                PRECISION=precision(), grid=(1,), **how.options,
            )  # fmt: skip
        self._compiled[_key(tensors, order is not None, how, device)] = made

    @property
    def is_prepared(self) -> bool:
        """Whether it has been compiled for some launch, so that the next one does not wait."""
        return bool(self._compiled) or interpreted()

    def __call__(
        self, programs: int, tensors: Sequence[Tensor], order: Tensor | None, groups: int, span: tuple[int, int],
        how: Launch,
    ) -> None:  # fmt: skip
        """Run `programs` programs over the rows `span` (first, last + 1), each for `groups` groups of rows.

        Asynchronous on a GPU.
        """
        device, ordered = tensors[0].device, order is not None
        listed = tensors[0] if order is None else order  # read only if ORDERED
        given = (*tensors, listed, groups, *span, how.rows, how.edges, ordered, precision())
        grid = (programs * self._parts, 1, 1)
        with on_device(device):
            fits = span[1] <= _MAX_I32 and not any(t.data_ptr() % _ALIGNED for t in (*tensors, listed))
            compiled = self._compiled.get(_key([t.dtype for t in tensors], ordered, how, device)) if fits else None
            if compiled is not None:  # Triton's own launch looks at each argument first, which takes most of its time
                compiled[grid](*given)
            else:
                self._function[grid](*given, **({} if interpreted() else how.options))
        bump("kernel_launches")


def _key(tensors: Sequence[torch.dtype], ordered: bool, how: Launch, device: torch.device) -> tuple[object, ...]:
    """All that a compiled kernel depends on besides its text."""
    return how, ordered, precision(), device.index, *tensors


@contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """A context in which kernels are launched. In the interpreter, NumPy's warnings of overflow and NaN are ignored."""
    if interpreted():
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
    elif device.index == torch.cuda.current_device():
        yield
    else:
        with torch.cuda.device(device):
            yield


def precision() -> str:
    """The precision of float32 products: TF32 only if PyTorch may use it for its own products."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter. The environment has to say so before Triton is imported."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def load(text: str, symbol: str, parts: int = 1) -> TritonKernel:
    """The kernel `symbol` of a module's text, with `parts` programs for each row. Raises ToolchainError without
    Triton."""
    return TritonKernel(module(text), symbol, parts)


def module(text: str) -> ModuleType:
    """The imported module of a text. The same text is imported once per process."""
    require_triton()
    key = key_of(text)
    with _lock:
        if key not in _modules:
            path = in_own_folder(directory(), lambda folder: _written(text, folder / f"k{key}.py"), log)
            _modules[key] = _module(text, path, f"graphweave_kernel_{key[:16]}")
        return _modules[key]


def forget() -> None:
    """Drop what this process has imported. Kernels in use stay valid."""
    with _lock:
        _modules.clear()


def key_of(text: str) -> str:
    """SHA-256 of the text. Its comments count: Python reads the encoding of a file from one."""
    return hashlib.sha256(_content(text)).hexdigest()


def _content(text: str) -> bytes:
    """The bytes of the file. Its first line says how it is encoded, so that no other comment does."""
    return f"{_ENCODING}{text}".encode()


@lru_cache(maxsize=1)
def triton_version() -> str | None:
    """The version of Triton; None if it is not installed."""
    try:
        return version("triton")
    except PackageNotFoundError:
        return None


def require_triton() -> None:
    if triton_version() is None:
        raise ToolchainError(
            "expected Triton for tensors on a GPU (it is not installed). pip install graphweave[gpu]. Install it so."
        )


def directory() -> Path:
    """The folder of kernel texts."""
    return kernel_cache.directory().parent / "triton"


def _written(text: str, path: Path) -> Path:
    """`path`, a file with the text: found intact, or written atomically."""
    content = _content(text)
    if path.exists():
        check_own(path.parent)
        with suppress(OSError):
            if read_own(path) == content:
                return path
    make_own(path.parent)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
        file.write(content)
    os.replace(file.name, path)
    bump("kernel_builds")
    return path


def _module(text: str, path: Path, name: str) -> ModuleType:
    """The module of a text, which lies in the file `path`, where Triton looks up the lines of its functions."""
    made = ModuleType(name)
    made.__file__ = str(path)
    exec(compile(_content(text), str(path), "exec"), made.__dict__)
    return made
