"""Times of every kernel and every PyTorch call in a compiled step, with the bytes and flops of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from graphweave.core.options import Options
from graphweave.core.types import UNIT
from graphweave.execute import calls
from graphweave.execute.calls import NodeCall
from graphweave.execute.cpp_stretch import kernel_by_kernel
from graphweave.execute.region_step import RegionStep
from graphweave.execute.targets import STEPS
from graphweave.ir.loop.traffic import Traffic, traffic_of
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import AddMatMul, Gram, MatMul, Program, Ref, Type
from graphweave.ir.message.show import operation


@dataclass(slots=True)
class Probe:
    """One step of the program: a fused kernel if `kernel`, else a call left to PyTorch.

    `marks` are the clock's points in time before and after each run. `seconds` are set when `probed` ends."""

    name: str
    kernel: bool
    traffic: Traffic
    marks: list[tuple[Any, Any]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Recorder:
    """Probes in the order in which steps ran. Nothing is recorded unless `on`."""

    on: bool = False
    probes: dict[Any, Probe] = field(default_factory=dict)

    def add(self, key: Any, marks: tuple[Any, Any], make: Callable[[], Probe]) -> None:
        if key not in self.probes:
            self.probes[key] = make()
        self.probes[key].marks.append(marks)


Run = Callable[[RegionStep, tuple[int, ...], Sequence[Tensor], Sequence[Tensor]], Any]


@contextmanager
def probed(
    mark: Callable[[], Any] = time.perf_counter, between: Callable[[Any, Any], float] = lambda start, end: end - start
) -> Iterator[Recorder]:
    """In this block, the steps of compiled programs are timed: compile the model inside, then set `on` of the recorder.

    If a model is compiled before, only its kernels are timed, not its calls left to PyTorch. `mark` returns a point in
    time, and `between`, called when the block ends, the seconds between two of them.
    """
    recorder = Recorder()
    runs: dict[type[RegionStep], Run] = {step: step.__call__ for step in STEPS}
    make_call = calls.call_step

    def timed(run: Run) -> Run:
        def timed_run(self: RegionStep, rows: tuple[int, ...], indices: Sequence[Tensor], *more: Any) -> Any:
            start = mark()
            out = run(self, rows, indices, *more)
            marks = start, mark()
            if recorder.on:
                recorder.add(id(self), marks, lambda: _kernel_probe(self, rows, indices))
            return out

        return timed_run

    def timed_call_step(program: Program, ref: Ref, options: Options) -> NodeCall:
        call = make_call(program, ref, options)

        def timed_call(*args: Any) -> Any:
            start = mark()
            out = call.run(*args)
            marks = start, mark()
            if recorder.on:
                recorder.add(id(timed_call), marks, lambda: _call_probe(program, ref, args[len(call.spaces) :], out))
            return out

        return NodeCall(call.spaces, timed_call)

    for step, run in runs.items():
        step.__call__ = timed(run)  # type: ignore[method-assign, assignment]
    calls.call_step = timed_call_step  # type: ignore[assignment]
    try:
        with kernel_by_kernel():
            yield recorder
    finally:
        for step, run in runs.items():
            step.__call__ = run  # type: ignore[method-assign, assignment]
        calls.call_step = make_call
    for probe in recorder.probes.values():
        probe.seconds = [between(start, end) for start, end in probe.marks]


def _kernel_probe(step: RegionStep, rows: tuple[int, ...], indices: Sequence[Tensor]) -> Probe:
    sizes, positions = step.counts(rows, indices)
    return Probe(step.name, True, traffic_of(step.plan.lowered.kernel, sizes, positions))


def _call_probe(program: Program, ref: Ref, values: Sequence[Any], out: Any) -> Probe:
    node = program.nodes[ref]
    tensors = [v for v in (*values, out) if isinstance(v, Tensor)]
    storages = {v.untyped_storage().data_ptr(): v.nbytes for v in tensors}
    is_view = isinstance(out, Tensor) and any(
        v.untyped_storage().data_ptr() == out.untyped_storage().data_ptr() for v in tensors[:-1]
    )
    moved = 0 if is_view else sum(storages.values())
    flops = 0
    match node:
        case MatMul(w=w) | AddMatMul(w=w):
            matrix, made = program.types[w], program.types[ref]
            assert isinstance(matrix, Type) and isinstance(made, Type)
            flops = 2 * (1 if made.space == UNIT else out.shape[0]) * numel(matrix.shape)
        case Gram(map=None):
            flops = 2 * values[0].shape[0] * values[0].shape[1] * values[-1].shape[1]
        case _:
            flops = out.numel() if isinstance(out, torch.Tensor) and not is_view else 0
    return Probe(f"{operation(node)} %{ref}", False, Traffic(moved, moved, flops))
