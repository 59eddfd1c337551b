"""Assigns each push of a region to a pass over the row's edges.

A push that needs another push of the same row comes in a later pass. A push that may come in several passes joins the
one that gathers the same wide values, so that they are gathered once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphweave.ir.message.nodes import Ref


def assign_phases(
    members: Sequence[Ref],
    local: Mapping[Ref, Sequence[Ref]],
    on_edges: frozenset[Ref],
    gathers: Mapping[Ref, frozenset[Ref]],
    follows: Mapping[Ref, frozenset[Ref]],
) -> dict[Ref, int]:
    """Pass of each member: 0 before any edges, p after (or for `on_edges` members: in) the p-th pass.

    `members` are in program order, `local[m]` are the members that m needs at its own row, `gathers[m]` the wide values
    that a member on edges reads at other rows, and `follows[m]` those of local[m] that may be in the same pass as m.
    """

    def gap(m: Ref, d: Ref) -> int:
        """The least number of passes by which m comes after d, which it needs."""
        return int(m in on_edges and d not in follows.get(m, ()))

    early: dict[Ref, int] = {}
    for m in members:
        early[m] = max((early[d] + gap(m, d) for d in local[m]), default=int(m in on_edges))
    last = max(early.values(), default=0)
    late = {m: last for m in members}
    for m in reversed(members):
        for d in local[m]:
            late[d] = min(late[d], late[m] - gap(m, d))
    phase = dict(early)
    for m in members:
        if m in on_edges and early[m] < late[m]:
            first = max((phase[d] + gap(m, d) for d in local[m]), default=1)
            options = range(max(early[m], first), late[m] + 1)
            phase[m] = max(options, key=lambda p: (_shared(m, p, phase, gathers, on_edges), -p))
        elif m not in on_edges:
            phase[m] = max((phase[d] for d in local[m]), default=0)
    return phase


def _shared(
    m: Ref, p: int, phase: Mapping[Ref, int], gathers: Mapping[Ref, frozenset[Ref]], on_edges: frozenset[Ref]
) -> int:
    return sum(len(gathers[m] & gathers[o]) for o in on_edges if o != m and phase[o] == p)
