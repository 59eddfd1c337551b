"""Time to the first training step of a 2-layer GAT: with nothing compiled before, and with a warm disk cache.

    python -m bench.compile_time [--out FILE]

Three fresh processes share one empty GRAPHWEAVE_CACHE_DIR. The time is that of the first step minus a warm one, without
imports. The graph is small, so that all of this is compilation.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from typing import Any

import torch

import graphweave
from bench.common import arguments, in_fresh_process, ratio_table, save, seconds_of
from bench.graphs import FEATURES, HIDDEN, Workload
from bench.workloads import MODELS, training_step
from graphweave.data import rmat


def worker(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    work = Workload(torch.randn(1000, FEATURES), rmat(1000, 6000), torch.randint(HIDDEN, (1000,)))
    step = training_step("graphweave", MODELS["gat"].make(FEATURES), compile_loss=False)
    first = seconds_of(lambda: step(work))
    warm = seconds_of(lambda: step(work))
    answer = {"status": "ok", "first": first, "warm_step": warm, "counters": graphweave.counters()}
    options.worker.write_text(json.dumps(answer))


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    options = parser.parse_args(argv)
    if options.worker is not None:
        worker(options)
        return 0
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as cache:
        environment = {"GRAPHWEAVE_CACHE_DIR": cache, "OMP_NUM_THREADS": str(options.threads)}
        for run in ("cold", "warm disk cache", "warm disk cache again"):
            results[run] = in_fresh_process("bench.compile_time", ["--threads", str(options.threads)], environment)
    rows = [
        [run, f"{one['first'] - one['warm_step']:.2f}" if one["status"] == "ok" else one["status"]]
        for run, one in results.items()
    ]
    ratio_table("2-layer GAT, forward and backward", ["process", "compile s"], rows)
    save(options.out, {"benchmark": "compile_time", "results": results})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
