"""Plan -> tape -> one Python callable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from graphweave.compiler.contract import ANYHOW, Contract
from graphweave.compiler.plan import WIDE, KernelPlan, Plan, label_of, lower_region
from graphweave.core.boxed import Boxed
from graphweave.core.errors import GraphweaveError
from graphweave.core.types import DType
from graphweave.execute.begun import Begun, build_all, compiler_runs
from graphweave.execute.calls import NodeCalls
from graphweave.execute.cuda_graph import CudaGraphs, graph_device
from graphweave.execute.python_runner import PythonRunner
from graphweave.execute.range_errors import MapError, in_words
from graphweave.execute.region_step import RegionStep
from graphweave.execute.row_needs import UNLIMITED, RowNeeds
from graphweave.execute.tape_of import tape_of
from graphweave.execute.targets import step_of
from graphweave.execute.uncompiled import tell_uncompiled, without_kernels
from graphweave.ir.tape.nodes import Tape


@dataclass(frozen=True, slots=True)
class Steps:
    """The kernels of a plan and of its prelude, by the positions of their regions among the steps."""

    kernels: Mapping[int, RegionStep]
    prelude: Mapping[int, RegionStep]

    @staticmethod
    def of(plan: Plan) -> Steps:
        return Steps(_kernels(plan), {} if plan.prelude is None else _kernels(plan.prelude))

    @property
    def all(self) -> tuple[RegionStep, ...]:
        """Every kernel, in the order in which they are needed."""
        return (*self.prelude.values(), *self.kernels.values())

    def build(self, pool: ThreadPoolExecutor) -> list[Future[None]]:
        """Start to compile every kernel, and return the futures."""
        return [pool.submit(build_all, group) for group in compiler_runs(self.all)]


class Executable:
    """`executable(args)` takes the values of the program's inputs in order and returns its outputs; an output that is
    None stays None.

    `tape` is what a call does, and `text` the same as Python source. `needs` are the rows that are computed. The first
    call waits for the kernels in `begun`. If one cannot be compiled, all calls run PyTorch's, which is told.
    """

    def __init__(
        self, plan: Plan, contract: Contract = ANYHOW, steps: Steps | None = None, needs: RowNeeds = UNLIMITED
    ) -> None:
        self.plan, self._contract = plan, contract
        self.steps = steps or Steps.of(plan)
        self._needs = needs
        self.begun: Begun | None = None

    def __getstate__(self) -> tuple[object, ...]:
        """The plan and what follows from it at some cost; the kernels are in the cache, by their texts."""
        return self.plan, self._contract, self._needs, self.tape

    def __setstate__(self, state: tuple[object, ...]) -> None:
        plan, contract, needs, tape = state
        self.__init__(plan, contract, None, needs)  # type: ignore[misc]
        self.__dict__["tape"] = tape

    @property
    def kernels(self) -> Mapping[int, RegionStep]:
        return self.steps.kernels

    @cached_property
    def _calls(self) -> NodeCalls:
        return NodeCalls(self.plan)

    @cached_property
    def tape(self) -> Tape:
        prelude = self.steps.prelude
        return tape_of(self.plan, self.kernels, self._calls, self._contract, prelude=prelude, needs=self._needs)

    @cached_property
    def _runner(self) -> PythonRunner:
        return PythonRunner(self.tape, self.plan, self.kernels, self._calls, prelude=self.steps.prelude)

    @property
    def text(self) -> str:
        return self._runner.text

    @cached_property
    def _run(self) -> Boxed:
        if self.begun is not None:
            try:
                self.begun.wait()
            except (GraphweaveError, OSError) as error:
                tell_uncompiled(self.plan, error)
                return Executable(without_kernels(self.plan, error), self._contract)._run
            self.begun = None
        run = self._runner.load(f"<graphweave {self.plan.name}>")
        device = graph_device(self.plan.options) if self._contract.cuda_graphs else None
        return run if device is None else CudaGraphs.of(run, self.plan, device, verify=self._contract.verify)

    def prepare(self) -> None:
        """Make the function that follows the tape, which the first call would make."""
        _ = self._run

    def __call__(self, args: list[object]) -> list[Any]:
        """Removes the arguments from `args`, so that each is freed after its last use.

        Modes of the user's, such as a block of `torch.device`, do not change what the program makes.
        """
        try:
            with torch._C.DisableTorchFunction():
                return self._run(args)
        except MapError as error:
            raise in_words(error, self._contract.names) from None


def _kernels(plan: Plan) -> dict[int, RegionStep]:
    kernels = {i: step_of(k, plan.options.target)(plan.program, k, _wide(plan, i)) for i, k in plan.kernels.items()}
    for kernel in kernels.values():
        kernel.label, kernel.device = label_of(plan.name, kernel.name), plan.options.device
    return kernels


def _wide(plan: Plan, i: int) -> Callable[[], KernelPlan]:
    """The same region for 64-bit indices, lowered when a graph first needs it."""
    region = plan.kernels[i].region
    return lambda: lower_region(
        plan.facts, region, plan.schedule, f"{plan.name.half}_{i}{WIDE}", plan.options, DType.i64
    )
