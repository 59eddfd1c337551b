"""The texts of a plan for GRAPHWEAVE_DUMP and TORCH_TRACE."""

from __future__ import annotations

from graphweave.compiler.dump import dump_program, dump_text, stages_wanted
from graphweave.compiler.plan import Plan, label_of
from graphweave.core.settings import settings
from graphweave.ir.loop.show import show as show_kernel
from graphweave.runtime import sources


def dump_plan(plan: Plan, wrapper: str = "", tape: str = "") -> None:
    """Dump the program, each kernel as loop IR and as C++ or Triton code, the headers that kernels include, the
    `tape`, and the Python text that follows it (`wrapper`)."""
    if not stages_wanted():
        return
    if plan.prelude is not None:
        dump_plan(plan.prelude)
    dump_program(str(plan.name), plan.program)
    for k in plan.kernels.values():
        name = label_of(plan.name, k.lowered.kernel.name)
        dump_text(f"{name}.loop.txt", show_kernel(k.lowered.kernel))
        dump_text(f"{name}.{'py' if plan.options.target == 'triton' else 'cpp'}", k.text)
    if tape:
        dump_text(f"{plan.name}.tape.txt", tape)
    if wrapper:
        dump_text(f"{plan.name}.py", wrapper)
    if (folder := settings().dump) is None:
        return
    for name in {name for k in plan.kernels.values() for name in sources.included(k.code)}:
        (folder / "graphweave").mkdir(exist_ok=True)
        (folder / "graphweave" / name).write_bytes(sources.headers()[name])
