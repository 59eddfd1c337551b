"""Row counts of spaces that a program over ranks has besides those of the whole graph."""

from __future__ import annotations

from graphweave.analysis.ownership import Sharding
from graphweave.analysis.statistics import Statistics, with_unions
from graphweave.core.types import Space
from graphweave.ir.message import nodes as ir


def with_halo(statistics: Statistics, program: ir.Program, sharding: Sharding) -> Statistics:
    """`statistics` with the mean numbers of own and halo rows together."""
    halo = dict(sharding.mean_halo)
    more: dict[Space, int] = {}
    for node in program.nodes:
        if isinstance(node, ir.Exchange | ir.ExchangeBack):
            read = program.types[node.x]
            assert isinstance(read, ir.Type)
            own, both = (read.space, node.space) if isinstance(node, ir.Exchange) else (node.space, read.space)
            more[both] = statistics.rows(own) + halo[node.link.node_type]
    statistics = Statistics((*statistics.counted, *more.items()), statistics.default)
    known, unions = {space for space, _ in statistics.counted}, dict[Space, tuple[Space, ...]]()
    for node, t in zip(program.nodes, program.types, strict=True):
        if isinstance(node, ir.Join) and isinstance(t, ir.Type) and t.space not in known:
            unions[t.space] = tuple(x.space for r in node.xs if isinstance(x := program.types[r], ir.Type))
    return with_unions(statistics, unions.items())
