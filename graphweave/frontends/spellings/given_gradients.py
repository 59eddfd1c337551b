"""Which inputs of a graph have a gradient in a call that does not give all keys of the function's dictionaries.

Eager mode gives no gradient (None) to the parameters of a relation that a graph does not have, so that an optimiser
leaves them alone; the compiled backward computes zeros. A gradient goes from a result back to an input along the
operands of calls, except where a *gate* is closed: at a choice by flags, and at an operand without rows in a
concatenation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, fx

from graphweave.frontends.calls.dynamo_calls import example, storages, writes

Edge = tuple[fx.Node, fx.Node]
"""A call, and one of its operands."""


@dataclass(frozen=True, slots=True)
class GivenGradients:
    """The gates on the ways from results back to inputs. `gates` are in the order in which they are reached: flags that
    must be given, and what is behind, any of which must be reached: a result's number, or -1 - n for the nth gate.
    `inputs` has the same for inputs with a gradient, by their positions."""

    gates: tuple[tuple[frozenset[int], frozenset[int]], ...]
    inputs: Mapping[int, frozenset[int]]

    def unreached(self, is_given: Callable[[int], bool], exists: Sequence[bool]) -> frozenset[int]:
        """The positions of the inputs that have no gradient in a call. `exists` says which results there are."""
        reached = {number for number, found in enumerate(exists) if found}
        for number, (flags, behind) in enumerate(self.gates):
            if not reached.isdisjoint(behind) and all(map(is_given, flags)):
                reached.add(-1 - number)
        return frozenset(at for at, behind in self.inputs.items() if reached.isdisjoint(behind))


def given_gradients(
    graph: fx.Graph, closed_by: Mapping[Edge, frozenset[int]], results: Mapping[fx.Node, Sequence[int]]
) -> GivenGradients:
    """The gates of Dynamo's graph. `closed_by` has the flags of those edges that have some, `results` the numbers of
    the values that are results."""
    behind: dict[fx.Node, frozenset[int]] = defaultdict(frozenset)
    behind.update({node: frozenset(numbers) for node, numbers in results.items()})
    of_storage: dict[int, frozenset[int]] = defaultdict(frozenset)  # what reads memory after a write to it
    gates: list[tuple[frozenset[int], frozenset[int]]] = []
    for node in reversed(graph.nodes):
        if not node.op.startswith("call"):
            continue
        here = behind[node]
        if writes(node):
            here = here.union(*(of_storage[s] for x in node.all_input_nodes for s in storages(x)))
        for operand in node.all_input_nodes:
            passed = here
            if here and (flags := closed_by.get((node, operand))) is not None:
                gates.append((flags, here))
                passed = frozenset({-len(gates)})
            behind[operand] |= passed
            for storage in storages(operand):
                of_storage[storage] |= passed
    inputs = enumerate(graph.find_nodes(op="placeholder"))
    return GivenGradients(tuple(gates), {at: behind[n] for at, n in inputs if _has_gradient(n)})


def _has_gradient(node: fx.Node) -> bool:
    value = example(node)
    return isinstance(value, Tensor) and value.requires_grad
