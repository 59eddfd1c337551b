"""The operators of `bench.ops` in DGL, by the Python of DGL's own environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dgl
import torch
from torch import Tensor

from bench.steps import Step

HEADS = 4


def call_of(case: str, given: dict[str, Tensor]) -> Callable[[], Tensor]:
    src, dst = given["edge_index"]
    x, narrow, matrix = given["x"], given["narrow"], given["matrix"]
    graph = dgl.graph((src, dst), num_nodes=x.shape[0])
    graph.create_formats_()
    weight, heads = given["weight"][:, None], x.view(x.shape[0], HEADS, -1)

    def mlp() -> Tensor:
        with graph.local_scope():  # dgl.ops.copy_e_max leaves -inf at nodes without edges, update_all 0
            graph.edata["message"] = torch.relu(dgl.ops.u_add_v(graph, narrow, narrow) @ matrix)
            graph.update_all(dgl.function.copy_e("message", "message"), dgl.function.max("message", "out"))
            return graph.dstdata["out"]

    def attend() -> Tensor:
        scores = dgl.ops.u_dot_v(graph, heads, heads)
        return dgl.ops.u_mul_e_sum(graph, heads, dgl.ops.edge_softmax(graph, scores)).flatten(1)

    calls: dict[str, Callable[[], Tensor]] = {
        "gcn": lambda: dgl.ops.copy_u_sum(graph, x),
        "weighted": lambda: dgl.ops.u_mul_e_sum(graph, x, weight),
        "mlp": mlp,
        "dot": lambda: dgl.ops.u_dot_v(graph, x, x).squeeze(-1),
        "attend": attend,
    }
    return calls[case.removesuffix("-own")]


def step_of(peer: str, arrays: dict[str, Tensor], operator: str, **_: Any) -> Step:
    return torch.no_grad()(call_of(operator, arrays))
