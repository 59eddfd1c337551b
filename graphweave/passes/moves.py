"""The moves that rewriting tries: sets of rules at sets of sites. Those that only pay together come first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from graphweave.analysis.facts import Facts
from graphweave.analysis.flow import reached
from graphweave.analysis.typed import below, gathered, is_typed_product
from graphweave.core.types import Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder, operands
from graphweave.passes.narrow_sites import narrow_sites
from graphweave.passes.rules import (
    compact,
    compose_maps,
    distribute,
    factor,
    factored_bases,
    feature_sum,
    injective_maps,
    linear_through_push,
    narrow_sums,
    postpone,
    pull_scale,
    reciprocal,
    row_totals,
    scale_out,
    split_linear,
    split_products,
    totals,
    typed_linear,
    typed_push,
    typed_reorder,
)
from graphweave.passes.rules.rule import Rule


@dataclass(frozen=True, slots=True)
class Move:
    """`rules`, in order of preference, to be tried at each of `sites` and at the nodes that they put there."""

    rules: tuple[Rule, ...]
    sites: tuple[ir.Ref, ...]

    def without(self, names: frozenset[str]) -> Move:
        """The move without the rules that are named; the same object if it has none of them."""
        if not names:
            return self
        return replace(self, rules=tuple(rule for rule in self.rules if rule.name not in names))


def joined(moves: Sequence[Move]) -> Move:
    """All of `moves` as one."""
    rules, sites = (r for m in moves for r in m.rules), (s for m in moves for s in m.sites)
    return Move(tuple(dict.fromkeys(rules)), tuple(dict.fromkeys(sites)))


Moves: TypeAlias = Callable[[Facts, frozenset[ir.Ref]], Iterator[Move]]
"""Lists the moves of a program in the order in which they are tried. Its second argument is the set of nodes that need
tangents."""

OUT_OF_PUSH = (distribute.RULE, feature_sum.RULE, factor.RULE)
PRODUCTS_TO_NODES = (split_products.RULE, split_linear.RULE, postpone.WHOLE)
TO_NODES = (split_linear.RULE, postpone.RULE, linear_through_push.OUT)
NARROWER = (scale_out.RULE, linear_through_push.INTO, postpone.RULE)
ALONE = (
    injective_maps.RULE, totals.RULE, row_totals.RULE, compose_maps.RULE, reciprocal.RULE, postpone.RULE,
    postpone.WHOLE, pull_scale.RULE, split_linear.RULE, linear_through_push.OUT,
)  # fmt: skip


def linear(facts: Facts, late: frozenset[ir.Ref]) -> Iterator[Move]:
    """Everything linear on edges at once: the forward's product leaves the edges only if the backward's does too."""
    sites = tuple(r for r, n in enumerate(facts.program.nodes) if isinstance(n, ir.Slice | ir.Push) or _shared(n))
    if sites:
        yield Move(TO_NODES, sites)


def reorderings(facts: Facts, late: frozenset[ir.Ref]) -> Iterator[Move]:
    """Products of weights before products with rows: everywhere at once, then around each typed product alone."""
    program = facts.program
    products = [r for r, n in enumerate(program.nodes) if is_typed_product(n)]
    if products:
        yield Move(typed_reorder.RULES, tuple(range(len(program.nodes))))
    if len(products) > 1:
        for ref in products:
            yield Move(typed_reorder.RULES, tuple(_around(facts, ref)))


def _around(facts: Facts, ref: ir.Ref) -> Iterator[ir.Ref]:
    """Products, pushes and reductions that read a typed product's rows, through reshapes and pointwise operations."""
    todo, seen = [ref], set[ir.Ref]()
    while todo:
        at = todo.pop()
        if at in seen:
            continue
        seen.add(at)
        node = facts.program.nodes[at]
        if isinstance(node, ir.Push | ir.Gram | ir.MatMul | ir.Reduce):
            yield at
        if at == ref or isinstance(node, ir.Reshape | ir.Pointwise):
            todo.extend(facts.flow.users[at])


