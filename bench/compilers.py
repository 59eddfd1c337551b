"""What C++ compilers and levels of optimisation cost, and how fast the code is that they make.

    python -m bench.compilers [--compilers "g++" "clang++"] [--levels 3 2] [--models gcn gat] [--repeats 5] [--out FILE]

Each compiler and level compiles in a process of its own, with an empty cache: the runtime's library, the precompiled
header (not for clang++), and the kernels of a training step of each model (20,000 nodes, 120,000 edges, 64 features).
Those are processor seconds of the compiler, so that other programs on the machine hardly disturb them. The steps are
then timed, warm. A compiler is a command, as GRAPHWEAVE_CXX takes it.
"""

from __future__ import annotations

import os
import resource
import shlex
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch

from bench.case import Bench, Numbers
from bench.common import in_fresh_process, ratio_table, seconds_of
from bench.graphs import FEATURES, HIDDEN, Workload
from bench.options import Among
from bench.runner import run
from bench.workloads import MODELS, training_step
from graphweave.core.counters import counters
from graphweave.data import rmat
from graphweave.runtime import headers, kernel_cache, native_library, toolchain

NODES, EDGES = 20_000, 120_000
WARM_STEPS = 20
PARTS = ("library", "header", "kernels")
"""What is compiled."""


def compiler_seconds(call: Callable[[], Any]) -> float:
    """The processor seconds of the compilers that `call` starts and waits for."""

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = spent()
    call()
    return spent() - before


def set_level(level: int) -> None:
    """Compile at this level of optimisation from now on."""
    toolchain._REQUIRED = tuple(f"-O{level}" if flag == "-O3" else flag for flag in toolchain._REQUIRED)
    toolchain._find.cache_clear()


def measure(models: Sequence[str], level: int, threads: int = 2) -> dict[str, Any]:
    """Compiler seconds of each part, the number of kernels, and for each model the seconds of its fastest step."""
    torch.set_num_threads(threads)
    set_level(level)
    tools = toolchain.toolchain()
    answer: dict[str, Any] = {"status": "ok", "version": tools.version, "steps": {}}
    answer["library"] = compiler_seconds(native_library.library)
    answer["header"] = compiler_seconds(lambda: headers.precompile(tools, kernel_cache.directory()))
    before, answer["kernels"] = counters()["kernel_builds"], 0.0
    for name in models:
        torch.manual_seed(0)
        work = Workload(torch.randn(NODES, FEATURES), rmat(NODES, EDGES), torch.randint(HIDDEN, (NODES,)), None)
        step = training_step("graphweave", MODELS[name].make(FEATURES), compile_loss=True)
        answer["kernels"] += compiler_seconds(partial(step, work))
        step(work)
        answer["steps"][name] = min(seconds_of(partial(step, work)) for _ in range(WARM_STEPS))
    answer["count"] = counters()["kernel_builds"] - before
    return answer


def measured(compiler: str, level: int, models: Sequence[str], threads: int, repeats: int) -> dict[str, Any]:
    """The smallest numbers of fresh processes with empty caches, and the load of the machine after each."""
    answers, loads = [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:
            environment = {"GRAPHWEAVE_CACHE_DIR": cache, "GRAPHWEAVE_CXX": compiler, "OMP_NUM_THREADS": str(threads)}
            given: dict[str, Any] = {"models": list(models), "level": level, "threads": threads}
            answers.append(dict(in_fresh_process(measure, environment, **given)))
        loads.append(os.getloadavg()[0])
    return {**fastest(answers), "loads": loads}


def fastest(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The smallest number of each kind over all repeats; the first answer that failed, if one did."""
    for answer in answers:
        if answer["status"] != "ok":
            return answer
    steps = {name: min(a["steps"][name] for a in answers) for name in answers[0]["steps"]}
    return {**answers[0], **{part: min(a[part] for a in answers) for part in PARTS}, "steps": steps}


def rows(results: Mapping[str, Any], models: Sequence[str]) -> list[list[str]]:
    """A row of the table for each compiler and level: seconds, and in brackets their ratio to the first one's."""
    table: list[list[str]] = []
    base: list[float] = []
    for name, best in results.items():
        if best["status"] != "ok":
            table.append([name, best["status"]])
            continue
        numbers = [best[part] for part in PARTS] + [best["steps"][name] for name in models]
        base = base or numbers
        shown = [f"{n:.3f} ({n / b:.2f})" if b else f"{n:.3f}" for n, b in zip(numbers, base, strict=True)]
        table.append([name, *shown])
    return table


def show(results: Mapping[str, Any], options: Namespace) -> None:
    headings = ["compiler", *(f"{part}: s" for part in PARTS), *(f"step of {name}: s" for name in options.models)]
    ratio_table("compilers", headings, rows(results, options.models))


def cases(options: Namespace) -> Iterator[Numbers]:
    for compiler, level in product(options.compilers, options.levels):
        sizes = {key: getattr(options, key) for key in ("models", "threads", "repeats")}
        yield Numbers(f"{compiler} -O{level}", measured, {"compiler": compiler, "level": level, **sizes}, here=True)


INSTALLED = tuple(shlex.join(command) for command in toolchain.installed())
BENCH = Bench(
    "bench.compilers", __doc__, cases,
    {"compilers": INSTALLED, "levels": (3, 2), "models": Among(MODELS, ("gcn", "sage", "gin", "gat"))}, repeats=5,
    show=show,
)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
