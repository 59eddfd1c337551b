"""The torch.compile backend named `graphweave`: AOTAutograd hands over ATen graphs, compiled programs go back."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from functorch.compile import default_partition, make_boxed_func
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext

from graphweave.analysis.statistics import statistics_of
from graphweave.compiler.build import build_inference, build_training
from graphweave.compiler.pipeline import Facts, optimise
from graphweave.compiler.report import record_eager, record_rewrites
from graphweave.core.counters import bump
from graphweave.core.errors import SettingsError
from graphweave.core.log import logger
from graphweave.frontends.dynamo.choices import guard_choices
from graphweave.frontends.dynamo.decompositions import decompositions
from graphweave.frontends.dynamo.handover import boxed, row_counts, split_modules
from graphweave.frontends.dynamo.importer import Imported, import_graph
from graphweave.frontends.dynamo.measure import GraphAtHand, example_values, known_rows
from graphweave.frontends.dynamo.sparse_breaks import tell_of_sparse_tensors
from graphweave.frontends.dynamo.targets import options_of
from graphweave.passes.recompute import POLICIES, Recompute
from graphweave.passes.relational import Relational
from graphweave.schedule.options import Options

_log = logger("frontends")
_warned: set[str] = set()

MODES = (None, "default", "reduce-overhead")
"""Of torch.compile's modes those that mean something here."""


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """`verify`: run the interpreter beside every region at every call and raise VerifyError where they differ.

    `recompute`: what the backward computes again instead of keeping (`passes/recompute.py`). `compact`: what depends on
    source and relation alone is computed once for each pair (True), for each edge (False), or as the cost model says
    (None). `reorder`: the same for weights multiplied by weights before rows. `cuda_graphs`: calls on a CUDA device are
    replayed as CUDA graphs (`compiler/cuda_graph.py`); it does nothing on the CPU.
    """

    verify: bool = False
    recompute: Recompute = "auto"
    compact: bool | None = None
    reorder: bool | None = None
    cuda_graphs: bool = False


def parse_options(options: Mapping[str, Any] | None) -> CompileOptions:
    """SettingsError names an option that does not exist, or a policy."""
    unknown = set(options or {}) - {f for f in CompileOptions.__slots__}
    if unknown:
        known = ", ".join(CompileOptions.__slots__)
        raise SettingsError(f"unknown option {sorted(unknown)[0]!r} of graphweave.compile; there are {known}")
    parsed = CompileOptions(**(options or {}))
    if parsed.recompute not in POLICIES:
        raise SettingsError(f"recompute must be one of {', '.join(POLICIES)} (got {parsed.recompute!r})")
    for name, value in (("compact", parsed.compact), ("reorder", parsed.reorder)):
        if value not in (None, True, False):
            raise SettingsError(f"{name} must be None (by cost), True or False (got {value!r})")
    if not isinstance(parsed.cuda_graphs, bool):
        raise SettingsError(f"cuda_graphs must be True or False (got {parsed.cuda_graphs!r})")
    return parsed


