"""Rows with memory for halo rows behind their own, so that features stand in memory once.

A part's features are exchanged before the first layer, and kept with their halo rows. Where the tensor that the user
has owns memory behind its rows, the halo rows are received there, and what is kept is that same memory.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

from torch import Tensor

from graphweave.runtime.storages import ByStorage


@dataclass(slots=True)
class _Room:
    """`own` is the number of rows in front of it. `taker` is the object that writes there; None until there is one."""

    own: int
    taker: weakref.ref[object] | None = None


_rooms: ByStorage[_Room] = ByStorage()


def with_room(rows: Tensor, own: int) -> Tensor:
    """The first `own` rows of `rows`, a contiguous tensor of which nobody else has a view. The memory of the others is
    for halo rows. The result is `rows` itself."""
    if own < rows.shape[0]:
        rows.resize_(own, *rows.shape[1:])  # not a view, which would keep another tensor alive
        _rooms.put(rows, _Room(own))
    return rows


def take_room(x: Tensor, taker: object) -> bool:
    """Whether `taker` may write behind the rows of `x`. These must be all own rows, since behind a part of them are the
    others. Only the first taker may, for as long as it lives, since another one's halo rows could be rounded."""
    room = _rooms.get(x)
    if room is None or x.storage_offset() or not x.is_contiguous() or x.shape[:1] != (room.own,):
        return False
    if room.taker is None or room.taker() is None:
        room.taker = weakref.ref(taker)
    return room.taker() is taker
