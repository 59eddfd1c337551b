"""The sources of an exported model: one C++ text with the runtime, the kernels and what runs them, and its headers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import sympy
from torch import Tensor

from graphweave.core.errors import ExportError
from graphweave.core.sizes import Size, Symbol, read
from graphweave.export.calls import quoted
from graphweave.export.capture import Argument, WholeModel
from graphweave.export.dtypes import DTYPE_CODE, code_of
from graphweave.export.program import ProgramText
from graphweave.export.segments import SegmentText
from graphweave.export.sizes_text import as_cpp
from graphweave.ir.message.aten import DTYPE_OF
from graphweave.runtime import sources

RUNTIME = (
    "containers.cpp", "checksum.cpp", "formats.cpp", "records.cpp", "edge_subsets.cpp", "row_pieces.cpp", "divided_rows.cpp",
    "segments.cpp", "segment_runs.cpp",
)  # fmt: skip
"""The files of the runtime that a model needs, in order."""

_BEGIN = """\
#define GW_EXPORTED_MODEL
#define GW_API __attribute__((visibility("default")))
#include "model.h"
"""

_MEMORY = """\
// The operators that C++ itself calls, so that no library of C++ is needed. Where there is no memory, the process ends.
void* operator new(size_t nbytes) {
  void* const made = std::malloc(nbytes ? nbytes : 1);
  if (!made) std::abort();
  return made;
}
void* operator new[](size_t nbytes) { return operator new(nbytes); }
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }
void operator delete[](void* data, size_t) noexcept { std::free(data); }
"""


@dataclass(frozen=True, slots=True, eq=False)
class Sources:
    """Files of the folder of sources by name; "model.cpp" is what is compiled."""

    files: Mapping[str, str]


def model_sources(model: WholeModel, text: ProgramText, weights: Sequence[Argument]) -> Sources:
    kernels = dict(pair for segment in text.segments for pair in segment.kernels)
    parts = [
        _BEGIN, *map(sources.source, RUNTIME), _MEMORY, *kernels.values(), own("values.cpp"), own("threads.cpp"),
        own("weights.cpp"), _described(model, text, weights), own("model.cpp"), "namespace {\n", _sizes(model),
        _segments(text.segments), *text.functions, "}  // namespace\n",
    ]  # fmt: skip
    whole = "\n".join(parts)
    found = {"model.cpp": whole, "model.h": own("model.h")}
    found |= {f"graphweave/{name}": sources.headers()[name].decode() for name in sorted(sources.included(whole))}
    return Sources(found)


def own(name: str) -> str:
    """A file of this room's `native` folder."""
    return (files("graphweave.export") / "native" / name).read_text(encoding="utf-8")


# ---------------------------------------------------------------- inputs, outputs, weights


def _described(model: WholeModel, text: ProgramText, weights: Sequence[Argument]) -> str:
    symbols = symbols_of(model.inputs)
    inputs = [_info(a.name, a.example, [n if isinstance(n, int) else -1 for n in a.sizes]) for a in model.inputs]
    outputs = [_info(name, value, output_sizes(model, at)) for name, value, at in model.results]
    stored = [_info(a.name, a.example, a.sizes) for a in weights]
    counts = {
        "Inputs": len(inputs), "Outputs": len(outputs), "Weights": len(stored), "Segments": len(text.segments),
        "Kept": text.num_kept, "Sizes": len(symbols),
    }  # fmt: skip
    return "\n".join([
        "namespace {",
        f"constexpr int32_t {', '.join(f'kNum{name} = {n}' for name, n in counts.items())};",
        _array("const gw_value_info kInputs", inputs),
        _array("const gw_value_info kOutputs", outputs),
        _array("const WeightInfo kWeights", stored),
        "}  // namespace\n",
    ])  # fmt: skip


def _info(name: str, value: Tensor, sizes: Iterable[object]) -> str:
    dims = ", ".join(map(str, sizes))
    return f"{{{quoted(name)}, {code_of(value.dtype)}, {value.dim()}, {{{dims}}}}}"


def _array(head: str, items: Sequence[str]) -> str:
    body = "".join(f"    {item},\n" for item in items or ["{}"])
    return f"{head}[] = {{\n{body}}};"


def output_sizes(model: WholeModel, at: int) -> list[int]:
    """The sizes of a result, -1 for those that vary."""
    results = model.captured.module.graph.output_node().args[0]
    assert isinstance(results, list | tuple)
    shape = results[at].meta["val"].shape  # type: ignore[union-attr]
    return [n if isinstance(n, int) else -1 for n in (read(str(n)) for n in shape)]


