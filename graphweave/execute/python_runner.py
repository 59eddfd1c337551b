"""Tape -> the text of a Python function that follows it: one line for most steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from graphweave.compiler.plan import Plan, label_of
from graphweave.core.boxed import Boxed
from graphweave.core.counters import bump
from graphweave.core.ranks import LinkName, begun, begun_back
from graphweave.core.sizes import as_python
from graphweave.core.types import UNIT, Space
from graphweave.execute.calls import NodeCalls
from graphweave.execute.cpp_step import CppStep
from graphweave.execute.cpp_stretch import CppStretch
from graphweave.execute.cpp_two_parts import CppTwoParts
from graphweave.execute.region_check import check_step
from graphweave.execute.region_step import RegionStep
from graphweave.execute.row_chunks import RowChunks
from graphweave.execute.rows_at_once import rows_at_once
from graphweave.execute.watched import Around, watcher
from graphweave.ir.message.layouts import memory_of, settled
from graphweave.ir.message.nodes import Exchange, ExchangeBack, Ref
from graphweave.ir.message.show import operation
from graphweave.ir.tape import nodes as tape
from graphweave.lower.schedule import Region
from graphweave.runtime.agreed import AgreedMemo
from graphweave.runtime.formats import narrowed
from graphweave.runtime.last_graph import LastGraph
from graphweave.runtime.memo import GivenOut, lent, memo
from graphweave.runtime.unseen_edits import Watch


class PythonRunner:
    """`text` defines `run(args)`, which takes the values of the tape's inputs and then its row counts. `load` makes it
    a function. While somebody watches (`watched.py`), the function follows `watched_text` instead, which tells of each
    step.

    The plan is the one that the tape was made from, with its `kernels` and those of its prelude, and its `calls`.
    """

    def __init__(
        self, followed: tape.Tape, plan: Plan, kernels: Mapping[int, RegionStep], calls: NodeCalls, *,
        prelude: Mapping[int, RegionStep] | None = None,
    ) -> None:  # fmt: skip
        self._tape, self._plan, self._kernels = followed, plan, kernels
        self._calls, self._prelude = calls, prelude or {}
        self._scope: dict[str, Any] = {"lent": lent, "bump": bump, "narrowed": narrowed}
        self._scope |= {"settled": settled, "memory_of": memory_of}
        self._scope |= {"begun": begun, "begun_back": begun_back, "LinkName": LinkName}
        self._settled = {step.result for step in followed.steps if isinstance(step, tape.Settle)}
        self._saves = any(isinstance(step, tape.Saved) for step in followed.steps)
        for r in followed.constants:
            node = plan.program.nodes[r]
            value, device = plan.constants[node.name], plan.options.device  # type: ignore[union-attr]
            with unset_fake_temporarily():  # PyTorch compiles among fake tensors, but a constant has numbers
                self._scope[f"constant{r}"] = value.to(device) if isinstance(value, Tensor) else value
        self._rows_at_once = rows_at_once(followed.steps, plan.program)
        self._with_others = {r for rows in self._rows_at_once.values() for r in rows} - self._rows_at_once.keys()
        self._lines_of = [(step, list(self._lines(step))) for step in followed.steps]
        self.text = self._text([line for _, lines in self._lines_of for line in lines])

    def load(self, filename: str) -> Boxed:
        """The function `run`. `filename` is the name of its file in tracebacks."""
        exec(compile(self.text, filename, "exec"), self._scope)
        run: Boxed = self._scope["run"]

        def run_or_watch(args: list[object]) -> list[object]:
            around = watcher()
            return run(args) if around is None else self._watched(args, around)

        return run_or_watch

    @cached_property
    def _watched(self) -> Callable[[list[object], Around], list[object]]:
        scope = dict(self._scope)
        exec(compile(self.watched_text, f"<graphweave {self._plan.name}, watched>", "exec"), scope)
        run: Callable[[list[Any], Around], list[Any]] = scope["run"]
        return run

    @property
    def watched_text(self) -> str:
        """The text of `run(args, around)`, which is entered and left `around` each kernel and call."""
        return self._text([line for step, lines in self._lines_of for line in self._watch(step, lines)], "args, around")

    def _watch(self, step: tape.Step, lines: list[str]) -> list[str]:
        if not lines:  # a call that another one makes
            return lines
        match step:
            case tape.RunKernels():
                return [*lines[:-1], f"{lines[-1].removesuffix(')')}, around)"]  # its kernels have names of their own
            case tape.RunKernel(kernel) | tape.FirstPart(kernel) | tape.SecondPart(kernel):
                name = self._kernels[kernel].label
            case tape.CallNode(value):
                name = label_of(self._plan.name, f"{operation(self._plan.program.nodes[value])} %{value}")
            case _:
                return lines
        return [f"with around({name!r}):", *(f"    {line}" for line in lines)]

    def _text(self, lines: Iterable[str], parameters: str = "args") -> str:
        steps = self._tape.steps
        counted = sum(isinstance(step, tape.CallNode) and step.counted for step in steps)
        text = [f"# {self._plan.name}: {len(self._kernels)} kernels, {counted} other calls", f"def run({parameters}):"]
        if any(map(_reads_taken, steps)):
            text.append(f"    taken = memory_of((*args, {self._names(self._tape.constants)}))")
        given = [*(f"v{r}" for r in self._tape.inputs), *map(_count, self._tape.rows)]
        if given:
            text += [f"    {_items(given)}= args", "    args.clear()"]
        text += [f"    {line}" for line in lines]
        if counted:
            text.append(f"    bump('fallback_calls', {counted})")
        text.append(f"    return [{', '.join(map(self._result, range(len(self._tape.outputs))))}]")
        return "\n".join(text) + "\n"

    # -------------------------------------------------------- names

    def _name(self, ref: Ref | None) -> str:
        if ref is None:
            return "None"
        return f"constant{ref}" if ref in self._tape.constants else f"v{ref}"

    def _names(self, refs: Iterable[Ref]) -> str:
        return _items(map(self._name, refs))

    def _result(self, i: int) -> str:
        output = self._tape.outputs[i]
        name = f"r{i}" if i in self._settled else self._name(output.value)
        return f"lent({name})" if output.lent else name

    # -------------------------------------------------------- steps

    def _lines(self, step: tape.Step) -> Iterator[str]:
        """The lines of a step. What they call is bound to names of the scope."""
        match step:
            case tape.LookForEdits(value):
                self._scope[f"watch{value}"] = Watch()
                yield f"watch{value}({self._name(value)})"
            case tape.OnceAGraph():
                yield self._once(step)
            case tape.Count(space, number):
                yield f"{_count(space)} = {self._number(number)}"
            case tape.CallNode(value, _, operands) if (every := self._rows_at_once.get(value)) is not None:
                self._scope[f"c{value}"] = torch.unbind
                yield f"{self._names(every)}= c{value}({', '.join(map(self._name, operands))})"
            case tape.CallNode(value) if value in self._with_others:
                pass
            case tape.CallNode(value, rows, operands):
                self._scope[f"c{value}"] = self._calls.of(value).run
                yield f"v{value} = c{value}({', '.join([*map(_count, rows), *map(self._name, operands)])})"
            case tape.Narrow(value):
                yield f"v{value} = narrowed(v{value})"
            case tape.RunKernel(kernel):
                self._scope[f"k{kernel}"] = self._kernels[kernel]
                yield f"{self._names(step.writes)}= k{kernel}({self._arguments(step)})"
            case tape.RunKernels():
                yield from self._run_kernels(step)
            case tape.InChunks():
                yield self._in_chunks(step)
            case tape.Check(kernel, rows, given, writes):
                region = self._plan.schedule.steps[kernel]
                assert isinstance(region, Region)
                self._scope[f"check{kernel}"] = check_step(self._plan.program, self._kernels[kernel], region, given)
                counts = ", ".join(f"{space.name!r}: {_count(space)}" for space in rows)
                yield f"check{kernel}({{{counts}}}, ({self._names(given)}), ({self._names(writes)}))"
            case tape.Free(values):
                yield f"del {', '.join(map(self._name, values))}"
            case tape.Begin() | tape.Wait() | tape.FirstPart() | tape.SecondPart():
                yield from self._between_ranks(step)
            case tape.OwnMemory() | tape.Taken() | tape.Saved() | tape.Settle():
                yield self._memory(step)

    def _once(self, step: tape.OnceAGraph) -> str:
        plan, hoisted = self._plan.prelude, len(step.makes)
        assert plan is not None
        run = PythonRunner(step.tape, plan, self._prelude, self._calls.prelude).load(
            f"<graphweave {self._plan.name} prelude>"
        )
        kept = GivenOut(step.watched) if step.watched else memo.kept
        if step.ranks is not None:
            kept = AgreedMemo(step.ranks, kept)
        alone = not (step.shared or step.watched or step.ranks)
        self._scope["once"] = LastGraph(lambda *args: tuple(run(list(args))[:hoisted]), step.looks, kept, alone=alone)
        call = f"once({', '.join([*map(self._name, step.reads), *map(_count, step.rows)])})"
        return f"{self._names(step.makes)}= {call}" if step.makes else call

    def _in_chunks(self, step: tape.InChunks) -> str:
        made = (*step.makes, *step.adds)
        name = f"chunks{made[0]}"
        run = PythonRunner(step.tape, self._plan, self._kernels, self._calls, prelude=self._prelude)
        self._scope[name] = RowChunks(step, run.load(f"<graphweave {self._plan.name} {name}>"))
        given = f"({_items(map(_count, step.rows))}), ({self._names(step.reads)})"
        return f"{self._names(made)}= {name}({_count(step.space)}, {given})"

    def _number(self, number: tape.Number) -> str:
        match number:
            case tape.Fixed(rows):
                return str(rows)
            case tape.DimOf(value, dim):
                return f"{self._name(value)}.shape[{dim}]"
            case tape.NumberOf(value):
                return self._name(value)
            case tape.DistinctOf(value):
                return f"{self._name(value)}.columns[0].shape[0]"
            case tape.Computed(size, known):
                return f"int({as_python(size, {k.size: self._number(k.number) for k in known})})"

    def _arguments(self, step: tape.RunKernel | tape.FirstPart) -> str:
        """The arguments of the call of a kernel. Of late values, it reads the rows that are there."""
        late = {one.value for one in step.late} if isinstance(step, tape.FirstPart) else set()
        reads = _items(f"w{r}.rows" if r in late else self._name(r) for r in step.reads)
        return f"({_items(map(_count, step.rows))}), ({self._names(step.indices)}), ({reads})"

    def _run_kernels(self, step: tape.RunKernels) -> Iterator[str]:
        members = [m.kernel for m in step.members]
        kernels = [k for i in members if isinstance(k := self._kernels[i], CppStep)]
        name = f"s{members[0]}"
        self._scope[name] = CppStretch(self._plan.program, step, kernels)
        yield f"held = [{', '.join(map(self._name, step.reads))}]"
        if step.frees:
            yield f"del {', '.join(map(self._name, step.frees))}"
        rows, indices = _items(map(_count, step.rows)), self._names(step.indices)
        yield f"{self._names(step.writes)}= {name}(({rows}), ({indices}), held)"

    def _between_ranks(self, step: tape.Begin | tape.Wait | tape.FirstPart | tape.SecondPart) -> Iterator[str]:
        match step:
            case tape.Begin(value, source, in_place):
                node, place = self._plan.program.nodes[value], ", in_place=True" if in_place else ""
                if isinstance(node, Exchange):
                    slot = f", {node.slot}" if node.slot else ""
                    yield f"w{value} = begun({self._name(source)}, {node.link!r}{slot}{place})"
                else:
                    assert isinstance(node, ExchangeBack)
                    yield f"w{value} = begun_back({self._name(source)}, {node.fold.value!r}, {node.link!r}{place})"
            case tape.Wait(value):
                yield f"v{value} = w{value}()"
                yield f"del w{value}"
            case tape.FirstPart(kernel):
                whole = self._kernels[kernel]
                assert isinstance(whole, CppStep)
                self._scope[f"t{kernel}"] = CppTwoParts(whole, step.late, step.back, _sent(step))
                yield f"{self._names(step.writes)}f{kernel} = t{kernel}({self._arguments(step)})"
            case tape.SecondPart(kernel):
                yield f"f{kernel}()"
                yield f"del f{kernel}"

    def _memory(self, step: tape.OwnMemory | tape.Taken | tape.Saved | tape.Settle) -> str:
        match step:
            case tape.OwnMemory(value, source, promise):
                self._scope[f"p{value}"] = promise
                return f"v{value} = settled({self._name(source)}, p{value}, taken)"
            case tape.Taken(values):
                return f"taken |= memory_of(({self._names(values)}))"
            case tape.Saved(values):
                return f"kept = memory_of(({self._names(values)}))"
            case tape.Settle(result, value, promise):
                self._scope[f"promise{result}"] = promise
                others = ("taken, kept" if self._saves else "taken") if promise.own else "set()"
                return f"r{result} = settled({self._name(value)}, promise{result}, {others})"


def _reads_taken(step: tape.Step) -> bool:
    """Whether the step looks at the memory that results must not share."""
    return isinstance(step, tape.OwnMemory | tape.Taken) or (isinstance(step, tape.Settle) and step.promise.own)


def _sent(step: tape.FirstPart) -> dict[Ref, LinkName]:
    return {room.value: room.link for room in step.rooms}


def _count(space: Space) -> str:
    return "1" if space == UNIT else f"n_{space.name}"


def _items(names: Iterable[str]) -> str:
    """The items of a tuple."""
    return "".join(f"{name}, " for name in names)
