"""Orders packs, and splits those that cannot be one node each because they need themselves through others."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence

from graphweave.ir.message.nodes import Ref
from graphweave.passes.horizontal.node_graph import NodeGraph
from graphweave.passes.horizontal.packs import Packs


def arranged(graph: NodeGraph, packs: Packs) -> list[tuple[Ref, ...]]:
    """Packs, and other nodes as tuples of one, operands first. Splits packs of `packs` that need themselves."""
    order = graph.order()
    depth = _depths(graph, order)
    while True:
        quotient = _Quotient(graph, packs, order)
        done = quotient.sorted()
        if len(done) == len(quotient.members):
            return [quotient.members[q] for q in done]
        for cycle in quotient.cycles(set(done)):
            for p in {packs.of[quotient.members[q][0]][0] for q in cycle if quotient.members[q][0] in packs.of}:
                _split(packs, p, depth)


def _split(packs: Packs, p: int, depth: dict[Ref, int]) -> None:
    """Split pack `p` by depth. Members of one depth do not need each other, and packs of one depth make no cycle."""
    apart: dict[int, list[Ref]] = defaultdict(list)
    for i in packs.lanes[p]:
        apart[depth[i]].append(i)
    if len(apart) > 1:
        packs.remove(p)
        for lanes in apart.values():
            if len(lanes) > 1:
                packs.add(lanes)


def _depths(graph: NodeGraph, order: Sequence[Ref]) -> dict[Ref, int]:
    depth: dict[Ref, int] = {}
    for i in order:
        depth[i] = 1 + max((depth[r] for r in graph.needs(i)), default=0)
    return depth


class _Quotient:
    """The graph whose nodes are the packs, and the nodes in no pack. Each is named by its lowest member."""

    def __init__(self, graph: NodeGraph, packs: Packs, order: Sequence[Ref]) -> None:
        self.members: dict[Ref, tuple[Ref, ...]] = {}
        name = {i: min(packs.lanes[packs.of[i][0]]) if i in packs.of else i for i in order}
        for i in order:
            self.members.setdefault(name[i], packs.lanes[packs.of[i][0]] if i in packs.of else (i,))
        self.before: dict[Ref, set[Ref]] = {q: set() for q in self.members}
        for i in order:
            self.before[name[i]].update(name[r] for r in graph.needs(i))
        self.after: dict[Ref, list[Ref]] = {q: [] for q in self.members}
        for q, needed in self.before.items():
            for r in needed:
                self.after[r].append(q)

    def sorted(self) -> list[Ref]:
        """All that lies neither on a cycle nor behind one: operands first, else by position."""
        missing = {q: len(needed) for q, needed in self.before.items()}
        ready = [q for q, n in missing.items() if n == 0]
        heapq.heapify(ready)
        out: list[Ref] = []
        while ready:
            q = heapq.heappop(ready)
            out.append(q)
            for u in self.after[q]:
                missing[u] -= 1
                if missing[u] == 0:
                    heapq.heappush(ready, u)
        return out

    def cycles(self, outside: set[Ref]) -> list[list[Ref]]:
        """Strongly connected components with a cycle, by Tarjan's algorithm, searched from nodes not in `outside`."""
        index: dict[Ref, int] = {}
        low: dict[Ref, int] = {}
        stack: list[Ref] = []
        on_stack: set[Ref] = set()
        found: list[list[Ref]] = []
        for root in self.members:
            if root in index or root in outside:
                continue
            todo = [(root, iter(self.after[root]))]
            index[root] = low[root] = len(index)
            stack.append(root)
            on_stack.add(root)
            while todo:
                q, users = todo[-1]
                u = next(users, None)
                if u is None:
                    todo.pop()
                    if todo:
                        low[todo[-1][0]] = min(low[todo[-1][0]], low[q])
                    if low[q] == index[q]:
                        part = self._popped(stack, on_stack, q)
                        if len(part) > 1 or q in self.before[q]:
                            found.append(part)
                elif u not in index:
                    index[u] = low[u] = len(index)
                    stack.append(u)
                    on_stack.add(u)
                    todo.append((u, iter(self.after[u])))
                elif u in on_stack:
                    low[q] = min(low[q], index[u])
        return found

    def _popped(self, stack: list[Ref], on_stack: set[Ref], q: Ref) -> list[Ref]:
        part: list[Ref] = []
        while not part or part[-1] != q:
            part.append(stack.pop())
            on_stack.discard(part[-1])
        return part