# ---------------------------------------------------------------- sizes


def symbols_of(inputs: Sequence[Argument]) -> dict[Symbol, tuple[int, int]]:
    """The sizes that vary, each with the input and the dim that tell it."""
    found: dict[Symbol, tuple[int, int]] = {}
    for i, argument in enumerate(inputs):
        for d, size in enumerate(argument.sizes):
            if isinstance(size, Symbol):
                found.setdefault(size, (i, d))
    return found


def _sizes(model: WholeModel) -> str:
    """The function that reads the sizes of a run from its inputs and checks them."""
    symbols = symbols_of(model.inputs)
    names: dict[Size, str] = {symbol: f"sizes[{i}]" for i, symbol in enumerate(symbols)}
    lines = [f"sizes[{i}] = in[{a}].sizes[{d}];" for i, (a, d) in enumerate(symbols.values())]
    for i, argument in enumerate(model.inputs):
        for d, size in enumerate(argument.sizes):
            if isinstance(size, int) or symbols.get(size) == (i, d):  # type: ignore[call-overload]
                continue
            lines.append(f"expect_size(run, in[{i}].sizes[{d}], {as_cpp(size, names)}, {i}, {d});")
    for guard in model.guards:
        text = guard_text(guard, names)
        if text != "true":
            lines.append(f"if (!({text})) wrong_sizes(run, {quoted(_in_names(guard, model.inputs))});")
    body = "\n".join(f"  {line}" for line in lines)
    return f"void read_sizes(Run& run, const Value* in, int64_t* sizes) {{\n{body}\n}}\n"


_RELATIONS = {
    sympy.Eq: "==", sympy.Ne: "!=", sympy.Lt: "<", sympy.Le: "<=", sympy.Gt: ">", sympy.Ge: ">=",
}  # fmt: skip


def guard_text(guard: Any, names: Mapping[Size, str]) -> str:
    """A condition on sizes as C++. Raises ExportError for one of another form."""
    if guard is sympy.true or guard is True:
        return "true"
    if isinstance(guard, sympy.Not):
        return f"!({guard_text(guard.args[0], names)})"
    if isinstance(guard, sympy.And | sympy.Or):
        joint = " && " if isinstance(guard, sympy.And) else " || "
        return joint.join(f"({guard_text(part, names)})" for part in guard.args)
    for relation, sign in _RELATIONS.items():
        if isinstance(guard, relation):
            left, right = (as_cpp(read(str(side)), names) for side in (guard.lhs, guard.rhs))
            return f"{left} {sign} {right}"
    raise ExportError(f"the model is right only where {guard}, which a library cannot look at. Export it for one size.")


def _in_names(guard: Any, inputs: Sequence[Argument]) -> str:
    """A condition in the user's words: "x.size(0) >= 2"."""
    text = str(guard)
    for symbol, (i, d) in sorted(symbols_of(inputs).items(), key=lambda pair: -len(pair[0].name)):
        text = text.replace(symbol.name, f"{inputs[i].name}.size({d})")
    return text


# ---------------------------------------------------------------- segments


def _segments(segments: Sequence[SegmentText]) -> str:
    lines = list(_segment_lines(segments))
    body = "\n".join(f"  {line}" for line in lines)
    return f"void make_segments(gw_model& model) {{\n{body}\n}}\n"


def _segment_lines(segments: Sequence[SegmentText]) -> Iterator[str]:
    for i, segment in enumerate(segments):
        yield f"const int64_t numbers_{i}[] = {{{_numbers(segment.numbers)}}};"
        yield f"model.segments.push_back(make_segment(Reader{{numbers_{i}}}));"
        for step, numbers in segment.divided:
            yield f"const int64_t divided_{i}_{step}[] = {{{_numbers(numbers)}}};"
            made = f"make_divided(Reader{{divided_{i}_{step}}})"
            yield f"model.segments[{i}]->steps[{step}].divided = shared<const Divided>({made});"


def _numbers(numbers: Iterable[int | str]) -> str:
    return ", ".join(n if isinstance(n, str) else str(int(n)) for n in numbers)


def dtype_names(value: Tensor) -> str:
    """The element type of a tensor in the manifest: "float32"."""
    return str(value.dtype).removeprefix("torch.")


def supported(value: Tensor) -> bool:
    return value.dtype in DTYPE_OF and DTYPE_OF[value.dtype] in DTYPE_CODE
