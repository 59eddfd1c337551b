"""Row boundaries that a schedule asks for: a number of chunks with equally many rows or equally much work."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=1024)
def equal_rows(num_rows: int, count: int) -> Tensor:
    """int64 [chunks + 1]: at most `count` chunks of equally many rows. Without rows there is one empty chunk.
    Cached."""
    count = max(1, min(count, num_rows))
    with torch.inference_mode(False):
        return torch.tensor([num_rows * i // count for i in range(count + 1)], device="cpu")


def equal_work(indptr: Tensor, count: int) -> Tensor:
    """int64 [chunks + 1]: at most `count` chunks with about equally many rows and edges. Without rows, one empty
    chunk."""
    num_rows = indptr.numel() - 1
    with torch.inference_mode(False):
        work = indptr.long() + torch.arange(num_rows + 1, device="cpu")
        wanted = torch.arange(1, count, device="cpu") * int(work[-1]) // count
        cuts = torch.searchsorted(work, wanted).clamp(max=num_rows)
        ends = torch.tensor([num_rows], device="cpu")
        inner = torch.cat([cuts, ends]).unique()
        inner = inner[inner > 0]
        return torch.cat([torch.zeros(1, dtype=torch.int64, device="cpu"), inner if num_rows else ends])
