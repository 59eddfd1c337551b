"""DGL's process of `bench.sampling`, run by the Python of DGL's own environment: blocks of a graph from a file."""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence

import dgl
import numpy as np
import torch

from bench.turns import serve


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graph", help=".npz of edge_index and num_nodes")
    parser.add_argument("--fanouts", type=int, nargs="+", required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    with np.load(options.graph) as file:
        src, dst = torch.from_numpy(file["edge_index"])
        graph = dgl.graph((src, dst), num_nodes=int(file["num_nodes"])).formats("csc")
    graph.create_formats_()
    sampler = dgl.dataloading.NeighborSampler(options.fanouts)

    def batches(seeds: list[list[int]]) -> dict[str, float]:
        start, edges = time.perf_counter(), 0
        for some in seeds:
            edges += sum(block.num_edges() for block in sampler.sample_blocks(graph, torch.tensor(some))[2])
        return {"seconds": time.perf_counter() - start, "edges": edges}

    serve({"batches": batches})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
