"""Sums over ranks that nothing else waits for -> one sum of all of them.

    a' = all_reduce(a), b' = all_reduce(b)
->  s = all_reduce([a ; b]), a' = s[:n], b' = s[n:]

These are the gradients of shared weights: the ranks then talk to each other once for all of them, at the end of the
backward. Legal always, since a sum is taken element by element; sums that another exchange needs stay by themselves, as
do those on spaces of types, whose rows are counted at each call.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from graphweave.analysis.facts import Facts
from graphweave.analysis.flow import BETWEEN_RANKS
from graphweave.core.types import UNIT, DType, Fold
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import AllReduce, Concat, Input, Program, Ref, Reshape, Slice, Type
from graphweave.passes.rewritten import Rewritten, unchanged
from graphweave.passes.substitute import substitute


@dataclass(frozen=True, slots=True)
class BucketSums:
    """Sums that depend on `tangents` (names of inputs) are the backward's. `keep` are calls that must stay."""

    tangents: frozenset[str]
    keep: tuple[Ref, ...] = ()
    name: str = "bucket-sums"

    def __call__(self, program: Program) -> Rewritten:
        buckets = [refs for refs in _buckets(program, self.tangents) if len(refs) > 1]
        if not buckets:
            return unchanged(program)
        build = Builder.of(program)
        replaced: dict[Ref, Ref] = {}
        for refs in buckets:
            _join(build, refs, replaced)
        return substitute(build, len(build.nodes), replaced, program.outputs, self.keep, program.spaces)


def _buckets(program: Program, tangents: frozenset[str]) -> list[list[Ref]]:
    """Sums of the backward by element type and ranks, each needed by no other exchange."""
    facts = Facts(program)
    roots = frozenset(r for r, n in enumerate(program.nodes) if isinstance(n, Input) and n.name in tangents)
    late = facts.flow.depending(roots)
    needed: set[Ref] = set()  # by a node in which ranks take part
    for ref in reversed(range(len(program.nodes))):
        if ref in needed or isinstance(program.nodes[ref], BETWEEN_RANKS):
            needed.update(facts.flow.operands[ref])
    found: dict[tuple[str, DType], list[Ref]] = defaultdict(list)
    for ref, node in enumerate(program.nodes):
        t = program.types[ref]
        if not isinstance(node, AllReduce) or node.fold is not Fold.sum or ref not in late or ref in needed:
            continue
        if isinstance(t, Type) and t.space == UNIT:
            found[(node.link, t.dtype)].append(ref)
    return list(found.values())


def _join(build: Builder, refs: list[Ref], replaced: dict[Ref, Ref]) -> None:
    first = build.nodes[refs[0]]
    assert isinstance(first, AllReduce)
    loc, flat, sizes = build.locs[refs[0]], list[Ref](), list[int]()
    for ref in refs:
        node, t = build.nodes[ref], build.types[ref]
        assert isinstance(node, AllReduce)
        assert isinstance(t, Type)
        sizes.append(numel(t.shape))
        flat.append(build.add(Reshape(node.x, (sizes[-1],)), build.locs[ref]))
    total = build.add(AllReduce(build.add(Concat(tuple(flat), 0), loc), first.fold, first.link), loc)
    start = 0
    for ref, size in zip(refs, sizes, strict=True):
        t = build.types[ref]
        assert isinstance(t, Type)
        part = build.add(Slice(total, 0, start, start + size), build.locs[ref])
        replaced[ref] = build.add(Reshape(part, t.shape), build.locs[ref])
        start += size
