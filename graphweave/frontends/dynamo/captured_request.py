"""A captured graph as a request to the compiler: what it computes, what is known of its graph, what the user asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from graphweave.analysis.cost import cost
from graphweave.analysis.facts import Facts
from graphweave.analysis.statistics import statistics_of
from graphweave.compiler.report import CaptureNote
from graphweave.compiler.request import Halves, Request
from graphweave.compiler.road import ROAD
from graphweave.core.choices import Choices, choices_of
from graphweave.core.log import logger
from graphweave.core.options import Options
from graphweave.core.sizes import Symbol, show
from graphweave.core.spans import IMPORT, span
from graphweave.core.types import Space
from graphweave.frontends.calls.captured_graph import is_tangent
from graphweave.frontends.calls.captured_sizes import expression, hint
from graphweave.frontends.dynamo.argument_names import argument_names, sources
from graphweave.frontends.halves.added_rules import Suspects, in_force
from graphweave.frontends.halves.over_ranks import OverRanks
from graphweave.frontends.halves.reference import Reference
from graphweave.frontends.importing.eager_work import eager_calls
from graphweave.frontends.importing.importer import Imported, import_graph
from graphweave.frontends.importing.measure import GraphAtHand, example_values, known_rows
from graphweave.frontends.tracing.reasons import graph_place
from graphweave.ir.message.nodes import Aten, MapType
from graphweave.passes.exposed_memory import Exposed
from graphweave.passes.pass_facts import GivenSize, PassFacts
from graphweave.tuning.order import OrderThatPays

_log, _analysis_log = logger(__name__), logger("graphweave.analysis")


@dataclass(frozen=True, slots=True, eq=False)
class Taker:
    """Takes each captured inference in place of the compiler; calls then run as PyTorch's own (`graphweave.export`)."""

    take: Callable[[CapturedGraph], Callable[..., Any]]
    """The captured graph -> what runs in its place."""

    any_rows: bool
    """Whether one program is to serve all numbers of rows of features, 0 and 1 among them."""


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A user's request to the backend: `choices`, which stand as text in `options`, and the `ranks` that the function
    runs on, each with a part of the graph (`graphweave.distributed.shard`). Over ranks nothing runs eagerly, since
    eager calls would see one rank's rows.

    `sources` are those of Dynamo's placeholders, and `parameters` the names of the user's function's own.
    """

    choices: Choices
    options: Mapping[str, Any]
    ranks: OverRanks | None
    sources: Sequence[str]
    parameters: Sequence[str]
    taker: Taker | None = None
    given: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """For dictionaries with keys that some calls do not give: see `GivenValues.sizes`."""

    @property
    def may_leave(self) -> bool:
        """Whether a graph that gains nothing may run as PyTorch's own: not over ranks, and not if the user asks for
        something that only compiled code does."""
        asked = self.choices
        wanted = asked.verify or asked.cuda_graphs or asked.memory is not None
        keeps_otherwise = asked.recompute != "auto" or asked.saved == "bfloat16" or asked.chunks
        return self.ranks is None and not (wanted or keeps_otherwise)

    @staticmethod
    def of(options: Mapping[str, object], module: fx.GraphModule, parameters: Sequence[str]) -> Asked:
        """Raises SettingsError for options that are unknown or have wrong values."""
        ranks = options.get("ranks")
        ranks = ranks if isinstance(ranks, OverRanks) else None
        taker = options.get("taker")
        taker = taker if isinstance(taker, Taker) else None
        return Asked(checked_choices(options), options, ranks, sources(module), parameters, taker)


@dataclass(frozen=True, slots=True, eq=False)
class CapturedGraph:
    """A captured graph, its import, and the request that they make; `at_hand` has the graph of the first call."""

    module: fx.GraphModule
    asked: Asked
    imported: Imported
    request: Request
    at_hand: GraphAtHand
    reference: Reference | None

    @property
    def about(self) -> str:
        """The graph, in messages."""
        return graph_place(self.module)

    def note(self, halves: Halves) -> CaptureNote:
        """A note on the graph and its work in this call, with the work of eager mode for comparison."""
        facts, program, glossary = self.request.facts, halves.program, halves.glossary
        eager = eager_calls(self.module, self.imported.space_rows, self.at_hand.rows)
        keep = [halves.joint.where[r] for r in facts.keep]
        joins = facts.options.row_products
        moved, _, _ = cost(Facts(program), facts.tangents_of(program), keep, joins=joins).total(glossary.statistics)
        ends = {s for t in program.types if isinstance(t, MapType) for s in (t.dom, t.cod)}
        spaces: dict[str, int] = {}
        for space, words in glossary.spaces.items():
            if space in ends:
                spaces[words] = max(spaces.get(words, 0), glossary.statistics.rows(space))
        fused = facts.choices.fuse
        return CaptureNote(tuple(spaces.items()), moved if fused else None, eager, bool(facts.tangents))


def checked_choices(options: Mapping[str, object] | None) -> Choices:
    """The options of `graphweave.compile` as an object, without what `graphweave.distributed.shard` and
    `graphweave.export` add.
    Raises SettingsError for an unknown option, and for a value that an option cannot have."""
    choices = choices_of({name: v for name, v in (options or {}).items() if not isinstance(v, OverRanks | Taker)})
    ROAD.without(choices.left_out)
    return choices


def capture(
    module: fx.GraphModule, asked: Asked, options: Options, examples: Sequence[object], num_forward: int | None = None,
    exposed: Exposed | None = None,
) -> CapturedGraph:  # fmt: skip
    """A graph of ATen calls, whose first `num_forward` results are the forward's, on the way to the compiler.
    `examples` are the arguments of the first call."""
    choices, placeholders = asked.choices, module.graph.find_nodes(op="placeholder")
    road = ROAD.without(choices.left_out)
    with span(IMPORT):
        imported = import_graph(module, num_forward, road.spellings)
    _tell(module, imported)
    names, fakes = [n.name for n in placeholders], [n.meta.get("val") for n in placeholders]
    at_hand = GraphAtHand(example_values(names, fakes, examples))
    rows = known_rows(imported.program, imported.space_rows, at_hand)
    known = ", ".join(f"{space.name} = {n}" for space, n in rows.items())
    _analysis_log.info("%s: choices by cost are made for rows %s", graph_place(module), known or "unknown")
    tangents = frozenset(n.name for n in placeholders if num_forward is not None and is_tangent(n))
    orders = choices.relabel == "auto" and not choices.tunes and options.target == "cpp"
    facts = PassFacts(
        keep=imported.effects, tangents=tangents, statistics=statistics_of(rows), measure=at_hand,
        steady=_steady(module, tangents, num_forward), added=in_force(), choices=choices, options=options,
        choose_order=OrderThatPays(at_hand.value, rows) if orders else None,
        given=_given_sizes(asked.given, fakes),
    )  # fmt: skip
    if asked.ranks is not None:
        facts = _over_ranks(imported, facts, asked.ranks, at_hand, rows)
    request = Request(
        imported.program, facts, num_forward, imported.inputs, exposed, imported.attributes, imported.promises,
        imported.refused, argument_names(module, asked.sources, asked.parameters), road,
    )  # fmt: skip
    reference = Reference(module, imported, num_forward) if choices.verify else None
    if reference is not None and any(facts.added):
        reference.suspects = Suspects(imported.program, replace(facts, measure=None))
    return CapturedGraph(module, asked, imported, request, at_hand, reference)


def _given_sizes(given: Mapping[str, frozenset[str]], fakes: Sequence[object]) -> dict[Symbol, GivenSize]:
    """The sizes that say whether a key is given, with their values in the first call."""
    sizes = [n for fake in fakes for n in (fake.shape if isinstance(fake, torch.Tensor) else (fake,))]
    first = {show(expression(n)): hint(n) for n in sizes if isinstance(n, torch.SymInt)}
    return {
        Symbol(flag): GivenSize(frozenset(map(Symbol, zeros)), bool(first[flag]))
        for flag, zeros in given.items()
        if flag in first
    }


def _over_ranks(
    imported: Imported, facts: PassFacts, ranks: OverRanks, at_hand: GraphAtHand, rows: Mapping[Space, int]
) -> PassFacts:
    sharding, statistics = ranks.agreed(imported.program, at_hand.values, rows)
    return replace(facts, statistics=statistics, measure=ranks.mean_of(at_hand), sharding=sharding)


def _tell(module: fx.GraphModule, imported: Imported) -> None:
    nodes = imported.program.nodes
    left = sum(isinstance(n, Aten) for n in nodes)
    calls = sum(n.op == "call_function" for n in module.graph.nodes)
    about = graph_place(module)
    _log.info("%s: %d calls captured, imported as %d nodes, %d of them PyTorch's", about, calls, len(nodes), left)


def _steady(module: fx.GraphModule, tangents: frozenset[str], num_forward: int | None) -> frozenset[str]:
    """Names of inputs that are likely to be the same at the next call: without a gradient nothing trains them."""
    inputs = [n.name for n in module.graph.find_nodes(op="placeholder") if n.name not in tangents]
    if num_forward is None:
        return frozenset(inputs)
    results = module.graph.output_node().args[0]
    assert isinstance(results, list | tuple)
    return frozenset(name for name, g in zip(inputs, results[num_forward:], strict=False) if g is None)
