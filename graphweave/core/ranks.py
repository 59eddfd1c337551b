"""What programs need of the other ranks: the rows of others, sums over all ranks. Links by name, as programs name them.

A program that runs on several ranks names its *link*, "part0:_N" for rows of the node type "_N" of one part, because
programs are text and a link holds a process group. `runtime/rank_link.py` has the links.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakValueDictionary

from graphweave.core.errors import ShardError


class Summing(Protocol):
    """Folds over all ranks."""

    def all_reduce(self, x: Any, fold: str) -> Any: ...

    def all_agree(self, good: bool) -> bool: ...


class Link(Summing, Protocol):
    """The rows of one node type that ranks read of each other, and folds over all ranks."""

    @property
    def num_halo(self) -> int: ...

    def begin(self, x: Any, slot: int = 0, *, in_place: bool = False) -> Callable[[], Any]: ...

    def begin_sum(self, x: Any, fold: str, *, in_place: bool = False) -> Callable[[], Any]: ...

    def steady(self, x: Any) -> Any: ...


_links: WeakValueDictionary[str, Any] = WeakValueDictionary()


def register(name: str, link: Summing) -> None:
    """Make `link` known to programs as `name`, for as long as somebody holds it."""
    _links[name] = link


def link_of(name: str) -> Any:
    """The link of this name. Raises ShardError if nobody holds it any more."""
    found = _links.get(name)
    if found is None:
        raise ShardError(
            f"a program runs on the ranks of {name!r}, whose part is gone (there are {', '.join(_links) or 'none'})."
            " Keep the result of graphweave.distributed.shard, and call that."
        )
    return found


def exchanged(x: Any, link: str, slot: int = 0) -> Any:
    """`x` [own rows, ...], then the halo rows from their owners; those of the last call of a slot above 0."""
    return link_of(link).begin(x, slot)()


def summed_back(x: Any, fold: str, link: str) -> Any:
    """`x` [own and halo rows, ...], folded into the rows of the owners: [own rows, ...]."""
    return link_of(link).begin_sum(x, fold)()


def begun(x: Any, link: str, slot: int = 0, *, in_place: bool = False) -> Callable[[], Any]:
    """`exchanged`, begun: the result is a function that waits for the rows and returns them. It has the tensor of the
    `rows`, of which the own ones are there."""
    found: Callable[[], Any] = link_of(link).begin(x, slot, in_place=in_place)
    return found


def begun_back(x: Any, fold: str, link: str, *, in_place: bool = False) -> Callable[[], Any]:
    """`summed_back`, begun: the result is a function that waits for the rows and returns the folded ones."""
    found: Callable[[], Any] = link_of(link).begin_sum(x, fold, in_place=in_place)
    return found


def halo_rows(link: str) -> int:
    """The number of rows that this rank reads of others over the link."""
    return int(link_of(link).num_halo)


def steady_rows(x: Any, link: str) -> Any:
    """`exchanged`, kept for as long as x stays the same on all ranks."""
    return link_of(link).steady(x)


def all_reduced(x: Any, fold: str, link: str) -> Any:
    """The fold of `x` over all ranks, on every rank."""
    return link_of(link).all_reduce(x, fold)
