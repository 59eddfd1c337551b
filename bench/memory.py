"""Peak extra memory of a GAT training step (8 heads x 32, two layers) on the R-MAT graph.

    python -m bench.memory [--systems eager graphweave] [--threads 2] [--out FILE]

Each system has a fresh process. It compiles and runs one step on a small graph first, so that what the compiler itself
takes is not counted; then the resident size is read, the high-water mark is set back, and one step runs on the large
graph. Peak extra memory is the high-water mark less that resident size (data and parameters were there before).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from bench.common import arguments, in_fresh_process, peak_extra_bytes, ratio_table, save
from bench.train_step import COMPILERS
from bench.workloads import FEATURES, Workload, attention, data_dir, load, training_step
from graphweave.data import rmat

HEADS, CHANNELS = 8, 32


def worker(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    work = load("rmat", options.data_dir)
    torch.manual_seed(0)
    model = attention(FEATURES, HEADS, CHANNELS)
    parameters = list(model.parameters())
    compiled = COMPILERS[options.systems[0]](model)
    for nodes in (500, 600):  # two sizes, for a compiler that makes sizes dynamic on the second one
        small = Workload(torch.randn(nodes, FEATURES), rmat(nodes, 6 * nodes), torch.randint(64, (nodes,)))
        training_step(compiled, parameters, small)
    peak = peak_extra_bytes(lambda: training_step(compiled, parameters, work))
    options.worker.write_text(json.dumps({"status": "ok", "peak_extra_bytes": peak}))


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--systems", nargs="+", choices=COMPILERS, default=["eager", "graphweave"])
    parser.add_argument("--data-dir", type=Path, default=data_dir())
    options = parser.parse_args(argv)
    if options.worker is not None:
        worker(options)
        return 0
    results: dict[str, Any] = {}
    for name in options.systems:
        given = ["--systems", name, "--threads", str(options.threads)]
        results[name] = in_fresh_process("bench.memory", given, {"OMP_NUM_THREADS": str(options.threads)})
    own = results.get("graphweave", {}).get("peak_extra_bytes")
    rows = []
    for name, answer in results.items():
        peak = answer.get("peak_extra_bytes")
        ratio = f"{peak / own:.2f}x" if peak and own else "-"
        rows.append([name, f"{peak / 2**20:.0f}" if peak else answer["status"], ratio])
    ratio_table("peak extra memory of a GAT step, 8 heads x 32, R-MAT", ["system", "MiB", "of graphweave's"], rows)
    save(options.out, {"benchmark": "memory", "results": results})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
