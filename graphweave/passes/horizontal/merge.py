"""Relations that a model goes through one after the other become one program over all of them.

A model over R relations repeats one program R times, over other edges, other nodes and other weights. Nodes at equal
positions of the repetitions are packed (`packs.py`). Each pack becomes one node over the disjoint union of its members'
spaces; weights become one value with a row for each relation (`emit.py`), and a sum across relations becomes one push
(`sums.py`). The repetition may come from a loop over a dictionary, over masks of edge types, or from code written out.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphweave.ir.message.nodes import Program, Ref
from graphweave.passes.horizontal.emit import Emitter
from graphweave.passes.horizontal.node_graph import NodeGraph, Tree
from graphweave.passes.horizontal.order import arranged
from graphweave.passes.horizontal.packs import find_packs
from graphweave.passes.horizontal.price import pays
from graphweave.passes.horizontal.sums import merged_trees
from graphweave.passes.pass_facts import NO_FACTS, PassFacts
from graphweave.passes.rewritten import Rewritten, unchanged
from graphweave.passes.substitute import substitute


@dataclass(frozen=True, slots=True)
class Merge:
    name: str = "merge"

    def __call__(self, program: Program, facts: PassFacts = NO_FACTS) -> Rewritten:
        """`program` with isomorphic parts merged; the same object where there are none, or too few to pay.

        Nodes that need an input of `facts.tangents` belong to the backward, and are never packed with nodes of the
        forward.
        """
        if not facts.choices.merge:
            return unchanged(program)
        graph = NodeGraph(program, facts.keep, facts.tangents)
        packs = find_packs(graph)
        units = arranged(graph, packs)
        if not packs.of:
            return unchanged(program)
        emit = Emitter(graph, packs)
        for members in units:
            if members[0] not in packs.of:
                emit.node(members[0])
                continue
            merged = merged_trees(emit, members) if isinstance(graph.nodes[members[0]], Tree) else emit.merged(members)
            emit.pack(packs.of[members[0]][0], merged)
        done = _finished(emit, program, facts.keep)
        return done if pays(graph, packs, done, facts.statistics) else unchanged(program)


def _finished(emit: Emitter, program: Program, keep: tuple[Ref, ...]) -> Rewritten:
    graph, build = emit.graph, emit.build
    outputs = [None if r is None else emit.one(r) for r in graph.outputs]
    kept = [emit.one(r) for r in keep]
    spaces = [*program.spaces, *emit.unions.declared()]
    done = substitute(build, len(build.nodes), {}, outputs, kept, spaces)
    moved = {old: done.where[new] for old, new in emit.asked().items() if new in done.where}
    unions = tuple((space, of) for of, space in emit.unions.made.items())
    return Rewritten(done.program, moved, (), unions)
