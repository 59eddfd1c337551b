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

from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from bench.case import Bench, Numbers
from bench.common import ratio_table
from bench.graphs import FEATURES, GRAPHS, Workload, data_dir, load, missing
from bench.options import Among
from bench.runner import run
from bench.turns import peak_extra_bytes
from bench.workloads import attention, training_step
from graphweave.data import rmat


def peak(
    system: str, graph: str, folder: str, heads: int, channels: int, compile_loss: bool, threads: int
) -> dict[str, Any]:
    torch.set_num_threads(threads)
    work = load(graph, Path(folder))
    torch.manual_seed(0)
    step = training_step(system, attention(FEATURES, heads, channels), compile_loss=compile_loss)
    for nodes in (500, 600):  # two sizes, for a compiler that makes sizes dynamic at the second one
        step(Workload(torch.randn(nodes, FEATURES), rmat(nodes, 6 * nodes), torch.randint(64, (nodes,))))
    return {"status": "ok", "peak_extra_bytes": peak_extra_bytes(lambda: step(work))}


def show(results: Mapping[str, Any], options: Namespace) -> None:
    own = results.get("graphweave", {}).get("peak_extra_bytes")
    rows = []
    for name, answer in results.items():
        found = answer.get("peak_extra_bytes")
        ratio = f"{found / own:.2f}x" if found and own else "-"
        rows.append([name, f"{found / 2**20:.0f}" if found else answer["status"], ratio])
    title = f"peak extra memory of a GAT step, {options.heads} heads x {options.channels}, {options.graph}"
    ratio_table(title, ["system", "MiB", "of graphweave's"], rows)


def cases(options: Namespace) -> Iterator[Numbers]:
    given = {key: getattr(options, key) for key in ("graph", "heads", "channels", "compile_loss", "threads")}
    for system in options.systems or ("eager", "graphweave", "graphweave-always"):
        sizes = {"system": system, "folder": str(options.data_dir), **given}
        why = missing(options.graph, options.data_dir)
        yield Numbers(system, peak, sizes, {"graph": "tiny"}, missing=why)


BENCH = Bench(
    "bench.memory", __doc__, cases,
    {"graph": Among(GRAPHS, "rmat"), "heads": 8, "channels": 32, "compile_loss": True, "data_dir": data_dir()},
    show=show,
)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