def compactions(facts: Facts, late: frozenset[ir.Ref]) -> Iterator[Move]:
    """For each pair of maps that meet in a typed product all that edges compute from them; forward pairs first."""
    program = facts.program
    found: dict[tuple[ir.Ref, ir.Ref], bool] = {}
    for ref, pairs in _pairs_by_node(program):
        for pair in pairs:
            found[pair] = found.get(pair, True) and ref in late
    yield from _compacting(facts, sorted(found, key=lambda pair: found[pair]))


def forward_compactions(facts: Facts, late: frozenset[ir.Ref]) -> Iterator[Move]:
    """The same for the pairs of maps that meet in a typed product of the forward, such as Hector's (source,
    relation)."""
    nodes, found = facts.program.nodes, dict[tuple[ir.Ref, ir.Ref], None]()
    for ref, pairs in _pairs_by_node(facts.program):
        if isinstance(nodes[ref], ir.MatMul) and ref not in late:
            found.update(dict.fromkeys(pairs))
    yield from _compacting(facts, found)


def _compacting(facts: Facts, pairs: Iterable[tuple[ir.Ref, ir.Ref]]) -> Iterator[Move]:
    """For each pair of maps the move that tries its rule at all that reads a value of these edges. A push of an outer
    product that other moves have left of a sum becomes a typed gram first."""
    types = facts.program.types
    readers: dict[Space, list[ir.Ref]] = {}
    for ref, used in enumerate(facts.flow.operands):
        for space in {said.space for r in used if isinstance(said := types[r], ir.Type)}:
            readers.setdefault(space, []).append(ref)
    for m, t in pairs:
        along = types[m]
        assert isinstance(along, ir.MapType)
        yield Move((compact.compact(m, t), typed_linear.RULE), tuple(readers[along.dom]))


def pairs_in(program: ir.Program) -> tuple[tuple[ir.Ref, ir.Ref], ...]:
    """Every two maps that meet in a typed product."""
    return tuple(dict.fromkeys(pair for _, pairs in _pairs_by_node(program) for pair in pairs))


def _pairs_by_node(program: ir.Program) -> Iterator[tuple[ir.Ref, list[tuple[ir.Ref, ir.Ref]]]]:
    """Nodes at which two maps of edges meet, and these maps. Unique pairs are not edges: pairs of pairs are the same
    pairs."""
    made = {t.space for t in program.types if isinstance(t, ir.DistinctType)}
    made |= {n.cod for n in program.nodes if isinstance(n, ir.MapOf)}
    types = {_rows_of(program, n.map) for n in program.nodes if isinstance(n, ir.MatMul) and n.map is not None}
    for ref, node in enumerate(program.nodes):
        met = _meeting(program, node, types)
        if pairs := [(m, t) for m, t in met if m is not None and _may_pair(program, m, t, made)]:
            yield ref, pairs


def _rows_of(program: ir.Program, m: ir.Ref) -> Space:
    along = program.types[m]
    assert isinstance(along, ir.MapType)
    return along.cod


def _meeting(program: ir.Program, node: ir.Node, types: set[Space]) -> list[tuple[ir.Ref | None, ir.Ref]]:
    """Maps that meet in a typed product, in a push of one, or in a push of pulled rows to one of `types`."""
    if isinstance(node, ir.MatMul) and node.map is not None:
        return [(_pull_map(program, node.x), node.map)]
    if isinstance(node, ir.Gram) and node.map is not None:
        return [(_pull_map(program, node.x), node.map), (_pull_map(program, node.y), node.map)]
    if isinstance(node, ir.Push) and not node.fused:
        met: list[tuple[ir.Ref | None, ir.Ref]] = [(node.map, t) for t in _types_behind(program, node.x)]
        if _rows_of(program, node.map) in types:
            met += [(n.map, node.map) for n in _behind(program, node.x) if isinstance(n, ir.Pull)]
        return met
    return []


