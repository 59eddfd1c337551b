"""Which results of kernels a value waits for if PyTorch's calls compute it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property

from graphweave.analysis.remembered import remembered
from graphweave.analysis.typed import call_operands
from graphweave.compiler.plan import Plan
from graphweave.execute.region_step import RegionStep
from graphweave.ir.message.nodes import MapOf, Ref
from graphweave.lower.schedule import Region


class Demands:
    """Which results of kernels each step of a plan needs. `kernels` are the regions that have kernels."""

    def __init__(self, plan: Plan, kernels: Mapping[int, RegionStep]) -> None:
        self._plan, self._kernels = plan, kernels

    @cached_property
    def _of_values(self) -> list[frozenset[Ref]]:
        """For each value, the results of kernels from which it is computed by calls alone; itself if it is one."""
        written = {r for kernel in self._kernels.values() for r in kernel.writes}
        out: list[frozenset[Ref]] = []
        for ref in range(len(self._plan.program.nodes)):
            if ref in written:
                out.append(frozenset((ref,)))
            elif ref in self._plan.hoisted:
                out.append(frozenset())
            else:
                out.append(frozenset().union(*(out[r] for r in call_operands(self._plan.program, ref))))
        return out

    def of(self, refs: Iterable[Ref | None]) -> frozenset[Ref]:
        """The results of kernels that must exist before all of `refs` can."""
        return frozenset().union(*(self._of_values[r] for r in refs if r is not None))

    @cached_property
    def _steps_reading(self) -> Mapping[Ref, set[int]]:
        """The steps that need each result of a kernel."""
        out: dict[Ref, set[int]] = defaultdict(set)
        for i in range(len(self._plan.schedule.steps)):
            for ref in self.of_step(i):
                out[ref].add(i)
        return out

    def read_elsewhere(self, members: Collection[int]) -> list[Ref]:
        """Values that these kernels write and another step, or no step, reads."""
        written = (r for i in members for r in self._kernels[i].writes)
        return [r for r in written if not self._steps_reading[r] or not self._steps_reading[r].issubset(members)]

    @remembered
    def of_step(self, i: int) -> frozenset[Ref]:
        """The results of kernels that must exist before a step of the schedule runs."""
        step = self._plan.schedule.steps[i]
        if not isinstance(step, Region):
            return self.of((step.ref,))
        if i in self._kernels:
            return self.of((*self._kernels[i].reads, *self.indices_of(i)))
        return self.of(step.members)

    def indices_of(self, i: int) -> list[Ref]:
        """The index tensors of a kernel's maps."""
        nodes = self._plan.program.nodes
        return [n.index for m in self._kernels[i].maps if isinstance(n := nodes[m], MapOf)]
