"""Other launches of the kernels of a training step on a GPU: which are faster than those that the compiler chooses?

    python -m bench.gpu_launches [--graphs arxiv bgs] [--models gcn gat8 rgat] [--jobs 6] [--out FILE]

A warm training step of each case of `bench.gpu` is recorded. Of its launches, the `--jobs` that take longest run again
as other constants of `execute/triton_launch.py` have them launched, each alone on the device. The tables have the
seconds of all kernels together, relative to the fastest launch of each, for each choice of constants.
`python -m bench.gpu_launches --host` profiles the host in steps of the smallest graph instead.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import math
import pstats
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from bench.gpu_cases import GRAPHS, MODELS, ORDER, Pair, subject
from bench.gpu_measure import Clock
from bench.options import Among, parser_of
from graphweave.execute import triton_step
from graphweave.execute.triton_launch import TritonJob, launch_of_piece, launch_of_rows, widest
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.walk import statements
from graphweave.ir.message.aten import TORCH_DTYPE
from graphweave.ir.message.infer import numel
from graphweave.runtime.triton_kernel import Launch

Constants = tuple[int, ...]

CONSTANTS: dict[str, tuple[Constants, ...]] = {
    "rows": tuple(product((2, 4, 8, 16), (256, 512, 1024, 2048), (1, 2, 4))),
    "rows alone": tuple(product((1,), (256, 512, 1024, 2048), (1, 2, 4))),
    "pieces": tuple(product((512, 1024, 2048, 4096), (1, 2, 4, 8))),
}
"""The constants that are tried: EDGES_AT_ONCE, ROW_ELEMENTS and ROW_WARPS; PIECE_ELEMENTS and PIECE_WARPS."""

RUN_SECONDS = 1e-3
"""A launch is repeated for about this long."""


@dataclass(slots=True)
class Recorded:
    """A launch of a step, and the seconds of each launch that was tried in its place."""

    job: TritonJob
    case: str
    seconds: float = 0.0
    times: dict[Launch, float] = field(default_factory=dict)

    @property
    def kind(self) -> str | None:
        """Which constants decide on the launch; None where others do."""
        inner = list(statements(self.job.kernel.body))
        if any(isinstance(s, loop.TileMatMul | loop.TileGram | loop.Tiles) for s in inner) or self.job.kernel.tile:
            return None
        if not any(isinstance(s, loop.Edges) for s in inner):
            return "rows alone"
        return "pieces" if self.job.order is None else "rows"

    def how(self, constants: Constants) -> Launch:
        make: Callable[..., Launch] = launch_of_piece if self.kind == "pieces" else launch_of_rows
        return make(widest(self.job.kernel.body), *constants)

    def variants(self) -> list[Launch]:
        return list(dict.fromkeys([self.job.how, *map(self.how, CONSTANTS.get(self.kind or "", ()))]))

    def prepare(self, how: Launch) -> None:
        tensors = next(iter(self.job.tensors.values()))
        ordered = self.job.order is not None
        triton_step.prepare(self.job.kernel, self.job.function, how, ordered, str(tensors.device))

    def time(self, clock: Clock, how: Launch) -> float:
        job = replace(self.job, how=how)
        device = next(iter(job.tensors.values())).device
        parts: dict[str, Tensor] = {
            b.name: torch.empty((job.programs, numel(b.shape)), dtype=TORCH_DTYPE[b.dtype], device=device)
            for b in job.totals
        }
        job.run(parts)
        once = clock.turn(lambda: job.run(parts), 2)
        steps = max(3, min(50, int(RUN_SECONDS / max(once, 1e-6))))
        return median(clock.turn(lambda: job.run(parts), steps) for _ in range(3))


@contextmanager
def recording(case: str) -> Iterator[list[Recorded]]:
    """The launches in the block."""
    found: list[Recorded] = []
    run = TritonJob.run

    def launched(self: TritonJob, parts: Any) -> None:
        found.append(Recorded(self, case))
        run(self, parts)

    TritonJob.run = launched  # type: ignore[method-assign]
    try:
        yield found
    finally:
        TritonJob.run = run  # type: ignore[method-assign]


def recorded(pair: Pair, device: torch.device, options: argparse.Namespace, folder: Path) -> list[Recorded]:
    """The launches of a warm step that take longest, longest first."""
    clock = Clock(device)
    with recording(pair.name) as found:
        form = subject(pair, device, torch.float32, small=options.small, folder=folder).form("graphweave")
        took = clock.first(lambda: form.run("train"))
        form.run("train")
        found.clear()
        form.run("train")
    for one in found:
        one.seconds = one.time(clock, one.job.how)
    total = sum(one.seconds for one in found)
    print(f"{pair.name}: {len(found)} launches, {1e6 * total:.0f} us together, first call {took:.1f} s", flush=True)
    for one in found:
        job = one.job
        print(f"   {job.kernel.name:34} {1e6 * one.seconds:8.1f} us, {job.programs} programs, {shown(job.how)}")
    return sorted(found, key=lambda one: -one.seconds)[: options.jobs]


def shown(how: Launch) -> str:
    return f"{how.rows} x {how.edges}, {how.warps} warps"


def tried(found: Sequence[Recorded], device: torch.device) -> None:
    """Times all variants. Their machine code is made beforehand, in several threads."""
    builds = [(one, how) for one in found for how in one.variants()]
    with ThreadPoolExecutor() as threads:
        futures = [threads.submit(one.prepare, how) for one, how in builds]
    refused = [str(future.exception())[:200] for future in futures if future.exception() is not None]
    print(f"{len(builds)} variants, {len(refused)} refused: {refused[:1]}", flush=True)
    clock = Clock(device)
    for (one, how), future in zip(builds, futures, strict=True):
        if future.exception() is None:
            one.times[how] = one.time(clock, how)
    for one in found:
        best = sorted(one.times, key=one.times.__getitem__)[:6]
        line = ", ".join(f"{shown(how)}: {1e6 * one.times[how]:.1f}" for how in best)
        now = one.times.get(one.job.how, math.nan)
        print(f"{one.case} {one.job.kernel.name} {one.kind} {1e6 * now:.1f} us {shown(one.job.how)} -> {line}")


def ranked(found: Sequence[Recorded]) -> dict[str, list[tuple[float, Constants]]]:
    """For each kind the constants by the mean ratio (geometric) of their launches to the fastest, best first."""
    answer = {}
    for kind, constants in CONSTANTS.items():
        own = [one for one in found if one.kind == kind and one.times]
        rows = []
        for values in constants if own else ():
            ratios = [one.times.get(one.how(values), math.inf) / min(one.times.values()) for one in own]
            rows.append((math.prod(ratios) ** (1 / len(ratios)), values))
        answer[kind] = sorted(rows)
        print(kind, ", ".join(f"{values}: {ratio:.3f}" for ratio, values in answer[kind][:8]), flush=True)
    return answer


def host(device: torch.device, folder: Path) -> None:
    """Profiles the host in steps whose kernels take no time."""
    for mode in ("infer", "train"):
        form = subject(Pair("gcn", "cora"), device, torch.float32, small=False, folder=folder).form("graphweave")
        for _ in range(5):
            form.run(mode)
        print(f"gcn cora {mode}: {1e6 * Clock(device).turn(lambda form=form, mode=mode: form.run(mode), 200):.0f} us")  # type: ignore[misc]
        profile = cProfile.Profile()
        profile.enable()
        for _ in range(200):
            form.run(mode)
        profile.disable()
        text = io.StringIO()
        pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(30)
        print(text.getvalue())


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_of(__doc__, {
        "device": Among(("cuda", "cpu"), "cuda"), "small": False, "graphs": Among(GRAPHS), "models": Among(MODELS),
        "jobs": 6, "host": False, "out": Path,
    })  # fmt: skip
    options = parser.parse_args(argv)
    device = torch.device("cuda:0" if options.device == "cuda" else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        if options.host:
            host(device, Path(folder))
            return 0
        cases = [pair for pair in ORDER if pair.model in options.models and pair.graph in options.graphs]
        found = [one for pair in cases for one in recorded(pair, device, options, Path(folder))]
        tried(found, device)
        best = ranked(found)
    if options.out is not None:
        kernels = [
            {"case": one.case, "kernel": one.job.kernel.name, "kind": one.kind, "now": asdict(one.job.how),
             "launches": [{**asdict(how), "seconds": seconds} for how, seconds in one.times.items()]}
            for one in found
        ]  # fmt: skip
        options.out.write_text(json.dumps({"best": best, "kernels": kernels}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
