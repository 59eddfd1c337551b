"""Source partitions: a kernel as kernels over pieces of its rows, each with the edges of one range of sources.

They are those of divided rows (`divide.py`), but that every row is divided, and that pieces are numbered range by range
(`runtime/edge_orders.py`), so that a range's rows stay in a cache while all its edges are gone through. The results of
a row's pieces lie in memory meanwhile, and are folded at last. With feature tiles, each tile goes through all ranges
(Hu et al., "FeatGraph", 2020, section III-C.1 and figure 6).
"""

from __future__ import annotations

from graphweave.ir.loop.nodes import Kernel
from graphweave.lower.divide import divided
from graphweave.lower.feature_tiles import NotTiled, feature_tiles
from graphweave.lower.piece_walk import PIECES


def partitioned(kernel: Kernel, feature_tile: int | None) -> tuple[Kernel, ...]:
    """In the order in which they run. Those over pieces are in tiles of features, where `feature_tile` divides what
    they leave."""
    parts = divided(kernel, anywhere=True)
    return () if parts is None else tuple(_tiled(k, feature_tile) for k in parts.kernels)


def _tiled(kernel: Kernel, size: int | None) -> Kernel:
    if size is None or all(csr.name != PIECES for csr in kernel.csrs):
        return kernel
    try:
        return feature_tiles(kernel, size)
    except NotTiled:
        return kernel
