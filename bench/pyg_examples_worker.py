"""One of PyG's examples in a process of its own, stopped after some training steps.

    python -m bench.pyg_examples_worker EXAMPLES PROGRAM SYSTEM --arrays FILE --worker FILE

A training step goes from `optimizer.zero_grad()` to the end of `optimizer.step()`, so loading, sampling and evaluation
are outside. PyTorch's generator is set at both ends of each step: what one system draws in a step does not change what
comes after. Nothing else of the program is changed; an exception from the hook of the last step ends it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import linecache
import multiprocessing
import os
import random
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from bench.pyg_examples_cases import COMPILED, needs_lending
from bench.pyg_examples_text import NoPlace, change, with_lending

aten = torch.ops.aten

SYSTEMS = ("eager", "graphweave", "exact", "wide")
"""`exact` is eager mode in float64, `wide` graphweave in float64."""

LIBRARIES = (
    "torch", "torch_geometric", "torch_geometric.nn", "torch_geometric.loader", "torch_geometric.datasets",
    "torch._dynamo", "sklearn.metrics", "sklearn.linear_model", "graphweave", "tests.pyg.zoo",
    "bench.pyg_examples_data",
)  # fmt: skip
"""What a server loads once for all processes. None of it starts threads."""

CHECKED = 3
"""The losses of this many steps are compared, and the gradients of the first. Until then, eager mode draws the random
numbers of compiled programs."""

WARMUP, SLOW = 5, 1.0
"""The steps that are not timed: compilation, and its second time when a size varies. Where a step takes more than SLOW
seconds, those that are compared are enough."""

MIN_STEPS, MAX_STEPS, MAX_SECONDS = 10, 100, 20.0
"""Timed steps end after the seconds that are asked for and MIN_STEPS, or after MAX_STEPS, or after MAX_SECONDS and
three steps."""


class Enough(BaseException):
    """Ends the program. Not an Exception, which a program could catch."""


class Steps:
    """What happened in the training steps of a program."""

    def __init__(self, system: str, seconds_to_time: float, *, check: bool = False) -> None:
        self.system, self.seconds_to_time, self.check = system, seconds_to_time, check
        self.drawing = contextlib.ExitStack()
        self.losses: list[Tensor] = []
        self.gradients: dict[str, Tensor] = {}
        self.seconds: list[float] = []
        self.work: list[dict[str, int]] = []
        self.breaks = 0
        self.graphs: list[Any] = []
        self.report: Any = None
        self._start: float | None = None
        self._before: dict[str, int] = {}
        self._names: dict[int, str] = {}

    def install(self) -> None:
        optimizer, module = torch.optim.Optimizer, torch.nn.Module
        clear, register, backward = optimizer.zero_grad, module.register_parameter, Tensor.backward

        def zero_grad(one: Any, *args: Any, **options: Any) -> Any:
            self._begin()
            return clear(one, *args, **options)

        def register_parameter(one: Any, name: str, value: Any) -> None:
            register(one, name, value)
            if value is not None:
                self._names.setdefault(id(value), f"{len(self._names)}.{name}")

        def take_loss(loss: Tensor, *args: Any, **options: Any) -> None:
            if self._start is not None and len(self.losses) < CHECKED:
                self.losses.append(loss.detach().double().clone())
            backward(loss, *args, **options)

        optimizer.zero_grad, module.register_parameter, Tensor.backward = zero_grad, register_parameter, take_loss  # type: ignore
        register_optimizer_step_pre_hook(self._take_gradients)
        register_optimizer_step_post_hook(self._end)

    def _begin(self) -> None:
        if self._start is not None:
            return
        if self.system == "wide":  # what is compiled may not run in a dispatch mode
            self.drawing.close()
        seed(len(self.seconds))
        if self.report is not None:
            self._before = {**counts(), "graphs": len(self.report.graphs)}
        self._start = time.perf_counter()

    def _take_gradients(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self.seconds:
            return
        for group in optimizer.param_groups:
            for value in group["params"]:
                if value.grad is not None:
                    grad = value.grad.to_dense() if value.grad.is_sparse else value.grad
                    self.gradients[self._names.get(id(value), str(len(self.gradients)))] = grad.detach().clone()

    def _end(self, *_: Any) -> None:
        if self._start is None:  # a second optimizer of the same step
            return
        self.seconds.append(time.perf_counter() - self._start)
        self._start = None
        if self.report is not None:
            after = counts()
            self.work.append({name: after[name] - self._before[name] for name in after})
            self.breaks += self.work[-1]["breaks"]
            self.graphs += self.report.graphs[self._before["graphs"] :]
        if len(self.seconds) == CHECKED:
            self.drawing.close()
        seed(-1 - len(self.seconds))
        if self._enough():
            raise Enough

    def timed(self) -> list[float]:
        slow = len(self.seconds) > CHECKED and self.seconds[CHECKED] > SLOW
        return self.seconds[CHECKED if slow else WARMUP :]

    def _enough(self) -> bool:
        if self.check:
            return len(self.seconds) >= CHECKED
        timed = self.timed()
        spent = sum(timed)
        long = len(timed) >= MIN_STEPS and spent >= self.seconds_to_time
        return long or len(timed) >= MAX_STEPS or (len(timed) >= 3 and spent >= MAX_SECONDS)


def seed(number: int) -> None:
    """Seeds every generator that programs draw from."""
    torch.manual_seed(10_000 + number)
    np.random.seed(10_000 + number)
    random.seed(10_000 + number)


def counts() -> dict[str, int]:
    import graphweave
    from tests.pyg.zoo import graph_breaks

    known = graphweave.counters()
    names = ("compilations", "kernel_launches", "fallback_calls", "eager_fallbacks")
    return {**{name: known[name] for name in names}, "breaks": graph_breaks()}


class DrawnInFloat32(TorchDispatchMode):
    """Random numbers in float64 are those in float32: a float64 run begins with the same weights."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if func in (aten.uniform_.default, aten.normal_.default) and args[0].dtype is torch.float64:
            return args[0].copy_(func(args[0].float(), *args[1:], **options))
        if func in (aten.rand.default, aten.randn.default) and options.get("dtype") in (None, torch.float64):
            return func(*args, **{**options, "dtype": torch.float32}).double()
        return func(*args, **options)


