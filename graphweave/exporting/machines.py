"""The machines that an exported model is for, and its libraries, built for them."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from graphweave.core.errors import ExportError
from graphweave.core.settings import settings
from graphweave.runtime.toolchain import Toolchain, build_library, toolchain_for

_FLAGS = (
    "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti", "-ffunction-sections", "-fdata-sections",
    "-fno-threadsafe-statics",
)  # fmt: skip
"""Flags besides those of every kernel."""

_EXPORTED = ("gw_model_*", "gw_graph_*", "gw_free")
"""The symbols that a library shows."""

_TARGET = re.compile(r"(x86_64|aarch64)-linux(-gnu(\.\d+\.\d+)?|-musl)?")

_SMALLEST = {"x86_64": "x86-64", "aarch64": "generic"}
"""The instruction set that all machines of a kind have, as zig names it."""

LEVELS = ("x86-64-v4", "x86-64-v3", "x86-64-v2", "x86-64")
"""The instruction sets among which a library can choose on the machine where it runs, from the largest on."""

_CPU_FLAGS = {
    "x86-64-v4": "avx512f avx512bw avx512cd avx512dq avx512vl",
    "x86-64-v3": "avx avx2 bmi1 bmi2 f16c fma abm movbe",
    "x86-64-v2": "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3",
    "x86-64": "",
}
"""Names that Linux gives to the parts of an instruction set that the next smaller one does not have."""


@dataclass(frozen=True, slots=True)
class Library:
    """A library of a model: its file, the instruction set that it needs, and the compiler that built it."""

    file: str
    instruction_set: str
    tools: Toolchain


@dataclass(frozen=True, slots=True)
class Machines:
    """The `target`, such as "aarch64-linux-musl" (None is this machine), and the instruction sets, from the largest on.

    With `chooses`, each has a library of its own, of which model.so opens one."""

    target: str | None
    instruction_sets: tuple[str, ...]
    chooses: bool = False

    @property
    def shown(self) -> str:
        """The target, or the kind of this machine."""
        return self.target or f"{platform.machine()}-linux"

    @property
    def can_run_here(self) -> bool:
        """Whether this machine is known to have what a library needs."""
        return self.target is None and any(map(_is_here, self.instruction_sets))


def machines_of(target: str | None, instruction_set: str | Sequence[str] | None) -> Machines:
    """The machines that the arguments of `export` ask for. ExportError for a value that it does not take."""
    if target is not None and not _TARGET.fullmatch(target):
        raise ExportError(
            "target must be x86_64-linux or aarch64-linux, with -gnu for glibc (the default) or -musl after it "
            f"(got {target!r}). Leave it out for this machine."
        )
    machine = platform.machine() if target is None else target.split("-")[0]
    if target is not None and target.count("-") == 1:
        target = f"{target}-gnu"
    if target is not None and target.endswith("-gnu"):
        target = f"{target}.2.28"
    if target is not None and instruction_set == "native":
        raise ExportError(
            'instruction_set must be one of the target\'s (got "native", which is that of this machine). Name it, or '
            "leave it out for what every machine of the target has."
        )
    if instruction_set is None or isinstance(instruction_set, str):
        smallest = settings().arch if target is None else _SMALLEST[machine]
        return Machines(target, (instruction_set or smallest,))
    levels = tuple(instruction_set)
    if machine != "x86_64" or not levels or not {*levels} <= {*LEVELS}:
        raise ExportError(
            f"several instruction sets must be some of {', '.join(LEVELS)}, on x86_64 (got "
            f"{', '.join(levels) or 'none'} on {machine}). Give one instruction set by its name alone."
        )
    return Machines(target, tuple(level for level in LEVELS if level in levels), chooses=True)


def build(sources: Path, machines: Machines) -> list[Library]:
    """Compile what stands in `sources` to libraries in the folder above. The first of them is what programs open."""
    exports = sources / "exports.map"
    exports.write_text(f"{{ global: {' '.join(f'{name};' for name in _EXPORTED)} local: *; }};\n")
    sets, chooses = machines.instruction_sets, machines.chooses
    wanted = [("chooser.cpp", "model.so", LEVELS[-1])] if chooses else []
    wanted += [("model.cpp", f"model-{one}.so" if chooses else "model.so", one) for one in sets]
    built = []
    for text, file, instruction_set in wanted:
        tools = toolchain_for(machines.target, instruction_set)
        flags = (*_FLAGS, f"-I{sources}")
        build_library(tools, sources / text, sources.parent / file, flags, exports, what="an exported model")
        built.append(Library(file, instruction_set, tools))
    return built


def _is_here(instruction_set: str) -> bool:
    """Whether the processor of this machine is known to have an instruction set."""
    if instruction_set in ("native", settings().arch):
        return True
    if instruction_set not in LEVELS or platform.machine() != "x86_64":
        return False
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    line = next((line for line in info.splitlines() if line.startswith("flags")), "")
    needed = " ".join(_CPU_FLAGS[level] for level in LEVELS[LEVELS.index(instruction_set) :])
    return {*needed.split()} <= {*line.split()}
