"""Tape -> the C++ function that follows it, without Python: a third runner, after Python's and XLA's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from graphweave.analysis.cones import type_of
from graphweave.analysis.flow import has_effects
from graphweave.compiler.glossary import index_words
from graphweave.compiler.plan import Plan
from graphweave.core.errors import ExportError
from graphweave.core.types import UNIT, Space
from graphweave.execute.cpp_step import CppStep
from graphweave.execute.region_step import RegionStep
from graphweave.exporting.calls import call_lines
from graphweave.exporting.dtypes import DTYPE_CODE, code_of
from graphweave.exporting.named_node import NamedNode, NotExported, is_number
from graphweave.exporting.segments import SegmentText, segment_text
from graphweave.exporting.sizes_text import as_cpp
from graphweave.ir.message.nodes import Ref
from graphweave.ir.tape import nodes as tape


@dataclass(slots=True)
class ProgramText:
    """The functions of a program in order, the segments of kernels that they run, by number, and how many values they
    keep: of the weights alone, and of the graph alone."""

    functions: list[str] = field(default_factory=list)
    segments: list[SegmentText] = field(default_factory=list)
    num_of_weights: int = 0
    num_kept: int = 0
    refused: list[str] = field(default_factory=list)
    """Calls that cannot leave Python."""


def print_program(
    followed: tape.Tape, plan: Plan, kernels: Mapping[int, RegionStep], prelude: Mapping[int, RegionStep],
    given: Mapping[Ref, str], weights: Mapping[Ref, int], names: Mapping[str, str], outputs: Sequence[int],
) -> ProgramText:  # fmt: skip
    """`prepare(run, weights, made)` for what a tape computes of its weights alone, and `follow(run, in, sizes, made)`
    for the rest, which makes its results at the positions `outputs`. `given` are C++ expressions of inputs, `weights`
    the numbers of inputs and constants that are weights, and `names` the user's words for inputs."""
    text = ProgramText()
    printer = _Printer(text, followed, plan, kernels, names, prelude, weights)
    taken = [r for r in (*followed.inputs, *followed.constants) if r in given or r in weights]
    lines = [*(f"{printer.kept_kind(r)} {printer.name(r)} = {given[r]};" for r in taken if r in given)]
    of_weights = [f"const Value& {printer.name(r)} = weights[{weights[r]}];" for r in taken if r in weights]
    prepared = list(printer.lines_of_weights())
    lines += ["const List<Value>&weights = run.model.weights, &prepared = run.model.prepared;", *of_weights]
    lines += [*printer.prepared(), *printer.lines()]
    if text.refused:
        listed = "; ".join(dict.fromkeys(text.refused))
        raise ExportError(f"only PyTorch computes {listed}. Leave that out of what is exported, or pass its result.")
    results = [f"made[{i}] = {printer.result(at)};" for i, at in enumerate(outputs)]
    head = "void prepare(Run& run, const List<Value>& weights, List<Value>& prepared)"
    text.functions.append(_function(head, [*of_weights, *prepared]))
    head = "void follow(Followed& run, const Value* in, const int64_t* sizes, Value* made)"
    text.functions.append(_function(head, [*lines, *results]))
    return text


def _function(head: str, lines: Iterable[str]) -> str:
    return "\n".join([f"{head} {{", *(f"  {line}" for line in lines), "}"])


