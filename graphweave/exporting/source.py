"""The sources of an exported model: one C++ text with the runtime, the kernels and what runs them, and its headers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from torch import Tensor

from graphweave.core.sizes import read
from graphweave.exporting.capture import Argument, WholeModel
from graphweave.exporting.conditions import sizes_text, symbols_of
from graphweave.exporting.dtypes import code_of
from graphweave.exporting.forms import ModelForm
from graphweave.exporting.named_node import quoted
from graphweave.exporting.seeds import seed_position
from graphweave.exporting.segments import SegmentText
from graphweave.runtime import sources

RUNTIME = (
    "containers.cpp", "checksum.cpp", "formats.cpp", "records.cpp", "edge_subsets.cpp", "row_pieces.cpp",
    "divided_rows.cpp", "segments.cpp", "segment_runs.cpp",
)  # fmt: skip
"""The files of the runtime that a model needs, in order."""

SORTING = ("orders.cpp", "running_sums.cpp")
"""Those that a model needs which sorts rows, or adds them up in order, each in a namespace of its name."""

_INTERFACE = """\
#define GW_API __attribute__((visibility("default")))
#include "model.h"
"""

_BEGIN = f"#define GW_EXPORTED_MODEL\n{_INTERFACE}"

_MEMORY = """\
// The operators that C++ itself calls, so that no library of C++ is needed. Where there is no memory, the process ends.
#ifndef GW_MEMORY_OF_CXX  // with it, those of a library of C++
void* operator new(size_t nbytes) {
  void* const made = std::malloc(nbytes ? nbytes : 1);
  if (!made) std::abort();
  return made;
}
void* operator new[](size_t nbytes) { return operator new(nbytes); }
void* operator new(size_t nbytes, const std::nothrow_t&) noexcept { return std::malloc(nbytes ? nbytes : 1); }
void* operator new[](size_t nbytes, const std::nothrow_t&) noexcept { return std::malloc(nbytes ? nbytes : 1); }
const std::nothrow_t std::nothrow{};
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }
void operator delete[](void* data, size_t) noexcept { std::free(data); }
#endif
"""


@dataclass(frozen=True, slots=True, eq=False)
class Sources:
    """Files of the folder of sources by name; "model.cpp" is what is compiled."""

    files: Mapping[str, str]


def model_sources(forms: Sequence[ModelForm], weights: Sequence[Argument]) -> Sources:
    """The sources of a model in one form or several, of which the first one tells what all take and give."""
    kernels = dict(pair for form in forms for segment in form.text.segments for pair in segment.kernels)
    functions = list(_functions(forms))
    sorts = any(call in text for call in ("order_of(", "distinct_of(", "running_sum(") for text in functions)
    more = [*map(_in_namespace, SORTING), own("sorted_rows.cpp")] if sorts else []
    if any("attended(" in text for text in functions):
        more.append(own("attention.cpp"))
    parts = [
        _BEGIN, *map(sources.source, RUNTIME), _MEMORY, *kernels.values(), own("values.cpp"), *more,
        own("threads.cpp"), own("weights.cpp"), _described(forms, weights), own("model.cpp"), *functions,
        own("interface.cpp"),
    ]  # fmt: skip
    whole = "\n".join(parts)
    found = {"model.cpp": whole, "model.h": own("model.h")}
    found |= {f"graphweave/{name}": sources.headers()[name].decode() for name in sorted(sources.included(whole))}
    return Sources(found)


def chooser_source(levels: Sequence[str]) -> str:
    """The text of a library that opens the one of several that is for the processor."""
    names = _array("const char* const kLevels", [quoted(level) for level in levels])
    return f"{_INTERFACE}\nnamespace {{\n{names}}}  // namespace\n\n{own('chooser.cpp')}"


def makefile(instruction_sets: Sequence[str], chooses: bool) -> str:
    """The Makefile, which builds what the export has built."""
    begin = f"LEVELS ?= {' '.join(instruction_sets)}" if chooses else f"ARCH ?= {instruction_sets[0]}"
    return f"{begin}\n{own('Makefile')}"


def _in_namespace(name: str) -> str:
    """A file of the runtime in a namespace of its name, since other files have names of their own that are the same."""
    lines = sources.source(name).splitlines()
    included = [line for line in lines if line.startswith("#include")]
    rest = [line for line in lines if not line.startswith("#include")]
    return "\n".join([*included, f"namespace {name.removesuffix('.cpp')} {{", *rest, "}", ""])


def _functions(forms: Sequence[ModelForm]) -> Iterator[str]:
    """The functions that follow each form, in a namespace of its own, and the table of the forms."""
    yield "namespace {\n"
    segments, prepared, rows = 0, 0, []
    for i, form in enumerate(forms):
        yield f"namespace form_{i} {{\n"
        yield f"constexpr size_t kFirstSegment = {segments}, kFirstPrepared = {prepared};\n"
        yield sizes_text(form.model, forms[0].model)
        yield _segments(form.text.segments)
        yield from form.text.functions
        yield f"}}  // namespace form_{i}\n"
        rows.append(f"{{form_{i}::make_segments, form_{i}::prepare, form_{i}::read_sizes, form_{i}::follow}}")
        segments += len(form.text.segments)
        prepared += form.text.num_of_weights
    yield _array("const Form kForms", rows)
    yield "}  // namespace\n"


def own(name: str) -> str:
    """A file of this room's `native` folder."""
    return (files("graphweave.exporting") / "native" / name).read_text(encoding="utf-8")


