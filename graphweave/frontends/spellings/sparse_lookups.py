"""Lookups of one table whose gradient is sparse, such as those of heads and of tails: joined to one lookup.

Each lookup gives a sparse gradient of its own. Eager mode puts them next to each other, but the trace of AOTAutograd
cannot add two sparse tensors, nor a sparse one and a dense one. One lookup has one gradient, whose values are those of
the rows that were looked up: its price is that of these rows, however many rows the table has.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from graphweave.frontends.calls.captured_graph import ancestors
from graphweave.frontends.calls.dynamo_calls import storages, writes

_SIGNATURE = inspect.signature(F.embedding)
_OF_SHAPE = frozenset({"size", "dim", "numel", "shape", "detach", "getattr"})
"""Uses of a table that add nothing to its gradient."""


@dataclass(frozen=True, slots=True, eq=False)
class _Lookup:
    node: fx.Node
    index: fx.Node
    padding_idx: int | None


def join_lookups(module: fx.GraphModule) -> bool:
    """In Dynamo's graph, join sparse lookups of one table that do not depend on one another. A table that is also used
    in another way has a dense gradient in eager mode, so its lookups get dense ones. Whether there was such a table."""
    tables: dict[fx.Node, list[_Lookup]] = defaultdict(list)
    for node in module.graph.find_nodes(op="call_function", target=F.embedding):
        for table, lookup in _sparse_lookup(node):
            tables[table].append(lookup)
    changed = False
    for table, lookups in tables.items():
        if _is_used_otherwise(table, lookups):
            for lookup in lookups:
                _make_dense(lookup.node)
            changed = True
        elif len(lookups) > 1 or lookups[0].padding_idx is not None:
            changed |= _join(module.graph, table, lookups)
    if changed:
        module.recompile()
    return changed


def look_up(table: Tensor, padding: Sequence[int | None], *indices: Tensor) -> tuple[Tensor, ...]:
    """The rows of the table at each of the indices, with one sparse gradient. It is 0 for lookups of the row that is
    the `padding` of an index; eager mode leaves these out of the gradient, whose size then depends on the data."""
    rows = F.embedding(torch.cat([index.reshape(-1) for index in indices]), table, sparse=True)
    parts = rows.split([index.numel() for index in indices])
    found = []
    for part, index, row in zip(parts, indices, padding, strict=True):
        part = part.reshape(*index.shape, table.size(1))
        if row is not None:
            part = torch.where((index != row % table.size(0)).unsqueeze(-1), part, part.detach())
        found.append(part)
    return tuple(found)


def _sparse_lookup(node: fx.Node) -> Iterator[tuple[fx.Node, _Lookup]]:
    given = _SIGNATURE.bind(*node.args, **node.kwargs)
    given.apply_defaults()
    asked = given.arguments
    index, table = asked["input"], asked["weight"]
    if asked["sparse"] and asked["max_norm"] is None and isinstance(index, fx.Node) and isinstance(table, fx.Node):
        yield table, _Lookup(node, index, asked["padding_idx"])


def _is_used_otherwise(table: fx.Node, lookups: Sequence[_Lookup]) -> bool:
    others = table.users.keys() - {lookup.node for lookup in lookups}
    return any(_name(user) not in _OF_SHAPE for user in others if user.op != "output")


def _make_dense(node: fx.Node) -> None:
    given = _SIGNATURE.bind(*node.args, **node.kwargs)
    given.arguments["sparse"] = False
    node.args, node.kwargs = given.args, given.kwargs


def _join(graph: fx.Graph, table: fx.Node, lookups: Sequence[_Lookup]) -> bool:
    """Whether the lookups could be joined where the first of them is."""
    first = lookups[0].node
    order = {node: at for at, node in enumerate(graph.nodes)}
    later = _computed_later(lookups, order)
    if later is None or later & {lookup.node for lookup in lookups}:
        return False
    for node in sorted(later, key=order.__getitem__):
        first.prepend(node)
    with graph.inserting_before(first):
        indices = [lookup.index for lookup in lookups]
        padding = tuple(lookup.padding_idx for lookup in lookups)
        joined = graph.call_function(look_up, (table, padding, *indices))
        joined.meta.update({name: value for name, value in first.meta.items() if name != "example_value"})
        parts = [graph.call_function(_part, (joined, at)) for at in range(len(lookups))]
    for lookup, part in zip(lookups, parts, strict=True):
        part.meta.update(lookup.node.meta)
        lookup.node.replace_all_uses_with(part)
        graph.erase_node(lookup.node)
    return True


def _computed_later(lookups: Sequence[_Lookup], order: Mapping[fx.Node, int]) -> set[fx.Node] | None:
    """The calls behind the first lookup that make the indices of the others, with writes to what they make; None if
    they cannot be made before it, since other writes lie between, or other calls read what they write."""
    begin, end = order[lookups[0].node], max(order[lookup.node] for lookup in lookups)
    between = [node for node, at in order.items() if begin <= at < end]
    writing = [node for node in between if writes(node)]
    later = {node for node in ancestors(lookup.index for lookup in lookups) if order[node] >= begin}
    while True:
        made = {s for node in later for s in storages(node)}
        more = {node for node in writing if not made.isdisjoint(storages(_written(node)))} - later
        if not more:
            break
        later |= {node for node in ancestors(more) if order[node] >= begin}
    operands = [lookup.index for lookup in lookups] + [x for node in later for x in node.all_input_nodes]
    read = {s for x in operands for s in storages(x)}
    changed = {s for node in later if writes(node) for s in storages(_written(node))}
    others = [node for node in between if node not in later]
    if any(writes(node) and not read.isdisjoint(storages(_written(node))) for node in others):
        return None
    before = [node for node, at in order.items() if at < begin]
    if any(not changed.isdisjoint(storages(node)) for node in (*before, *others)):
        return None
    return later


def _written(node: fx.Node) -> object:
    return node.kwargs.get("out", node.args[0] if node.args else None)


def _part(parts: tuple[Tensor, ...], at: int) -> Tensor:
    return parts[at]


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
