"""A message program in which each tree of sums (maxima, minima) is one node, as relations may add up in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from graphweave.analysis.flow import ancestors
from graphweave.core.sizes import Size, leaves
from graphweave.core.types import UNIT, Op
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands
from graphweave.passes.pass_facts import NO_FACTS, PassFacts


@dataclass(frozen=True, slots=True)
class Tree:
    """`op` over any number of operands: a tree of `Pointwise` nodes of one type, each used only by its parent."""

    op: Op


Part: TypeAlias = ir.Node | Tree

_ASSOCIATIVE = (Op.add, Op.maximum, Op.minimum)


class NodeGraph:
    """Nodes by position, those of the program first; `ops[i]` are the operands of node i. Nodes may be added.

    `inner[root]` are the nodes that the tree at `root` stands for besides the root, in order; a sum of adjacent blocks
    is a `Concat` instead of a tree. `late` are the nodes that need a tangent.
    """

    def __init__(self, program: ir.Program, given: PassFacts = NO_FACTS) -> None:
        self.program, self.facts = program, given.of(program)
        self.nodes: list[Part] = list(program.nodes)
        self.ops: list[tuple[ir.Ref, ...]] = list(self.facts.flow.operands)
        self.types: list[ir.ValueType] = list(program.types)
        self.outputs = list(program.outputs)
        self.keep = given.keep
        self.inner: dict[ir.Ref, tuple[ir.Ref, ...]] = {}
        self.late = set(self.facts.flow.depending(given.tangents_of(program)))
        self._deciders = self._found_deciders()
        self._find_trees()
        self.users: list[list[ir.Ref]] = [[] for _ in self.nodes]
        absorbed = {r for inner in self.inner.values() for r in inner}
        for i, refs in enumerate(self.ops):
            if i not in absorbed:
                for r in dict.fromkeys(refs):
                    self.users[r].append(i)
        self.absorbed = absorbed

    def _found_deciders(self) -> dict[ir.Ref, tuple[ir.Ref, ...]]:
        """A value that no operand gives its rows (a constant) -> the calls that decide how many rows its space has."""
        rows, first = dict(self.program.spaces), dict[Size, ir.Ref]()
        for i, t in enumerate(self.types):
            sizes: tuple[Size | None, ...] = ()
            if isinstance(t, ir.AnyType):
                sizes = (t.size, *(t.dims or ()))
            elif isinstance(t, ir.Type) and (self.ops[i] or isinstance(self.nodes[i], ir.Input)):
                sizes = (rows.get(t.space),)
            for symbol in (s for size in sizes for s in leaves(size)):
                first.setdefault(symbol, i)
        found: dict[ir.Ref, tuple[ir.Ref, ...]] = {}
        for i, t in enumerate(self.types):
            if not self.ops[i] and isinstance(t, ir.Type) and not isinstance(self.nodes[i], ir.Input):
                calls = dict.fromkeys(first[s] for s in leaves(rows.get(t.space)) if s in first)
                calls = dict.fromkeys(r for r in calls if not isinstance(self.nodes[r], ir.Input))
                if calls and i not in ancestors(self.program, [*calls]):
                    found[i] = tuple(calls)
        return found

    def needs(self, i: ir.Ref) -> tuple[ir.Ref, ...]:
        """The nodes that must come before node i: its operands, and what decides how many rows it has."""
        return (*self.ops[i], *self._deciders.get(i, ()))

    def _find_trees(self) -> None:
        user: dict[ir.Ref, ir.Ref] = {}
        count = [0] * len(self.nodes)
        for i, refs in enumerate(self.ops):
            for r in refs:
                count[r] += 1
                user[r] = i
        for out in (*self.outputs, *self.keep):
            if out is not None:
                count[out] += 1
        inner = {i for i, u in user.items() if count[i] == 1 and self._continues(i, u)}
        for root in range(len(self.nodes)):
            if self._op(root) in _ASSOCIATIVE and root not in inner:
                self._gather(root, inner)

    def _op(self, i: ir.Ref) -> Op | None:
        node = self.program.nodes[i]
        return node.op if isinstance(node, ir.Pointwise) and isinstance(self.types[i], ir.Type) else None

    def _continues(self, i: ir.Ref, user: ir.Ref) -> bool:
        op = self._op(i)
        return op in _ASSOCIATIVE and self._op(user) is op and self.types[i] == self.types[user]

    def _gather(self, root: ir.Ref, inner: set[ir.Ref]) -> None:
        leaves: list[ir.Ref] = []
        within: list[ir.Ref] = []
        todo = list(reversed(self.ops[root]))
        while todo:
            r = todo.pop()
            if r in inner:
                within.append(r)
                todo.extend(reversed(operands(self.program.nodes[r])))
            else:
                leaves.append(r)
        op = self._op(root)
        assert op is not None
        self.inner[root] = tuple(sorted(within))
        whole = self._side_by_side(leaves) if op is Op.add else None
        if whole is None:
            self.nodes[root], self.ops[root] = Tree(op), tuple(leaves)
        else:
            self.nodes[root], self.ops[root] = whole, whole.xs

    def _side_by_side(self, leaves: Sequence[ir.Ref]) -> ir.Concat | None:
        """A sum of blocks, each padded with zeros to a place of its own, as a `Concat` of them; None for other sums.

        Such a sum is the gradient of shared data of which each relation takes a slice.
        """
        blocks: dict[int, ir.Ref] = {}
        for leaf in leaves:
            node = self.program.nodes[leaf]
            if not isinstance(node, ir.Pad) or node.dim != 0 or not self.is_unit(leaf) or node.before in blocks:
                return None
            blocks[node.before] = node.x
        end = 0
        for start in sorted(blocks):
            if start != end:
                return None
            end += self.value(blocks[start]).shape[0]
        return ir.Concat(tuple(blocks[k] for k in sorted(blocks)), 0) if end == self.value(leaves[0]).shape[0] else None

    def dissolve(self, root: ir.Ref) -> None:
        """Make the nodes of a tree ordinary ones again."""
        again = (*self.inner.pop(root), root)
        for r in dict.fromkeys(self.ops[root]):
            self.users[r].remove(root)
        for i in again:
            self.nodes[i], self.ops[i] = self.program.nodes[i], operands(self.program.nodes[i])
            self.absorbed.discard(i)
            for r in dict.fromkeys(self.ops[i]):
                self.users[r].append(i)

    def stand_for(self, leaf: ir.Ref, op: Op) -> ir.Ref:
        """Add a tree whose only leaf is `leaf`, and let all users of `leaf` use it instead."""
        new = len(self.nodes)
        self.nodes.append(Tree(op))
        self.ops.append((leaf,))
        self.types.append(self.types[leaf])
        self.inner[new] = ()
        if leaf in self.late:
            self.late.add(new)
        users, self.users[leaf] = self.users[leaf], [new]
        self.users.append(users)
        for u in users:
            self.ops[u] = tuple(new if r == leaf else r for r in self.ops[u])
        self.outputs = [new if r == leaf else r for r in self.outputs]
        return new

    def is_unit(self, i: ir.Ref) -> bool:
        t = self.types[i]
        return isinstance(t, ir.Type) and t.space == UNIT

    def value(self, i: ir.Ref) -> ir.Type:
        t = self.types[i]
        assert isinstance(t, ir.Type)
        return t

    def moves_along_map(self, i: ir.Ref) -> bool:
        """Whether node i is a pull or push along an index tensor, not along a map to unit."""
        node = self.nodes[i]
        return isinstance(node, ir.Pull | ir.Push) and isinstance(self.nodes[node.map], ir.MapOf)

    def order(self) -> list[ir.Ref]:
        """Nodes that are no part of a tree, operands first."""
        placed: dict[ir.Ref, None] = {}
        for root in range(len(self.nodes)):
            todo = [] if root in self.absorbed else [root]
            while todo:
                before = [] if todo[-1] in placed else [r for r in self.needs(todo[-1]) if r not in placed]
                if before:
                    todo += reversed(before)
                else:
                    placed.setdefault(todo.pop())
        return list(placed)
