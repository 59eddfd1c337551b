"""Replaces nodes of a program by equal ones and drops the nodes that nobody needs any more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from graphweave.core.sizes import Size
from graphweave.core.types import UNIT, Space
from graphweave.ir.message.builder import Builder, spaces_in
from graphweave.ir.message.nodes import Input, Ref
from graphweave.passes.rewritten import Rewritten


def substitute(
    build: Builder,
    count: int,
    replaced: Mapping[Ref, Ref],
    outputs: Iterable[Ref | None],
    keep: Iterable[Ref],
    spaces: Iterable[tuple[Space, Size | None]],
) -> Rewritten:
    """The live part of `build`'s first `count` nodes, with every use of a key of `replaced` made a use of its value.

    Inputs stay, in their order; so do calls in `keep`.
    """
    outputs = tuple(outputs)

    ends = dict[Ref, Ref]()
    for ref, end in replaced.items():
        while end in replaced:
            end = replaced[end]
        ends[ref] = end
    live: set[Ref] = set()
    todo = [ends.get(r, r) for r in (*(r for r in outputs if r is not None), *keep)]
    while todo:
        ref = todo.pop()
        if ref not in live:
            live.add(ref)
            todo.extend([ends.get(r, r) for r in build.operands[ref]])
    new = Builder()
    where: dict[Ref, Ref] = {}

    def take(ref: Ref) -> None:
        """Gives the node `ref`, which is not replaced, its place, after the nodes that it uses."""
        used = [ends.get(r, r) for r in build.operands[ref]]
        for r in used:
            if r not in where:
                take(r)
        where[ref] = new.copy(build, ref, tuple([where[r] for r in used]))

    for ref in range(count):
        end = ends.get(ref, ref)
        if end not in where and (end in live or isinstance(build.nodes[ref], Input)):
            take(end)
    spaces = tuple(spaces)
    declared = {UNIT, *(s for s, _ in spaces)}
    # The rows of a space that a rule has made are counted at run time.
    made = dict.fromkeys(s for t in new.types for s in spaces_in(t) if s not in declared)
    program = new.program(
        [None if r is None else where[ends.get(r, r)] for r in outputs], [*spaces, *((s, None) for s in made)]
    )
    places = {r: where[end] for r in range(count) if (end := ends.get(r, r)) in where}
    return Rewritten(program, places, operands=tuple(new.operands))
