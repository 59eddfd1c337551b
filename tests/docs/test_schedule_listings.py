"""The listings of FeatGraph (Hu et al., 2020, figures 3, 4, 6 and 8) as functions in PyTorch with a schedule.

The loop IR that each gives stands in tests/golden/schedule_*.txt, and its results are compared with eager PyTorch.
Figure 4b goes along the Hilbert curve that section III-C.1 has for edge-wise computations. Figures 5 and 7 are
drawings; figures 3a, 4a and 9 bind threads of a GPU, which the fields `gpu_*` do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import graphweave
from graphweave.core.schedule import Schedule
from tests.programs.graphs import MAX_ROWS

Listing = Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]


def gcn_aggregation(t: dict[str, Tensor], src: Tensor, dst: Tensor) -> Tensor:
    """Figure 3a: the message is XV[src, i], the aggregation a sum; out.axis[0] is split by 8."""
    return torch.zeros_like(t["XV"]).index_add(0, dst, t["XV"][src])


def mlp_aggregation(t: dict[str, Tensor], src: Tensor, dst: Tensor) -> Tensor:
    """Figures 1, 3b and 8: the maximum of ReLU((XV[src] + XV[dst]) W)."""
    message = torch.relu((t["XV"][src] + t["XV"][dst]) @ t["W"])
    rows = dst[:, None].expand_as(message)
    empty = message.new_zeros(t["XV"].shape[0], message.shape[1])
    return empty.scatter_reduce(0, rows, message, "amax", include_self=False)


def dot_product_attention(t: dict[str, Tensor], src: Tensor, dst: Tensor) -> Tensor:
    """Figure 4a: sum over k of XV[src, k] XV[dst, k]."""
    return (t["XV"][src] * t["XV"][dst]).sum(1)


def multi_head_attention(t: dict[str, Tensor], src: Tensor, dst: Tensor) -> Tensor:
    """Figure 4b: sum over k of XV[src, i, k] XV[dst, i, k] for each head i."""
    return (t["XH"][src] * t["XH"][dst]).sum(2)


LISTINGS: dict[str, tuple[Listing, Schedule]] = {
    "figure_3a": (gcn_aggregation, Schedule(feature_tile=8)),
    "figure_3b": (mlp_aggregation, Schedule(prefetch=4)),
    "figure_4a": (dot_product_attention, Schedule(walk="edges", prefetch=8)),
    "figure_4b": (multi_head_attention, Schedule(edge_order="hilbert")),
    "figure_6a": (gcn_aggregation, Schedule(source_partitions=4)),
    "figure_6b": (gcn_aggregation, Schedule(source_partitions=2, feature_tile=16)),
    "figure_8": (mlp_aggregation, Schedule(feature_tile=8, prefetch=4)),
}


def data() -> tuple[dict[str, Tensor], Tensor, Tensor]:
    generator = torch.Generator().manual_seed(8)
    src, dst = (torch.randint(8, (3 * MAX_ROWS,), generator=generator) for _ in range(2))
    shapes = {"XV": (8, 32), "W": (32, 16), "XH": (8, 4, 8)}
    return {n: torch.randn(s, generator=generator) for n, s in shapes.items()}, src, dst


@pytest.mark.parametrize("name", LISTINGS)
def test_listing(name: str, golden: Callable[[str, str], None]) -> None:
    listing, schedule = LISTINGS[name]
    tensors, src, dst = data()
    made = graphweave.compile(listing, options={"schedule": schedule})
    torch.testing.assert_close(made(tensors, src, dst), listing(tensors, src, dst))
    told = graphweave.explain(made, tensors, src, dst)
    loops = "\n".join(k.loops for k in told.graphs[0].kernels)
    golden(f"schedule_{name}.txt", re.sub(r' *# ".*"\n', "", loops))


@pytest.mark.parametrize("name", [name for name in LISTINGS if name != "figure_6a"])
def test_listing_is_documented(name: str) -> None:
    root = Path(__file__).parents[2]
    kernels = (root / "tests" / "golden" / f"schedule_{name}.txt").read_text().split("\n\n")
    assert kernels[0].rstrip("\n") in (root / "docs" / "schedules.md").read_text()
