"""Choices of a schedule that are numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Options:
    """`wide`: elements from which a gathered row is worth sharing between pushes. `stash_width`: elements an edge may
    keep from one pass over a row's edges to the next. Rows of at least `prefetch_bytes` are asked for
    `prefetch_distance` edges ahead. Products of matrices on edges are computed for at most `tile` of them at a time;
    a row of one may be kept for the next pass if it has at most `stash_product` elements.

    `online`: whether a softmax's maximum and sums share a pass of tiles of at most `online_tile` edges; "auto": where a
    second pass would gather the same wide rows again.
    """

    wide: int = 8
    stash_width: int = 32
    prefetch_bytes: int = 16
    prefetch_distance: int = 16
    tile: int = 32
    stash_product: int = 256
    online: Literal["auto", "always", "never"] = "auto"
    online_tile: int = 32
