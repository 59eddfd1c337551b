"""The compilation of one graph that AOTAutograd hands over, and what happens where there is none."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from functorch.compile import default_partition, make_boxed_func
from torch import Tensor, fx
from torch._guards import TracingContext

from graphweave.compiler.compile import compile
from graphweave.compiler.report import collecting, record_capture, record_eager
from graphweave.compiler.request import Halves
from graphweave.core.counters import bump
from graphweave.core.errors import RuleError, ShardError
from graphweave.core.interrupts import interrupt_in
from graphweave.core.kernel_schedules import KernelSchedules
from graphweave.core.log import logger, warn_once
from graphweave.core.options import Options, options_for
from graphweave.core.schedule import Schedule
from graphweave.core.spans import SEARCH, span
from graphweave.execute.build import build
from graphweave.execute.executable import Executable
from graphweave.execute.gains import NothingGained
from graphweave.frontends.calls.decompositions import Decompositions, decompositions, decompositions_without_torch
from graphweave.frontends.dynamo.captured_forms import forms_of
from graphweave.frontends.dynamo.captured_request import Asked, CapturedGraph, capture
from graphweave.frontends.dynamo.memory_budget import fit_memory
from graphweave.frontends.dynamo.targets import options_of
from graphweave.frontends.dynamo.tuned import tuned
from graphweave.frontends.halves.autograd_function import Gradients
from graphweave.frontends.halves.derivatives import JointGraph, without_unreached
from graphweave.frontends.halves.exposed import exposed
from graphweave.frontends.halves.folded_parts import unfolded
from graphweave.frontends.halves.forms import Forms
from graphweave.frontends.halves.handover import Handed, handed, saved_numbers, split_modules
from graphweave.frontends.halves.reference import Reference, checked_inference
from graphweave.frontends.halves.rewritten_import import rewritten_import
from graphweave.frontends.importing.importer import Imported
from graphweave.frontends.stored.compilation import Compilation, boxed_inference
from graphweave.frontends.stored.runtime_parts import RuntimeParts
from graphweave.frontends.tracing.reasons import graph_place
from graphweave.passes.partition import Split

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Made:
    """The executables of a graph, its import with the program from which they were made, how that was `cut` into
    halves, with `verify` the reference for their results, and what makes other `forms` for other graphs."""

    executables: tuple[Executable, ...]
    imported: Imported
    cut: Split | None
    reference: Reference | None
    forms: Forms | None


class GraphCompilation:
    """The compilation of one graph: AOTAutograd calls `inference`, or `partition`, and `finish` for each half."""

    def __init__(
        self, asked: Asked, examples: Sequence[object], *, may_be_left: bool = False, once: str = ""
    ) -> None:  # fmt: skip
        """A graph that `may_be_left` to PyTorch raises NothingGained if compiling it gains nothing. `once` says why its
        gradients have no gradients, or ""."""
        self._once = once
        self._asked, self._may_be_left = asked, may_be_left and asked.may_leave
        self.examples = examples  # arguments of the first call, released once they have been measured
        self.gradients: Gradients | None = None  # of the joint graph, set once it is partitioned
        self.begun = False  # whether a graph has come from AOTAutograd
        self._forward: Executable | Handed | None = None
        self._forms: Forms | None = None

    @property
    def decompositions(self) -> Decompositions:
        return decompositions() if self._asked.taker is None else decompositions_without_torch()

    def inference(self, module: fx.GraphModule, example_inputs: Sequence[object]) -> Callable[..., Any]:
        unfolded(module)
        self.begun = True
        if self._asked.taker is not None:
            return self._asked.taker.take(capture(module, self._asked, options_for("cpp"), self._take_examples()))
        made = self._attempt(module, lambda options: capture(module, self._asked, options, self._take_examples()))
        if made is None:
            return make_boxed_func(module.forward)
        (executable,) = made.executables
        if made.reference is None:
            self._forward, self._forms = executable, made.forms
            return boxed_inference(executable) if made.forms is None else made.forms.inference(executable)
        names = [n.name for n in module.graph.find_nodes(op="placeholder")]
        return boxed_inference(checked_inference(made.reference, executable, names))

    def partition(
        self,
        joint: fx.GraphModule,
        joint_inputs: tuple[list[Tensor | int], list[Tensor]],
        *,
        num_fwd_outputs: int,
        **kwargs: object,
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        unfolded(joint)
        self.begun = True
        graph = JointGraph(joint, num_fwd_outputs, functools.partial(differentiable, options=self._asked.options))
        without_unreached(joint, num_fwd_outputs, graph.reached)

        def captured(options: Options) -> CapturedGraph:
            found = exposed(joint, num_fwd_outputs, self.examples)
            return capture(joint, self._asked, options, self._take_examples(), num_fwd_outputs, found)

        made = self._attempt(joint, captured)
        drawn: dict[str, str] = {}
        if made is None or made.cut is None:
            forward, backward = default_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)
        else:
            forward, backward, drawn = split_modules(joint, made.imported, made.executables, made.cut, made.reference)
            self._forms = made.forms
        parts = self._asked.ranks is not None
        self.gradients = Gradients(graph, backward, drawn, over_ranks=parts, once=self._once)
        return forward, backward

    def finish(self, module: fx.GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
        """The callable of one half: the opaque call, or the ATen graph itself if the graph could not be compiled."""
        _donate_nothing()
        half, forms, gradients = handed(module), self._forms, self.gradients
        backward = any("tangents" in n.name for n in module.graph.find_nodes(op="placeholder"))
        if not backward:
            self._forward = half
        if half is None:
            run = make_boxed_func(module.forward)
        elif forms is None or gradients is None:
            run = half.boxed()
        else:
            run = forms.backward(half, gradients) if backward else forms.forward(half, saved_numbers(module))
        return gradients.finish(run) if backward and gradients is not None else run

    def stored_form(self, about: str, parts: RuntimeParts) -> Compilation | None:
        """The compilation as data, by the parts of its function; None if a half was left to PyTorch."""
        if self._forward is None:
            return None
        if parts.backward is None:
            return Compilation(about, (), parts, self._forward, forms=self._forms)
        back = handed(parts.backward)
        if back is None:
            return None
        return Compilation(about, (), parts, self._forward, back, self.gradients, self._forms)

    def _take_examples(self) -> Sequence[object]:
        examples, self.examples = self.examples, ()
        return examples

    def _attempt(self, module: fx.GraphModule, captured: Callable[[Options], CapturedGraph]) -> Made | None:
        """The executables of a graph; None if it runs as ATen calls, which is told."""
        options = options_of(module, self._asked.choices)
        if isinstance(options, str):
            self._must_compile(None)
            bump("eager_fallbacks")
            record_eager(f"{graph_place(module)}: {options}")
            warn_once(f"graphweave: {graph_place(module)} runs eagerly: {options}")
            return None
        bump("compilations")
        try:
            return self._compile(captured(options))
        except NothingGained:
            raise
        except Exception as error:
            if interrupt_in(error) is not None:
                raise
            self._must_compile(error)
            _fall_back(error, module)
            return None

    def _compile(self, captured: CapturedGraph) -> Made:
        request, schedules = captured.request, tuple[Schedule, ...]()
        if self._asked.choices.tunes:
            with span(SEARCH):
                request, schedules = tuned(captured)
        elif self._asked.choices.memory is not None:
            with span(SEARCH):
                request = fit_memory(captured)
        halves = compile(request)
        if collecting():
            record_capture(captured.note(halves))
        forms = self._other_forms(captured, halves)
        guarded = self._asked.ranks is None and forms is None
        imported = rewritten_import(captured.imported, halves.joint, guarded=guarded)
        later = self._asked.ranks is None and captured.reference is None
        made = build(halves, schedules, must_gain=self._may_be_left, backward_later=later)
        return Made(made, imported, halves.split, captured.reference, forms)

    def _other_forms(self, captured: CapturedGraph, halves: Halves) -> Forms | None:
        """Makes forms for graphs of other statistics; None where all graphs have one form, and choices by cost are
        guards: where the user says so, over ranks, which must all run one, where each call is checked or replayed,
        where kernels have the user's schedules, where a step must fit into some memory, and where the engine of
        autograd is compiled."""
        choices = self._asked.choices
        scheduled = choices.schedule is not None and choices.schedule != "tune"
        chosen = choices.rewrite and choices.forms and not (scheduled or choices.memory is not None)
        once = self._asked.ranks is not None or self._asked.taker is not None or torch._dynamo.config.compiled_autograd
        if once or not chosen or choices.verify or choices.cuda_graphs:
            return None
        return forms_of(captured, halves)

    def _must_compile(self, error: Exception | None) -> None:
        """ShardError if the function runs on several ranks, where PyTorch's calls would see one rank's rows only."""
        if self._asked.ranks is not None:
            why = "this machine has no usable compiler" if error is None else f"{type(error).__name__}: {error}"
            raise ShardError(f"a model over parts must be compiled, and could not be: {why}. Report this.") from error


def differentiable(module: fx.GraphModule, options: Mapping[str, Any]) -> Callable[..., object]:
    """The graph of a compiled function's gradients as a compiled function itself, for graphs of all sizes."""
    module.recompile()  # PyTorch leaves to Python the code of graph modules that are made while it compiles
    # schedules by name are those of the function's own kernels
    options = {name: value for name, value in options.items() if not isinstance(value, Mapping | KernelSchedules)}
    made: Callable[..., Any] = torch.compile(module, backend="graphweave", dynamic=True, options=options)
    return made


def _donate_nothing() -> None:
    """Tell AOTAutograd that the backward overwrites no saved value, so that it may run twice (`retain_graph=True`)."""
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


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
