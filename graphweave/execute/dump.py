"""GRAPHWEAVE_DUMP: the files of a plan."""

from __future__ import annotations

from graphweave.compiler.dump import dump_program, dump_text
from graphweave.compiler.plan import Plan
from graphweave.core.settings import settings
from graphweave.ir.loop.show import show as show_kernel
from graphweave.runtime import sources


def dump_plan(plan: Plan, wrapper: str = "", tape: str = "") -> None:
    """Dump the program, each kernel as loop IR and as C++ or Triton code, the headers that kernels include, the
    `tape`, and the Python text that follows it (`wrapper`)."""
    folder = settings().dump
    if folder is None:
        return
    if plan.prelude is not None:
        dump_plan(plan.prelude)
    dump_program(str(plan.name), plan.program)
    for k in plan.kernels.values():
        dump_text(f"{k.lowered.kernel.name}.loop.txt", show_kernel(k.lowered.kernel))
        dump_text(f"{k.lowered.kernel.name}.{'py' if plan.options.target == 'triton' else 'cpp'}", k.text)
    if tape:
        dump_text(f"{plan.name}.tape.txt", tape)
    if wrapper:
        dump_text(f"{plan.name}.py", wrapper)
    for name in {name for k in plan.kernels.values() for name in sources.included(k.code)}:
        (folder / "graphweave").mkdir(exist_ok=True)
        (folder / "graphweave" / name).write_bytes(sources.headers()[name])
