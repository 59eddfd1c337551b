"""Which inputs of a graph have a gradient in a call that does not give all keys of the function's dictionaries.

Eager mode gives no gradient (None) to the parameters of a relation that a graph does not have, so that an optimiser
leaves them alone; the compiled backward computes zeros. A gradient goes from a result back to an input along the
operands of calls, except where a *gate* is closed: at a choice by flags, and at an operand without rows in a
concatenation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, fx

from graphweave.frontends.calls.dynamo_calls import example, storages, writes

Edge = tuple[fx.Node, fx.Node]
"""A call, and one of its operands."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A gradient passes if a flag of each of the sets `flags` is given; if it is `inverted`, in all other calls."""

    flags: tuple[frozenset[int], ...]
    inverted: bool = False


@dataclass(frozen=True, slots=True)
class GivenGradients:
    """The gates on the ways from results back to inputs. `gates` are in the order in which they are reached: what a
    `Gate` says, and what is behind it, any of which must be reached. Sets are bits of numbers: a flag's number, and for
    what is behind a result's number, or the number of results plus that of a gate. `inputs` has what is behind for
    inputs with a gradient, with the positions of those that have the same behind them."""

    gates: tuple[tuple[tuple[int, ...], bool, int], ...]
    inputs: tuple[tuple[int, frozenset[int]], ...]

    def unreached(self, given: int, exists: Sequence[bool | None]) -> frozenset[int]:
        """The positions of the inputs that have no gradient in a call, whose flags that are given are bits of a number.
        `exists` says which results there are, and is None for one that is None."""
        reached, first = bits(number for number, found in enumerate(exists) if found), len(exists)
        for number, (flags, inverted, behind) in enumerate(self.gates, first):
            if behind & reached and all(each & given for each in flags) != inverted:
                reached |= 1 << number
        return frozenset[int]().union(*(places for behind, places in self.inputs if not behind & reached))


def bits(numbers: Iterable[int]) -> int:
    """A set of numbers as the bits of one number."""
    found = 0
    for number in numbers:
        found |= 1 << number
    return found


def given_gradients(
    graph: fx.Graph, closed_by: Mapping[Edge, Gate], results: Mapping[fx.Node, Sequence[int]]
) -> GivenGradients:
    """The gates of Dynamo's graph. `closed_by` has those of the edges that have one, `results` the numbers of
    the values that are results."""
    behind: dict[fx.Node, frozenset[int]] = defaultdict(frozenset)
    behind.update({node: frozenset(numbers) for node, numbers in results.items()})
    of_storage: dict[int, frozenset[int]] = defaultdict(frozenset)  # what reads memory after a write to it
    gates: list[tuple[tuple[int, ...], bool, int]] = []
    first_gate = sum(map(len, results.values()))
    for node in reversed(graph.nodes):
        if not node.op.startswith("call"):
            continue
        here = behind[node]
        if writes(node):
            here = here.union(*(of_storage[s] for x in node.all_input_nodes for s in storages(x)))
        for operand in node.all_input_nodes:
            passed = here
            if here and (gate := closed_by.get((node, operand))) is not None:
                passed = frozenset({first_gate + len(gates)})
                gates.append((tuple(map(bits, gate.flags)), gate.inverted, bits(here)))
            behind[operand] |= passed
            for storage in storages(operand):
                of_storage[storage] |= passed
    inputs: dict[int, set[int]] = defaultdict(set)
    for at, node in enumerate(graph.find_nodes(op="placeholder")):
        if _has_gradient(node):
            inputs[bits(behind[node])].add(at)
    return GivenGradients(tuple(gates), tuple((number, frozenset(places)) for number, places in inputs.items()))


def _has_gradient(node: fx.Node) -> bool:
    value = example(node)
    return isinstance(value, Tensor) and value.requires_grad
