"""Which values kernels write for other ranks or read of them, and which kernels run in two parts while rows travel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from graphweave.analysis.cones import map_type, type_of
from graphweave.analysis.flow import ancestors
from graphweave.compiler.plan import Plan
from graphweave.core.ranks import LinkName
from graphweave.execute.cpp_step import CppStep
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands
from graphweave.ir.tape.nodes import Late
from graphweave.lower.schedule import Region


@dataclass(frozen=True, slots=True)
class TwoParts:
    """How a kernel runs in two parts: the rows first that read no halo row of the `late` values, or with `back`, a
    link, the halo rows first, which go back to their owners."""

    late: tuple[Late, ...] = ()
    back: LinkName | None = None


class Travel:
    """The values of a plan that are sent. `outputs` are those that its program gives, and `results` those of them that
    users get."""

    def __init__(self, plan: Plan, outputs: Iterable[ir.Ref | None], results: Iterable[ir.Ref | None]) -> None:
        self._program, self._users, self._outputs = plan.program, plan.facts.flow.users, frozenset(outputs)
        readers: dict[ir.Ref, list[ir.Exchange]] = {}
        for node in plan.program.nodes:
            if isinstance(node, ir.Exchange):
                readers.setdefault(node.x, []).append(node)
        given = frozenset(results)
        self.sent: dict[ir.Ref, LinkName] = {
            x: by[0].link for x, by in readers.items() if len(by) == 1 and not by[0].steady and x not in given
        }
        """Values that one exchange sends, and its link. They may lie before the halo rows, since no user gets them."""

    def back(self, ref: ir.Ref) -> tuple[ir.Ref, ir.ExchangeBack] | None:
        """The only node that reads `ref`, if it sends the halo rows back to their owners."""
        users = self._users[ref]
        node = self._program.nodes[users[0]] if len(users) == 1 and ref not in self._outputs else None
        return (users[0], node) if isinstance(node, ir.ExchangeBack) else None

    def in_two(self, step: CppStep, region: Region, late: Sequence[ir.Ref]) -> TwoParts | None:
        """The parts of the step, or None if it has none: the halo rows first if all that it writes is sent back, else
        the rows first that read none of the `late` values' halo rows."""
        if region.map is None or step.plan.lowered.map != region.map or step.reorders:
            return None
        backs = [self.back(r) for r in step.writes]
        links = {node.link for _, node in (b for b in backs if b is not None)}
        if None not in backs and len(links) == 1:
            rows = {type_of(self._program, r).space for r in step.writes}
            return TwoParts(back=links.pop()) if rows == {region.rows} and not late else None
        arriving = self._arriving(step, region, late)
        return TwoParts(arriving) if arriving else None

    def _arriving(self, step: CppStep, region: Region, late: Sequence[ir.Ref]) -> tuple[Late, ...] | None:
        """How the step reads the late values; None if not by the edges that it walks alone."""
        assert region.map is not None
        found: list[Late] = []
        edges = map_type(self._program, region.map).dom
        computed = ancestors(self._program, step.writes, frozenset(step.reads)).difference(step.reads)
        for ref in sorted(computed):
            node = self._program.nodes[ref]
            for r in set(late).intersection(operands(node)):
                sent = self._program.nodes[r]
                if not isinstance(node, ir.Pull) or not isinstance(sent, ir.Exchange):
                    return None
                if not isinstance(self._program.nodes[node.map], ir.MapOf):
                    return None
                ends = map_type(self._program, node.map)
                if ends.dom != edges:
                    return None
                found.append(Late(r, node.map, ends.cod, sent.link))
        return tuple(dict.fromkeys(found))


def travels(node: ir.Node) -> bool:
    """Whether the node moves rows between ranks in each call."""
    return isinstance(node, ir.ExchangeBack) or (isinstance(node, ir.Exchange) and not node.steady)
