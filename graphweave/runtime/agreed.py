"""Results that several ranks remember together: a rank may use what it remembers only if all others can, too.

Work that the ranks do together, such as an exchange, must be done by all of them or by none. Each rank's caches forget
by themselves, so the ranks ask each other first: one number reduced over all ranks, each time.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from graphweave.core.counters import bump
from graphweave.core.ranks import group_of
from graphweave.runtime.kept_rows import KeptRows
from graphweave.runtime.memo import Results, memo


class AgreedMemo:
    """`memo.kept` for functions in which ranks exchange rows: all ranks take what they remember, or all compute it."""

    def __init__(self, group: str, kept: Callable[..., Results]) -> None:
        """`group` names the ranks, and `kept` gives what is remembered, or computes it."""
        self._group, self._kept = group, kept

    def __call__(self, fn: Callable[..., Results], *inputs: Tensor | int) -> Results:
        if not group_of(self._group).all_agree(memo.holds(fn, *inputs)):
            memo.drop(fn, *inputs)
        return self._kept(fn, *inputs)


class SteadyRows:
    """Own and halo rows of tensors that stay the same from call to call, such as features.

    They are kept when the same tensor comes for the second time, and used while it is unchanged on all ranks (see
    `kept_rows`).
    """

    def __init__(self) -> None:
        self._kept = KeptRows()

    def __call__(self, x: Tensor, agree: Callable[[bool], bool], exchange: Callable[[Tensor], Tensor]) -> Tensor:
        """`exchange(x)`, or what an earlier call of it gave. `agree(good)` says whether all ranks say yes."""
        found = self._kept.find(x)
        if agree(found is not None):
            assert found is not None
            bump("exchange_hits")
            return found
        return self._kept.make(exchange, x)
