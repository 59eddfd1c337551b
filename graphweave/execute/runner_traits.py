"""The abilities of a tape's runner, for which the tape is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from graphweave.core.types import Space
from graphweave.ir.message import nodes as ir


@dataclass(frozen=True, slots=True)
class RunnerTraits:
    """The abilities and knowledge of a tape's runner."""

    joins: Callable[[int], bool]
    """Whether kernel i may run in one native call with others."""

    spaces_of_call: Callable[[ir.Ref], tuple[Space, ...]]
    """The spaces whose rows the runner needs to compute a node without a kernel."""

    divide: Callable[[Sequence[int]], Iterable[Sequence[int]]] = lambda members: (members,)
    """Kernels that follow one another -> those of each native call."""

    there: frozenset[ir.Ref] = frozenset()
    """Values that are there before the first call."""

    counts: bool = True
    """Whether rows are counted from values. Otherwise the runner knows them all."""

    transposes: bool = True
    """Whether native calls transpose matrices of shared data that their kernels read transposed."""

    in_order: bool = True
    """Whether nodes without kernels are computed where the plan has them. Otherwise, where something first reads them,
    since the runner has an order of its own."""
