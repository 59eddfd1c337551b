"""Operators on edges with kernels of one's own, `spmm`, `sddmm` and `attend`, attention within segments of rows, and
products with a weight for each type.

`docs/ops.md` shows how to use them.
"""

from graphweave.ops.segment_attention import segment_attention
from graphweave.ops.typed_mm import gather_mm, segment_mm
from graphweave.ops.verbs import attend, reduce_edges, sddmm, spmm

__all__ = ["attend", "gather_mm", "reduce_edges", "sddmm", "segment_attention", "segment_mm", "spmm"]