@contextlib.contextmanager
def around(steps: Steps) -> Iterator[None]:
    """The conditions of a system: random numbers, precision, the report of the compiler."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(steps.drawing)
        if steps.system in ("exact", "wide"):
            torch.set_default_dtype(torch.float64)
            steps.drawing.enter_context(DrawnInFloat32())
        if steps.system in ("eager", "exact"):
            from graphweave.certificate.random_numbers import CounterBased

            steps.drawing.enter_context(CounterBased())
        else:
            from graphweave.compiler.report import collect

            steps.report = stack.enter_context(collect())
        yield


def run(examples: Path, program: str, steps: Steps) -> dict[str, Any]:
    """Runs the program until it has made enough steps. The answer has everything that was seen, or the error."""
    path = examples / program
    try:
        changed = change(path.read_text(), COMPILED.get(program))
    except NoPlace as problem:
        return {"status": f"no place for the line: {problem}"}
    ours = steps.system in ("graphweave", "wide")
    text = changed.changed if ours else changed.unchanged
    text, second = with_lending(text) if needs_lending(path) else (text, "")
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path)]
    scope = main_module(path, text)
    if ours:
        import graphweave

        scope["graphweave"] = graphweave
    answer: dict[str, Any] = {"line": changed.line, "number": changed.number, "second": second, "status": "ok"}
    printed = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
    ):
        os.chdir(folder)
        try:
            with around(steps):
                exec(compile(text, str(path), "exec"), scope)
        except Enough:
            pass
        except SystemExit as problem:
            answer["status"] = f"ends by itself: {problem.code}" if problem.code else "ok"
        except Exception as problem:  # a program that fails is a result of the table
            text_of = str(problem).strip().splitlines()
            answer["status"] = f"{type(problem).__name__}: {text_of[0] if text_of else ''}"[:300]
            answer["traceback"] = last_frames(problem)
        finally:
            os.chdir(examples)
    if answer["status"] == "ok" and not steps.seconds:
        answer["status"] = "made no training step"
    return answer


def main_module(path: Path, text: str) -> dict[str, Any]:
    """The names of a module that is `__main__` from now on: PyTorch's tracer looks global names up in it. It has the
    file's name, too, by which PyG's `Sequential` imports it; that would run the unchanged program within this one.

    `text` becomes the source that tracebacks show and that is read for the file at `path`.
    """
    module = types.ModuleType("__main__")
    module.__file__ = str(path)
    sys.modules["__main__"] = sys.modules[path.stem] = module
    linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
    return module.__dict__


def last_frames(problem: BaseException) -> list[str]:
    import traceback

    frames = traceback.extract_tb(problem.__traceback__)[-6:]
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]


def compiled_work(steps: Steps) -> dict[str, Any]:
    """What the compiler made of the training steps, and of the last of them."""
    from graphweave.compiler.report import Report
    from tests.pyg.zoo import left_to_pytorch

    trained = Report(graphs=steps.graphs)
    last = steps.work[-1] if steps.work else {}
    return {
        "kernels": last.get("kernel_launches", 0),
        "calls": last.get("fallback_calls", 0),
        "compilations": sum(one["compilations"] for one in steps.work),
        "breaks": steps.breaks,
        "eager_graphs": list(steps.report.eager),
        "on_edges": list(left_to_pytorch(trained, on_edges=True)),
        "left": list(left_to_pytorch(trained, on_edges=False)),
        "compiled_late": [i for i, one in enumerate(steps.work) if one["compilations"] and i >= WARMUP],
        "break_reasons": break_reasons(),
    }


def break_reasons() -> list[str]:
    kinds = torch._dynamo.utils.counters["graph_break"]
    return [f"{text.strip().splitlines()[0]} ({count} times)" for text, count in kinds.items()]


def leave_out_chance() -> None:
    """Leave out what two right systems may do in different ways: dropout, and the order of equal numbers in a sort."""
    torch.nn.functional.dropout = lambda input, *_, **__: input
    init, sort = torch.nn.MultiheadAttention.__init__, torch.sort

    def without_dropout(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.dropout = 0.0

    def stable(input: torch.Tensor, dim: int = -1, descending: bool = False, **kwargs: Any) -> Any:
        return sort(input, dim=dim, descending=descending, **{**kwargs, "stable": True})

    torch.nn.MultiheadAttention.__init__, torch.sort = without_dropout, stable  # type: ignore[method-assign]


def main(argv: Sequence[str] | None = None) -> int:
    import json

    from bench.turns import summary

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("examples", type=Path)
    parser.add_argument("program")
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("--arrays", type=Path, help="losses and gradients go to this file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of timed steps")
    parser.add_argument("--check", action="store_true", help="end after the steps that are compared")
    parser.add_argument(
        "--still", action="store_true", help="leave out dropout, and sort equal numbers by their places"
    )
    parser.add_argument("--worker", type=Path, required=True)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    multiprocessing.set_start_method("fork", force=True)  # loaders' workers get this process's data sets
    os.environ["MPLBACKEND"] = "Agg"
    warnings.simplefilter("ignore")
    from bench import pyg_examples_data

    pyg_examples_data.install(wide=options.system in ("exact", "wide"))
    if options.still:
        leave_out_chance()
    seed(0)
    steps = Steps(options.system, options.seconds, check=options.check)
    steps.install()
    start = time.perf_counter()
    answer = run(options.examples.resolve(), options.program, steps)
    answer["program_seconds"] = time.perf_counter() - start
    timed = steps.timed()
    if timed:
        answer.update(summary(timed))
    answer.update(steps=len(steps.seconds), first=steps.seconds[0] if steps.seconds else None)
    if steps.report is not None:
        answer["work"] = compiled_work(steps)
    answer["losses"] = [float(loss) for loss in steps.losses]
    if options.arrays:
        torch.save(steps.gradients, options.arrays)
    options.worker.write_text(json.dumps(answer))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
