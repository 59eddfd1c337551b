"""Plan -> one Python callable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

from graphweave.compiler.plan import KernelPlan, Plan, kernel_prefix, lower_region
from graphweave.core.types import DType
from graphweave.execute.cuda_graph import CudaGraphs, graph_device
from graphweave.execute.range_errors import MapError, in_words
from graphweave.execute.region_step import RegionStep
from graphweave.execute.row_needs import UNLIMITED
from graphweave.execute.targets import step_of
from graphweave.execute.wrapper import Wrapper
from graphweave.ir.message.layouts import Promise
from graphweave.ir.message.nodes import Ref


class Executable:
    """`executable(args)` takes the values of the program's inputs in order and returns its outputs; an output that is
    None stays None.

    `text` is the Python source of the call. With `verify`, every region is compared with the interpreter at each call.
    `promises` says for each of the first outputs how it lies in memory. Outputs in `private` are read only by our own
    maps, which take an index in 32 bits as well as in 64. With `cuda_graphs`, calls on a CUDA device are replayed as
    CUDA graphs where that is possible (see `cuda_graph.py`). Unless `watches` is None, each call looks for edits that
    PyTorch does not see (`unseen_edits.py`) of its index tensors and of the values in `watches`, which users get.
    """

    def __init__(
        self, plan: Plan, num_outputs: int | None = None, *, verify: bool = False,
        private: frozenset[Ref] = frozenset(), promises: Sequence[Promise | None] = (), cuda_graphs: bool = False,
        watches: frozenset[Ref] | None = None, names: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.plan = plan
        self._names = names or {}
        self.kernels = _steps(plan)
        self._prelude = {} if plan.prelude is None else _steps(plan.prelude)
        self._cuda_graphs, self._verify = cuda_graphs, verify
        self._wrapper_of = lambda needs: Wrapper(
            plan,
            self.kernels,
            num_outputs,
            prelude=self._prelude,
            verify=verify,
            private=private,
            promises=promises,
            watches=watches,
            needs=needs,
        )
        self.needs = UNLIMITED
        """The rows that are computed; it may be set before `text` is read or a call is made."""

    @cached_property
    def _wrapper(self) -> Wrapper:
        return self._wrapper_of(self.needs)

    @property
    def text(self) -> str:
        return self._wrapper.text

    @cached_property
    def _run(self) -> Callable[[list[Any]], list[Any]]:
        run = self._wrapper.load(f"<graphweave {self.plan.name}>")
        device = graph_device(self.plan.options) if self._cuda_graphs else None
        return run if device is None else CudaGraphs.of(run, self.plan, device, verify=self._verify)

    def build(self, pool: ThreadPoolExecutor) -> list[Any]:
        """Start to compile every kernel, and return the futures."""
        return [pool.submit(k.build) for k in (*self._prelude.values(), *self.kernels.values())]

    def __call__(self, args: list[Any]) -> list[Any]:
        """Removes the arguments from `args`, so that each is freed after its last use."""
        try:
            return self._run(args)
        except MapError as error:
            raise in_words(error, self._names) from None


def _steps(plan: Plan) -> dict[int, RegionStep]:
    return {i: step_of(k, plan.options.target)(plan.program, k, _wide(plan, i)) for i, k in plan.kernels.items()}


def _wide(plan: Plan, i: int) -> Callable[[], KernelPlan]:
    """The same region for 64-bit indices, lowered when a graph first needs it."""
    region = plan.kernels[i].region
    return lambda: lower_region(
        plan.facts, region, plan.schedule, f"{kernel_prefix(plan.name)}_{i}_wide", plan.options, DType.i64
    )
