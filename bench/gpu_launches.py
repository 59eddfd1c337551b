"""Other launches of the kernels of a training step on a GPU: which are faster than those that the compiler chooses?

    python -m bench.gpu_launches [--graphs arxiv bgs] [--models gcn gat8 rgat] [--jobs 4] [--processes 14] [--out FILE]

A warm training step of each case of `bench.gpu` is recorded. Of its launches, the `--jobs` that take longest are run
again with other numbers of rows, edges and warps of a program, each alone on the device. All variants are compiled
beforehand, in several processes. Each line of the table has the launch that the compiler chooses and the best ones.
`python -m bench.gpu_launches --host` profiles the host in steps of the smallest graph instead.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import multiprocessing
import pstats
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from bench.gpu_cases import GRAPHS, MODELS, ORDER, Pair, subject
from bench.gpu_measure import Clock
from bench.options import Among, parser_of
from graphweave.execute.triton_launch import TritonJob, _widest
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.walk import statements
from graphweave.ir.message.aten import TORCH_DTYPE
from graphweave.ir.message.infer import numel
from graphweave.runtime import triton_kernel
from graphweave.runtime.triton_kernel import Launch, TritonKernel, precision

ROWS, EDGES, WARPS = (1, 2, 4, 8, 16, 32), (2, 4, 8, 16, 32, 64, 128, 256), (1, 2, 4)
"""Numbers of a launch that are tried."""

ELEMENTS_OF_A_THREAD = (4, 64)
"""The least and the most elements of the widest tensor that a thread of a tried launch has."""

RUN_SECONDS = 2e-3
"""A launch is repeated for about this long."""


@dataclass(frozen=True, slots=True)
class Build:
    """All that another process needs to compile a variant: the text, and what is given for each parameter."""

    text: str
    symbol: str
    given: tuple[torch.dtype | int, ...]
    how: Launch
    ordered: bool
    precision: str

    def run(self) -> str:
        function = getattr(triton_kernel.module(self.text), self.symbol)
        try:
            function.warmup(
                *self.given, R=self.how.rows, K=self.how.edges, ORDERED=self.ordered, PRECISION=self.precision,
                grid=(1,), **self.how.options,
            )  # fmt: skip
        except Exception as problem:  # a variant that does not compile is a result
            return f"{type(problem).__name__}: {problem}"[:200]
        return ""


@dataclass(slots=True)
class Recorded:
    job: TritonJob
    text: str
    seconds: float = 0.0

    def parts(self, how: Launch) -> dict[str, Tensor]:
        job = replace(self.job, how=how)
        shapes = {b.name: (job.programs, numel(b.shape)) for b in job.totals}
        device = next(iter(job.tensors.values())).device
        return {b.name: torch.empty(shapes[b.name], dtype=TORCH_DTYPE[b.dtype], device=device) for b in job.totals}

    def build(self, how: Launch) -> Build:
        job = replace(self.job, how=how)
        parts = self.parts(how)
        tensors = [job.tensors[csr.name] for csr in job.kernel.csrs]
        tensors += [parts.get(b.name, job.tensors[b.name]) for b in job.kernel.buffers]
        listed = tensors[0] if job.order is None else job.order
        given: tuple[torch.dtype | int, ...] = (*(t.dtype for t in (*tensors, listed)), job.groups, job.first, job.last)
        return Build(self.text, job.kernel.name, given, how, job.order is not None, precision())

    def time(self, clock: Clock, how: Launch) -> float:
        job, parts = replace(self.job, how=how), self.parts(how)
        job.run(parts)
        once = clock.turn(lambda: job.run(parts), 3)
        steps = max(3, min(100, int(RUN_SECONDS / max(once, 1e-6))))
        return median(clock.turn(lambda: job.run(parts), steps) for _ in range(3))

    def variants(self) -> Iterator[Launch]:
        """Other launches. A kernel with products keeps its rows and edges, and one whose rows are not walked its
        edges."""
        inner = list(statements(self.job.kernel.body))
        now, lanes = self.job.how, _widest(self.job.kernel.body)
        yield now
        if any(isinstance(s, loop.TileMatMul | loop.TileGram) for s in inner):
            yield from (replace(now, warps=w) for w in (1, 2, 4, 8) if w != now.warps)
            return
        walks = any(isinstance(s, loop.Edges | loop.Tiles) for s in inner)
        pieces = self.job.order is None
        for rows, edges, warps in product((1,) if pieces else ROWS, EDGES if walks else (1,), WARPS):
            least, most = ELEMENTS_OF_A_THREAD
            how = replace(now, rows=rows, edges=edges, warps=warps)
            if how != now and least <= rows * edges * lanes / (32 * warps) <= most and (pieces or edges <= 32):
                yield how


@contextmanager
def recording() -> Iterator[list[Recorded]]:
    """The launches in the block, and the texts of kernels that are loaded in it."""
    found: list[Recorded] = []
    texts: dict[int, str] = {}
    made, run = TritonKernel.__init__, TritonJob.run

    def noted(self: TritonKernel, module: Any, symbol: str, parts: int = 1) -> None:
        made(self, module, symbol, parts)
        texts[id(self)] = Path(module.__file__).read_text().removeprefix(triton_kernel._ENCODING)

    def launched(self: TritonJob, parts: Any) -> None:
        found.append(Recorded(self, texts[id(self.function)]))
        run(self, parts)

    TritonKernel.__init__, TritonJob.run = noted, launched  # type: ignore[method-assign]
    try:
        yield found
    finally:
        TritonKernel.__init__, TritonJob.run = made, run  # type: ignore[method-assign]


def recorded(pair: Pair, device: torch.device, options: argparse.Namespace, folder: Path) -> list[Recorded]:
    """The launches of a warm step that take longest, longest first. Launches of equal kernels count once."""
    clock = Clock(device)
    with recording() as found:
        form = subject(pair, device, torch.float32, small=options.small, folder=folder).form("graphweave")
        form.run("train")
        form.run("train")
        found.clear()
        form.run("train")
    for one in found:
        one.seconds = one.time(clock, one.job.how)
    total = sum(one.seconds for one in found)
    print(f"{pair.name}: {len(found)} launches, {1e6 * total:.0f} us together", flush=True)
    for one in found:
        job = one.job
        print(f"   {job.kernel.name:34} {1e6 * one.seconds:8.1f} us, {job.programs} programs, {shown(job.how)}")
    return sorted(found, key=lambda one: -one.seconds)[: options.jobs]


def shown(how: Launch) -> str:
    return f"{how.rows} x {how.edges}, {how.warps} warps"


def tried(held: Sequence[tuple[Pair, list[Recorded]]], processes: int, device: torch.device) -> list[Any]:
    """Times all variants. Each row of the answer has a kernel's launches, fastest first."""
    clock = Clock(device)
    builds = [(one, how, one.build(how)) for _, found in held for one in found for how in one.variants()]
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        refused = list(pool.map(Build.run, [build for _, _, build in builds], chunksize=4))
    print(f"{len(builds)} variants, {sum(map(bool, refused))} refused: {next(filter(None, refused), '')}", flush=True)
    answer = []
    for pair, found in held:
        for one in found:
            fits = [how for (other, how, _), why in zip(builds, refused, strict=True) if other is one and not why]
            times = {how: one.time(clock, how) for how in fits}
            best = sorted(times, key=times.__getitem__)
            name, now = one.job.kernel.name, one.job.how
            line = ", ".join(f"{shown(how)}: {1e6 * times[how]:.1f}" for how in best[:8])
            print(f"{pair.name} {name} {1e6 * times.get(now, 0):.1f} us {shown(now)} -> {line}", flush=True)
            rows = [{**asdict(how), "seconds": times[how]} for how in best]
            answer.append({"case": pair.name, "kernel": name, "now": asdict(now), "launches": rows})
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
        "jobs": 4, "processes": 14, "host": False, "out": Path,
    })  # fmt: skip
    options = parser.parse_args(argv)
    device = torch.device("cuda:0" if options.device == "cuda" else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        if options.host:
            host(device, Path(folder))
            return 0
        cases = [p for p in ORDER if p.model in options.models and p.graph in options.graphs]
        held = [(pair, recorded(pair, device, options, Path(folder))) for pair in cases]
        answer = tried(held, options.processes, device)
        if options.out is not None:
            options.out.write_text(json.dumps(answer, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
