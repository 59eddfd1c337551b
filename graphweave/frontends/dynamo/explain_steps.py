"""The steps of a call as a small program for the page: kernels, calls of PyTorch, and what each reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphweave.compiler.report import GraphNote, KernelNote, ValueNote
from graphweave.core.lines import Location
from graphweave.pages.explained.data import ShownPlace, ShownProgram, ShownValue


class _Steps:
    """Steps as they are found. A step is known by its key: a kernel's, or the half and position of a value."""

    def __init__(self) -> None:
        self.kinds: dict[str, str] = {}
        self.types: dict[str, str] = {}
        self.roles: dict[str, str] = {}
        self.places: dict[str, ShownPlace] = {}
        self.reads: dict[str, dict[str, None]] = {}

    def add(self, key: str, kind: str, type_: str, role: str, place: ShownPlace) -> None:
        if key not in self.reads:
            self.kinds[key], self.types[key], self.roles[key], self.places[key] = kind, type_, role, place
            self.reads[key] = {}


def steps_program(
    name: str, title: str, halves: Sequence[GraphNote], place_of: Callable[[Location], ShownPlace]
) -> ShownProgram:
    """The kernels and calls of the halves of the graph `name`. The backward reads what the forward saves for it."""
    steps, handed = _Steps(), list[str]()
    for graph in halves:
        makers = _makers(graph, handed)
        notes = {k.name: k for k in graph.kernels}
        for at, value in enumerate(graph.values):
            for kernel in value.kernels:
                _add_kernel(steps, graph, notes[kernel], place_of)
                _read(steps, f"{graph.name}-{kernel}", graph, value, makers, place_of)
            if value.role == "pytorch":
                key = f"{graph.name}%{at}"
                steps.add(key, value.kind, value.type, "pytorch", place_of(value.where))
                _read(steps, key, graph, value, makers, place_of)
        handed = [makers[r] for r in graph.handed]
    order = _order(steps)
    at_of = {key: i for i, key in enumerate(order)}
    values = tuple(
        ShownValue(
            steps.kinds[key], steps.types[key], steps.kinds[key], tuple(at_of[r] for r in steps.reads[key]),
            steps.places[key], steps.roles[key], (key,) if steps.roles[key] == "kernel" else (), True,
        )
        for key in order
    )  # fmt: skip
    return ShownProgram(f"{name}_steps", title, (), values)


def _add_kernel(steps: _Steps, graph: GraphNote, note: KernelNote, place_of: Callable[[Location], ShownPlace]) -> None:
    place = place_of(note.lines[0]) if note.lines else ShownPlace()
    steps.add(f"{graph.name}-{note.name}", note.name, note.does, "kernel", place)


def _makers(graph: GraphNote, handed: Sequence[str]) -> dict[int, str]:
    """The key of the step that makes each stored value, or of the value itself if it is an input."""
    given = [i for i, v in enumerate(graph.values) if v.role == "given"]
    made = {i: f"{graph.name}%{i}" for i in range(len(graph.values))}
    made |= dict(zip(given, handed, strict=False))
    for i, value in enumerate(graph.values):
        if value.kernels:
            made[i] = f"{graph.name}-{value.kernels[0]}"
        elif value.role == "once":
            made[i] = f"{graph.name}-once"
        elif value.role == "view" and value.operands and not is_number(graph.values[value.operands[0]]):
            made[i] = made[value.operands[0]]
        elif value.role == "given" and i in given[len(handed) :]:
            made[i] = f"input {kind_shown(value)}"
    return made


def _read(
    steps: _Steps, key: str, graph: GraphNote, value: ValueNote, makers: dict[int, str],
    place_of: Callable[[Location], ShownPlace],
) -> None:  # fmt: skip
    """Note what a step reads for one of its values: the steps that make its operands."""
    for r in value.operands:
        operand, maker = graph.values[r], makers[r]
        if key in (maker, *(f"{graph.name}-{k}" for k in operand.kernels)) or operand.role in ("index", "constant"):
            continue
        if maker.endswith("-once"):
            steps.add(maker, "once a graph", "values from index tensors alone", "once", ShownPlace())
        elif maker.startswith("input ") and not is_number(operand):
            steps.add(maker, maker.removeprefix("input "), operand.type, "given", place_of(operand.where))
        if maker in steps.reads:
            steps.reads[key][maker] = None


def kind_shown(value: ValueNote) -> str:
    """The word for a value's kind. AOTAutograd calls the gradients of results, which a backward is given, tangents."""
    return value.kind.replace("tangents_", "gradient ") if value.role == "given" else value.kind


def is_number(value: ValueNote) -> bool:
    return value.type.startswith('any "Sym')


def _order(steps: _Steps) -> list[str]:
    """The steps so that each stands behind those that it reads."""
    order, done = list[str](), set[str]()
    left = list(steps.reads)
    while left:
        ready = [key for key in left if done.issuperset(steps.reads[key])]
        assert ready, "steps read one another in a circle"
        order += ready
        done.update(ready)
        left = [key for key in left if key not in done]
    return order
