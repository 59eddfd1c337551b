"""Data parallel training on two ranks against one process: batches a second, each process on one core with one thread.

    python -m bench.ranks data-parallel --out bench/results

Two cores stand for two machines. `batches` counts batches of `--batch` seeds: a step of two ranks on twice the seeds is
two of them (weak scaling). `same batch` is a step of two ranks on the seeds of one (strong scaling). `by processor
time` is what the ratio would be if no rank waited, for the slower one or for a core that others use. `two processes
apart` exchange nothing: they show what two processes lose because they share memory and caches. First the losses of two
ranks are compared with those of one process on the same seeds.
"""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from statistics import median, quantiles
from typing import Any

from bench.case import Bench, Numbers
from bench.common import on_ranks, ratio_table

_CHECKED, _WARM = 3, 8
"""Steps whose losses are compared, and steps before the clock starts."""


def measured(
    nodes: int, edges: int, features: int, hidden: int, batch: int, model: str, steps: int, per: int
) -> dict[str, Any]:
    """In a process on a core of its own: seconds of each step, processor seconds of a step, and the first losses."""
    core, cores = int(os.environ["BENCH_CORE"]), sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[core % len(cores)]})
    # OMP_NUM_THREADS is 1, so that no thread was made before; all that follow stay on this core.
    import torch

    from graphweave.data import NodeData, rmat
    from graphweave.distributed.ranks import started
    from graphweave.examples.sampled_nodes import SampledTraining
    from graphweave.examples.training import TrainingJob

    torch.set_num_threads(1)
    torch.manual_seed(0)
    every = torch.ones(nodes, dtype=torch.bool)
    data = NodeData(
        torch.randn(nodes, features), rmat(nodes, edges), torch.arange(nodes) % 16, every, every, every, 16,
        "rmat",
    )  # fmt: skip
    job = TrainingJob(model, hidden, 4, 0.0, 0.01, 0.0, 1, 0, 1, task="node", batch=batch * per,
                      fanout=(10, 10))  # fmt: skip
    with started(timeout=300) as ranks:
        training = SampledTraining("graphweave", job, data, ranks)
        losses = [ranks.sum(training.step())[0] for _ in range(_CHECKED)]
        for _ in range(_WARM):
            training.step()
        taken, before = [], time.process_time()
        for _ in range(steps):
            start = time.perf_counter()
            training.step()
            taken.append(time.perf_counter() - start)
        cpu = (time.process_time() - before) / steps
    return {"losses": losses, "seconds": taken, "cpu": cpu}


SYSTEMS = {
    "one process": (1, 1, False), "two processes apart": (2, 1, False), "two ranks": (2, 2, True),
    "two ranks, same batch": (2, 1, True),
}  # fmt: skip
"""Name -> processes, times the seeds of a batch, and whether the processes are ranks."""


def compared(repeats: int, timeout: float, **sizes: Any) -> dict[str, Any]:
    """Batches a second of each system, and their ratios to one process's."""

    def of(size: int, per: int, ranks: bool) -> list[dict[str, Any]]:
        return on_ranks(measured, size, threads=1, timeout=timeout, apart=not ranks, per=per, **sizes)

    found: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    busy: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    check = of(1, 2, False)[0]["losses"]
    for number in range(repeats):
        order = list(SYSTEMS)
        for name in order[number % 4 :] + order[: number % 4]:
            size, per, together = SYSTEMS[name]
            ranks = of(size, per, together)
            if name == "two ranks":
                got = ranks[0]["losses"]
                if max(abs(a - b) / abs(b) for a, b in zip(got, check, strict=True)) > 1e-3:
                    return {"status": f"wrong: two ranks have the losses {got}, one process has {check}"}
            steps = 1 if together else size  # at a time
            found[name].append(steps * per / median(second for one in ranks for second in one["seconds"]))
            busy[name].append(steps * per / median(one["cpu"] for one in ranks))
    base, busy_base = median(found["one process"]), median(busy["one process"])
    return {
        "batches_a_second": {
            name: {"median": median(rates), "quartiles": quantiles(rates, n=4) if len(rates) > 1 else rates}
            for name, rates in found.items()
        },
        "ratios": {name: median(rates) / base for name, rates in found.items()},
        "ratios_by_processor_time": {name: median(rates) / busy_base for name, rates in busy.items()},
    }


def show(results: Mapping[str, Any], options: Namespace) -> None:
    rows = [
        [name, f"{rate['median']:.2f}", f"{one['ratios'][name]:.2f}x", f"{one['ratios_by_processor_time'][name]:.2f}x"]
        for one in results.values() if "ratios" in one for name, rate in one["batches_a_second"].items()
    ]  # fmt: skip
    headings = ["", f"batches of {options.batch} a second", "of one process", "by processor time"]
    ratio_table("Data parallel training", headings, rows)


SIZES = {
    "nodes": 200_000, "edges": 4_000_000, "features": 128, "hidden": 128, "batch": 1024, "steps": 40, "model": "sage"
}  # fmt: skip


def cases(options: Namespace) -> Iterator[Numbers]:
    sizes = {key: getattr(options, key) for key in ("repeats", "timeout", *SIZES)}
    small = {"nodes": 2000, "edges": 20_000, "batch": 8, "steps": 2, "repeats": 1}
    yield Numbers(options.model, compared, sizes, small, here=True)


BENCH = Bench(
    "bench.ranks_data_parallel", __doc__, cases, SIZES, threads=1, repeats=3, timeout=1800.0, show=show
)  # fmt: skip
