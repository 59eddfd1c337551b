"""Products with a weight for each type, by DGL's names, in plain PyTorch that the compiler reads as one operation."""

from __future__ import annotations

from graphweave.ops.typed_mm import gather_mm, segment_mm

__all__ = ["gather_mm", "segment_mm"]
