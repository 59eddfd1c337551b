"""Peak extra memory of a GAT training step (8 heads x 32 unless told otherwise, two layers) on a large graph.

    python -m bench.memory [--systems eager graphweave graphweave-always] [--graph rmat] [--heads 8]
                           [--channels 32] [--no-compile-loss] [--threads 2] [--out FILE]

Each system has a fresh process; `graphweave-always` is graphweave with recompute="always", its option for the least
memory. Compiled systems get the loss with the model (see bench.train_step). A process first compiles and runs steps on
small graphs, so that the memory of the compiler is not counted. It then reads the resident size, resets the high-water
mark, and runs one step on the large graph. Peak extra memory is the high-water mark minus that resident size, which
includes data and parameters. Formats and all that is kept for the graph are made in that step and counted.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench.common import arguments, available_memory, in_fresh_process, peak_extra_bytes, ratio_table, save
from bench.graphs import FEATURES, GRAPHS, Workload, data_dir, load, missing
from bench.workloads import COMPILERS, attention, training_step
from graphweave.data import rmat


def worker(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    work = load(options.graph, options.data_dir)
    torch.manual_seed(0)
    model = attention(FEATURES, options.heads, options.channels)
    step = training_step(options.systems[0], model, compile_loss=options.compile_loss)
    for nodes in (500, 600):  # two sizes, for a compiler that makes sizes dynamic at the second one
        small = Workload(torch.randn(nodes, FEATURES), rmat(nodes, 6 * nodes), torch.randint(64, (nodes,)))
        step(small)
    peak = peak_extra_bytes(lambda: step(work))
    options.worker.write_text(json.dumps({"status": "ok", "peak_extra_bytes": peak}))


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--systems", nargs="+", choices=COMPILERS, default=["eager", "graphweave", "graphweave-always"])
    parser.add_argument("--graph", choices=GRAPHS, default="rmat")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--channels", type=int, default=32, help="of each head")
    parser.add_argument("--compile-loss", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--timeout", type=float, default=900, help="seconds that a system may take")
    parser.add_argument("--data-dir", type=Path, default=data_dir())
    options = parser.parse_args(argv)
    if options.worker is not None:
        worker(options)
        return 0
    reason = missing(options.graph, options.data_dir)
    if reason:
        parser.error(reason)
    results: dict[str, Any] = {}
    for name in options.systems:
        given = ["--systems", name, "--threads", str(options.threads), "--graph", options.graph]
        given += ["--data-dir", str(options.data_dir), "--heads", str(options.heads)]
        given += ["--channels", str(options.channels)]
        given += ["--compile-loss" if options.compile_loss else "--no-compile-loss"]
        environment = {"OMP_NUM_THREADS": str(options.threads)}
        results[name] = in_fresh_process(
            "bench.memory", given, environment, timeout=options.timeout, memory=available_memory()
        )
    own = results.get("graphweave", {}).get("peak_extra_bytes")
    rows = []
    for name, answer in results.items():
        peak = answer.get("peak_extra_bytes")
        ratio = f"{peak / own:.2f}x" if peak and own else "-"
        rows.append([name, f"{peak / 2**20:.0f}" if peak else answer["status"], ratio])
    shape = f"{options.heads} heads x {options.channels}"
    title = f"peak extra memory of a GAT step, {shape}, {options.graph}"
    ratio_table(title, ["system", "MiB", "of graphweave's"], rows)
    loss = "compiled" if options.compile_loss else "eager"
    save(options.out, {"benchmark": "memory", "graph": options.graph, "model": shape, "loss": loss, "results": results})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