def _types_behind(program: ir.Program, ref: ir.Ref) -> list[ir.Ref]:
    """Maps of the typed products whose values, up to factors and sums, are the value `ref`."""
    return [n.map for n in _behind(program, ref) if isinstance(n, ir.MatMul) and n.map is not None]


def _behind(program: ir.Program, ref: ir.Ref) -> list[ir.Node]:
    """The nodes whose values, up to factors, sums and reshapes, are the value `ref`."""

    def nearer(r: ir.Ref) -> Iterable[ir.Ref]:
        node = program.nodes[r]
        if isinstance(node, ir.Reshape):
            return (below(program, r),)
        return node.args if isinstance(node, ir.Pointwise) and node.op.facts.linear else ()

    return [program.nodes[r] for r in sorted(reached([ref], nearer))]


def _shared(node: ir.Node) -> bool:
    return isinstance(node, ir.MatMul | ir.Gram) and node.map is None


def _pull_map(program: ir.Program, ref: ir.Ref) -> ir.Ref | None:
    return gathered(program, ref).map


def _may_pair(program: ir.Program, m: ir.Ref, t: ir.Ref, made: set[Space]) -> bool:
    """Whether `m` and `t` are two maps of edges. The spaces that are `made` are none of edges."""
    a, b, along = program.nodes[m], program.nodes[t], program.types[m]
    two = isinstance(a, ir.MapOf) and isinstance(b, ir.MapOf) and a.index != b.index
    return two and isinstance(along, ir.MapType) and along.dom not in made


def bases(facts: Facts, late: frozenset[ir.Ref]) -> Iterator[Move]:
    """All products with matrices that are combinations of few bases, which can then become products of nodes."""
    sites = tuple(r for r, n in enumerate(facts.program.nodes) if is_typed_product(n))
    if sites:
        yield Move((factored_bases.RULE, postpone.RULE), sites)


def typed_pushes(facts: Facts, late: frozenset[ir.Ref]) -> Iterator[Move]:
    """All pushes of typed products at once, as a product's rows go only when all of its are fused; then each alone."""
    program = facts.program
    open_ = ((r, n) for r, n in enumerate(program.nodes) if isinstance(n, ir.Push) and not n.fused)
    sites = tuple(r for r, n in open_ if any(_types_behind(program, n.x)))
    if sites:
        yield Move((typed_push.RULE,), sites)
    if len(sites) > 1:
        for ref in sites:
            yield Move((typed_push.RULE,), (ref,))


def products_of_push(facts: Facts, late: frozenset[ir.Ref]) -> Iterator[Move]:
    """For each push all products that read it, so that its rows are not needed any more."""
    program = facts.program
    readers: dict[ir.Ref, list[ir.Ref]] = {}
    for ref, node in enumerate(program.nodes):
        if _shared(node):
            for r in dict.fromkeys(operands(node)):
                for push in _pushes_behind(program, r):
                    readers.setdefault(push, []).append(ref)
    for sites in readers.values():
        yield Move(NARROWER, tuple(sites))


def narrower(facts: Facts, late: frozenset[ir.Ref]) -> Iterator[Move]:
    """For each weight and the sums along maps that it meets, all products with these and their transposes, so that no
    edge needs a wide row any more; then all such at once."""
    groups = narrow_sites(facts)
    for sites in groups:
        yield Move((narrow_sums.RULE,), sites)
    if len(groups) > 1:
        yield Move((narrow_sums.RULE,), tuple(r for sites in groups for r in sites))


def pushes(facts: Facts, late: frozenset[ir.Ref]) -> Iterator[Move]:
    """All pushes along one map in one half of the program, then each alone."""
    program = facts.program
    found: dict[tuple[ir.Ref, bool], list[ir.Ref]] = {}
    for ref, node in enumerate(program.nodes):
        if isinstance(node, ir.Push) and isinstance(program.nodes[node.map], ir.MapOf):
            found.setdefault((node.map, ref in late), []).append(ref)
    for sites in found.values():
        yield Move(OUT_OF_PUSH, tuple(sites))
    for sites in found.values():
        if len(sites) > 1:
            for ref in sites:
                yield Move(OUT_OF_PUSH, (ref,))


