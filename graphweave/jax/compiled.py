"""Message programs of a graph -> kernels, by the stages that PyTorch's programs go through."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

from graphweave.analysis.facts import Facts
from graphweave.analysis.flow import extract
from graphweave.analysis.statistics import statistics_of, with_unions
from graphweave.compiler.pipeline import PassInputs, optimise
from graphweave.compiler.plan import Plan, make_plan
from graphweave.core.log import logger
from graphweave.core.types import Space
from graphweave.execute.cpp_step import CppStep
from graphweave.execute.executable import Executable
from graphweave.ir.message.nodes import Input, Program
from graphweave.lower.kernel_products import with_calls
from graphweave.lower.options import options_for

_log = logger(__name__)
_serial = itertools.count()


@dataclass(frozen=True, eq=False)
class CompiledProgram:
    """The plan of a program, its kernels by step, and what computes values of the graph alone (None if there are
    none)."""

    plan: Plan
    kernels: Mapping[int, CppStep]
    prelude: Executable | None


@lru_cache(maxsize=256)
def compiled(program: Program, rows: tuple[tuple[Space, int], ...]) -> CompiledProgram:
    """The kernels of `program`, ready to run; choices by cost are made for these row counts. ToolchainError without a
    C++ compiler."""
    options = options_for("cpp")
    given = PassInputs(statistics_of(dict(rows)), joins=options.row_products)
    done = optimise(program, given)
    statistics = with_unions(given.statistics, done.unions)
    better = with_calls(done.program, options)
    inputs = [r for r, n in enumerate(better.nodes) if isinstance(n, Input)]
    part = extract(better, inputs, better.outputs).program
    name = f"jax{next(_serial)}_program"
    plan = make_plan(name, Facts(part), options, {}, statistics)
    made = Executable(plan, watches=None)
    prelude = None if plan.prelude is None else Executable(plan.prelude, len(plan.hoisted), watches=None)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for kernel in [k for e in (made, prelude) if e is not None for k in e.build(pool)]:
            kernel.result()
    kernels = {i: k for i, k in made.kernels.items() if isinstance(k, CppStep)}
    _log.info("%s: %d kernels for %d nodes", name, len(kernels), len(part.nodes))
    return CompiledProgram(plan, kernels, prelude)