class _Printer:
    """Prints the steps of one tape. A prelude's has a printer of its own, and the same `text`."""

    def __init__(
        self, text: ProgramText, followed: tape.Tape, plan: Plan, kernels: Mapping[int, RegionStep],
        names: Mapping[str, str], prelude: Mapping[int, RegionStep] | None = None,
        weights: Iterable[Ref] = (),
    ) -> None:  # fmt: skip
        self._text, self._tape, self._plan, self._kernels = text, followed, plan, kernels
        self._names, self._prelude = names, prelude or {}
        self._program = plan.program
        self._given = frozenset((*followed.inputs, *followed.constants))
        self._of_weights = self._found_of_weights(weights)
        self._masks: set[Ref] = set()
        self._lines_of_masks: list[str] = []

    def name(self, ref: Ref) -> str:
        return f"v{ref}"

    def kind(self, ref: Ref) -> str:
        return "int64_t" if is_number(self._program, ref) else "Value"

    def kept_kind(self, ref: Ref) -> str:
        """The type of a value that a run reads where it is kept."""
        return "const int64_t" if is_number(self._program, ref) else "const Value&"

    def result(self, at: int) -> str:
        value = self._tape.outputs[at].value
        if value is None or is_number(self._program, value):
            raise ExportError(f"result {at} is no tensor. Return tensors.")
        return self.name(value)

    def lines(self) -> Iterator[str]:
        early = [step for step in self._tape.steps if self._is_known_at_first(step)]
        for step in early:  # a map of indices may name its rows before the tape counts them
            yield from self._lines(step)
        for step in self._tape.steps:
            if step not in early and not (isinstance(step, tape.CallNode) and step.value in self._of_weights):
                yield from self._lines(step)

    def _is_known_at_first(self, step: tape.Step) -> bool:
        """Whether a step counts rows whose number nothing computes."""
        match step:
            case tape.Count(_, tape.Fixed()):
                return True
            case tape.Count(_, tape.DimOf(value) | tape.NumberOf(value)):
                return value in self._given
            case _:
                return False

    def _places(self, mask: Ref) -> str:
        """The name of the places at which a mask is true, found once, before the first call that reads them."""
        if mask not in self._masks:
            self._masks.add(mask)
            self._lines_of_masks.append(f"Value {_name_of_places(mask)} = places_of(run, {self.name(mask)});")
        return _name_of_places(mask)

    # -------------------------------------------------------- once for the weights

    def _found_of_weights(self, weights: Iterable[Ref]) -> dict[Ref, tape.CallNode]:
        """The calls that read weights alone, by what they compute."""
        found: dict[Ref, tape.CallNode] = {}
        known = set(weights)
        for step in self._tape.steps if known else ():
            if not isinstance(step, tape.CallNode) or step.rows or not known.issuperset(step.operands):
                continue
            if not has_effects(self._program, step.value) and not is_number(self._program, step.value):
                found[step.value] = step
                known.add(step.value)
        return found

    def lines_of_weights(self) -> Iterator[str]:
        for ref, step in self._of_weights.items():
            yield from self._lines(step)
            yield f"prepared.push_back(dense(run, {self.name(ref)}));"
        self._text.num_of_weights = len(self._of_weights)
        self._masks.clear()  # the places are variables of the function that these lines are in

    def prepared(self) -> Iterator[str]:
        for i, ref in enumerate(self._of_weights):
            yield f"[[maybe_unused]] const Value& {self.name(ref)} = prepared[kFirstPrepared + {i}];"

    def _lines(self, step: tape.Step) -> Iterator[str]:
        match step:
            case tape.OnceAGraph():
                yield from self._once(step)
            case tape.Count(space, number):
                yield f"const int64_t {_count(space)} = {self._number(number)};"
            case tape.CallNode(value, rows):
                call = NamedNode(self._program, value, self.name, _count, self._index_words, self._places)
                try:
                    lines = list(call_lines(call))
                    yield from (*self._lines_of_masks, *lines)
                except NotExported as error:
                    self._text.refused.append(str(error))
                self._lines_of_masks.clear()
                yield "if (run.failed) return;"
            case tape.RunKernels():
                yield from self._run_kernels(step)
            case tape.RunKernel(kernel, rows, indices, reads, writes):
                one = self._kernels[kernel]
                member = tape.Member(kernel, reads, writes)
                yield from self._run_kernels(tape.RunKernels(rows, one.maps, indices, reads, writes, (member,)))
            case tape.Free(values):
                own = [r for r in values if r not in self._given and r not in self._of_weights]
                freed = [self.name(r) for r in own if not is_number(self._program, r)]
                freed += [_name_of_places(r) for r in own if r in self._masks]
                if freed:
                    yield " ".join(f"{name} = Value();" for name in freed)
            case tape.Narrow() | tape.LookForEdits() | tape.Taken() | tape.Saved() | tape.Settle():
                pass  # promises about the memory of PyTorch's tensors
            case _:
                raise ExportError(f"a library cannot follow the step {type(step).__name__}. Report this model.")

    # -------------------------------------------------------- once a graph

    def _once(self, step: tape.OnceAGraph) -> Iterator[str]:
        plan = self._plan.prelude
        assert plan is not None
        inner = _Printer(self._text, step.tape, plan, self._prelude, self._names)
        body = list(inner.lines())
        made = [(i, r) for i, r in enumerate(step.makes)]
        parameters = ["Followed& run"]
        parameters += [f"{inner.kind(r)} {inner.name(r)}" for r in step.tape.inputs]
        parameters += [f"int64_t {_count(space)}" for space in step.tape.rows]
        parameters += ["Value* values", "int64_t* numbers"]
        results = []
        for i, r in made:
            value = step.tape.outputs[i].value
            assert value is not None
            where = "numbers" if is_number(self._program, r) else "values"
            results.append(f"{where}[{i}] = {inner.name(value)};")
        self._text.functions.append(_function(f"void follow_prelude({', '.join(parameters)})", [*body, *results]))
        self._text.num_kept = len(made)
        given = [*map(self.name, step.reads), *map(_count, step.rows)]
        count = max(1, len(made))
        yield f"Value once[{count}];"
        yield f"int64_t once_numbers[{count}] = {{}};"
        yield "if (run.graph && !run.fills) {"
        yield f"  for (int i = 0; i < {len(made)}; ++i)"
        yield "    once[i] = run.graph->kept[i], once_numbers[i] = run.graph->numbers[i];"
        yield "} else {"
        yield f"  follow_prelude({', '.join(['run', *given, 'once', 'once_numbers'])});"
        yield "  if (run.failed) return;"
        yield f"  for (int i = 0; run.graph && i < {len(made)}; ++i)"
        yield "    run.graph->kept[i] = once[i], run.graph->numbers[i] = once_numbers[i];"
        yield "}"
        for i, r in made:
            where = "once_numbers" if is_number(self._program, r) else "once"
            yield f"{self.kind(r)} {self.name(r)} = {where}[{i}];"

    # -------------------------------------------------------- kernels

    def _run_kernels(self, step: tape.RunKernels) -> Iterator[str]:
        kernels = [k for m in step.members if isinstance(k := self._kernels[m.kernel], CppStep)]
        assert len(kernels) == len(step.members)
        at = len(self._text.segments)
        self._text.segments.append(segment_text(self._program, step, kernels))
        made = {r: each for k in kernels for r, each in zip(k.writes, k.writes_each, strict=True)}
        values = [*map(self.name, step.reads)]
        for r in step.writes:
            shape, dtype, space = made[r]
            values.append(_empty(code_of(dtype), [*([] if space == UNIT else [_count(space)]), *map(str, shape)]))
        words = [f'"{self._index_words(m)}"' for m in step.maps]
        yield "{" if not step.writes else f"Value {', '.join(map(self.name, step.writes))};"
        if step.writes:
            yield "{"
        yield f"  const int64_t rows[] = {{{_list(map(_count, step.rows))}}};"
        yield f"  const int64_t expected[] = {{{_list(map(self._rows_read, step.reads))}}};"
        yield f"  const Value indices[] = {{{_list(map(self.name, step.indices), 'Value()')}}};"
        yield f"  static const char* const names[] = {{{_list(words)}}};"
        yield f"  Value values[] = {{{_list(values, 'Value()')}}};"
        yield "  if (run.failed) return;"
        yield f"  run_segment(run, kFirstSegment + {at}, rows, expected, indices, names, values);"
        yield "  if (run.failed) return;"
        for i, r in enumerate(step.writes, start=len(step.reads)):
            yield f"  {self.name(r)} = {self._in_own_type(r, kernels, f'values[{i}]')};"
        yield "}"

    def _rows_read(self, ref: Ref) -> str:
        """The rows that kernels read of a value; -1 for shared data."""
        space = type_of(self._program, ref).space
        return "-1" if space == UNIT else _count(space)

    def _in_own_type(self, ref: Ref, kernels: Sequence[CppStep], text: str) -> str:
        """A value that a kernel writes in a wider type, in its own."""
        wide = any(r == ref and i in k.converted for k in kernels for i, r in enumerate(k.writes))
        return f"converted(run, {text}, {DTYPE_CODE[type_of(self._program, ref).dtype]})" if wide else text

    # -------------------------------------------------------- numbers and names

    def _number(self, number: tape.Number) -> str:
        match number:
            case tape.Fixed(rows):
                return str(rows)
            case tape.DimOf(value, dim):
                return f"{self.name(value)}.sizes[{dim}]"
            case tape.NumberOf(value):
                return self.name(value)
            case tape.Computed(size, known):
                return as_cpp(size, {k.size: self._number(k.number) for k in known})
            case tape.DistinctOf(value):
                return f"count_of_distinct({self.name(value)})"

    def _index_words(self, ref: Ref) -> str:
        return index_words(self._program, ref, self._names).replace("\\", "\\\\").replace('"', '\\"')


def _count(space: Space) -> str:
    return "1" if space == UNIT else f"n_{space.name}"


def _name_of_places(mask: Ref) -> str:
    return f"places_{mask}"


def _list(items: Iterable[str], none: str = "0") -> str:
    """The items of an array, which has at least one."""
    return ", ".join(items) or none


def _empty(dtype: str, sizes: Sequence[str]) -> str:
    return f"empty(run, {dtype}, {{{', '.join(sizes)}}})" if sizes else f"empty(run, {dtype})"