# ---------------------------------------------------------------- inputs, outputs, weights


def _described(forms: Sequence[ModelForm], weights: Sequence[Argument]) -> str:
    model = forms[0].model
    inputs = [_info(a.name, a.example, [n if isinstance(n, int) else -1 for n in a.sizes]) for a in model.inputs]
    outputs = [_info(name, value, output_sizes(model, at)) for name, value, at in model.results]
    stored = [_info(a.name, a.example, a.example.shape) for a in weights]
    counts = {
        "Inputs": len(inputs), "Outputs": len(outputs), "Weights": len(stored), "Forms": len(forms),
        "Segments": sum(len(form.text.segments) for form in forms),
        "Kept": max(form.text.num_kept for form in forms),
        "Sizes": max(len(symbols_of(form.model.inputs)) for form in forms),
    }  # fmt: skip
    return "\n".join([
        "namespace {",
        f"constexpr int32_t {', '.join(f'kNum{name} = {n}' for name, n in counts.items())};",
        f"constexpr int32_t kSeed = {seed_position(model)};",
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


# ---------------------------------------------------------------- segments


def _segments(segments: Sequence[SegmentText]) -> str:
    lines = list(_segment_lines(segments))
    body = "\n".join(f"  {line}" for line in lines)
    head = "  [[maybe_unused]] const size_t first = model.segments.size();\n"
    return f"void make_segments(gw_model& model) {{\n{head}{body}\n}}\n"


def _segment_lines(segments: Sequence[SegmentText]) -> Iterator[str]:
    for i, segment in enumerate(segments):
        yield f"const int64_t numbers_{i}[] = {{{_numbers(segment.numbers)}}};"
        yield f"model.segments.push_back(make_segment(Reader{{numbers_{i}}}));"
        for step, numbers in segment.divided:
            yield f"const int64_t divided_{i}_{step}[] = {{{_numbers(numbers)}}};"
            made = f"make_divided(Reader{{divided_{i}_{step}}})"
            yield f"model.segments[first + {i}]->steps[{step}].divided = shared<const Divided>({made});"


def _numbers(numbers: Iterable[int | str]) -> str:
    return ", ".join(n if isinstance(n, str) else str(int(n)) for n in numbers)


def dtype_names(value: Tensor) -> str:
    """The element type of a tensor in the manifest: "float32"."""
    return str(value.dtype).removeprefix("torch.")
