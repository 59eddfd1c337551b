"""Message programs -> executables, for inference and for training; kernels compile in parallel."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from graphweave.analysis.facts import Facts
from graphweave.analysis.flow import extract
from graphweave.compiler.glossary import Glossary
from graphweave.compiler.plan import check_schedule, make_plan
from graphweave.compiler.report import record
from graphweave.core.log import logger
from graphweave.execute.dump import dump_plan, dump_program
from graphweave.execute.executable import Executable
from graphweave.execute.row_needs import RowNeeds, needs_of_halves, row_needs
from graphweave.ir.message.layouts import Promise
from graphweave.ir.message.nodes import Input, MapOf, Program, Ref
from graphweave.lower.kernel_products import with_calls
from graphweave.lower.options import Options
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


def build_inference(
    program: Program, effects: Iterable[Ref], refused: Mapping[Ref, str], options: Options,
    constants: Mapping[Ref, Any], *, verify: bool, cuda_graphs: bool = False, watches: bool = True,
    promises: Sequence[Promise | None] = (), glossary: Glossary | None = None,
) -> Executable:  # fmt: skip
    """One executable for all outputs of `program`. `effects` are calls that must run even if nothing reads their
    results.

    `promises` says for each output how it lies in memory. `glossary` has the user's words, for reports and errors.
    """
    glossary, program = glossary or Glossary(), with_calls(program, options)
    inputs = [r for r, n in enumerate(program.nodes) if isinstance(n, Input)]
    part = extract(program, inputs, [*program.outputs, *effects])
    name = f"graph{next(_serial)}"
    with _compiling() as begin:
        made = _executable(
            f"{name}_inference", Facts(part.program), len(program.outputs), options, _named(program, constants), verify,
            cuda_graphs, watches=_refs(part.program.outputs) if watches else None, promises=promises, glossary=glossary,
        )  # fmt: skip
        made.needs = row_needs(made.plan, made.kernels, {})
        dump_plan(made.plan, made.text)
        check_schedule([made.plan])
        begin(made)
        record(made.plan, made.text, {part.where[r]: why for r, why in refused.items() if r in part.where}, glossary)
    return made


def build_training(
    joint: Program, num_forward: int, tangents: Iterable[Ref], effects: Iterable[Ref], refused: Mapping[Ref, str],
    options: Options, constants: Mapping[Ref, Any], *, verify: bool, recompute: Recompute = "auto",
    cuda_graphs: bool = False, watches: bool = True, exposed: frozenset[Ref] = frozenset(),
    promises: Sequence[Promise | None] = (), glossary: Glossary | None = None,
) -> CompiledTraining:  # fmt: skip
    """Forward and backward executables of a joint program whose first `num_forward` outputs are the forward's.

    The backward uses the graph that the forward has seen, and does not look for edits. `exposed` are values whose
    memory the user may write to between the two (`passes/apart.py`), and `promises` says for each output how it lies in
    memory. `glossary` has the user's words, for reports and errors, and the known row counts.
    """
    glossary, joint = glossary or Glossary(), with_calls(joint, options)
    name = f"graph{next(_serial)}"
    dump_program(f"{name}_joint", joint)
    halves = split(
        Facts(joint), num_forward, tangents, effects, frozenset(constants), recompute, exposed, glossary.statistics
    )
    named = _named(joint, constants)
    count = num_forward + len(halves.saved)
    ahead, back = Facts(halves.forward.program), Facts(halves.backward.program)
    private = _private(halves, back, num_forward)
    with _compiling() as begin:
        forward = _executable(
            f"{name}_forward", ahead, count, options, named, verify, cuda_graphs, private,
            _refs(halves.forward.program.outputs[:num_forward]) if watches else None,
            promises[:num_forward], glossary,
        )  # fmt: skip
        begin(forward)
        backward = _executable(
            f"{name}_backward", back, None, options, named, verify, cuda_graphs,
            promises=promises[num_forward:], glossary=glossary,
        )  # fmt: skip
        check_schedule([forward.plan, backward.plan])
        begin(backward)
        forward.needs, backward.needs = _needs(halves, forward, backward, num_forward)
        for made, part in ((forward, halves.forward), (backward, halves.backward)):
            dump_plan(made.plan, made.text)
            saved = tuple(part.where[r] for r in halves.saved) if made is forward else ()
            why_not = {part.where[r]: why for r, why in refused.items() if r in part.where}
            record(made.plan, made.text, why_not, glossary, saved, recompute)
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


def _executable(
    name: str, facts: Facts, num_outputs: int | None, options: Options, constants: Mapping[str, Any], verify: bool,
    cuda_graphs: bool, private: frozenset[Ref] = frozenset(), watches: frozenset[Ref] | None = None,
    promises: Sequence[Promise | None] = (), glossary: Glossary | None = None,
) -> Executable:  # fmt: skip
    plan = make_plan(name, facts, options, constants, glossary.statistics if glossary else None)
    return Executable(
        plan, num_outputs, verify=verify, private=private, promises=promises, cuda_graphs=cuda_graphs, watches=watches,
        names=glossary.names if glossary else {},
    )  # fmt: skip


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
