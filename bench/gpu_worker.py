"""The process of `bench.gpu` that owns the device: `python -m bench.gpu_worker OPTIONS` answers its questions.

"hello" describes the device and measures a copy; "case" prepares a graph and weights, "reference" the expected results
in float64; "first" builds a system, runs its first step, checks it and measures its peak memory; "turn" times warm
steps; "kernels" measures bandwidth kernel by kernel. If a system fails, the answer is `failed` with the traceback. It
also says whether the device was lost: then this process is of no use, and another one is started.
"""

from __future__ import annotations

import argparse
import gc
import math
import traceback
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import graphweave
from bench.check import worst_error
from bench.forget import forget_graphs
from bench.gpu_cases import Pair, Subject, kind_of, restore, result_of, subject
from bench.gpu_measure import Clock, kernels
from bench.relational import compared
from bench.steps import ModelStep, Result
from bench.turns import serve
from graphweave.compiler.report import Report, collect

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""A system is wrong if its relative error against float64 is above this and above 4 times eager's own."""

MAX_TRACEBACK_CHARACTERS = 6000
"""Only the end of a longer traceback is kept."""


class Bench:
    """The state of the process: one case at a time, and its forms by system."""

    def __init__(self, device: torch.device, dtype: torch.dtype, *, small: bool, folder: Path) -> None:
        self._device, self._dtype, self._small, self._folder = device, dtype, small, folder
        self._clock = Clock(device)
        self._forms: dict[str, ModelStep] = {}
        self._kept: dict[str, int] = {}
        self._subject: Subject | None = None
        self._wants: dict[tuple[bool, str], Result] = {}
        self._own_errors: dict[str, float] = {}

    def handlers(self) -> dict[str, Callable[..., Any]]:
        names = ("hello", "case", "reference", "first", "turn", "kernels", "forget")
        return {name: self._guarded(getattr(self, name)) for name in names}

    def _guarded(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """The handler with exceptions turned into answers. After one, memory is freed and the device is tested."""

        def answer(**given: Any) -> Any:
            try:
                return handler(**given)
            except Exception as problem:  # a system that fails is a result of a benchmark
                text = traceback.format_exc()
                traceback.clear_frames(problem.__traceback__)
                what = f"{type(problem).__name__}: {problem}".strip().splitlines()[0][:300]
                oom = isinstance(problem, torch.OutOfMemoryError | MemoryError)
            self._forms.pop(given.get("system", ""), None)
            lost = self._clock.lost()
            if not lost:
                self._clock.release()
            return {
                "failed": {
                    "status": what,
                    "traceback": text[-MAX_TRACEBACK_CHARACTERS:],
                    "out_of_memory": oom,
                    "lost": lost,
                }
            }

        return answer

    # ------------------------------------------------------------ questions

    def hello(self) -> dict[str, Any]:
        self._clock.warm_up((self._dtype, torch.float64))
        found = {**self._clock.describe(), "copy": self._clock.copy_bandwidth()}
        self._clock.release()
        return {**found, "versions": {name: _version(name) for name in ("torch", "triton", "torch_geometric", "numpy")}}

    def case(self, model: str, graph: str) -> dict[str, Any]:
        self.forget()
        pair = Pair(model, graph)
        self._subject = subject(pair, self._device, self._dtype, small=self._small, folder=self._folder)
        self._inputs = sum(t.nbytes for t in self._subject.inputs)
        return {"nodes": self._subject.nodes, "edges": self._subject.edges, "input_bytes": self._inputs}

    def reference(self, within: bool) -> dict[str, Any]:
        """Computes the expected results of each mode in float64. If this fails for lack of memory, eager PyG's results
        are taken instead."""
        assert self._subject is not None
        for mode, result in self._subject.want(within=within).items():
            self._wants[within, mode] = result
        self._clock.release()
        return {"precision": "float64"}

    def first(self, system: str, mode: str, within: bool) -> dict[str, Any]:
        """First call (with compilation), error, counters of graphweave, peak memory. `within`: see `other_function`.

        Peaks are torch.cuda.max_memory_allocated of a warm step as if this system were alone: its inputs, what it keeps
        (parameters, formats of the graph), and the memory of the step.
        """
        assert self._subject is not None
        before = self._clock.allocated()
        if system not in self._forms:
            self._kept[system] = 0
            self._forms[system] = self._subject.form(system)
        form = self._forms[system]
        graphweave.reset_counters()
        with warnings.catch_warnings(), collect() as report:
            warnings.simplefilter("ignore")  # the report has what graphweave warns about
            seconds = self._clock.first(lambda: form.run(mode))
        answer: dict[str, Any] = {"first": seconds}
        if system == "graphweave":
            answer.update(self._counted(form, mode, report))
        answer.update(self._peaks(system, form, mode, before))
        answer.update(self._checked(system, form, mode, within))
        if answer.get("eager"):
            answer["status"] = f"ran eagerly: {answer['eager'][0]}"
        form.release()
        gc.collect()
        gc.freeze()  # later collections skip the objects that compilers keep
        return answer

    def _counted(self, form: ModelStep, mode: str, report: Report) -> dict[str, Any]:
        """Counters of compilation and of a warm step, the calls left to PyTorch, and why anything ran eagerly."""
        compiling = {name: n for name, n in graphweave.counters().items() if n}
        graphweave.reset_counters()
        form.run(mode)
        warm = {name: n for name, n in graphweave.counters().items() if n}
        launches = warm.get("kernel_launches", 0)
        eager = list(report.eager)
        if not eager and (compiling.get("eager_fallbacks") or not launches):
            eager = ["no kernel was called" if not launches else "a function could not be traced"]
        left = sorted({f"{note.what}: {note.why}" for graph in report.graphs for note in graph.fallbacks})
        return {
            "counters": compiling, "step_counters": warm, "launches": launches, "left_to_pytorch": left,
            "eager": [why[:MAX_TRACEBACK_CHARACTERS] for why in eager],
        }  # fmt: skip

    def _checked(self, system: str, form: ModelStep, mode: str, within: bool) -> dict[str, Any]:
        """Largest relative error of the output, or of loss and gradients.

        If the case has the system "eager", 4 times its error is allowed.
        """
        assert self._subject is not None
        got = result_of(form, mode)
        want = self._wants.get((within, mode))
        if want is None and kind_of(system) != "eager":
            return {"status": "not checked: no reference"}
        if want is None:
            self._wants[within, mode] = got
            return {"status": "ok", "reference": f"this, in {self._dtype}"}
        error, where = worst_error(got, compared(want, got), wide=True)
        if system == "eager" and math.isfinite(error):
            self._own_errors[mode] = error
        allowed = max(TOLERANCE[self._dtype], 4 * self._own_errors.get(mode, 0.0))
        status = "ok" if error <= allowed else f"wrong: {where} is off by {error:.1e}"
        return {"status": status, "error": error if math.isfinite(error) else None, "worst": where}

    def _peaks(self, system: str, form: ModelStep, mode: str, before: int) -> dict[str, Any]:
        """`before`: bytes allocated before the form was built, or before its first step in this mode."""
        form.release()
        now = self._clock.allocated()
        self._kept[system] += now - before
        peak = self._clock.peak(lambda: form.run(mode))
        if peak is None:
            return {}
        beyond = peak - now + self._kept[system]
        return {"kept_bytes": self._kept[system], "beyond_inputs": beyond, "peak_bytes": beyond + self._inputs}

    def turn(self, system: str, mode: str, steps: int) -> float:
        form = self._forms[system]
        return self._clock.turn(lambda: form.run(mode), steps)

    def kernels(self, system: str, mode: str) -> dict[str, Any]:
        form = self._forms[system]
        return kernels(self._clock, lambda: form.run(mode))

    def forget(self) -> None:
        """Drops the case, and all that was compiled and kept for it."""
        gc.unfreeze()
        self._subject = None
        for held in (self._forms, self._kept, self._wants, self._own_errors):
            held.clear()
        forget_graphs()
        torch._dynamo.reset()  # the numbers of types are compiled in
        restore()
        self._clock.release()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True)
    parser.add_argument("--dtype", choices=DTYPES, required=True)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args(argv)
    serve(
        Bench(
            torch.device(options.device), DTYPES[options.dtype], small=options.small, folder=options.folder
        ).handlers()
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
