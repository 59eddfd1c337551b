"""Which values of a captured graph exist in a call that does not give all keys of the function's dictionaries.

The graph has been traced with all keys, and `calls/given_calls.py` has the operators that say which inputs have flags.
For each value its *conditions* are found: clauses of flags all of which must hold in a call for the value to be the one
that eager mode computes. A value computed of others needs what these need, except that

- `where_given` picks another number in calls that do not give its witnesses. So its result needs what its operand
  needs only in calls that do;
- `existing_or` picks another value in calls in which its operand does not exist;
- `existing` must exist for any result, and eager mode raises an error or goes another way in other calls;
- `none_without` is None in calls that give no witness. As a result it is None there, `not_none` of it does not exist
  there, and for anything else it must not be None, as for eager mode;
- a concatenation, or a sum of sizes, is the same without an operand that has no rows if its key is not given.

The operators are then replaced by plain calls of PyTorch, and what the results need is checked at each call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import Tensor, fx

from graphweave.frontends.calls.dynamo_calls import call_name, example, storages, writes
from graphweave.frontends.calls.given_calls import (
    ALWAYS,
    existing,
    existing_as,
    existing_or,
    existing_with,
    given,
    given_with_any,
    none_without,
    not_none,
    result,
    where_given,
)
from graphweave.frontends.spellings.given_gradients import Edge, Gate, GivenGradients, bits, given_gradients

Clause = tuple[frozenset[int], frozenset[int]]
"""Holds in a call if one of the first flags is false, or one of the second true."""
_Clauses = frozenset[Clause]
_NOTHING: _Clauses = frozenset()
_MIXED = frozenset({-1})
"""The first flags of a clause for all calls, since the value is made of others that do not exist in the same calls."""
_IN_ALL_CALLS = frozenset({ALWAYS})


class NotGiven(Exception):
    """A function cannot be compiled once for all keys, or a call needs a key that it does not give."""


@dataclass(frozen=True, slots=True)
class ResultNeeds:
    """The needs of a result: each clause as two sets of flags, which are bits of a number. `none_without` are flags of
    which one must be given for the result not to be None; itself None for a result that never is."""

    needs: tuple[tuple[int, int], ...]
    may_be_absent: bool
    none_without: int | None = None


@dataclass(frozen=True, slots=True)
class GivenValues:
    """The needs of a graph's results, in the order of their numbers, and which inputs have gradients. `sizes` has the
    size that a flag is, 1 or 0, and the sizes that are 0 if it is 0, by PyTorch's names for them."""

    results: tuple[ResultNeeds, ...]
    gradients: GivenGradients
    sizes: Mapping[str, frozenset[str]]

    def existing(self, given: int) -> tuple[bool | None, ...]:
        """Which results exist in a call, whose flags that are given are bits of a number; None for a result that is
        None. NotGiven if eager mode would compute something else, or raise an error."""
        found: list[bool | None] = []
        for wanted in self.results:
            is_none = wanted.none_without is not None and not wanted.none_without & given
            exists = None if is_none else True
            for without, either in wanted.needs:
                if without & given == without and not either & given:
                    if without or not wanted.may_be_absent:
                        raise NotGiven("a result needs what is not given")
                    exists = False
            found.append(exists)
        return tuple(found)


def take_given_values(module: fx.GraphModule) -> GivenValues | None:
    """Take the operators out of Dynamo's graph; None if there are none. NotGiven if what a result needs cannot be told,
    or if the graph writes what is not given into an input."""
    if not module.graph.find_nodes(op="call_function", target=given):
        return None
    graph = _Conditions(module.graph)
    for node in list(module.graph.nodes):
        graph.visit(node)
    module.recompile()
    gradients = given_gradients(module.graph, graph.closed_by, graph.numbers)
    return GivenValues(tuple(graph.results[n] for n in sorted(graph.results)), gradients, graph.given_sizes())


