"""`compile(request) -> Halves`: leads a request along the road (`road.py`) up to the programs that kernels are made
of."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from graphweave.analysis.facts import Facts
from graphweave.analysis.flow import Extract, extract
from graphweave.analysis.halo_statistics import with_halo
from graphweave.analysis.statistics import with_unions
from graphweave.compiler.contract import Contract
from graphweave.compiler.describe_values import describe_rewrites
from graphweave.compiler.dump import dump_program
from graphweave.compiler.glossary import Glossary
from graphweave.compiler.plan import PlanName
from graphweave.compiler.report import PassNote, collecting, record_pass, record_rewrites
from graphweave.compiler.request import Half, Halves, Request
from graphweave.compiler.walk import begin, rewrite
from graphweave.core.errors import ShardError
from graphweave.core.log import logger
from graphweave.core.spans import PASSES, span
from graphweave.ir.message import nodes as ir
from graphweave.passes.exposed_memory import exposed_values
from graphweave.passes.partition import Split, split
from graphweave.passes.pass_facts import PassFacts
from graphweave.passes.rewritten import Rewritten

_log = logger(__name__)
_serial = itertools.count()


def compile(request: Request) -> Halves:
    """The halves of a request, optimised as one program. Raises ShardError if it cannot be divided among ranks."""
    name = f"graph{next(_serial)}"
    dump_program(f"{name}_captured", request.program)
    joint = _optimise_over_ranks(request, name)
    if collecting():
        record_rewrites(describe_rewrites(name, request.program, joint, request.names))
    dump_program(f"{name}_joint", joint.program)
    facts = request.facts
    statistics = with_unions(facts.statistics, joint.unions, joint.counted)
    if facts.sharding is not None:
        statistics = with_halo(statistics, joint.program, facts.sharding)
    keep, known = tuple(joint.where[r] for r in facts.keep), Facts(joint.program, joint.operands)
    facts = replace(facts, statistics=statistics, keep=keep, known=known)
    made = Halves(request, joint, Glossary.of(joint.program, request.names, statistics), ())
    return _inference(made, facts, name) if request.num_forward is None else _training(made, facts, name)


def optimise(program: ir.Program, facts: PassFacts | None = None) -> Rewritten:
    """`program` after all passes of the joint program."""
    return _optimise(Request(program, facts or PassFacts()))


def _optimise(request: Request, name: str = "") -> Rewritten:
    begin(request.program)
    return rewrite("joint", request.road.joint, request.program, request.facts, name)


def _optimise_over_ranks(request: Request, name: str) -> Rewritten:
    """The joint program after all passes. Over ranks, without merged relations or pairs if with these it cannot be
    divided."""
    if request.facts.sharding is not None:
        for given_up in ({}, {"merge": False}):
            try:
                return _optimise(_with_choices(request, given_up), name)
            except ShardError as error:
                _log.info("a form of the program cannot run over parts: %s", error)
        request = _with_choices(request, {"merge": False, "compact": False})
    return _optimise(request, name)


def _with_choices(request: Request, changed: Mapping[str, Any]) -> Request:
    choices = replace(request.facts.choices, **changed)
    return replace(request, facts=replace(request.facts, choices=choices))


def _inference(made: Halves, facts: PassFacts, name: str) -> Halves:
    request, program, half = made.request, made.program, PlanName("inference", name)
    inputs = [r for r, n in enumerate(program.nodes) if isinstance(n, ir.Input)]
    part = _finish(made, extract(program, inputs, [*program.outputs, *facts.keep]), facts, half)
    watches = _watched(part.program.outputs, request)
    contract = Contract(len(program.outputs), request.promises, watches=watches)
    return replace(made, parts=(_half(made, part, half, contract),))


def _training(made: Halves, facts: PassFacts, name: str) -> Halves:
    request, program = made.request, made.program
    assert request.num_forward is not None
    inputs, count = [made.joint.where[r] for r in request.inputs], request.num_forward
    exposed = frozenset[ir.Ref]() if request.exposed is None else exposed_values(request.exposed, program, inputs)
    with span(PASSES, "partition") as spent:
        cut = split(program, count, facts, frozenset(made.moved(request.constants)), exposed)
    sizes = len(program.nodes), len(cut.forward.program.nodes) + len(cut.backward.program.nodes)
    record_pass(PassNote("partition", "partition", *sizes, spent.seconds, True))
    ahead, behind = PlanName("forward", name), PlanName("backward", name)
    cut = replace(
        cut,
        forward=_finish(made, cut.forward, facts, ahead),
        backward=_finish(made, cut.backward, facts, behind),
    )
    back = _half(made, cut.backward, behind, Contract(promises=request.promises[count:]))
    back = replace(back, passing=_passing(program, cut, frozenset(facts.of(program).hoist.values)))
    given = cut.forward.program.outputs[:count]
    contract = Contract(
        count + len(cut.saved), request.promises[:count], _private(cut, back.facts, count), _watched(given, request)
    )
    forward = _half(made, cut.forward, ahead, contract)
    kept = cut.forward.program.outputs[count : count + len(cut.saved)]
    forward = replace(forward, saved=tuple(r for r in kept if r is not None))
    return replace(made, parts=(forward, back), split=cut)


def _finish(made: Halves, part: Extract, facts: PassFacts, name: PlanName) -> Extract:
    """A half after its own passes."""
    done = rewrite("half", made.request.road.half, part.program, replace(facts, keep=()), str(name))
    if done.program is part.program:
        return part
    return Extract(done.program, {r: done.where[at] for r, at in part.where.items() if at in done.where})


def _half(made: Halves, part: Extract, name: PlanName, contract: Contract) -> Half:
    request, choices = made.request, made.request.facts.choices
    contract = replace(contract, names=made.glossary.names, verify=choices.verify, cuda_graphs=choices.cuda_graphs)
    return Half(
        name, Facts(part.program), part.where, contract, _named(made.program, made.moved(request.constants)),
        made.glossary.statistics, request.road.prelude,
    )  # fmt: skip


def _watched(given: Iterable[ir.Ref | None], request: Request) -> frozenset[ir.Ref] | None:
    """Values, besides indices, in which a call looks for unseen edits: those that it has `given` to the user. None for
    no look at all."""
    return frozenset(r for r in given if r is not None) if request.facts.choices.unseen_edits else None


def _named(program: ir.Program, constants: Mapping[ir.Ref, object]) -> dict[str, object]:
    return {n.name: value for r, value in constants.items() if isinstance(n := program.nodes[r], ir.Input)}


def _passing(program: ir.Program, cut: Split, once: frozenset[ir.Ref]) -> frozenset[ir.Ref]:
    """The backward's inputs that end with it: tangents, and what the forward has computed for it, but for what is made
    `once` a graph."""
    computed = (r for r in cut.saved if r in cut.copied or not (isinstance(program.nodes[r], ir.Input) or r in once))
    return frozenset(cut.backward.where[r] for r in (*computed, *cut.tangents) if r in cut.backward.where)


def _private(cut: Split, back: Facts, num_forward: int) -> frozenset[ir.Ref]:
    """Values that the forward program passes to the backward only, which uses them only as maps."""
    forward, backward = cut.forward.program, back.program
    taken = {ref: cut.backward.where[ref] for ref in cut.saved if ref in cut.backward.where}
    maps = {
        cut.forward.where[ref]
        for ref, there in taken.items()
        if ref not in cut.copied
        and there not in backward.outputs
        and all(isinstance(backward.nodes[u], ir.MapOf) for u in back.flow.users[there])
    }
    return frozenset(maps - {r for r in forward.outputs[:num_forward] if r is not None})
