"""Finds packs, nodes of several relations that become one, as a vectoriser for straight-line code finds its lanes.

The search starts from pulls and pushes along different maps and goes on to their operands and users (Larsen and
Amarasinghe, "Exploiting superword level parallelism", PLDI 2000). Sums across relations are reductions of packs.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Sequence

from graphweave.core.calls import named
from graphweave.core.types import UNIT, Space
from graphweave.ir.message import nodes as ir
from graphweave.passes.horizontal.colours import Colours
from graphweave.passes.horizontal.node_graph import NodeGraph, Tree

_PACKED = (
    ir.Pull, ir.Push, ir.Pointwise, ir.Cast, ir.Reduce, ir.Reshape, ir.Broadcast, ir.Permute, ir.Slice, ir.Pad,
    ir.Concat, ir.MatMul, ir.Gram,
)  # fmt: skip


class Packs:
    """`lanes[p]` are the members of pack p, `of[i] = (p, lane)`; a node is in one pack at most."""

    def __init__(self) -> None:
        self.lanes: list[tuple[ir.Ref, ...]] = []
        self.of: dict[ir.Ref, tuple[int, int]] = {}

    def add(self, lanes: Sequence[ir.Ref]) -> int:
        p = len(self.lanes)
        self.lanes.append(tuple(lanes))
        self.of.update((i, (p, lane)) for lane, i in enumerate(lanes))
        return p

    def remove(self, p: int) -> None:
        for i in self.lanes[p]:
            del self.of[i]
        self.lanes[p] = ()


def find_packs(graph: NodeGraph) -> Packs:
    """The packs of `graph`; dissolves and adds trees there. Members of a pack may still need each other."""
    finder = _Finder(graph)
    finder.seeds()
    while finder.up:
        while finder.up or finder.down:  # operands first: they know all relations, a sum only those of its type
            if finder.up:
                finder.grow_up(finder.up.popleft())
            else:
                finder.grow_down(finder.down.popleft())
        finder.reductions() or finder.apart()
    return finder.packs


class _Finder:
    def __init__(self, graph: NodeGraph) -> None:
        self.graph = graph
        self.packs = Packs()
        self.colours = Colours(graph)
        self.up: deque[int] = deque()
        self.down: deque[int] = deque()
        self.above: list[tuple[ir.Ref, ...]] = []
        self.place: dict[Space, int] = {s: n for n, (s, _) in enumerate(graph.program.spaces)}
        self.place[UNIT] = -1

    # -------------------------------------------------------- seeds

    def seeds(self) -> None:
        """Pack pulls, and pushes, that are alike: the k-th of each edge space together, in the order of the spaces."""
        graph = self.graph
        alike: dict[Hashable, dict[Space, list[ir.Ref]]] = defaultdict(dict)
        for i, node in enumerate(graph.nodes):
            if isinstance(node, ir.Pull | ir.Push) and graph.moves_along_map(i) and self._packable(i):
                key = self.colours.signature(i), self.colours.seed(i)
                alike[key].setdefault(_dom(graph, node.map), []).append(i)
        found: list[tuple[ir.Ref, ...]] = []
        for of_edges in alike.values():
            edges = sorted(of_edges, key=self.place.__getitem__)
            for k in range(max(map(len, of_edges.values()))):
                found.append(tuple(of_edges[e][k] for e in edges if k < len(of_edges[e])))
        for lanes in sorted(found, key=lambda lanes: (-len(lanes), min(lanes))):
            self._pack(lanes)
        self._copies()
        self._segments()

    def _segments(self) -> None:
        """Pack the segments that one value is taken apart into, and alike values that become segments of one."""
        graph, parts = self.graph, defaultdict[Hashable, dict[int, ir.Ref]](dict)
        for i, node in enumerate(graph.nodes):
            if isinstance(node, ir.Part) and not graph.is_unit(i):
                parts[node.x, node.of][node.at] = i
        for own in parts.values():
            self._pack([own[at] for at in sorted(own)])
        for i, node in enumerate(graph.nodes):
            if isinstance(node, ir.Join) and i not in graph.absorbed:
                self._pack_alike(sorted(set(graph.ops[i]), key=self._natural))

    def _copies(self) -> None:
        """Pack copies of shared data: where relations have equal gradients, PyTorch gives each relation a copy."""
        alike: dict[Hashable, list[ir.Ref]] = defaultdict(list)
        for i, node in enumerate(self.graph.nodes):
            if isinstance(node, ir.Aten) and node.target == named.CLONE and self.graph.is_unit(i):
                alike[i in self.graph.late, self.graph.types[i]].append(i)
        for lanes in alike.values():
            if len(lanes) > 2:
                self._pack(lanes)

    def _pack(self, lanes: Sequence[ir.Ref]) -> bool:
        if len(lanes) < 2 or any(i in self.packs.of for i in lanes):
            return False
        self._add(lanes)
        return True

    def _add(self, lanes: Sequence[ir.Ref]) -> None:
        p = self.packs.add(lanes)
        self.up.append(p)
        self.down.append(p)

    def _packable(self, i: ir.Ref) -> bool:
        graph, node = self.graph, self.graph.nodes[i]
        if not isinstance(node, _PACKED) or not isinstance(graph.types[i], ir.Type) or i in self.packs.of:
            return False
        if isinstance(node, ir.MatMul):
            return not graph.is_unit(node.x)
        maps = [t for r in graph.ops[i] if isinstance(t := graph.types[r], ir.MapType)]
        return all(m.dom != UNIT for m in maps)

    # -------------------------------------------------------- growth

    def grow_up(self, p: int) -> None:
        """Pack those operands of all members that have the same position and are alike."""
        lanes = self.packs.lanes[p]
        for k in range(len(self.graph.ops[lanes[0]]) if not isinstance(self.graph.nodes[lanes[0]], Tree) else 0):
            refs = [self.graph.ops[i][k] for i in lanes]
            distinct = list(dict.fromkeys(refs))
            if len(distinct) < len(refs):
                distinct.sort(key=self._natural)
            self._pack_alike(distinct)
        if isinstance(self.graph.nodes[lanes[0]], Tree):
            self._grow_leaves(lanes)

    def _grow_leaves(self, trees: Sequence[ir.Ref]) -> None:
        """Pack leaves of `trees` that are alike; lane by lane where each tree has exactly one of a kind."""
        per_tree: dict[Hashable, list[list[ir.Ref]]] = defaultdict(lambda: [[] for _ in trees])
        for n, t in enumerate(trees):
            for leaf in self.graph.ops[t]:
                if self._packable(leaf):
                    per_tree[self.colours.signature(leaf)][n].append(leaf)
        for leaves in per_tree.values():
            if all(len(own) == 1 for own in leaves):
                self._pack_alike([own[0] for own in leaves])
            else:
                self._pack_alike(list(dict.fromkeys(r for own in leaves for r in own)))

    def _pack_alike(self, refs: Iterable[ir.Ref]) -> None:
        alike: dict[Hashable, list[ir.Ref]] = defaultdict(list)
        trees: list[ir.Ref] = []
        for r in refs:
            if isinstance(self.graph.nodes[r], Tree) and r not in self.packs.of:
                trees.append(r)
            elif self._packable(r):
                alike[self.colours.signature(r)].append(r)
        for lanes in alike.values():
            if len(set(lanes)) == len(lanes):
                self._pack(lanes)
        if len(trees) > 1:
            self.above.append(tuple(trees))

    def _natural(self, i: ir.Ref) -> tuple[int, ir.Ref]:
        t = self.graph.types[i]
        return (self.place[t.space] if isinstance(t, ir.Type) else -1), i

    def grow_down(self, p: int) -> None:
        """Pack users that are alike and use their members in the same way; not every lane needs to have one."""
        graph, found = self.graph, defaultdict[Hashable, list[ir.Ref]](list)
        for i in self.packs.lanes[p]:
            met: dict[Hashable, int] = defaultdict(int)
            for u in graph.users[i]:
                if isinstance(graph.nodes[u], Tree) or graph.moves_along_map(u) or not self._packable(u):
                    continue
                key = self.colours.signature(u), tuple(k for k, r in enumerate(graph.ops[u]) if r == i)
                found[key, met[key]].append(u)
                met[key] += 1
        for lanes in found.values():
            if len(set(lanes)) == len(lanes):
                self._pack(lanes)

    # -------------------------------------------------------- sums across relations

    def reductions(self) -> bool:
        """Pack trees over members of packs, one lane for each tree (each type of node). Whether there were any."""
        return any([self._reduce(p) for p in range(len(self.packs.lanes))])

    def _reduce(self, p: int) -> bool:
        graph, lanes = self.graph, self.packs.lanes[p]
        chosen: dict[Hashable, dict[ir.Ref, ir.Ref]] = defaultdict(dict)
        for i in lanes:
            for u in graph.users[i]:
                node = graph.nodes[u]
                if isinstance(node, Tree) and u not in self.packs.of:
                    t = graph.value(u)
                    chosen[node.op, u in graph.late, t.shape, t.dtype, t.space == UNIT].setdefault(i, u)
        return any([self._pack_trees(lanes, tree_of) for tree_of in chosen.values()])

    def _pack_trees(self, lanes: Sequence[ir.Ref], tree_of: dict[ir.Ref, ir.Ref]) -> bool:
        graph = self.graph
        trees = list(dict.fromkeys(tree_of.values()))
        if any(t in self.packs.of for t in trees):
            return False
        if len(trees) < len(tree_of):
            node, t = graph.nodes[trees[0]], graph.value(trees[0])
            assert isinstance(node, Tree)
            first = graph.value(lanes[0])
            if (first.shape, first.dtype) == (t.shape, t.dtype) and t.space != UNIT:
                trees += [graph.stand_for(i, node.op) for i in lanes if i not in tree_of and graph.users[i]]
            trees.sort(key=self._natural)
        elif len(trees) < 2:
            return False
        self._add(trees)
        return True

    def apart(self) -> bool:
        """Dissolve trees of equal signature that packs use and that are in no pack, and pack their roots."""
        waiting, self.above = self.above, []
        for trees in waiting:
            alike: dict[Hashable, list[ir.Ref]] = defaultdict(list)
            for t in trees:
                if t not in self.packs.of and isinstance(self.graph.nodes[t], Tree):
                    alike[self.colours.signature(t)].append(t)
            for some in alike.values():
                if len(some) > 1:
                    for t in some:
                        self.graph.dissolve(t)
                    self._pack(some)
        return bool(self.up)


def _dom(graph: NodeGraph, m: ir.Ref) -> Space:
    t = graph.types[m]
    assert isinstance(t, ir.MapType)
    return t.dom
