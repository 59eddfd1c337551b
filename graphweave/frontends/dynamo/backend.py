"""The torch.compile backend named `graphweave`: it takes ATen graphs from AOTAutograd and returns compiled programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import fx
from torch._dynamo.exc import ShortenTraceback, TensorifyScalarRestartAnalysis

import graphweave.frontends.tracing.sizes_in_bytecode as _sizes  # noqa: F401  changes how PyTorch reads sizes
from graphweave.compiler.report import record_eager, record_left
from graphweave.core.counters import bump
from graphweave.core.interrupts import interrupt_in
from graphweave.core.lines import shown_code
from graphweave.core.log import logger, warn_once
from graphweave.core.spans import AOT_AUTOGRAD, STORE, span
from graphweave.execute.gains import NothingGained
from graphweave.frontends.calls.declared import replace_calls
from graphweave.frontends.dynamo.captured_request import Asked
from graphweave.frontends.dynamo.graph_compilation import GraphCompilation
from graphweave.frontends.dynamo.mode import with_mode
from graphweave.frontends.dynamo.progress import shown
from graphweave.frontends.dynamo.targets import begin_early
from graphweave.frontends.halves.autograd_function import equipped
from graphweave.frontends.halves.folded_parts import folded
from graphweave.frontends.halves.forward_mode import refuse_forward_mode
from graphweave.frontends.halves.given_call import check_call_under_way, checked
from graphweave.frontends.halves.stops import mark_stops
from graphweave.frontends.spellings.given_values import take_given_values
from graphweave.frontends.spellings.inplace import writes_apart
from graphweave.frontends.spellings.python_floats import in_full_precision
from graphweave.frontends.spellings.segment_attention import attention_by_segments
from graphweave.frontends.spellings.sparse_lookups import join_lookups
from graphweave.frontends.spellings.spelled_attention import join_attention
from graphweave.frontends.stored.runtime_parts import RuntimeParts, noted_parts
from graphweave.frontends.stored.store import Slot, slot, unstored
from graphweave.frontends.tracing.capture_settings import DuringCompilation
from graphweave.frontends.tracing.inner_gradients import asked_for, requiring_gradients, with_gradients
from graphweave.frontends.tracing.reasons import at, function_name, graph_place, not_traced, reason_of
from graphweave.frontends.tracing.sparse_breaks import tell_of_sparse_tensors
from graphweave.frontends.tracing.torch_imports import through_aot_autograd
from graphweave.runtime import segment_attention

_log = logger(__name__)


def graphweave(
    module: fx.GraphModule, example_inputs: Sequence[object], *, options: Mapping[str, object] | None = None,
    mode: str | None = None, parameters: Sequence[str] = (), **_: object,
) -> Callable[..., Any]:  # fmt: skip
    """`torch.compile(model, backend="graphweave")`. `options` and `mode` are those of `graphweave.compile`.

    `parameters` names the positional parameters of the compiled function if Dynamo has seen `*args` in their place.
    """
    asked, about = Asked.of(with_mode(mode, options), module, parameters), graph_place(module)
    values = take_given_values(module)
    if values is not None:
        check_call_under_way(values)
        asked = replace(asked, given=values.sizes)
    run = _stored_or_compiled(asked, module, example_inputs, about)
    return run if values is None else checked(run, values)


def _stored_or_compiled(
    asked: Asked, module: fx.GraphModule, example_inputs: Sequence[object], about: str
) -> Callable[..., Any]:
    leaves = asked_for(module)
    stores = asked.ranks is None and asked.taker is None and not leaves
    place = slot(module, asked.choices, _besides(asked), about) if stores else None
    try:
        found = None if place is None else place.find()
        if found is not None:
            return found
        with requiring_gradients(example_inputs, leaves):
            made = _compile(asked, module, example_inputs, about, place)
        return with_gradients(made, leaves)
    except _Interrupted:
        raise
    except NothingGained:
        _log.info("%s: nothing in it gains by being compiled", about)
        if any(n.op.startswith("call") for n in module.graph.nodes):
            record_left(about)
        if place is not None:
            place.keep_left()
        return with_gradients(module.forward, leaves)
    except TensorifyScalarRestartAnalysis:  # PyTorch's way to trace again with a number compiled in
        if place is not None:
            place.keep_restart()
        raise
    except Exception as error:
        _log.info("a trace with data-dependent shapes failed: %s", error)
        _compilations.trace_again_without()
        raise


def _besides(asked: Asked) -> str:
    """Text of all that a compilation depends on besides the graph and the user's choices."""
    given = sorted((flag, sorted(zeros)) for flag, zeros in asked.given.items())
    return f"{asked.parameters} {given}"


