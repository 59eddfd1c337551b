"""Seconds of the first call of twelve whole models, and where they go, beside PyTorch's own compilers.

    python -m bench.first_call [--cases gat-2 zoo: ...] [--zoo COUNT] [--systems graphweave aot_eager ...]
                               [--cores 1 2] [--repeats N] [--out FILE]

`--zoo COUNT --cases zoo:` takes so many cases spread over the operator zoo in place of the twelve models.

A call is a training step, and for some models an evaluation. Each call is made in a process of its own, which may use
`--cores` processors, compilers included. The seconds are those of loading the compiler and of the first call, less
those of a warm one. `torch.compile` with a backend that does nothing ("eager") is the tracer alone, and "aot_eager" is
all of PyTorch's tracing. Models of many equal layers are measured only if `--cases` names them.

A system starts "cold", with an empty cache folder. Systems with a cache then run once more as a "second process" that
shares the folder, and graphweave once more with its "kernels on disk" and nothing else.
"""

from __future__ import annotations

import gc
import os
import resource
import shutil
import tempfile
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bench.case import Bench, Numbers
from bench.common import in_fresh_process, ratio_table, seconds_of
from bench.first_call_cases import CASES, EQUAL_LAYERS, ZOO_PREFIX, Case, build, sample_of_zoo
from bench.runner import run
from graphweave.certificate.random_numbers import CounterBased
from tests.pyg import zoo_cases

SYSTEMS = ("graphweave", "eager", "aot_eager", "inductor")
"""graphweave, and backends of torch.compile."""
RUNS = {
    "graphweave": ("cold", "second process", "kernels on disk"),
    "eager": ("cold",),
    "aot_eager": ("cold",),
    "inductor": ("cold", "second process"),
}
"""The runs of each system, in order, on one cache folder."""
WARM_CALLS = 5
BASE = "aot_eager"
"""The system with which others are compared."""


def on_cores(case: str, system: str, cores: int) -> dict[str, Any]:
    """The answer of `measure` on so many processors."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    torch.set_num_threads(cores)
    return measure(system, build(case))


def measure(system: str, case: Case) -> dict[str, Any]:
    """Seconds of loading the compiler, of the first call and of a warm one; processor seconds of the first two; and
    for graphweave the seconds of each stage."""
    with CounterBased() if system == "graphweave" else nullcontext():  # eager mode draws the masks of that system
        eager = _loss(case.module, case)
    _reset(case)
    clock, spent = time.perf_counter(), _processor_seconds()
    compiled, stages = _compiled(system, case.module)
    load = time.perf_counter() - clock
    call = _call(compiled, case)
    if stages is None:
        first, parts = seconds_of(call), dict[str, float]()
    else:
        first, parts = stages(call)
    processor = _processor_seconds() - spent
    worst = abs(_loss(compiled, case) - eager) / max(abs(eager), 1e-6)
    if not worst < 1e-3:
        return {"status": f"wrong: the loss is off by {worst:.1e} of its size"}
    gc.collect()
    warm = median(seconds_of(call) for _ in range(WARM_CALLS))
    return {"status": "ok", "load": load, "first": first, "warm": warm, "processor": processor, "stages": parts}


Stages = Callable[[Callable[[], None]], tuple[float, dict[str, float]]]


def _compiled(system: str, module: torch.nn.Module) -> tuple[Callable[..., Any], Stages | None]:
    """The compiled module and, for graphweave, a function that times a call by stage."""
    if system != "graphweave":
        return torch.compile(module, backend=system, dynamic=True), None
    import graphweave  # loading it is measured
    from graphweave.core import spans

    def stages(call: Callable[[], None]) -> tuple[float, dict[str, float]]:
        with spans.timed() as timed:
            call()
        parts: dict[str, float] = defaultdict(float)
        for span in timed.spans:
            where = "" if span.thread == timed.thread else " (other threads)"
            parts[span.stage + where] += span.own
        return timed.seconds, dict(parts)

    return graphweave.compile(module), stages


def _call(compiled: Callable[..., Any], case: Case) -> Callable[[], None]:
    """A training step and, if the case evaluates, an evaluation."""

    def call() -> None:
        case.module.train()
        loss = compiled(*case.arguments, **case.keywords)
        if loss.requires_grad:
            loss.backward()
        if case.evaluates:
            case.module.eval()
            with torch.no_grad():
                compiled(*case.arguments, **case.keywords)
        _reset(case)

    return call


def _loss(module: Callable[..., Any], case: Case) -> float:
    """The loss of a call in training. Running statistics are as before."""
    torch.manual_seed(0)
    case.module.train()
    state = {name: t.clone() for name, t in case.module.state_dict().items()}
    loss = float(module(*case.arguments, **case.keywords).detach())
    case.module.load_state_dict(state)
    return loss


def _reset(case: Case) -> None:
    for parameter in case.module.parameters():
        parameter.grad = None


def _processor_seconds() -> float:
    """Of this process and its compilers."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in usages)


