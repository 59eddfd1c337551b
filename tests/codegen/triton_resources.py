"""Ahead-of-time compilation of Triton kernels, which tells what they need of a GPU on a machine without one.

Triton compiles for any capability and runs its own ptxas, whose log says which resources the kernel takes. It is the
log of the very code that a launch would load, so no flag of ptxas is repeated here.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

from graphweave.codegen.triton import print_kernel
from graphweave.core.errors import CompileError, ToolchainError
from graphweave.core.types import DType, computed
from graphweave.execute.triton_launch import launches_of
from graphweave.ir.loop.nodes import Buffer, Kernel, Role
from graphweave.runtime.triton_kernel import Launch, interpreted, module, require_triton, triton_version

WARP = 32
"""Number of threads of a warp."""

ALIGNED = 16
"""Alignment in bytes of torch's allocations. Triton checks it at each launch and reads aligned rows with fewer
loads."""

_USED = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of a kernel. Each thread takes registers (of 32 bits), bytes of stack, and bytes that are spilled
    and read back; each program takes warps and bytes of shared memory. `code` is the size in bytes of the machine code
    (a cubin), and `shuffles` the number of its exchanges between the threads of a warp, by halves."""

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared: int
    warps: int
    code: int
    shuffles: int


def compile_text(
    text: str, symbol: str, signature: Sequence[str], constexprs: Mapping[str, object], capability: int,
    *, warps: int = 4, registers: int | None = None, aligned: bool = True, fuse: bool = False,
) -> Resources:  # fmt: skip
    """Compile the kernel `symbol` of a module's text for `capability` (80 means sm_80).

    `signature` has Triton's type of each parameter in order: `*fp32`, `i64`, or `constexpr` for parameters whose values
    `constexprs` gives by name. `aligned` says that every pointer is a multiple of 16 bytes. A thread has at most
    `registers`. With `fuse`, products and sums become multiply-adds, which kernels of regions do not use.

    Only one thread may call it at a time: Triton prints ptxas's log to standard output, which is redirected.

    Raises:
        ToolchainError: without Triton, if kernels are interpreted, or if ptxas printed no resources.
        CompileError: if Triton or ptxas refuses the kernel; it carries their words.
    """
    _require_compiler()
    function = getattr(module(text), symbol)
    attributes = {(i,): [["tt.divisibility", ALIGNED]] for i, t in enumerate(signature) if t[0] == "*" and aligned}
    names = function.arg_names
    if len(names) != len(signature):
        raise CompileError(f"{symbol}: expected the types of {len(names)} parameters (got {len(signature)}).")
    types = dict(zip(names, signature, strict=True))
    log = io.StringIO()
    options = {"num_warps": warps, "enable_fp_fusion": fuse, "maxnreg": registers}
    try:
        made = _compiled(function, types, constexprs, attributes, capability, options, log)
    except Exception as error:  # errors of Triton, its passes and ptxas have no common class
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
    function: object,
    types: Mapping[str, str],
    constexprs: Mapping[str, object],
    attributes: Mapping[tuple[int], object],
    capability: int,
    options: Mapping[str, object],
    log: io.StringIO,
) -> object:
    """The compiled function; the output of ptxas goes to `log`."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(fn=function, signature=dict(types), constexprs=dict(constexprs), attrs=dict(attributes))
    knobs = triton.knobs
    with knobs.compilation.scope(), knobs.nvidia.scope(), redirect_stdout(log):
        knobs.compilation.always_compile = True  # a kernel from Triton's cache would have no log
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
    code, shuffles = len(made.asm["cubin"]), made.asm["ptx"].count("shfl.sync.bfly")
    return Resources(int(used[0]), stack, stores, loads, shared, warps, code, shuffles)


def _words(error: BaseException) -> str:
    """The words of an error and its causes: the first of Triton's errors names the line, the causes name the reason."""
    words: list[str] = []
    at: BaseException | None = error
    while at is not None:
        words.append(f"{type(at).__name__}: {at}")
        at = at.__cause__ or at.__context__
    return "\n".join(words)


# ---------------------------------------------------------------- kernels of regions

_TYPES = {
    DType.f64: "fp64", DType.f32: "fp32", DType.f16: "fp16", DType.bf16: "bf16",
    DType.i64: "i64", DType.i32: "i32", DType.i16: "i16", DType.i8: "i8", DType.u8: "u8", DType.bool: "i1",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Variant:
    """Facts about a launch for which Triton compiles a separate kernel: whether rows come in an order, whether each
    program takes a single group of rows (only kernels with totals take more, on large graphs), and the precision of
    products of f32."""

    ordered: bool = True
    one_group: bool = True
    precision: str = "ieee"


def signature(kernel: Kernel, variant: Variant) -> tuple[str, ...]:
    """Triton's type of each parameter of the kernel's text, in order (`codegen/triton/kernel.py`)."""
    index = f"*{_TYPES[kernel.index]}"
    pointers = [*(index for _ in kernel.csrs), *(_pointer(kernel, buffer) for buffer in kernel.buffers)]
    order = index if variant.ordered else pointers[0]  # without an order, the first tensor is passed in its place
    groups = "constexpr" if variant.one_group else "i32"
    return (*pointers, order, groups, "i32", "i32", *("constexpr" for _ in ("R", "K", "ORDERED", "PRECISION")))


def constants(variant: Variant, how: Launch) -> dict[str, Any]:
    """The values of the parameters that are `constexpr`. Triton makes every number that is 1 a constexpr."""
    groups = {"groups": 1} if variant.one_group else {}
    return {**groups, "R": how.rows, "K": how.edges, "ORDERED": variant.ordered, "PRECISION": variant.precision}


def resources_of(
    kernel: Kernel, capability: int, variant: Variant | None = None, how: Launch | None = None
) -> Resources:
    """Print and compile `kernel` for `capability` (80: sm_80), launched by `how`, by default as a step would.

    Raises:
        IRError: for what Triton cannot express.
        ToolchainError, CompileError: see `compile_text`.
    """
    variant, how = variant or Variant(), how or launches_of(kernel).short
    types, values = signature(kernel, variant), constants(variant, how)
    text = print_kernel(kernel)
    return compile_text(text, kernel.name, types, values, capability, warps=how.warps, registers=how.registers)


def _pointer(kernel: Kernel, buffer: Buffer) -> str:
    """Triton's type of a pointer to a buffer. A program's part of a total has the type in which it is computed."""
    if buffer.role in (Role.column, Role.index):
        return f"*{_TYPES[kernel.index]}"
    return f"*{_TYPES[computed(buffer.dtype) if buffer.role is Role.total else buffer.dtype]}"