def concatenated(facts: Facts, late: frozenset[ir.Ref]) -> Iterator[Move]:
    """All sums of products with a concatenation: an end's rows leave the edges only if the backward's do, too, with
    totals of their gradients or without."""
    nodes = facts.program.nodes
    if not any(isinstance(n, ir.Concat) for n in nodes):
        return
    build = Builder.of(facts.program)
    sums = ((r, n) for r, n in enumerate(nodes) if isinstance(n, ir.Reduce | ir.Push))
    if sites := tuple(r for r, n in sums if split_products.cut_of(build, n.x) is not None):
        yield Move((*PRODUCTS_TO_NODES, row_totals.RULE), sites)
        yield Move(PRODUCTS_TO_NODES, sites)


def singles(facts: Facts, late: frozenset[ir.Ref]) -> Iterator[Move]:
    sites = _computing(facts.program)
    for rule in ALONE:
        for ref in sites:
            if rule is not compose_maps.RULE or _moves_by_graph(facts, ref):
                yield Move((rule,), (ref,))


def _moves_by_graph(facts: Facts, ref: ir.Ref) -> bool:
    """Whether the maps along which `ref` and its operand move rows depend on the graph alone. A composed map is then
    made once a graph; otherwise each call pays for its index, and for the formats of that."""
    nodes, outer = facts.program.nodes, facts.program.nodes[ref]
    if not isinstance(outer, ir.Pull | ir.Push) or not isinstance(inner := nodes[outer.x], ir.Pull | ir.Push):
        return False
    return {outer.map, inner.map} <= facts.flow.graph_only


def added(rules: Sequence[Rule]) -> Moves:
    """Each of `rules` at all nodes at once, since some pay only together, then at each node alone."""

    def moves(facts: Facts, late: frozenset[ir.Ref]) -> Iterator[Move]:
        sites = _computing(facts.program)
        for rule in rules:
            yield Move((rule,), sites)
            for ref in sites:
                yield Move((rule,), (ref,))

    return moves


def _computing(program: ir.Program) -> tuple[ir.Ref, ...]:
    return tuple(
        r
        for r, n in enumerate(program.nodes)
        if not isinstance(n, ir.Input | ir.Const | ir.MapOf | ir.ToUnit | ir.Join | ir.Part)
    )


ORDER: tuple[Moves, ...] = (linear, narrower, products_of_push, pushes, concatenated, singles)

RULES = (
    *OUT_OF_PUSH, *TO_NODES, *PRODUCTS_TO_NODES, *NARROWER, *ALONE, *typed_reorder.RULES, factored_bases.RULE,
    typed_push.RULE, narrow_sums.RULE, compact.compact(0, 0),
)  # fmt: skip
"""Every rule that a move may apply."""


def _pushes_behind(program: ir.Program, ref: ir.Ref) -> list[ir.Ref]:
    """The pushes whose value `ref` is, up to reshapes and pointwise operations that keep its type.

    A value that many sums of residuals lead to is looked at once.
    """

    def nearer(r: ir.Ref) -> Iterable[ir.Ref]:
        node = program.nodes[r]
        if isinstance(node, ir.Reshape):
            return (node.x,)
        return _like(program, r, node.args[:2]) if isinstance(node, ir.Pointwise) else ()

    return sorted(r for r in reached([ref], nearer) if isinstance(program.nodes[r], ir.Push))


def _like(program: ir.Program, ref: ir.Ref, refs: Iterable[ir.Ref]) -> Iterable[ir.Ref]:
    """Those of `refs` that have the type of `ref`."""
    return (r for r in refs if program.types[r] == program.types[ref])
