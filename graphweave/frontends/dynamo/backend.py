"""The torch.compile backend named `graphweave`: it takes ATen graphs from AOTAutograd and returns compiled programs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from functorch.compile import default_partition, make_boxed_func
from torch import fx
from torch._dynamo.exc import ShortenTraceback
from torch._guards import TracingContext

from graphweave.analysis.cost import cost
from graphweave.analysis.facts import Facts
from graphweave.analysis.statistics import statistics_of, with_unions
from graphweave.compiler.glossary import Glossary
from graphweave.compiler.pipeline import PassInputs
from graphweave.compiler.report import CaptureNote, collecting, record_capture, record_eager, record_rewrites
from graphweave.core.counters import bump
from graphweave.core.errors import RuleError, SettingsError, ShardError
from graphweave.core.interrupts import interrupt_in
from graphweave.core.lines import shown_code
from graphweave.core.locality import RowOrder
from graphweave.core.log import logger, warn_once
from graphweave.core.schedule import COMPILERS_CHOICE, Schedule
from graphweave.core.types import Space
from graphweave.execute.build import build_inference, build_training
from graphweave.frontends.calls.declared import replace_calls
from graphweave.frontends.calls.decompositions import decompositions
from graphweave.frontends.dynamo.argument_names import argument_names, sources
from graphweave.frontends.dynamo.progress import shown
from graphweave.frontends.dynamo.targets import begin_early, options_of
from graphweave.frontends.dynamo.tuned import ToTune, tuned
from graphweave.frontends.dynamo.uncompiled import refuse_forward_mode
from graphweave.frontends.halves.added_rules import Suspects, in_force
from graphweave.frontends.halves.autograd_function import Gradients, equipped
from graphweave.frontends.halves.choices import guard_choices
from graphweave.frontends.halves.derivatives import JointGraph, without_unreached
from graphweave.frontends.halves.exposed import Exposed, exposed, exposed_values
from graphweave.frontends.halves.handover import boxed, row_counts, split_modules
from graphweave.frontends.halves.over_ranks import OverRanks, optimised_over_ranks
from graphweave.frontends.halves.reference import Reference, checked_inference
from graphweave.frontends.importing.eager_work import eager_work
from graphweave.frontends.importing.importer import Imported, import_graph
from graphweave.frontends.importing.measure import GraphAtHand, example_values, known_rows
from graphweave.frontends.spellings.inplace import writes_apart
from graphweave.frontends.spellings.python_floats import in_full_precision
from graphweave.frontends.tracing.capture_settings import DuringCompilation
from graphweave.frontends.tracing.reasons import at, function_name, graph_place, not_traced, reason_of
from graphweave.frontends.tracing.sparse_breaks import tell_of_sparse_tensors
from graphweave.frontends.tracing.torch_imports import through_aot_autograd
from graphweave.ir.message.nodes import Aten, Input, MapType
from graphweave.lower.options import Options, by_schedule
from graphweave.passes.recompute import POLICIES, Recompute
from graphweave.passes.relational import Relational
from graphweave.passes.rewritten import Rewritten
from graphweave.tuning.choice import Choice
from graphweave.tuning.order import OrderThatPays

_log, _analysis_log = logger(__name__), logger("graphweave.analysis")

MODES = (None, "default", "reduce-overhead")
"""The modes of torch.compile that this backend takes."""


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """`verify`: at every call, also run the captured graph and the interpreter of every region, and raise VerifyError
    where they differ (`reference.py`, `execute/region_check.py`).

    `recompute`: what the backward computes again instead of keeping it (`passes/recompute.py`). `compact`: whether to
    compute what depends on source and relation alone once for each pair (True), for each edge (False), or as the cost
    model says (None). `reorder`: whether to multiply weights by weights before rows, with the same three values.
    `cuda_graphs`: replay calls on a CUDA device as CUDA graphs (`execute/cuda_graph.py`); this does nothing on the CPU.
    `unseen_edits`: look at each call for edits of index tensors that PyTorch does not see (`runtime/unseen_edits.py`).
    `schedule`: choices for kernels that replace the compiler's, or "tune", which measures and takes the best of what is
    left to the compiler (`tuning/`), for at most `budget` seconds a graph.

    Three switches turn an idea off, to measure what it gains. `rewrite`: changes of the program that the cost model
    decides; what `compact` and `reorder` ask for is done even so. `fuse`: several operations in one kernel. `merge`:
    one operation in place of many of a kind, such as those of the relations of a heterogeneous layer. `relabel`: an
    order in which nodes are computed and stored between the arguments and the results (`passes/relabel.py`); "auto"
    measures on the graph of the first call whether one pays (`tuning/order.py`).

    `ranks` are the ranks that the function runs on, each with a part of the graph; `graphweave.distributed.shard` sets
    it. Nothing then runs eagerly, since eager calls would see one rank's rows: what cannot be compiled is a ShardError.
    """

    verify: bool = False
    recompute: Recompute = "auto"
    compact: bool | None = None
    reorder: bool | None = None
    cuda_graphs: bool = False
    unseen_edits: bool = True
    schedule: Schedule | Literal["tune"] | None = None
    budget: float = 60.0
    rewrite: bool = True
    fuse: bool = True
    merge: bool = True
    relabel: RowOrder | Literal[False, "auto"] = False
    ranks: OverRanks | None = None


_SWITCH = (True, False)
_ALLOWED: dict[str, tuple[Any, ...]] = {
    "verify": _SWITCH,
    "recompute": POLICIES,
    "compact": (None, *_SWITCH),
    "reorder": (None, *_SWITCH),
    "cuda_graphs": _SWITCH,
    "unseen_edits": _SWITCH,
    "rewrite": _SWITCH,
    "fuse": _SWITCH,
    "merge": _SWITCH,
    "relabel": (False, *get_args(RowOrder), "auto"),
}
"""The values that each option may have."""
OPTIONS = (*_ALLOWED, "schedule", "budget")
"""The names of all options that users may give."""


def parse_options(options: Mapping[str, Any] | None) -> CompileOptions:
    """The options as an object. Raises SettingsError for an unknown option and for a value that an option cannot
    have."""
    given = dict(options or {})
    known = ", ".join(OPTIONS)
    for name, value in given.items():
        if name == "schedule":
            if value is not None and not isinstance(value, Schedule) and value != "tune":
                raise SettingsError(
                    f"option 'schedule' must be 'tune' or must be a graphweave.Schedule or None (got {value!r})."
                    " Pass one of these."
                )
            continue
        if name == "budget":
            check_budget(value)
            continue
        if name == "ranks" and isinstance(value, OverRanks):
            continue
        if name not in _ALLOWED:
            raise SettingsError(f"unknown option {name!r} of graphweave.compile; there are {known}. Name one of these.")
        if not any(value is allowed or (isinstance(allowed, str) and value == allowed) for allowed in _ALLOWED[name]):
            *most, last = map(repr, _ALLOWED[name])
            one_of = f"{', '.join(most)} or {last}"
            raise SettingsError(f"option {name!r} must be {one_of} (got {value!r}). Pass one of these.")
    return CompileOptions(**given)


def check_budget(seconds: Any) -> None:
    """SettingsError for what is no time that tuning may take."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise SettingsError(f"budget must be a number of seconds above 0 (got {seconds!r}). Pass one, such as 60.")