class _Conditions:
    """The conditions of the values of a graph, in the order of its nodes."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._flags: dict[int, fx.Node] = {}
        self.results: dict[int, ResultNeeds] = {}
        self.numbers: dict[fx.Node, list[int]] = {}  # a value that is a result -> its numbers as one
        self.closed_by: dict[Edge, Gate] = {}
        self._needs: dict[fx.Node, _Clauses] = {}
        self._must_exist: set[Clause] = set()  # what must hold for any result
        self._none_without: dict[fx.Node, frozenset[int]] = {}  # a value that is None unless one of the flags is given
        self._written: dict[int, _Clauses] = {}  # storage -> what writes to it have added
        self._inputs = {s for n in graph.find_nodes(op="placeholder") for s in storages(n)}
        self._rows: dict[int, list[sympy.Symbol]] = {}  # flag -> the numbers of rows that are 0 without it
        numbers = graph.find_nodes(op="placeholder")
        self._sizes = {_expr(example(n)): n for n in numbers if isinstance(example(n), torch.SymInt)}

    def visit(self, node: fx.Node) -> None:
        if node.target is given:
            self._visit_given(node)
        elif node.target is where_given:
            self._visit_where(node)
        elif node.target is existing_or:
            self._visit_existing_or(node)
        elif node.target is existing:
            (x,) = _operands(node)
            must = frozenset((_IN_ALL_CALLS if w <= _MIXED else w, e) for w, e in self._of(x))
            self._must_exist.update(must)
            self._replace(node, x, must)
        elif node.target is existing_as:
            x, before = _operands(node)
            known = self._of(before)
            told = {(w if w or (w, e) in known else _IN_ALL_CALLS, e) for w, e in self._of(x)}
            self._replace(node, x, frozenset(told))
        elif node.target is given_with_any:
            x, witnesses = _operands(node)
            flags = frozenset(flag for w in witnesses for flag in self._flags_of(w))
            self._replace(node, x, self._of(x) | {(frozenset(), flags)} if flags else self._of(x))
        elif node.target is existing_with:
            self._visit_existing_with(node)
        elif node.target is none_without:
            self._visit_none_without(node)
        elif node.target is not_none:
            self._visit_not_none(node)
        elif node.target is result:
            self._visit_result(node)
        elif node.op.startswith("call"):
            self._visit_call(node)

    def _visit_given(self, node: fx.Node) -> None:
        x, flag, number, dim = node.args
        assert isinstance(x, fx.Node) and isinstance(flag, fx.Node) and isinstance(number, int)
        needed = frozenset({(frozenset[int](), frozenset({number}))})
        rows = _expr(example(x).shape[dim])
        if isinstance(rows, sympy.Symbol):
            self._rows.setdefault(number, []).append(rows)
            if rows in self._sizes:
                self._needs[self._sizes[rows]] = self._of(self._sizes[rows]) | needed
        self._flags[number] = flag
        self._replace(node, x, self._of(x) | needed)

    def _visit_where(self, node: fx.Node) -> None:
        x, witnesses, otherwise = _operands(node)
        flags = sorted({flag for w in witnesses for flag in self._flags_of(w)})
        if not flags:
            self._replace(node, x, self._of(x))
            return
        needs = frozenset((without | set(flags), either) for without, either in self._of(x))
        with self._graph.inserting_before(node):
            condition = self._condition([{flags[0]}], node)
            for flag in flags[1:]:
                both = self._graph.call_function(torch.logical_and, (condition, self._condition([{flag}], node)))
                both.meta.update(node.meta, example_value=example(condition))
                condition = both
            chosen = self._graph.call_function(torch.where, (condition, x, otherwise))
        chosen.meta.update(node.meta)
        self.closed_by[chosen, x] = Gate(tuple(frozenset({flag}) for flag in flags))
        self._replace(node, chosen, _kept(needs))

    def _visit_existing_with(self, node: fx.Node) -> None:
        x, y = _operands(node)
        known = self._of(y)
        exists = {either for without, either in known if not without}
        flags = frozenset[int]().union(*(either for either in exists if len(either) == 1))
        needs = {
            (w if ALWAYS in w else w | _MIXED | flags, e)
            for w, e in self._of(x) - known
            if w - _MIXED or e not in exists
        }
        self._replace(node, x, known | _kept(needs))

    def _visit_none_without(self, node: fx.Node) -> None:
        x, witnesses = _operands(node)
        flags_of_each = [frozenset(self._flags_of(w)) for w in witnesses]
        self._replace(node, x, self._of(x))
        if all(flags_of_each):
            self._none_without[x] = frozenset[int]().union(*flags_of_each)

    def _visit_not_none(self, node: fx.Node) -> None:
        """The value needs a node of its own, since the item from which it comes is still None in some calls."""
        (x,) = _operands(node)
        with self._graph.inserting_before(node):
            kept = self._graph.call_method("to", (x, example(x).dtype))
        kept.meta.update(node.meta)
        flags = self._none_without.get(x)
        must = _NOTHING if flags is None else frozenset({(frozenset[int](), flags)})
        self._replace(node, kept, self._if_not_none(x) | must)

    def _visit_result(self, node: fx.Node) -> None:
        x, number, may_be_absent = _operands(node)
        flags = self._none_without.get(x) if may_be_absent else None
        clauses = self._of(x) if flags is None else self._if_not_none(x)
        clauses |= self._must_exist
        needs = tuple((bits(w - _MIXED | _IN_ALL_CALLS if w else w), bits(either)) for w, either in clauses)
        self.results[number] = ResultNeeds(needs, bool(may_be_absent), None if flags is None else bits(flags))
        self.numbers.setdefault(x, []).append(number)
        self._replace(node, x, self._if_not_none(x))

    def _visit_existing_or(self, node: fx.Node) -> None:
        x, otherwise = _operands(node)
        if x in self._none_without or otherwise in self._none_without:
            raise NotGiven("an item of a dictionary that may be None is put over another one, or another one over it")
        exists = [either for without, either in self._of(x) if not without]
        if not exists:
            self._replace(node, x, self._of(x))
            return
        value, other = example(x), example(otherwise)
        if (value.shape, value.dtype, value.device) != (other.shape, other.dtype, other.device):
            raise NotGiven("an item of a dictionary is put over another one, and they cannot take each other's place")
        with self._graph.inserting_before(node):
            chosen = self._graph.call_function(torch.where, (self._condition(exists, node), x, otherwise))
        chosen.meta.update(node.meta)
        self.closed_by[chosen, x] = Gate(tuple(exists))
        self.closed_by[chosen, otherwise] = Gate(tuple(exists), inverted=True)
        needs = {clause for clause in self._of(x) if clause[0]}
        needs.update((without, either | flags) for without, either in self._of(otherwise) for flags in exists)
        self._replace(node, chosen, _kept(needs))

    def _condition(self, wanted: Sequence[Set[int]], by: fx.Node) -> fx.Node:
        """A tensor [] that is true if one flag of each of some sets is given, made for the call `by`."""
        sums = [self._number(operator.add, [self._size_of(f, by) for f in sorted(flags)], by) for flags in wanted]
        size = self._number(operator.mul, sums, by)
        made = self._graph.call_function(torch.scalar_tensor, (size,), {"dtype": torch.bool})
        like = next(example(self._flags[f]) for flags in wanted for f in flags)
        made.meta.update(by.meta, example_value=like.new_empty((), dtype=torch.bool))
        return made

    def _number(self, of: Callable[[object, object], object], sizes: Sequence[fx.Node], by: fx.Node) -> fx.Node:
        """Sizes put together, made for the call `by`."""
        found = sizes[0]
        for size in sizes[1:]:
            both = self._graph.call_function(of, (found, size))
            both.meta.update(by.meta, example_value=of(example(found), example(size)))
            found = both
        return found

    def _size_of(self, flag: int, by: fx.Node) -> fx.Node:
        """The size that a flag is."""
        of = self._flags[flag]
        rows = example(of).shape[0]
        size = self._sizes.get(_expr(rows))
        if size is None:
            size = self._graph.call_method("size", (of, 0))
            size.meta.update(by.meta, example_value=rows)
        return size

    def given_sizes(self) -> dict[str, frozenset[str]]:
        """For each flag the size that it is, and the sizes that are 0 without it."""
        of_flag = {number: _expr(example(flag).shape[0]) for number, flag in self._flags.items()}
        return {
            str(size): frozenset(map(str, self._rows.get(number, ())))
            for number, size in of_flag.items()
            if isinstance(size, sympy.Symbol)
        }

    def _visit_call(self, node: fx.Node) -> None:
        name, operands = call_name(node), node.all_input_nodes
        if name in ("cat", "concat", "concatenate"):
            dim: Any = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
            needs = _of_all([self._with_rows(x, _size(x, dim)) for x in operands if self._of(x)])
            closed = {(node, x): self._without_rows(_size(x, dim)) for x in operands}
            for edge, flags in closed.items():
                if flags:
                    self.closed_by[edge] = Gate(tuple(frozenset({flag}) for flag in sorted(flags)))
        elif name in ("add", "iadd", "sym_sum") and not isinstance(example(node), Tensor):
            needs = _of_all([self._with_rows(x, example(x)) for x in operands if self._of(x)])
        else:
            needs = _of_all([found for x in operands if (found := self._of(x))])
        self._needs[node] = needs
        if needs and (writes(node) or _keeps_statistics(node)):
            written = node.args[1:3] if _keeps_statistics(node) else (node.kwargs.get("out", node.args[0]),)
            for storage in (s for x in written if isinstance(x, fx.Node) for s in storages(x)):
                if storage in self._inputs:
                    raise NotGiven("what is computed of keys that are not always given is written into a tensor")
                self._written[storage] = self._written.get(storage, _NOTHING) | needs

    def _of(self, x: fx.Node) -> _Clauses:
        """The needs of an operand, which must not be None."""
        found, flags = self._if_not_none(x), self._none_without.get(x)
        return found if flags is None else found | {(frozenset({ALWAYS}), flags)}

    def _if_not_none(self, x: fx.Node) -> _Clauses:
        """The needs of a value in calls in which it is not None."""
        found = self._needs.get(x, _NOTHING)
        for storage in storages(x) & self._written.keys() if self._written else ():
            found |= self._written[storage]
        return found

    def _with_rows(self, x: fx.Node, size: object) -> _Clauses:
        """The needs of an operand that has no effect if `size`, a size of it or itself, is 0."""
        return frozenset(c for c in self._of(x) if c[0] - _MIXED or not all(self._is_zero(size, flag) for flag in c[1]))

    def _without_rows(self, size: object) -> frozenset[int]:
        """The flags without which `size` is 0."""
        symbols = getattr(_expr(size), "free_symbols", ())
        flags = {flag for flag, rows in self._rows.items() if not symbols.isdisjoint(rows)} if symbols else set()
        return frozenset(flag for flag in flags if self._is_zero(size, flag))

    def _is_zero(self, size: object, flag: int) -> bool:
        expr = _expr(size)
        return expr is not None and expr.xreplace(dict.fromkeys(self._rows.get(flag, ()), sympy.S.Zero)) == 0

    def _flags_of(self, witness: fx.Node) -> Iterable[int]:
        for without, either in self._of(witness):
            if ALWAYS in without or (len(either) != 1 and not without):
                raise NotGiven("the edges of a relation are computed of other keys")
            if not without:
                yield from either

    def _replace(self, node: fx.Node, by: fx.Node, needs: _Clauses) -> None:
        node.replace_all_uses_with(by)
        self._graph.erase_node(node)
        self._needs[by] = needs


def _of_all(needs: Sequence[_Clauses]) -> _Clauses:
    """The needs of a value that is computed of others, which have these. It exists with them if all exist in the same
    calls. Otherwise it must exist: a sum over items of a dictionary is another sum in calls that lack some of them."""
    found = _NOTHING.union(*needs)
    common = found.intersection(*needs)
    return frozenset(c if c[0] or c in common else (_MIXED, c[1]) for c in found)


def _kept(needs: Iterable[Clause]) -> _Clauses:
    """The clauses that do not hold in any case."""
    return frozenset(c for c in needs if c[0].isdisjoint(c[1]))


def _keeps_statistics(node: fx.Node) -> bool:
    """Whether a call of PyTorch's batch norm or instance norm writes to running statistics, its second and third
    operand."""
    return call_name(node) in ("batch_norm", "instance_norm") and any(isinstance(x, fx.Node) for x in node.args[1:3])


def _operands(node: fx.Node) -> tuple[Any, ...]:
    return node.args


def _expr(size: object) -> Any:
    """The expression of a symbolic size; None for a number."""
    return getattr(getattr(size, "node", None), "expr", None)


def _size(x: fx.Node, dim: int) -> object:
    value = example(x)
    return value.shape[dim] if isinstance(value, Tensor) else None
