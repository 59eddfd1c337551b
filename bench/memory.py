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

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from bench.common import available_memory, in_fresh_process, peak_extra_bytes, ratio_table
from bench.graphs import FEATURES, GRAPHS, Workload, data_dir, load, missing
from bench.options import Among, options_from
from bench.record import Record
from bench.workloads import COMPILERS, attention, training_step
from graphweave.data import rmat


def peak(system: str, graph: str, folder: str, heads: int, channels: int, compile_loss: bool, threads: int) -> object:
    torch.set_num_threads(threads)
    work = load(graph, Path(folder))
    torch.manual_seed(0)
    step = training_step(system, attention(FEATURES, heads, channels), compile_loss=compile_loss)
    for nodes in (500, 600):  # two sizes, for a compiler that makes sizes dynamic at the second one
        step(Workload(torch.randn(nodes, FEATURES), rmat(nodes, 6 * nodes), torch.randint(64, (nodes,))))
    return {"status": "ok", "peak_extra_bytes": peak_extra_bytes(lambda: step(work))}


def main(argv: Sequence[str] | None = None) -> int:
    options = options_from(
        argv, __doc__, resume=False, systems=Among(COMPILERS, ("eager", "graphweave", "graphweave-always")),
        graph=Among(GRAPHS, "rmat"), heads=8, channels=32, compile_loss=True, timeout=900.0, data_dir=data_dir(),
    )  # fmt: skip
    if reason := missing(options.graph, options.data_dir):
        raise SystemExit(reason)
    given = {key: getattr(options, key) for key in ("graph", "heads", "channels", "compile_loss", "threads")}
    limits = {"timeout": options.timeout, "memory": available_memory(), "folder": str(options.data_dir)}
    environment = {"OMP_NUM_THREADS": str(options.threads)}
    record = Record(options.out, {"benchmark": "memory", **given}, resume=options.resume)
    results = record.fill(
        {name: partial(in_fresh_process, peak, environment, system=name, **given, **limits) for name in options.systems}
    )
    own = results.get("graphweave", {}).get("peak_extra_bytes")
    rows = []
    for name, answer in results.items():
        found = answer.get("peak_extra_bytes")
        ratio = f"{found / own:.2f}x" if found and own else "-"
        rows.append([name, f"{found / 2**20:.0f}" if found else answer["status"], ratio])
    title = f"peak extra memory of a GAT step, {options.heads} heads x {options.channels}, {options.graph}"
    ratio_table(title, ["system", "MiB", "of graphweave's"], rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
