"""Ahead-of-time compilation of Triton kernels: what they need of a GPU, told by a machine that has none.

Triton compiles for the capability that it is asked for and runs the ptxas that it brings along, whose log says what the
kernel takes: the log of the very code that a launch would load, so no flag of ptxas is repeated here.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

from graphweave.core.errors import CompileError, ToolchainError
from graphweave.runtime.triton_kernel import interpreted, module, require_triton, triton_version

WARP = 32
"""Threads of a warp."""

ALIGNED = 16
"""Bytes to which torch aligns what it allocates; Triton asks at each launch, and reads aligned rows in one piece."""

_USED = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True, slots=True)
class Resources:
    """What a kernel takes, for each thread: registers (of 32 bits), bytes of its stack, bytes spilled and read back;
    for each program: bytes of shared memory, warps. `code` is the size of its machine code (a cubin) in bytes."""

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared: int
    warps: int
    code: int


def compile_text(
    text: str, symbol: str, signature: Sequence[str], constexprs: Mapping[str, Any], capability: int,
    *, warps: int = 4, aligned: bool = True, fuse: bool = False,
) -> Resources:  # fmt: skip
    """Compiles the kernel `symbol` of a module's text for `capability`: 80 means sm_80.

    `signature` has Triton's type of each parameter in order: `*fp32`, `i64`, or `constexpr` for those whose values
    `constexprs` gives by name. `aligned`: every pointer is a multiple of 16 bytes. `fuse`: products and sums become
    multiply-adds, which no kernel of a region wants.

    Not for several threads at once: Triton prints ptxas's log to the standard output, which is redirected.

    Raises:
        ToolchainError: without Triton, where kernels are interpreted, or where ptxas said nothing.
        CompileError: when Triton or ptxas refuses the kernel; it carries their words.
    """
    _require_compiler()
    function = getattr(module(text), symbol)
    attributes = {(i,): [["tt.divisibility", ALIGNED]] for i, t in enumerate(signature) if t[0] == "*" and aligned}
    names = function.arg_names
    if len(names) != len(signature):
        raise CompileError(f"{symbol}: expected the types of {len(names)} parameters (got {len(signature)}).")
    types = dict(zip(names, signature, strict=True))
    log = io.StringIO()
    options = {"num_warps": warps, "enable_fp_fusion": fuse}
    try:
        made = _compiled(function, types, constexprs, attributes, capability, options, log)
    except Exception as error:  # Triton's own, of its passes, of ptxas: they share no class
        raise CompileError(f"{symbol} for sm_{capability}: {_words(error)}") from error
    return _resources(made, log.getvalue(), f"{symbol} for sm_{capability}")


def _require_compiler() -> None:
    require_triton()
    if interpreted():
        raise ToolchainError(
            "expected Triton's compiler (got TRITON_INTERPRET=1, under which kernels are interpreted and cannot be "
            "compiled). Unset TRITON_INTERPRET and start the process again."
        )


def _compiled(
    function: Any, types: Mapping[str, str], constexprs: Mapping[str, Any], attributes: Mapping[tuple[int], Any],
    capability: int, options: Mapping[str, Any], log: io.StringIO,
) -> Any:  # fmt: skip
    """What Triton makes of a function; ptxas's words go to `log`."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(fn=function, signature=dict(types), constexprs=dict(constexprs), attrs=dict(attributes))
    knobs = triton.knobs
    with knobs.compilation.scope(), knobs.nvidia.scope(), redirect_stdout(log):
        knobs.compilation.always_compile = True  # what Triton's cache holds has no log
        knobs.nvidia.dump_ptxas_log = True
        return triton.compile(source, target=GPUTarget("cuda", capability, WARP), options=dict(options))


def _resources(made: Any, log: str, what: str) -> Resources:
    used, spills = _USED.findall(log), _SPILLS.findall(log)
    if len(used) != 1 or not spills:
        raise ToolchainError(
            f"{what}: expected ptxas to say what one kernel uses (Triton {triton_version()} printed {log!r})."
            " Report it with the version of Triton."
        )
    stack, stores, loads = (sum(int(numbers[i]) for numbers in spills) for i in range(3))
    shared, warps = made.metadata.shared, made.metadata.num_warps
    return Resources(int(used[0]), stack, stores, loads, shared, warps, len(made.asm["cubin"]))


def _words(error: BaseException) -> str:
    """An error and those that it was raised from: Triton's name the line first, and the reason after."""
    words: list[str] = []
    at: BaseException | None = error
    while at is not None:
        words.append(f"{type(at).__name__}: {at}")
        at = at.__cause__ or at.__context__
    return "\n".join(words)