def measured(case: str, system: str, cores: int, timeout: float) -> dict[str, Any]:
    """The answers of a system's runs, by name."""
    _write_bytecode(system, cores, timeout)
    return {"case": case, "system": system, "cores": cores, "runs": runs_of(case, system, cores, timeout)}


@cache
def _write_bytecode(system: str, cores: int, timeout: float) -> None:
    """An installed package has the bytecode of its modules; a run writes it here."""
    runs_of(next(iter(CASES)), system, cores, timeout)


def runs_of(case: str, system: str, cores: int, timeout: float) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            "GRAPHWEAVE_CACHE_DIR": f"{folder}/graphweave", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "TRITON_CACHE_DIR": f"{folder}/triton", "OMP_NUM_THREADS": str(cores), "PYTHONDONTWRITEBYTECODE": "",
        }  # fmt: skip
        for run_ in RUNS[system]:
            if run_ == "kernels on disk":
                _keep_kernels(Path(folder))
            answers[run_] = in_fresh_process(
                on_cores, environment, timeout=timeout, case=case, system=system, cores=cores
            )
            if answers[run_]["status"] != "ok":
                break
    return answers


def _keep_kernels(cache: Path) -> None:
    """Delete all that lies in the cache except for compiled kernels."""
    for folder in [*cache.iterdir(), *(cache / "graphweave").iterdir()]:
        if folder.name not in ("graphweave", "kernels"):
            shutil.rmtree(folder) if folder.is_dir() else folder.unlink()


def seconds(answers: Sequence[dict[str, Any]]) -> float | None:
    """The median seconds of a run over all repeats; None if one of them failed."""
    if not answers or any(a["status"] != "ok" for a in answers):
        return None
    return median(a["load"] + a["first"] - a["warm"] for a in answers)


def rows(results: Sequence[dict[str, Any]], cores: int) -> list[list[str]]:
    """A row of the table for each case and run: the seconds, and their ratio to `BASE`."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for one in results:
        if one["cores"] == cores:
            for run, answer in one["runs"].items():
                found[one["case"], one["system"], run].append(answer)
    table = []
    for (case, system, run), answers in found.items():
        taken, base = seconds(answers), seconds(found.get((case, BASE, "cold"), []))
        shown = answers[-1]["status"] if taken is None else f"{taken:.2f}"
        table.append([case, system, run, shown, f"{taken / base:.2f}" if taken and base else ""])
    return table


def show(results: Mapping[str, Any], options: Namespace) -> None:
    for cores in options.cores:
        headings = ["model", "system", "run", "seconds", f"of {BASE}"]
        ratio_table(f"first call, {cores} cores", headings, rows(list(results.values()), cores))


def cases(options: Namespace) -> Iterator[Numbers]:
    every = [*CASES, *EQUAL_LAYERS, *(ZOO_PREFIX + name for name in zoo_cases.CASES)]
    names = list(CASES)
    if options.cases:
        names = [n for n in every if any(n.startswith(one) or one.startswith(f"{n} ") for one in options.cases)]
    systems = options.systems or SYSTEMS
    for i, cores, case, system in product(range(options.repeats), options.cores, names, systems):
        if options.zoo == 0 or case in sample_of_zoo(options.zoo):
            sizes = {"case": case, "system": system, "cores": cores, "timeout": options.timeout}
            yield Numbers(f"{case} {system} {cores} {i + 1}", measured, sizes, here=True)


BENCH = Bench(
    "bench.first_call", __doc__, cases, {"zoo": 0, "cores": (1, 2)}, repeats=1, timeout=1200.0, show=show
)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
