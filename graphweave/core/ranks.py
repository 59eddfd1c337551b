"""Data that programs need of other ranks: rows, and sums over all ranks. Links have the names that programs use.

A program that runs on several ranks names its *group*, such as "part0", and its *links*, such as "part0:_N" for rows of
the node type "_N" of one part, because programs are text and a link holds a process group. `runtime/rank_link.py` has
the links.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary

from torch import Tensor

from graphweave.core.errors import ShardError


class Summing(Protocol):
    """Folds over all ranks."""

    def all_reduce(self, x: Tensor, fold: str) -> Tensor: ...

    def all_agree(self, good: bool) -> bool: ...


class Link(Summing, Protocol):
    """The rows of one node type that ranks read of each other, and folds over all ranks."""

    @property
    def num_halo(self) -> int: ...

    def begin(self, x: Tensor, slot: int = 0, *, in_place: bool = False) -> Callable[[], Tensor]: ...

    def begin_sum(self, x: Tensor, fold: str, *, in_place: bool = False) -> Callable[[], Tensor]: ...

    def steady(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class LinkName:
    """Names the link for rows of a node type of a part, whose ranks are `group`."""

    group: str
    node_type: str

    def __str__(self) -> str:
        return f"{self.group}:{self.node_type}"


_groups: WeakValueDictionary[str, Summing] = WeakValueDictionary()
_links: WeakValueDictionary[LinkName, Link] = WeakValueDictionary()
_N = TypeVar("_N", str, LinkName)
_L = TypeVar("_L")


def register(name: str, group: Summing, links: Mapping[str, Link]) -> None:
    """Make the ranks of a part known to programs as `name`, and the link of each node type, for as long as somebody
    holds them."""
    _groups[name] = group
    _links.update({LinkName(name, node_type): link for node_type, link in links.items()})


def group_of(name: str) -> Summing:
    """The ranks of this name. Raises ShardError if nobody holds them any more."""
    return _held(_groups, name)


def link_of(name: LinkName) -> Link:
    """The link of this name. Raises ShardError if nobody holds it any more."""
    return _held(_links, name)


def _held(known: Mapping[_N, _L], name: _N) -> _L:
    found = known.get(name)
    if found is None:
        raise ShardError(
            f"a program runs on the ranks of '{name}', whose part is gone (there are"
            f" {', '.join(map(str, known)) or 'none'}). Keep the result of graphweave.distributed.shard, and call that."
        )
    return found


def exchanged(x: Tensor, link: LinkName, slot: int = 0) -> Tensor:
    """`x` [own rows, ...], then the halo rows from their owners; those of the last call of a slot above 0."""
    return link_of(link).begin(x, slot)()


def summed_back(x: Tensor, fold: str, link: LinkName) -> Tensor:
    """`x` [own and halo rows, ...], folded into the rows of the owners: [own rows, ...]."""
    return link_of(link).begin_sum(x, fold)()


def begun(x: Tensor, link: LinkName, slot: int = 0, *, in_place: bool = False) -> Callable[[], Tensor]:
    """`exchanged`, begun: the result is a function that waits for the rows and returns them. It has the tensor of the
    `rows`, of which the own ones are there."""
    return link_of(link).begin(x, slot, in_place=in_place)


def begun_back(x: Tensor, fold: str, link: LinkName, *, in_place: bool = False) -> Callable[[], Tensor]:
    """`summed_back`, begun: the result is a function that waits for the rows and returns the folded ones."""
    return link_of(link).begin_sum(x, fold, in_place=in_place)


def halo_rows(link: LinkName) -> int:
    """The number of rows that this rank reads of others over the link."""
    return link_of(link).num_halo


def steady_rows(x: Tensor, link: LinkName) -> Tensor:
    """`exchanged`, kept for as long as x stays the same on all ranks."""
    return link_of(link).steady(x)


def all_reduced(x: Tensor, fold: str, group: str) -> Tensor:
    """The fold of `x` over all ranks, on every rank."""
    return group_of(group).all_reduce(x, fold)
