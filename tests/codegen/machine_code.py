"""The machine code of a kernel: its instructions, the line of its text that each comes from, and its loops."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*?)(?:\s+#.*)?$")
_FUNCTION = re.compile(r"^[0-9a-f]+ <.*>:$")
_TARGET = re.compile(r"^([0-9a-f]+) <")
_SCALAR = re.compile(r"^v?((add|sub|mul|div|sqrt|min|max|u?comi|cmp\w*|round|rndscale)|f(n?m(add|sub))\d{3})s[sd]$")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its address, the line of the text that it comes from (None: no line), where it jumps to."""

    address: int
    name: str
    line: int | None
    target: int | None

    @property
    def is_scalar_arithmetic(self) -> bool:
        """Whether it computes with one floating-point number."""
        return _SCALAR.match(self.name) is not None


def functions_of(library: Path, source: Path) -> list[list[Instruction]]:
    """The instructions of each function. An inlined instruction has the line of the outermost call in `source`."""
    text = _run("objdump", "-d", "--no-show-raw-insn", "-j", ".text", str(library))
    functions: list[list[tuple[int, str, int | None]]] = []
    for row in text.splitlines():
        if _FUNCTION.match(row):
            functions.append([])
        elif functions and (found := _INSTRUCTION.match(row)):
            target = _TARGET.match(found[3]) if found[2].startswith("j") else None
            functions[-1].append((int(found[1], 16), found[2], int(target[1], 16) if target else None))
    lines = _lines(library, source, [address for function in functions for address, _, _ in function])
    return [[Instruction(at, name, lines.get(at), to) for at, name, to in function] for function in functions]


def loops_of(function: Sequence[Instruction]) -> list[list[Instruction]]:
    """The instructions of each loop, from the target of a backward jump to the jump."""
    return [
        [other for other in function if jump.target <= other.address <= jump.address]
        for jump in function
        if jump.target is not None and jump.target <= jump.address
    ]


def _lines(library: Path, source: Path, addresses: Sequence[int]) -> dict[int, int]:
    """The line of `source` for each address; the line of the outermost call where calls were inlined."""
    asked = "".join(f"{address:#x}\n" for address in addresses)
    text = _run("addr2line", "-a", "-i", "-e", str(library), given=asked)
    found: dict[int, int] = {}
    address = 0
    for row in text.splitlines():
        if row.startswith("0x"):
            address = int(row, 16)
            continue
        file, _, line = row.partition(" ")[0].rpartition(":")
        if Path(file).name == source.name and line.isdigit():
            found[address] = int(line)  # addr2line lists inner calls first, so the last line is the outermost
    return found


def _run(*command: str, given: str = "") -> str:
    return subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout
