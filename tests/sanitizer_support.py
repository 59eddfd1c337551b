"""Programs whose kernels are built with sanitizers, by g++ whatever the compiler in force: its runtime is preloaded."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from graphweave.runtime import toolchain

NATIVE = Path(toolchain.__file__).parent / "native"
"""Folder of the package's C++ files, from which headers are included as <graphweave/....h>."""

FLAGS = (
    "-std=c++17", "-O1", "-g", "-pthread", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{NATIVE}",
)  # fmt: skip
"""Compiler flags for the C++ program of a test."""

ENVIRONMENT = {"ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1"}
"""Memory that there is not is refused, as it is without a sanitizer."""


def sanitized(program: str, sanitizers: str = "address,undefined") -> subprocess.CompletedProcess[str]:
    """Runs `program`, Python's, in a process whose kernels are built with sanitizers."""
    runtime = _of_gcc("-print-file-name=libasan.so")
    if not os.path.isabs(runtime):
        pytest.skip("g++ has no AddressSanitizer runtime")
    # The sanitizer looks for the C++ runtime when it starts: without it, an exception within PyTorch ends the process.
    preloaded = f"{runtime} {_of_gcc('-print-file-name=libstdc++.so.6')}"
    environment = {
        **os.environ, **ENVIRONMENT, "LD_PRELOAD": preloaded, "GRAPHWEAVE_SANITIZE": sanitizers,
        "GRAPHWEAVE_CXX": "g++",
    }  # fmt: skip
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)


def run_sanitized(program: str) -> None:
    """Runs `program` with sanitizers; it must end with status 0."""
    done = sanitized(program)
    assert done.returncode == 0, done.stderr[-3000:]


def build_sanitized(source: Path, *flags: str) -> Path:
    """The program that g++ makes of a C++ file, with sanitizers."""
    _of_gcc("--version")
    program = source.with_suffix("")
    command = ["g++", *FLAGS, *flags, str(source), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]
    return program


def _of_gcc(flag: str) -> str:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    return subprocess.run(["g++", flag], capture_output=True, text=True, check=True).stdout.strip()
