"""Replaces nodes of a program by equal ones and drops the nodes that nobody needs any more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from graphweave.core.sizes import Size
from graphweave.core.types import UNIT, Space
from graphweave.ir.message.builder import Builder, operands, spaces_in, with_operands
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

    def final(ref: Ref) -> Ref:
        while ref in replaced:
            ref = replaced[ref]
        return ref

    live: set[Ref] = set()
    todo = [final(r) for r in (*(r for r in outputs if r is not None), *keep)]
    while todo:
        ref = todo.pop()
        if ref not in live:
            live.add(ref)
            todo.extend(final(r) for r in operands(build.nodes[ref]))
    new = Builder()
    where: dict[Ref, Ref] = {}

    def take(ref: Ref) -> Ref:
        ref = final(ref)
        if ref not in where:
            for r in operands(build.nodes[ref]):
                take(r)
            where[ref] = new.add(with_operands(build.nodes[ref], lambda r: where[final(r)]), build.locs[ref])
        return where[ref]

    for ref in range(count):
        if isinstance(build.nodes[ref], Input) or final(ref) in live:
            take(ref)
    spaces = tuple(spaces)
    declared = {UNIT, *(s for s, _ in spaces)}
    # The rows of a space that a rule has made are counted at run time.
    made = dict.fromkeys(s for t in new.types for s in spaces_in(t) if s not in declared)
    program = new.program(
        [None if r is None else where[final(r)] for r in outputs], [*spaces, *((s, None) for s in made)]
    )
    return Rewritten(program, {r: where[final(r)] for r in range(count) if final(r) in where})
