"""DGL's process of `bench.ops`, run by the Python of DGL's own environment. It serves one case from a file."""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence

import dgl
import numpy as np
import torch
from torch import Tensor

from bench.turns import serve, steps_timer

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


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case")
    parser.add_argument("operands", help=".npz of edge_index, x, narrow, weight, matrix")
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    with np.load(options.operands) as arrays:
        call = call_of(options.case, {name: torch.from_numpy(arrays[name]) for name in arrays.files})

    def step() -> Tensor:
        with torch.no_grad():
            return call()

    def first() -> float:
        start = time.perf_counter()
        step()
        return time.perf_counter() - start

    serve({"first": first, "result": lambda path: np.savez(path, out=step().numpy()), "turn": steps_timer(step)})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