def with_mode(mode: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options that torch.compile's word `mode` stands for, with `options`. SettingsError where it says nothing."""
    if mode not in MODES:
        known = ", ".join(repr(m) for m in MODES)
        raise SettingsError(f"mode must be one of {known} (got {mode!r}). Other choices are options.")
    if mode != "reduce-overhead":
        return dict(options or {})
    asked = {"cuda_graphs": True, **(options or {})}
    if asked["cuda_graphs"] is False:
        raise SettingsError("mode='reduce-overhead' asks for CUDA graphs, options={'cuda_graphs': False} for none")
    return asked


def graphweave(
    module: fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None,
    mode: str | None = None, **_: Any,
) -> Callable[..., Any]:  # fmt: skip
    """`torch.compile(model, backend="graphweave")`. `options` and `mode` as in `graphweave.compile`."""
    tell_of_sparse_tensors(warn_once)
    side = _Side(parse_options(with_mode(mode, options)), example_inputs)
    compiled: Callable[..., Any] = aot_autograd(
        fw_compiler=side.finish,
        bw_compiler=side.finish,
        inference_compiler=side.inference,
        partition_fn=side.partition,
        decompositions=decompositions(),
        keep_inference_input_mutations=False,
    )(module, example_inputs)
    return compiled


class _Side:
    """One graph's compilation."""

    def __init__(self, options: CompileOptions, examples: Sequence[Any]) -> None:
        self.options = options
        self.examples: Sequence[Any] = examples  # of the first call, let go of after it has been compiled

    def inference(self, module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        options = _options(module)
        if options is None:
            return make_boxed_func(module.forward)
        bump("compilations")
        try:
            imported = self._optimised(module, frozenset())
            made = build_inference(
                imported.program, imported.effects, imported.refused, options, imported.attributes,
                verify=self.options.verify, cuda_graphs=self.options.cuda_graphs,
            )  # fmt: skip
        except Exception as error:
            _fall_back(error)
            return make_boxed_func(module.forward)

        def run(args: list[Any]) -> list[Any]:
            return made(args)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def partition(
        self, joint: fx.GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **kwargs: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        options = _options(joint)
        if options is None:
            return default_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)
        bump("compilations")
        try:
            placeholders = joint.graph.find_nodes(op="placeholder")
            late = [n.name for n in placeholders if "tangents" in str(n.target)]
            imported = self._optimised(joint, frozenset(late))
            tangents = [r for r, n in zip(imported.inputs, placeholders, strict=True) if n.name in late]
            training = build_training(
                imported.program, num_fwd_outputs, tangents, imported.effects, imported.refused, options,
                imported.attributes, verify=self.options.verify, recompute=self.options.recompute,
                cuda_graphs=self.options.cuda_graphs,
            )  # fmt: skip
            return split_modules(joint, imported, training, num_fwd_outputs)
        except Exception as error:
            _fall_back(error)
            return default_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)

    def _optimised(self, module: fx.GraphModule, tangents: frozenset[str]) -> Imported:
        imported = import_graph(module)
        placeholders = module.graph.find_nodes(op="placeholder")
        names, fakes = [n.name for n in placeholders], [n.meta.get("val") for n in placeholders]
        at_hand = GraphAtHand(example_values(names, fakes, self.examples))
        self.examples = ()
        rows = known_rows(imported.program, imported.space_rows, at_hand)
        relational = Relational(self.options.compact, self.options.reorder)
        return _rewritten(imported, Facts(statistics_of(rows), tangents, relational, at_hand))

    def finish(self, module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        """The callable of one half: the opaque call, or the ATen graph as it stands after a fallback."""
        _donate_nothing()
        return boxed(module) or make_boxed_func(module.forward)


def _rewritten(imported: Imported, facts: Facts) -> Imported:
    """The import with its program rewritten, for graphs about as large as the one at hand."""
    done = optimise(imported.program, facts, imported.effects)
    record_rewrites(imported.program, done)
    rows = row_counts(done.program, imported, done.unions)
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
    )


def _donate_nothing() -> None:
    """Tell AOTAutograd that the backward overwrites no saved value, so that it may run twice (`retain_graph=True`)."""
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


def _options(module: fx.GraphModule) -> Options | None:
    """How this machine compiles the graph; None where it cannot, so that it runs as ATen calls, with one warning."""
    options = options_of(module)
    if isinstance(options, Options):
        return options
    bump("eager_fallbacks")
    record_eager(options)
    warn_once(options)
    return None


def warn_once(why: str) -> None:
    if why not in _warned:
        _warned.add(why)
        warnings.warn(why, stacklevel=2)


def _fall_back(error: Exception) -> None:
    """A graph that could not be compiled runs as ATen calls: never wrong, said aloud, counted."""
    bump("eager_fallbacks")
    why = f"a graph could not be compiled and runs eagerly: {type(error).__name__}: {error}"
    record_eager(why)
    _log.error(why, exc_info=error)
    warnings.warn(f"graphweave: {why}", stacklevel=3)
