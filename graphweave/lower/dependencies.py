"""Which steps of a schedule must run before others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from graphweave.analysis.flow import has_effects
from graphweave.ir.message.builder import operands
from graphweave.ir.message.nodes import Program, Ref, Reshape


@dataclass(frozen=True, slots=True)
class StepNodes:
    """A step: the nodes that it computes, and those of them that it stores."""

    nodes: tuple[Ref, ...]
    stored: tuple[Ref, ...]


def dependencies(program: Program, steps: Sequence[StepNodes]) -> list[set[int]]:
    """For each step, the steps that must run before it. Steps with effects keep their order.

    Several steps may compute one node, as a fused push computes its product again that another step stores. Those that
    read the node wait for the step that stores it.
    """
    step_of = {r: i for i, step in enumerate(steps) for r in step.nodes}
    step_of |= {r: i for i, step in enumerate(steps) for r in step.stored}
    out: list[set[int]] = []
    last: int | None = None
    for i, step in enumerate(steps):
        needed = {step_of[r] for r in _read(program, step.nodes, step_of)} - {i}
        if any(has_effects(program, r) for r in step.nodes):
            needed |= {last} if last is not None else set()
            last = i
        out.append(needed)
    return out


def _read(program: Program, made: Iterable[Ref], step_of: dict[Ref, int]) -> set[Ref]:
    """The nodes of other steps that a step reads, also through nodes that belong to no step."""
    own, found, seen = set(made), set[Ref](), set[Ref]()
    todo = [r for m in own for r in operands(program.nodes[m])]
    while todo:
        ref = todo.pop()
        if ref in seen or ref in own:
            continue
        seen.add(ref)
        if ref in step_of:
            if not _is_view_of(program, ref, own):
                found.add(ref)
        else:
            todo.extend(operands(program.nodes[ref]))
    return found


def _is_view_of(program: Program, ref: Ref, own: set[Ref]) -> bool:
    """Whether `ref` is `own` values in another shape. A kernel that makes these reads them without the view, which may
    be a step of its own for other readers."""
    while isinstance(node := program.nodes[ref], Reshape):
        ref = node.x
        if ref in own:
            return True
    return False
