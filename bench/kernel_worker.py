"""One sparse kernel of one system, in a process of its own. It serves the questions of `bench.train_worker`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import graphweave
from bench.common import seconds_of
from bench.graphs import load
from bench.kernels import sddmm, spmm
from bench.train_worker import write_arrays
from bench.turns import Player, serve, steps_timer


def spmm_weighted(x: Tensor, edge_index: Tensor, weight: Tensor) -> Tensor:
    """out[v] = sum of weight[e] x[u] over edges e: u -> v. [N, F], [E] -> [N, F]."""
    messages = x.index_select(0, edge_index[0]) * weight.unsqueeze(1)
    return torch.zeros_like(x).index_add(0, edge_index[1], messages)


KERNELS: dict[str, Callable[..., Tensor]] = {"spmm": spmm, "spmm-weighted": spmm_weighted, "sddmm": sddmm}
"""Name -> the kernel in plain PyTorch. spmm-weighted also takes a weight for each edge."""


def start(
    system: str, kernel: str, graph: str, *, threads: int, folder: Path, wide: bool = False,
    timeout: float = 900, memory: int | None = None,
) -> Player:  # fmt: skip
    command = [sys.executable, "-m", "bench.kernel_worker", system, kernel, graph, "--threads", str(threads)]
    command += ["--data-dir", str(folder)] + ["--wide"] * wide
    return Player(command, {"OMP_NUM_THREADS": str(threads)}, timeout=timeout, memory=memory)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("system", choices=("eager", "graphweave"))
    parser.add_argument("kernel", choices=KERNELS)
    parser.add_argument("graph")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--wide", action="store_true")
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    work = load(options.graph, options.data_dir)
    given = {"x": work.x, "edge_index": work.edge_index}
    if options.kernel == "spmm-weighted":
        generator = torch.Generator().manual_seed(1)
        given["weight"] = torch.randn(work.edge_index.size(1), generator=generator)
    if options.wide:
        given = {name: value.double() if value.is_floating_point() else value for name, value in given.items()}
    fn = KERNELS[options.kernel]
    call = graphweave.compile(fn) if options.system == "graphweave" else fn

    def step() -> Tensor:
        with torch.no_grad():
            return call(*given.values())

    def first() -> dict[str, Any]:
        return {"first": seconds_of(step), "nodes": work.x.size(0), "edges": work.edge_index.size(1)}

    serve(
        {
            "first": first,
            "result": lambda path: write_arrays(path, {"out": step()}),
            "save_case": lambda path: write_arrays(path, given),
            "turn": steps_timer(step),
        }
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
