"""Schedules worth measuring for one half of a program: each changes one thing; winners are then combined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from graphweave.core.errors import ScheduleError
from graphweave.core.schedule import Schedule
from graphweave.tuning.machine import Caches
from graphweave.tuning.predict import Walk, predicted, rows_at_ends

_PRUNED = 1.5
"""Tiles and ranges that are predicted to take this many times the best prediction are not measured."""

_MOST_OF_A_KIND = 4
"""Of the candidates that are tiles and ranges, this many are measured at most: those of the best predictions."""

_LEAST_TILE = 16
"""Features of the narrowest tile."""

_MOST_RANGES = 64
"""Ranges of sources that are tried at most."""

_LONG = 20_000_000
"""Graphs of more edges are not put into a Cuthill-McKee order, which takes 0.6 s for each million edges."""


def candidates(walks: Sequence[Walk], caches: Caches, threads: int, is_local: bool) -> tuple[Schedule, ...]:
    """Schedules in the order in which they should be measured. `is_local`: neighbours have near numbers already."""
    if not any(walk.edges for walk in walks):
        return ()
    tiles = _pruned([*_tiles(walks), *_ranges(walks, caches)], walks, caches, threads)
    hints = [Schedule(prefetch=0), Schedule(prefetch=4), Schedule(prefetch=32), Schedule(unroll=2), Schedule(unroll=4)]
    orders = [Schedule(walk="rows"), Schedule(row_order="degree")]
    if rows_at_ends(walks) > caches.second:
        orders.append(Schedule(edge_order="source"))
        if not is_local and max(walk.edges for walk in walks) <= _LONG:
            orders.append(Schedule(row_order="locality"))
    if all(not walk.result for walk in walks):
        orders.append(Schedule(edge_order="hilbert"))
    return (*tiles, *hints, *orders)


def combined(winners: Iterable[Schedule]) -> Iterator[Schedule]:
    """Each later winner, in the order of gains, added to those before it, if no field is given twice and none
    contradicts another."""
    made: Schedule | None = None
    for winner in winners:
        if made is None:
            made = winner
            continue
        if made.given.keys() & winner.given.keys():
            continue
        try:
            made = Schedule(**made.given, **winner.given)
        except ScheduleError:
            continue
        yield made


def _tiles(walks: Iterable[Walk]) -> Iterator[Schedule]:
    """Tiles of powers of two, around the walk and within a row."""
    for width in sorted({walk.width for walk in walks}, reverse=True):
        tile = width // 2
        while tile >= _LEAST_TILE and width % tile == 0:
            yield Schedule(feature_tile=tile)
            yield Schedule(register_tile=tile)
            tile //= 2


def _ranges(walks: Iterable[Walk], caches: Caches) -> Iterator[Schedule]:
    """Ranges of sources whose rows fit into half of a cache, with the tiles that let a quarter of a row's bytes do."""
    most = max(walks, key=lambda walk: walk.sources * walk.gathered)
    bytes_together = most.sources * most.gathered
    for cache in (caches.second, caches.last):
        for tile in (None, most.width // 2, most.width // 4):
            if tile is not None and (tile < _LEAST_TILE or most.width % tile):
                continue
            share = 1.0 if tile is None else tile / most.width
            needed = bytes_together * share * 2 / cache
            count = 1 << max(0, round(needed).bit_length() - 1)
            if 2 <= count <= _MOST_RANGES:
                yield Schedule(source_partitions=count, feature_tile=tile)


def _pruned(found: Iterable[Schedule], walks: Sequence[Walk], caches: Caches, threads: int) -> list[Schedule]:
    priced = [(predicted(walks, schedule, caches, threads), i, schedule) for i, schedule in enumerate(found)]
    best = min([predicted(walks, Schedule(), caches, threads), *(price for price, _, _ in priced)])
    return [schedule for price, _, schedule in sorted(priced)[:_MOST_OF_A_KIND] if price <= _PRUNED * best]
