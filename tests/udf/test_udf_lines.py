"""Kernels, `explain` and errors name the user's line, not the one of a mailbox that did the work."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import graphweave
from graphweave.udf.arguments import Frames, RelationEdges
from graphweave.udf.run import update_all


class Attention(nn.Module):
    def forward(self, ends: RelationEdges, h: Tensor) -> Tensor:
        def message(edges: Any) -> dict[str, Tensor]:
            return {"m": edges.src["h"], "e": (edges.src["h"] * edges.dst["h"]).sum(-1, keepdim=True)}

        def reduce(nodes: Any) -> dict[str, Tensor]:
            weights = nodes.mailbox["e"].softmax(1)
            return {"o": (weights * nodes.mailbox["m"]).sum(1)}

        frames = Frames({"h": h}, {"h": h}, {}, {}, {}, ("_N", "_E", "_N"))
        return update_all(ends, frames, message, reduce)["o"]


def test_explain_names_lines_of_user_defined_functions() -> None:
    src, dst = torch.tensor([0, 1, 2, 2]), torch.tensor([1, 1, 0, 2])
    ends = RelationEdges(src, dst, torch.empty(3, 0), torch.empty(3, 0), None)
    text = graphweave.explain(Attention(), ends, torch.randn(3, 8)).text("all")
    assert "weights = nodes.mailbox" in text
    assert "graphweave/udf" not in text
