"""The segments of a program as C++ text: the numbers of which native code makes them, with kernels by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphweave.analysis.cones import map_type
from graphweave.execute.cpp_segment import segment_numbers
from graphweave.execute.cpp_step import CppStep
from graphweave.execute.region_step import wraps
from graphweave.ir.message.nodes import Program
from graphweave.ir.tape.nodes import RunKernels


@dataclass(frozen=True, slots=True)
class SegmentText:
    """The numbers of a segment, where text stands for a kernel's address; those of the kernels of divided rows, by the
    position of the step that they belong to; and the C++ text of each kernel by its name."""

    numbers: tuple[int | str, ...]
    divided: tuple[tuple[int, tuple[int | str, ...]], ...]
    kernels: tuple[tuple[str, str], ...]


def segment_text(program: Program, step: RunKernels, kernels: Sequence[CppStep]) -> SegmentText:
    ends = [(step.rows.index(map_type(program, m).cod), wraps(program, m)) for m in step.maps]
    numbers = segment_numbers(program, step, kernels, ends, [_address(k.plan.symbol) for k in kernels])
    texts = [(k.plan.symbol, k.plan.code) for k in kernels]
    divided: list[tuple[int, tuple[int | str, ...]]] = []
    for i, kernel in enumerate(kernels):
        if kernel.divides:
            rows = kernel.rows_in_pieces()
            pieces = rows.texts
            texts += [(symbol, text) for text, symbol in pieces]
            divided.append((i, tuple(rows.numbers([_address(symbol) for _, symbol in pieces]))))
    return SegmentText(tuple(numbers), tuple(divided), tuple(texts))


def _address(symbol: str) -> str:
    return f"reinterpret_cast<int64_t>({symbol})"
