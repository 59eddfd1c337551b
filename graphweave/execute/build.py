"""Message programs -> executables, for inference and for training; kernels compile in parallel."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from graphweave.analysis.facts import Facts
from graphweave.analysis.flow import extract
from graphweave.compiler.glossary import Glossary
from graphweave.compiler.plan import check_schedule, make_plan
from graphweave.compiler.report import record
from graphweave.core.errors import Reason
from graphweave.core.log import logger
from graphweave.core.schedule import Schedule
from graphweave.execute.dump import dump_plan, dump_program
from graphweave.execute.executable import Executable
from graphweave.execute.row_needs import RowNeeds, needs_of_halves, row_needs
from graphweave.ir.message.layouts import Promise
from graphweave.ir.message.nodes import Input, MapOf, Program, Ref
from graphweave.lower.kernel_products import with_calls
from graphweave.lower.options import Options, by_schedule
from graphweave.lower.packed import packed
from graphweave.passes.partition import Split, split
from graphweave.passes.recompute import Recompute

_log = logger(__name__)
_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class CompiledTraining:
    """`forward` returns the forward outputs, then the values `partition.saved`. `backward` takes these values, then
    tangents."""

    forward: Executable
    backward: Executable
    partition: Split


@dataclass(frozen=True, slots=True)
class Half:
    """A program that becomes one executable, under any options of its kernels: the arguments of an `Executable`."""

    name: str
    facts: Facts
    num_outputs: int | None
    constants: Mapping[str, Any]
    promises: Sequence[Promise | None]
    glossary: Glossary
    private: frozenset[Ref] = frozenset()
    watches: frozenset[Ref] | None = None

    def executable(self, options: Options, *, verify: bool = False, cuda_graphs: bool = False) -> Executable:
        plan = make_plan(self.name, self.facts, options, self.constants, self.glossary.statistics)
        return Executable(
            plan, self.num_outputs, verify=verify, private=self.private, promises=self.promises,
            cuda_graphs=cuda_graphs, watches=self.watches, names=self.glossary.names,
        )  # fmt: skip


def inference_half(
    program: Program, effects: Iterable[Ref], options: Options, constants: Mapping[Ref, Any], *, watches: bool = True,
    promises: Sequence[Promise | None] = (), glossary: Glossary | None = None,
) -> tuple[Half, Mapping[Ref, Ref]]:  # fmt: skip
    """The half of `build_inference`, before it is planned, and where it has the nodes of `program`."""
    program = with_calls(program, options)
    inputs = [r for r, n in enumerate(program.nodes) if isinstance(n, Input)]
    glossary = glossary or Glossary()
    part = packed(extract(program, inputs, [*program.outputs, *effects]), options, glossary.statistics)
    half = Half(
        f"graph{next(_serial)}_inference", Facts(part.program), len(program.outputs), _named(program, constants),
        promises, glossary, watches=_refs(part.program.outputs) if watches else None,
    )  # fmt: skip
    return half, part.where


def training_halves(
    joint: Program, num_forward: int, tangents: Iterable[Ref], effects: Iterable[Ref], options: Options,
    constants: Mapping[Ref, Any], *, recompute: Recompute = "auto", watches: bool = True,
    exposed: frozenset[Ref] = frozenset(), promises: Sequence[Promise | None] = (), glossary: Glossary | None = None,
) -> tuple[Half, Half, Split]:  # fmt: skip
    """The forward and backward of `build_training`, before they are planned, and how the program was divided."""
    glossary, joint = glossary or Glossary(), with_calls(joint, options)
    name = f"graph{next(_serial)}"
    dump_program(f"{name}_joint", joint)
    halves = split(
        Facts(joint), num_forward, tangents, effects, frozenset(constants), recompute, exposed, glossary.statistics
    )
    halves = replace(
        halves,
        forward=packed(halves.forward, options, glossary.statistics),
        backward=packed(halves.backward, options, glossary.statistics),
    )
    named = _named(joint, constants)
    ahead, back = Facts(halves.forward.program), Facts(halves.backward.program)
    forward = Half(
        f"{name}_forward", ahead, num_forward + len(halves.saved), named, promises[:num_forward], glossary,
        _private(halves, back, num_forward),
        _refs(halves.forward.program.outputs[:num_forward]) if watches else None,
    )  # fmt: skip
    backward = Half(f"{name}_backward", back, None, named, promises[num_forward:], glossary)
    return forward, backward, halves


def build_inference(
    program: Program, effects: Iterable[Ref], refused: Mapping[Ref, Reason], options: Options,
    constants: Mapping[Ref, Any], *, verify: bool, cuda_graphs: bool = False, watches: bool = True,
    promises: Sequence[Promise | None] = (), glossary: Glossary | None = None, tuned: bool = False,
) -> Executable:  # fmt: skip
    """One executable for all outputs of `program`. `effects` are calls that must run even if nothing reads their
    results.

    `promises` says for each output how it lies in memory. `glossary` has the user's words, for reports and errors. A
    schedule that was `tuned` may have fields that no kernel takes; a user's may not.
    """
    half, where = inference_half(
        program, effects, options, constants, watches=watches, promises=promises, glossary=glossary
    )
    with _compiling() as begin:
        made = half.executable(options, verify=verify, cuda_graphs=cuda_graphs)
        made.needs = row_needs(made.plan, made.kernels, {})
        dump_plan(made.plan, made.text)
        if not tuned:
            check_schedule([made.plan])
        begin(made)
        record(made.plan, made.text, {where[r]: why for r, why in refused.items() if r in where}, half.glossary)
    return made


def build_training(
    joint: Program, num_forward: int, tangents: Iterable[Ref], effects: Iterable[Ref], refused: Mapping[Ref, Reason],
    options: Options, constants: Mapping[Ref, Any], *, verify: bool, recompute: Recompute = "auto",
    cuda_graphs: bool = False, watches: bool = True, exposed: frozenset[Ref] = frozenset(),
    promises: Sequence[Promise | None] = (), glossary: Glossary | None = None, tuned_backward: Schedule | None = None,
) -> CompiledTraining:  # fmt: skip
    """Forward and backward executables of a joint program whose first `num_forward` outputs are the forward's.

    The backward uses the graph that the forward has seen, and does not look for edits. `exposed` are values whose
    memory the user may write to between the two (`passes/apart.py`), and `promises` says for each output how it lies in
    memory. `glossary` has the user's words, for reports and errors, and the known row counts. With `tuned_backward`,
    the backward has this schedule, and either schedule may have fields that no kernel takes.
    """
    ahead, back, halves = training_halves(
        joint, num_forward, tangents, effects, options, constants, recompute=recompute, watches=watches,
        exposed=exposed, promises=promises, glossary=glossary,
    )  # fmt: skip
    with _compiling() as begin:
        forward = ahead.executable(options, verify=verify, cuda_graphs=cuda_graphs)
        begin(forward)
        chosen = by_schedule(options, tuned_backward)
        backward = back.executable(chosen, verify=verify, cuda_graphs=cuda_graphs)
        if tuned_backward is None:
            check_schedule([forward.plan, backward.plan])
        begin(backward)
        forward.needs, backward.needs = _needs(halves, forward, backward, num_forward)
        for made, part in ((forward, halves.forward), (backward, halves.backward)):
            dump_plan(made.plan, made.text)
            saved = tuple(part.where[r] for r in halves.saved) if made is forward else ()
            why_not = {part.where[r]: why for r, why in refused.items() if r in part.where}
            record(made.plan, made.text, why_not, ahead.glossary, saved, recompute)
    return CompiledTraining(forward, backward, halves)


def _private(halves: Split, back: Facts, num_forward: int) -> frozenset[Ref]:
    """Values that the forward program passes to the backward only, which uses them only as maps."""
    forward, backward = halves.forward.program, back.program
    taken = {ref: halves.backward.where[ref] for ref in halves.saved if ref in halves.backward.where}
    maps = {
        halves.forward.where[ref]
        for ref, there in taken.items()
        if ref not in halves.copied
        and there not in backward.outputs
        and all(isinstance(backward.nodes[u], MapOf) for u in back.flow.users[there])
    }
    return frozenset(maps - _refs(forward.outputs[:num_forward]))


def _needs(halves: Split, forward: Executable, backward: Executable, num_forward: int) -> tuple[RowNeeds, RowNeeds]:
    """The rows that both halves compute. What is also a result of the forward is needed whole."""
    ahead, back = halves.forward.where, halves.backward.where
    same = {there: ahead[ref] for ref, there in back.items() if ref in ahead}
    whole = _refs(halves.forward.program.outputs[:num_forward])
    saved = (r for r in halves.saved if r in back and r not in halves.copied and ahead[r] not in whole)
    read = {back[ref]: ahead[ref] for ref in saved}
    return needs_of_halves(forward.plan, forward.kernels, backward.plan, backward.kernels, read, same)


def _refs(outputs: Iterable[Ref | None]) -> frozenset[Ref]:
    return frozenset(r for r in outputs if r is not None)


def _named(program: Program, constants: Mapping[Ref, Any]) -> dict[str, Any]:
    return {n.name: value for r, value in constants.items() if isinstance(n := program.nodes[r], Input)}


@contextmanager
def _compiling() -> Iterator[Callable[[Executable], None]]:
    """Yields a function that starts to compile an executable's kernels. At the end of the block all kernels are
    ready."""
    start = time.perf_counter()
    begun: list[tuple[Executable, list[Any]]] = []
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        yield lambda made: begun.append((made, made.build(pool)))
        for _, kernels in begun:
            for kernel in kernels:
                kernel.result()
    names, count = ", ".join(made.plan.name for made, _ in begun), sum(len(kernels) for _, kernels in begun)
    _log.info("%s: %d kernels ready in %.2f s", names, count, time.perf_counter() - start)