def with_mode(mode: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """`options` with the option that torch.compile's `mode` stands for. Raises SettingsError if the two contradict each
    other, and for an unknown mode."""
    if options is not None and not isinstance(options, Mapping):
        raise SettingsError(f"options must be a dict such as {{'verify': True}} (got {options!r}). Pass one.")
    if mode not in MODES:
        known = ", ".join(repr(m) for m in MODES)
        measures = isinstance(mode, str) and mode.startswith("max-autotune")
        advice = "For choices by measuring, pass options={'schedule': 'tune'}." if measures else (
            "Other choices are options. Pass those.")  # fmt: skip
        raise SettingsError(f"mode must be one of {known} (got {mode!r}). {advice}")
    if mode != "reduce-overhead":
        return dict(options or {})
    asked = {"cuda_graphs": True, **(options or {})}
    if asked["cuda_graphs"] is False:
        raise SettingsError(
            "mode='reduce-overhead' asks for CUDA graphs, options={'cuda_graphs': False} for none."
            " Leave out one of them."
        )
    return asked


def graphweave(
    module: fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None,
    mode: str | None = None, parameters: Sequence[str] = (), **_: Any,
) -> Callable[..., Any]:  # fmt: skip
    """`torch.compile(model, backend="graphweave")`. `options` and `mode` are those of `graphweave.compile`.

    `parameters` names the positional parameters of the compiled function if Dynamo has seen `*args` in their place.
    """
    chosen = parse_options(with_mode(mode, options))
    example_inputs = in_full_precision(module, example_inputs)
    compilation = _GraphCompilation(chosen, dict(options or {}), example_inputs, sources(module), parameters)
    writes_apart(module)
    replace_calls(module)
    begin_early(example_inputs)
    try:
        with shown("compiling a graph"):
            return refuse_forward_mode(_compiled(compilation, module), graph_place(module))
    except _Interrupted:
        raise
    except Exception as error:
        _log.info("a trace with data-dependent shapes failed: %s", error)
        _compilations.trace_again_without()
        raise


def leave_to_python(name: str, begins: str, error: BaseException) -> None:
    """Count and report a function that PyTorch could not trace and now runs as Python. `begins` is its "file:line"."""
    bump("eager_fallbacks")
    tell_not_traced(name, begins, error)


def tell_not_traced(name: str, begins: str, error: BaseException) -> None:
    why, where = reason_of(error)
    record_eager(f"{name}{at(where or begins)} could not be traced: {why}")
    warn_once(not_traced(name, where or begins, why))


_compilations = DuringCompilation(
    graphweave,
    after=tell_of_sparse_tensors,
    left=lambda code, error: leave_to_python(function_name(code.co_name), shown_code(code), error),
)


def compiles_now() -> bool:
    """Whether PyTorch is tracing for this backend at this moment, and not for another one."""
    return _compilations.under_way()


def _compiled(compilation: _GraphCompilation, module: fx.GraphModule) -> Callable[..., Any]:
    try:
        with equipped(lambda: compilation.gradients):
            return through_aot_autograd(
                module, compilation.examples, compiler=compilation.finish, inference_compiler=compilation.inference,
                partition_fn=compilation.partition, decompositions=decompositions(),
                keep_inference_input_mutations=False,
            )  # fmt: skip
    except Exception as error:
        interrupt = interrupt_in(error)
        if interrupt is None:
            raise
        raise _Interrupted(interrupt) from error


class _Interrupted(ShortenTraceback):
    """Wraps an exception that a signal handler raised during compilation, in the only form that Dynamo does not
    wrap."""

    def __init__(self, interrupt: BaseException) -> None:
        super().__init__(f"{type(interrupt).__name__}: {interrupt}", first_useful_frame=None)
        self.inner_exception = interrupt

    def remove_dynamo_frames(self) -> Any:
        """The exception that Dynamo raises in place of this one."""
        return self.inner_exception


class _GraphCompilation:
    """The compilation of one graph."""

    def __init__(
        self, options: CompileOptions, asked: Mapping[str, Any], examples: Sequence[Any], sources: Sequence[str],
        parameters: Sequence[str],
    ) -> None:  # fmt: skip
        self.options, self.asked = options, asked
        self.choice: Choice | None = None  # what tuning found
        self.examples: Sequence[Any] = examples  # arguments of the first call, released once they have been measured
        self.sources, self.parameters = sources, parameters  # of Dynamo's placeholders, and of the user's function
        self.gradients: Gradients | None = None  # of the joint graph, set once it is partitioned

    def inference(self, module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        options = _options(module, self.options)
        if options is None:
            self._must_compile(None)
            return make_boxed_func(module.forward)
        bump("compilations")
        try:
            imported, glossary, reference = self._optimised(module, options, frozenset())
            made = build_inference(
                imported.program, imported.effects, imported.refused, self._forward(options), imported.attributes,
                verify=self.options.verify, cuda_graphs=self.options.cuda_graphs, watches=self.options.unseen_edits,
                promises=imported.promises, glossary=glossary, tuned=self.choice is not None,
            )  # fmt: skip
        except Exception as error:
            if interrupt_in(error) is not None:
                raise
            self._must_compile(error)
            _fall_back(error, module)
            return make_boxed_func(module.forward)

        checked = made if reference is None else checked_inference(reference, made, _names(module))

        def run(args: list[Any]) -> list[Any]:
            return checked(args)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def partition(
        self, joint: fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **kwargs: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        options = _options(joint, self.options)
        if options is None:
            self._must_compile(None)
            return default_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)
        bump("compilations")
        graph = JointGraph(joint, num_fwd_outputs)
        without_unreached(joint, num_fwd_outputs, graph.reached)
        try:
            placeholders = joint.graph.find_nodes(op="placeholder")
            names = [n.name for n in placeholders if "tangents" in str(n.target)]
            found = exposed(joint, num_fwd_outputs, self.examples)
            imported, glossary, reference = self._optimised(joint, options, frozenset(names), num_fwd_outputs, found)
            tangents = [r for r, n in zip(imported.inputs, placeholders, strict=True) if n.name in names]
            training = build_training(
                imported.program, num_fwd_outputs, tangents, imported.effects, imported.refused, self._forward(options),
                imported.attributes, verify=self.options.verify, recompute=self.options.recompute,
                cuda_graphs=self.options.cuda_graphs, watches=self.options.unseen_edits,
                exposed=exposed_values(found, imported), promises=imported.promises, glossary=glossary,
                tuned_backward=None if self.choice is None else self.choice.backward,
            )  # fmt: skip
            forward, backward, drawn = split_modules(joint, imported, training, num_fwd_outputs, reference)
        except Exception as error:
            if interrupt_in(error) is not None:
                raise
            self._must_compile(error)
            _fall_back(error, joint)
            forward, backward = default_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)
            drawn = {}
        self.gradients = Gradients(graph, backward, drawn, over_ranks=self.options.ranks is not None)
        return forward, backward

    def _optimised(
        self, module: fx.GraphModule, options: Options, tangents: frozenset[str], num_forward: int | None = None,
        found: Exposed | None = None,
    ) -> tuple[Imported, Glossary, Reference | None]:  # fmt: skip
        """The rewritten program, the user's names for its values, and with `verify` the reference for its results."""
        imported = import_graph(module, num_forward)
        reference = Reference(module, imported, num_forward) if self.options.verify else None
        what, nodes = graph_place(module), imported.program.nodes
        left = sum(isinstance(n, Aten) for n in nodes)
        calls = sum(n.op == "call_function" for n in module.graph.nodes)
        _log.info("%s: %d calls captured, imported as %d nodes, %d of them PyTorch's", what, calls, len(nodes), left)
        placeholders = module.graph.find_nodes(op="placeholder")
        names, fakes = [n.name for n in placeholders], [n.meta.get("val") for n in placeholders]
        at_hand = GraphAtHand(example_values(names, fakes, self.examples))
        self.examples = ()
        rows = known_rows(imported.program, imported.space_rows, at_hand)
        relational = Relational(self.options.compact, self.options.reorder)
        statistics = statistics_of(rows)
        known = ", ".join(f"{space.name} = {n}" for space, n in rows.items())
        _analysis_log.info("%s: choices by cost are made for rows %s", what, known or "unknown")
        given = PassInputs(
            statistics, tangents, relational, at_hand, options.row_products, in_force(), self.options.rewrite,
            self.options.merge, self._order(options, at_hand), _steady(module, tangents, num_forward),
        )  # fmt: skip
        if (ranks := self.options.ranks) is not None:
            sharding, statistics = ranks.agreed(imported.program, at_hand.values, rows)
            given = replace(given, statistics=statistics, measure=ranks.mean_of(at_hand), sharding=sharding)
        if reference is not None and any(given.added):
            reference.suspects = Suspects(imported.program, replace(given, measure=None), imported.effects)
        if self.options.schedule == "tune":
            given = self._tuned(imported, given, options, at_hand, module, num_forward, found)
        done = optimised_over_ranks(imported.program, given, imported.effects)
        record_rewrites(imported.program, done)
        statistics = with_unions(statistics, done.unions)
        if ranks is not None:
            statistics = ranks.with_halo(statistics, done.program)
        glossary = Glossary.of(done.program, argument_names(module, self.sources, self.parameters), statistics)
        if collecting():
            record_capture(_capture_note(module, imported, done, rows, glossary, given, options.fuse))
        return _rewritten(imported, done, guarded=ranks is None), glossary, reference

    def _must_compile(self, error: Exception | None) -> None:
        """ShardError if the function runs on several ranks, where PyTorch's calls would see one rank's rows only."""
        if self.options.ranks is not None:
            why = "this machine has no usable compiler" if error is None else f"{type(error).__name__}: {error}"
            raise ShardError(f"a model over parts must be compiled, and could not be: {why}. Report this.") from error

    def _order(self, options: Options, at_hand: GraphAtHand) -> RowOrder | OrderThatPays | None:
        """The order of nodes that was asked for, or what chooses one. With "tune" the tuner tries orders itself."""
        if self.options.relabel != "auto":
            return self.options.relabel or None
        measures = options.target == "cpp" and self.options.schedule != "tune"
        return OrderThatPays(at_hand.value, at_hand.rows) if measures else None

    def _tuned(
        self, imported: Imported, given: PassInputs, options: Options, at_hand: GraphAtHand, module: fx.GraphModule,
        num_forward: int | None, found: Exposed | None,
    ) -> PassInputs:  # fmt: skip
        """`given` with the form of the program that tuning found; its schedules are kept in `choice`."""
        chosen = self.options
        self.choice = choice = tuned(
            ToTune(
                graph_place(module), imported, given, options, self.asked, chosen.budget, chosen.recompute,
                chosen.unseen_edits, at_hand, module, num_forward, found,
            )
        )  # fmt: skip
        form = choice.form
        return replace(given, relational=Relational(form.compact, form.reorder), relabel=form.relabel)

    def _forward(self, options: Options) -> Options:
        """`options` with the schedule that tuning found for the forward."""
        return options if self.choice is None else by_schedule(options, self.choice.forward)

    def finish(self, module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """The callable of one half: the opaque call, or the ATen graph itself if the graph could not be compiled."""
        _donate_nothing()
        run = boxed(module) or make_boxed_func(module.forward)
        backward = any("tangents" in n.name for n in module.graph.find_nodes(op="placeholder"))
        return self.gradients.finish(run) if backward and self.gradients is not None else run


def _steady(module: fx.GraphModule, tangents: frozenset[str], num_forward: int | None) -> frozenset[str]:
    """Names of inputs that are likely to be the same at the next call: without a gradient nothing trains them."""
    inputs = [n.name for n in module.graph.find_nodes(op="placeholder") if n.name not in tangents]
    if num_forward is None:
        return frozenset(inputs)
    results = module.graph.output_node().args[0]
    assert isinstance(results, list | tuple)
    return frozenset(name for name, g in zip(inputs, results[num_forward:], strict=False) if g is None)


def _capture_note(
    module: fx.GraphModule, imported: Imported, done: Rewritten, rows: Mapping[Space, int], glossary: Glossary,
    given: PassInputs, fuse: bool,
) -> CaptureNote:  # fmt: skip
    """A note on the graph and its work in this call, with the work of eager mode for comparison."""
    program, eager = done.program, eager_work(module, imported.space_rows, rows)
    tangents = [r for r, n in enumerate(program.nodes) if isinstance(n, Input) and n.name in given.tangents]
    keep = [done.where[r] for r in imported.effects]
    moved, _, _ = cost(Facts(program), tangents, keep, joins=given.joins).total(glossary.statistics)
    ends = {s for t in program.types if isinstance(t, MapType) for s in (t.dom, t.cod)}
    spaces: dict[str, int] = {}
    for space, words in glossary.spaces.items():
        if space in ends:
            spaces[words] = max(spaces.get(words, 0), glossary.statistics.rows(space))
    return CaptureNote(tuple(spaces.items()), moved if fuse else None, eager.calls, eager.moved, bool(given.tangents))


def _rewritten(imported: Imported, done: Rewritten, *, guarded: bool) -> Imported:
    """`imported` with its program rewritten. If `guarded`, adds guards on choices that were made by cost."""
    rows = row_counts(done.program, imported, done.unions)
    if guarded:
        guard_choices(done.steps, rows)
    where = done.where
    return replace(
        imported,
        program=done.program,
        space_rows=rows,
        inputs=tuple(where[r] for r in imported.inputs),
        vals={where[r]: v for r, v in imported.vals.items() if r in where},
        refused={where[r]: why for r, why in imported.refused.items() if r in where},
        effects=tuple(where[r] for r in imported.effects),
        attributes={where[r]: v for r, v in imported.attributes.items() if r in where},
        drawn={name: where[r] for name, r in imported.drawn.items() if r in where},
    )


def _names(module: fx.GraphModule) -> list[str]:
    return [n.name for n in module.graph.find_nodes(op="placeholder")]


def _donate_nothing() -> None:
    """Tell AOTAutograd that the backward overwrites no saved value, so that it may run twice (`retain_graph=True`)."""
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


def _options(module: fx.GraphModule, asked: CompileOptions) -> Options | None:
    """The options for compiling the graph on this machine. None if the machine cannot compile it; the graph then runs
    as ATen calls, and one warning says so."""
    schedule = asked.schedule if isinstance(asked.schedule, Schedule) else COMPILERS_CHOICE
    options = options_of(module, schedule)
    if isinstance(options, Options):
        return replace(options, fuse=asked.fuse)
    bump("eager_fallbacks")
    record_eager(f"{graph_place(module)}: {options}")
    warn_once(f"graphweave: {graph_place(module)} runs eagerly: {options}")
    return None


def _fall_back(error: Exception, module: fx.GraphModule) -> None:
    """Count and report a graph that could not be compiled. It runs as ATen calls, which are always correct."""
    bump("eager_fallbacks")
    why, place = " ".join(f"{type(error).__name__}: {error}".split()), graph_place(module)
    record_eager(f"{place} could not be compiled: {why}")
    _log.debug("%s could not be compiled", place, exc_info=error)
    unless = ", unless the rule is yours to correct" if isinstance(error, RuleError) else ""
    warnings.warn(
        f"graphweave: {place} runs eagerly, since its graph could not be compiled: {why}. The results are right; "
        f"please report it{unless}, with GRAPHWEAVE_LOGS=+frontends for the traceback.",
        stacklevel=3,
    )
