"""Dense batches as operators: the rows of each graph next to each other, padded to the largest graph, and their mask.

PyG's `to_dense_batch` is traced as these (`pyg_formulas.py`), so that `spellings/segment_attention.py` finds them in
Dynamo's graph. AOTAutograd replaces them by the calls of which they consist.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_library = torch.library.Library("graphweave", "FRAGMENT")
_library.define(
    "dense_rows(Tensor x, Tensor fill, Tensor position, Tensor ptr, SymInt graphs, SymInt places) -> Tensor"
)
_library.define("dense_mask(Tensor position, Tensor ptr, SymInt graphs, SymInt places) -> Tensor")


def _dense_rows(x: Tensor, fill: Tensor, position: Tensor, ptr: Tensor, graphs: Any, places: Any) -> Tensor:
    """[graphs, places, ...]: row i of x stands at `position[i]` of graphs * places, and `fill` elsewhere.

    `ptr` [graphs + 1] says where the rows of each graph begin: graph g has the rows ptr[g] to ptr[g + 1] of x, in the
    places from 0 on.
    """
    out = fill.expand([graphs * places, *x.shape[1:]]).clone()
    out[position] = x
    return out.view([graphs, places, *x.shape[1:]])


def _dense_mask(position: Tensor, ptr: Tensor, graphs: Any, places: Any) -> Tensor:
    """[graphs, places]: whether a row stands there."""
    mask = torch.zeros(graphs * places, dtype=torch.bool, device=position.device)
    mask[position] = True
    return mask.view(graphs, places)


_library.impl("dense_rows", _dense_rows, "CompositeImplicitAutograd")
_library.impl("dense_mask", _dense_mask, "CompositeImplicitAutograd")

dense_rows, dense_mask = torch.ops.graphweave.dense_rows.default, torch.ops.graphweave.dense_mask.default
