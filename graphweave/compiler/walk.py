"""Leads a program through passes: between any two it is verified, dumped and logged, and `explain` gets a note."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from torch import fx

from graphweave.analysis.facts import Facts
from graphweave.analysis.statistics import with_unions
from graphweave.compiler.dump import dump_program
from graphweave.compiler.report import PassNote, Stage, record_pass
from graphweave.core.log import logger
from graphweave.core.spans import PASSES, span
from graphweave.frontends.spellings.respelling import Respelling
from graphweave.ir.message.nodes import Program
from graphweave.ir.message.show import show
from graphweave.ir.message.verify import verify
from graphweave.passes.pass_facts import Pass, PassFacts
from graphweave.passes.rewritten import Rewritten, unchanged

_log, _ir_log = logger("graphweave.passes"), logger("graphweave.ir")


def respell(module: fx.GraphModule, spellings: Sequence[Respelling]) -> fx.GraphModule:
    """A captured graph after all of `spellings`; the same object where none has work to do."""
    for spelling in spellings:
        with span(PASSES, spelling.name) as spent:
            done = spelling(module)
            if done is not module:
                done.graph.lint()
        sizes = _size(module), _size(done)
        _tell(PassNote("spellings", spelling.name, *sizes, spent.seconds, done is not module))
        module = done
    return module


def rewrite(stage: Stage, passes: Sequence[Pass], program: Program, facts: PassFacts, name: str = "") -> Rewritten:
    """`program` after all of `passes`, the place to which each of its nodes went, and what the passes say.

    Files of GRAPHWEAVE_DUMP are called by `name`; without one nothing is dumped.
    """
    done = unchanged(program)
    facts = replace(facts, known=facts.of(program))
    for pass_ in passes:
        with span(PASSES, pass_.name) as spent:
            after = pass_(done.program, facts)
            changed = after.program is not done.program
            if changed:
                verify(after.program)
        sizes = len(done.program.nodes), len(after.program.nodes)
        taken = sum(step.taken for step in after.steps)
        choices = taken, len(after.steps)
        _tell(PassNote(stage, pass_.name, *sizes, spent.seconds, changed, choices, after.notes))
        if changed:
            _tell_text(after.program)
            if name:
                dump_program(f"{name}_{pass_.name}", after.program)
        done = Rewritten(
            after.program,
            {old: after.where[new] for old, new in done.where.items() if new in after.where},
            done.steps + after.steps,
            done.unions + after.unions,
            after.operands if changed else done.operands,
            notes=done.notes + after.notes,
            limits=done.limits + after.limits,
            counted=done.counted + after.counted,
        )
        facts = replace(
            facts,
            keep=tuple(after.where[r] for r in facts.keep),
            statistics=with_unions(facts.statistics, after.unions, after.counted),
            known=Facts(after.program, after.operands) if changed else facts.known,
        )
    return done


def begin(program: Program) -> None:
    """Verify and log a program that enters the road."""
    verify(program)
    _ir_log.info("a program of %d nodes on %d spaces is well-formed", len(program.nodes), len(program.spaces))
    _tell_text(program)


def _size(module: fx.GraphModule) -> int:
    return len(module.graph.nodes)


def _tell(note: PassNote) -> None:
    record_pass(note)
    _log.info("%s", note)


def _tell_text(program: Program) -> None:
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("%s", show(program))