def _compile(
    asked: Asked, module: fx.GraphModule, example_inputs: Sequence[object], about: str, place: Slot | None
) -> Callable[..., object]:
    """The graph, compiled, and kept in its `place` on disk."""
    examples = in_full_precision(module, example_inputs)
    changed = writes_apart(module) | join_lookups(module) or examples is not example_inputs or _transforms(module)
    if asked.ranks is None and asked.taker is None:
        changed |= join_attention(module)
        for kind in (attended := attention_by_segments(module)):
            segment_attention.begin_early(*kind)
        changed |= bool(attended)
    replace_calls(module)
    once = mark_stops(module)
    compilation = GraphCompilation(asked, examples, may_be_left=not changed, once=once)
    begin_early(example_inputs)
    with shown("compiling a graph"):
        run, parts = _compiled(compilation, module)
    made = refuse_forward_mode(run, about)
    if place is not None:
        with span(STORE):
            made.stored = _kept(place, compilation, parts)  # type: ignore[attr-defined]
    return made


def _transforms(module: fx.GraphModule) -> bool:
    """Whether a transform of torch.func is part of the graph. Captured, it has none of its own fallbacks."""
    calls = module.graph.nodes
    return any("functorch" in str(getattr(n.target, "__module__", "")) for n in calls if n.op == "call_function")


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


def _kept(place: Slot, compilation: GraphCompilation, parts: Sequence[RuntimeParts]) -> bytes | None:
    """The compilation as bytes, which are kept on disk; None if it has none."""
    found = compilation.stored_form(place.about, parts[0]) if len(parts) == 1 else None
    if found is None:
        unstored(place.about, "a half of it is not compiled, or it has more than one")
        return None
    return place.keep(found)


def _compiled(
    compilation: GraphCompilation, module: fx.GraphModule
) -> tuple[Callable[..., object], Sequence[RuntimeParts]]:
    try:
        with span(AOT_AUTOGRAD), equipped(lambda: compilation.gradients), noted_parts() as parts:
            with folded(module, compilation.decompositions) as short:
                if short is not None:
                    try:
                        return _traced(compilation, short), parts
                    except Exception as error:
                        if interrupt_in(error) is not None or compilation.begun:
                            raise
                        bump("parts_unfolded")
                        _log.info("equal parts are traced one by one: %s", error)
            return _traced(compilation, module), parts
    except Exception as error:
        interrupt = interrupt_in(error)
        if interrupt is None:
            raise
        raise _Interrupted(interrupt) from error


def _traced(compilation: GraphCompilation, module: fx.GraphModule) -> Callable[..., object]:
    return through_aot_autograd(
        module, compilation.examples, compiler=compilation.finish, inference_compiler=compilation.inference,
        partition_fn=compilation.partition, decompositions=compilation.decompositions,
        keep_inference_input_mutations=False,
    )  # fmt: skip


class _Interrupted(ShortenTraceback):
    """Wraps an exception that a signal handler raised during compilation, in the only form that Dynamo does not
    wrap."""

    def __init__(self, interrupt: BaseException) -> None:
        super().__init__(f"{type(interrupt).__name__}: {interrupt}", first_useful_frame=None)
        self.inner_exception = interrupt

    def remove_dynamo_frames(self) -> Any:
        """The exception that Dynamo raises in place of this one."""
        return self.inner_exception
