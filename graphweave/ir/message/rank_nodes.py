"""Nodes of the message IR that move rows between ranks (docs/design/distributed.md).

They are imported from `nodes.py`, like all others. `group` names the ranks, and `link` the rows of a node type that
they read of each other (`core/ranks.py`). With one rank there is no halo: all of them give their operand.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphweave.core.ranks import LinkName
from graphweave.core.types import Fold, Space
from graphweave.ir.message.types import MESSAGE, Ref

node = MESSAGE.union("Node")


@node("exchange {x} over {link} to {space}| slot={slot}| {steady}")
@dataclass(frozen=True, slots=True)
class Exchange:
    """out[r] = x[r] for own rows r, then the halo rows, which other ranks own: `x: V x F -> space x F`.

    The rows of `space` are the rows of V that this rank owns, then those of other ranks that it reads. Its transpose is
    `ExchangeBack` with a sum. With `steady`, x is likely to be the same at the next call, and what was received is kept
    until x changes on some rank. With a `slot` above 0, the halo rows are those of the last call of that slot, while
    this call's are sent for the next one; the first call waits for its own.
    """

    x: Ref
    link: LinkName
    space: Space
    slot: int = 0
    steady: bool = False


@node("exchangeback.{fold} {x} over {link} to {space}")
@dataclass(frozen=True, slots=True)
class ExchangeBack:
    """out[v] = fold of x over all copies of row v, its own one and those in the halos of other ranks: `x: V' x F ->
    space x F`, where V' has this rank's own rows of `space` and its halo rows.

    The transpose of a sum is `Exchange`.
    """

    x: Ref
    fold: Fold
    link: LinkName
    space: Space


@node("allreduce.{fold} {x} over {group}")
@dataclass(frozen=True, slots=True)
class AllReduce:
    """out = fold of x over all ranks, the same on every rank: `x: S x F -> S x F`, where S is the unit space or another
    one whose rows all ranks have, such as types. The transpose of a sum is x itself."""

    x: Ref
    fold: Fold
    group: str
