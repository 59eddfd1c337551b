"""Tries a small kernel on this machine: compiles it from its loop IR for a target, runs it, and compares it with the
interpreter.

The C++ trial does not use the kernel cache. The Triton trial runs in another process, because Triton decides at import
whether it interprets: `python -m graphweave.cli.trial DEVICE` prints nothing if the kernel works.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from graphweave.codegen import cpp, triton
from graphweave.core.errors import GraphweaveError
from graphweave.ir.loop import interp
from graphweave.ir.loop.parse import parse
from graphweave.runtime import headers, triton_kernel
from graphweave.runtime.launch import NativeKernel, Work, open_library, uniform_chunks
from graphweave.runtime.threads import num_threads
from graphweave.runtime.toolchain import compile_shared

_TIMEOUT_SECONDS = 300
"""The Triton trial is stopped after this many seconds."""
_KERNEL = parse("""
kernel trial(v < N, E; i32) {
  csr by_dst
  column src: i32[E; ]
  in x: f32[N; 3]
  out y: f32[N; 3]
  do
    alloc acc: f32[3] = 0.0
    edges k in by_dst[v] {
      let u: i32 = src[k]
      lanes c < 3 { acc[c] sum= mul(x[u, c], 0.5:f32) }
    }
    lanes c < 3 { y[v, c] = acc[c] }
}
""")
_INDPTR, _SRC, _DEGREE = (0, 2, 2, 3), (2, 1, 0), 2


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a trial. `why` says why the kernel did not work; None if it did."""

    seconds: float
    why: str | None

    @property
    def works(self) -> bool:
        return self.why is None


def on_cpu() -> Trial:
    """The trial of C++, with all threads that torch uses."""
    start = time.perf_counter()
    try:
        why = _run_cpp()
    except (GraphweaveError, OSError, AttributeError) as error:
        why = str(error)
    return Trial(time.perf_counter() - start, why)


def through_triton(device: str) -> Trial:
    """The trial of Triton, on a CUDA device, or for "cpu" in Triton's interpreter."""
    start = time.perf_counter()
    environment = {**os.environ, "TRITON_INTERPRET": "1" if device == "cpu" else "0"}
    command = [sys.executable, "-m", "graphweave.cli.trial", device]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment, timeout=_TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return Trial(time.perf_counter() - start, f"it took over {_TIMEOUT_SECONDS} s")
    said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return Trial(time.perf_counter() - start, None if done.returncode == 0 else said[-1])


def _tensors(device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The kernel's tensors: indptr, src, x, and y, which it writes."""
    indptr, src = (torch.tensor(values, dtype=torch.int32) for values in (_INDPTR, _SRC))
    x = torch.linspace(-1, 1, 9).view(3, 3)
    return indptr.to(device), src.to(device), x.to(device), torch.full((3, 3), torch.nan, device=device)


def _wrong(y: Tensor) -> str | None:
    """The difference between y and the result of the loop IR's interpreter as a message; None if they are equal."""
    indptr, src, x, expected = _tensors("cpu")
    interp.run(_KERNEL, {"src": src, "x": x, "y": expected}, {"by_dst": indptr}, {"N": 3, "E": 3})
    if torch.equal(y.cpu(), expected):
        return None
    return f"expected {expected.tolist()} of a small kernel (got {y.tolist()})"


def _run_cpp() -> str | None:
    tensors = _tensors("cpu")
    with tempfile.TemporaryDirectory() as folder:
        source, built = Path(folder) / "trial.cpp", Path(folder) / "trial.so"
        source.write_text(cpp.print_kernel(_KERNEL), encoding="utf-8")
        compile_shared(source, built, headers.include_flags(Path(folder)))
        kernel = NativeKernel(open_library(built), _KERNEL.name)
        kernel([t.data_ptr() for t in tensors], [3, 3, _DEGREE], uniform_chunks(3, Work()), num_threads())
    return _wrong(tensors[-1])


def _run_triton(device: str) -> str | None:
    tensors = _tensors(device)
    kernel = triton_kernel.load(triton.print_kernel(_KERNEL), _KERNEL.name)
    kernel(1, tensors, None, 1, (0, 3), triton_kernel.Launch(4, 16))
    return _wrong(tensors[-1])


if __name__ == "__main__":
    sys.exit(_run_triton(sys.argv[1]))
