"""Corrects AOTAutograd's autograd function: unreached gradients are None, and gradients of gradients are possible.

AOTAutograd makes an autograd function for each compiled graph, as a class of its own. If a loss does not use all
results, that function gets zeros for the missing tangents, and returns zeros for parameters that only these reach;
eager mode returns None, so that an optimiser skips the parameters. The same holds for parameters of relations that a
call does not give (`given_call.py`). It also raises if asked for a graph of the
gradients. Both are corrected on the class. If a version of PyTorch makes it in another way, its own behaviour stays.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx
from torch._dynamo import compiled_autograd
from torch._functorch._aot_autograd import runtime_wrappers
from torch._functorch._aot_autograd.schemas import OutputType, ViewAndMutationMeta

from graphweave.core.boxed import Boxed, boxed
from graphweave.core.errors import DerivativeError
from graphweave.frontends.halves.batched_tangents import for_each, is_batch
from graphweave.frontends.halves.derivatives import (
    Alias,
    JointGraph,
    Refused,
    Twice,
    left_out,
    over_parts,
    tell_eager,
    uncomputable,
)  # fmt: skip
from graphweave.frontends.halves.given_call import unreached_inputs
from graphweave.frontends.halves.missing_tangents import as_finite, is_finite
from graphweave.frontends.halves.short_way import needs_little, short_backward, short_forward

if TYPE_CHECKING:  # PyTorch 2.11 has no such class
    from torch._functorch._aot_autograd.runtime_wrappers import AOTDispatchAutogradCompileSpec

_FACTORY = getattr(runtime_wrappers, "_AOTDispatchAutogradFunctionFactory", None)
"""PyTorch's class that makes the autograd functions; None in PyTorch 2.11, which has no such class."""
_REPLACED_PARTS = ("_fwd_fn", "_bwd_fn", "_double_backward", "metadata")
"""Attributes that an autograd function must have to be corrected."""

_OWN_RESULTS = (OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view)
"""Kinds of results that have a tangent of their own."""


class Gradients:
    """Facts about the gradients of one compiled graph. `module` is its backward.

    `saved` maps the name of each random call to the placeholder of `module` that holds what it drew.
    """

    def __init__(
        self, joint: JointGraph, module: fx.GraphModule, saved: dict[str, str], over_ranks: bool = False,
        once: str = "",
    ) -> None:  # fmt: skip
        """`over_ranks`: whether it runs on a part of a graph, so that these gradients have no gradients. `once`:
        another reason why they have none, or ""."""
        names = [n.name for n in module.graph.find_nodes(op="placeholder")]
        tangents = [i for i, name in enumerate(names) if "tangents" in name]
        self.joint, self.over_ranks, self.once = joint, over_ranks, once
        self.num_tangents = len(tangents)
        self.tangents = slice(tangents[0], tangents[-1] + 1) if tangents else slice(0, 0)
        self.drawn = {call: names.index(name) for call, name in saved.items() if name in names}
        self.num_saved: int | None = None
        """The tensors that the form of the program saves that was handed over; None if there are no others."""
        self.keeps: bool | None = None
        """Whether calls keep their inputs for gradients of gradients. None until the first backward has run."""
        self.twice = False
        """Whether gradients of gradients have been asked for: from then on they come with the first gradients."""
        self._missing = threading.local()

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name not in ("_missing", "keeps", "twice")}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, keeps=None, twice=False, _missing=threading.local())

    def allow_more_saved(self, num_saved: int) -> None:
        """Let calls have more than `num_saved` tensors before the tangents, which are their last arguments."""
        self.num_saved = num_saved
        if self.num_tangents:
            self.tangents = slice(-self.num_tangents, None)

    @contextmanager
    def without(self, missing: frozenset[int], inputs: Sequence[object]) -> Iterator[None]:
        """Within the block, calls of the backward have zeros for the tangents in `missing`. `inputs` is what was
        remembered of the inputs of the forward."""
        self._missing.tangents, self._missing.inputs = missing, inputs
        try:
            yield
        finally:
            self._missing.tangents, self._missing.inputs = frozenset(), ()

    @property
    def missing(self) -> frozenset[int]:
        """The positions of the missing tangents in the call of the backward that is under way in this thread."""
        found: frozenset[int] = getattr(self._missing, "tangents", frozenset())
        return found

    def _without_absent(
        self,
        results: list[Tensor | None],
        tangents: Sequence[object],
        missing: frozenset[int],
        drawn: Mapping[str, object],
    ) -> list[Tensor | None]:
        """The gradients in eager mode, if more of them are finite there than of `results`, which have zeros in place
        of what is absent."""
        inputs, why = _revived(self._missing.inputs)
        if self.over_ranks or why or not drawn.keys() >= set(self.joint.draws):
            self.keeps = True  # for the next call
            return results
        with torch.no_grad():
            exact = self.joint(inputs, tangents, drawn, missing)
        if as_finite(exact, results):
            return results
        self.keeps = True
        tell_eager(left_out(self.joint.about))
        return exact

    def finish(self, run: Boxed) -> Boxed:
        """`run`, the compiled backward, wrapped to return None for gradients that only missing tangents reach."""

        def backward(args: list[object]) -> list[Tensor | None]:
            if any(map(is_batch, args[self.tangents])):
                return for_each(backward, args, self.joint.about)
            missing = self.missing
            if not missing:
                return run(args)
            tangents = args[self.tangents]
            drawn = {name: args[i] for name, i in self.drawn.items()}
            found = zip(run(args), self.joint.reached, strict=True)
            results = [None if missing.issuperset(by) else r for r, by in found]
            mixed = [r for r, by in zip(results, self.joint.reached, strict=True) if not missing.isdisjoint(by)]
            return results if is_finite(mixed) else self._without_absent(results, tangents, missing, drawn)

        return boxed(backward)


@contextmanager
def equipped(gradients: Callable[[], Gradients | None]) -> Iterator[None]:
    """Within the block, correct the autograd functions that PyTorch makes, by what `gradients()` returns at that
    time."""
    owner, name, around = (
        (runtime_wrappers.RuntimeWrapper, "post_compile", _equips_handed_over)
        if _FACTORY is None
        else (_FACTORY, "build", _equips_built)
    )
    original = getattr(owner, name)
    setattr(owner, name, around(original, gradients))  # PyTorch compiles one graph at a time, under a lock
    try:
        yield
    finally:
        setattr(owner, name, original)


def _equips_built(build: Callable[..., object], gradients: Callable[[], Gradients | None]) -> Callable[..., object]:
    def built(self: Any) -> object:
        made, known = build(self), gradients()
        if known is not None and all(hasattr(made, part) for part in _REPLACED_PARTS):
            _equip(made, known, self.spec)
        return made

    return built


def _equips_handed_over(
    hand_over: Callable[..., object], gradients: Callable[[], Gradients | None]
) -> Callable[..., object]:
    """PyTorch 2.11 hands the `apply` of an autograd function that it has made to a wrapper of calls."""

    def post_compile(self: object, compiled_fn: object, *args: object, **named: object) -> object:
        made, known = getattr(compiled_fn, "__self__", None), gradients()
        if known is not None and hasattr(made, "_double_backward"):
            _equip(_in_parts(made), known, None)
        return hand_over(self, compiled_fn, *args, **named)

    return post_compile


def _in_parts(function: Any) -> Any:
    """An autograd function of PyTorch 2.11, with the parts that those of later versions call. They may be replaced."""
    forward, backward = function.forward, function.backward
    function._fwd_fn = staticmethod(lambda ctx, args: forward(ctx, *args))
    function._bwd_fn = staticmethod(lambda boxed, ctx: backward(ctx, *boxed[0]))
    function.forward = staticmethod(lambda ctx, *args: function._fwd_fn(ctx, args))
    function.backward = staticmethod(lambda ctx, *grads: function._bwd_fn(([*grads],), ctx))
    return function


def _equip(function: Any, known: Gradients, compilation: AOTDispatchAutogradCompileSpec | None) -> None:
    """`compilation`: AOTAutograd's specification, or None in PyTorch 2.11, where the short way is not taken."""
    forward, backward = function._fwd_fn, function._bwd_fn
    positions = _tangents_among_gradients(function.metadata)
    if len(positions) != known.num_tangents:  # another version of PyTorch drops others
        positions = []
    elif compilation is not None and needs_little(compilation):
        forward, backward = short_forward(function.metadata), short_backward(function, positions, backward)
    expected = [(i, _strides(about)) for i, about in zip(positions, _about_tangents(function.metadata), strict=False)]
    written = {i: i in known.joint.reads for i, about in enumerate(function.metadata.input_info) if about.mutates_data}

    def fwd(ctx: Any, args: Sequence[object], *rest: object) -> object:
        ctx.set_materialize_grads(False)
        ctx._gw_detached = [args[i] for i in unreached_inputs()]  # which nothing else keeps for second derivatives
        ctx._gw_inputs = _remembered(args, written) if known.keeps is False else _kept(args, written)
        return forward(ctx, args, *rest)

    @torch.compiler.disable  # a caller that is compiled itself may take gradients
    def bwd(boxed: tuple[list[Tensor | None], ...], ctx: Any, *rest: object) -> tuple[Tensor | None, ...]:
        grads = boxed[0]
        if torch.is_grad_enabled() and any(map(is_batch, grads)):  # autograd records what a batch stands for
            return tuple(for_each(lambda each: bwd((each,), ctx, *rest), grads, known.joint.about))
        if known.keeps is None:
            known.keeps = torch.is_grad_enabled()
        if torch.is_grad_enabled():
            for i, strides in expected:
                grads[i] = _with_strides(grads[i], strides)
        if any(g is None for g in grads):
            missing = frozenset(k for k, i in enumerate(positions) if grads[i] is None)
            _fill(grads, ctx._input_metadata)
            with known.without(missing, ctx._gw_inputs):
                results = backward(boxed, ctx, *rest)
        else:
            results = backward(boxed, ctx, *rest)
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            ctx._gw_inputs = ctx._gw_detached = []
        return results

    function._fwd_fn, function._bwd_fn, function._double_backward = fwd, bwd, partial(_differentiate_again, known)
    if (prologue := getattr(function, "_bw_prologue_fn", None)) is not None:
        function._bw_prologue_fn = partial(_as_many, known, prologue)


@torch.compiler.disable
def _differentiate_again(
    known: Gradients, ctx: Any, impl: Callable[..., object], args: list[object]
) -> tuple[Tensor | None, ...]:
    """The gradients that `impl` computes, as functions of the inputs and tangents. DerivativeError or ShardError, once
    somebody asks for their gradients, if these cannot be computed."""
    known.keeps = True
    joint, tangents = known.joint, args[known.tangents]

    def refused(error: Exception) -> tuple[Tensor | None, ...]:
        return Refused.apply(impl, error, torch.empty(0, requires_grad=True), *args)

    if known.over_ranks:
        return refused(over_parts(joint.about))
    inputs, why = _revived(ctx._gw_inputs)
    drawn = {name: args[i] for name, i in known.drawn.items()}
    why = known.once or why
    if not why and not drawn.keys() >= set(joint.draws):
        why = "it draws random numbers, which were not kept"
    if why:
        return refused(uncomputable(joint.about, why))
    missing = known.missing
    tensors = [t for t in (*inputs, *tangents) if isinstance(t, Tensor)]

    if known.twice:
        return tuple(joint.compiled(inputs, tangents, drawn, missing))

    def again(given: Sequence[object]) -> list[Tensor | None]:
        known.twice = True
        values = iter(given)
        filled = [next(values) if isinstance(t, Tensor) else t for t in (*inputs, *tangents)]
        return joint.compiled(filled[: len(inputs)], filled[len(inputs) :], drawn, missing)

    return Twice.apply(impl, again, *tensors)


def _as_many(known: Gradients, prologue: Callable[..., object], saved: Sequence[object], *rest: object) -> object:
    """The arguments of the backward. A compiled engine of autograd gives them to the form that was handed over:
    DerivativeError if the forward has taken another one."""
    other = known.num_saved is not None and len(saved) != known.num_saved
    if other and compiled_autograd.in_compiled_autograd_region:
        raise DerivativeError(
            f"{known.joint.about}: a compiled engine of autograd cannot run the form of the program that this graph has"
            ' taken. Pass options={"forms": False}, or turn the engine on before the forward.'
        )
    return prologue(saved, *rest)


def _tangents_among_gradients(about: ViewAndMutationMeta) -> list[int]:
    """The positions of the tangents of the backward among the gradients that autograd gives, which PyTorch drops for
    results that are views of inputs, are no tensors, or need no gradient."""
    written = [about.input_info[n] for n in about.mutated_inp_runtime_indices]
    inputs = [i for i, n in enumerate(written) if n.mutates_data and n.requires_grad]
    outputs = [
        len(written) + i for i, out in enumerate(about.output_info)
        if out.output_type in _OWN_RESULTS and issubclass(out.raw_type, Tensor)
        and getattr(out, "requires_grad_for_backward", out.requires_grad)  # PyTorch 2.11 has but the second
    ]  # fmt: skip
    first = len(written) + len(about.output_info)
    return [*inputs, *outputs, *range(first, first + about.num_intermediate_bases)]


def _about_tangents(about: object) -> Sequence[object]:
    """PyTorch's facts about each tangent; none in a version that has no such facts."""
    found: Sequence[Any] = getattr(about, "subclass_tangent_meta", None) or ()
    return found


def _strides(about: object) -> tuple[int, ...] | None:
    """The strides that the compiled backward expects of a tangent; None if PyTorch lays it out by itself, without
    losing its derivative."""
    strides = getattr(getattr(about, "memory_format", None), "stride", None)
    return None if strides is None else tuple(strides)


def _with_strides(grad: Tensor | None, strides: tuple[int, ...] | None) -> Tensor | None:
    """`grad` in memory of these strides. PyTorch would copy it into a leaf, which autograd refuses."""
    if strides is None or grad is None or not grad.requires_grad or grad.stride() == strides:
        return grad
    return torch.empty_strided(grad.shape, strides, dtype=grad.dtype, device=grad.device).copy_(grad)


def _fill(grads: list[Tensor | None], about: Sequence[Any]) -> None:
    """Replace None in `grads` by zeros. Zeros for results without a gradient are never read."""
    for i, grad in enumerate(grads):
        if grad is None:
            grads[i] = torch.zeros(tuple(about[i].shape), dtype=about[i].dtype, device=about[i].device)


def _remembered(args: Sequence[Any], written: Mapping[int, bool]) -> list[object]:
    """The inputs of a call, not kept alive: numbers, and for each tensor a function that returns it, with its
    version.

    `written` holds the positions of the inputs that the call itself overwrites (the statistics of a batch norm), and
    whether gradients read what they were before. Those that gradients read are gone after the call.
    """
    try:
        found: list[Any] = [(weakref.ref(t), t._version) if isinstance(t, Tensor) else t for t in args]
    except RuntimeError:  # an inference tensor has no version
        return []
    for i, is_read in written.items():
        found[i] = (lambda: None, None) if is_read else (partial(_copy_of, weakref.ref(args[i])), None)
    return found


def _copy_of(get: Callable[[], Tensor | None]) -> Tensor | None:
    """A copy of what `get` returns, which later calls do not overwrite."""
    value = get()
    return None if value is None else value.detach().clone()


def _kept(args: Sequence[Any], written: Mapping[int, bool]) -> list[object]:
    """The inputs of a call, kept alive; copies of those in `written`, which the call itself overwrites."""
    return [_copied(t) if i in written else _kept_alive(t) for i, t in enumerate(args)]


def _copied(value: Tensor) -> tuple[Callable[[], Tensor], None]:
    with torch.enable_grad():
        copy = value.clone()
    return lambda: copy, None


def _kept_alive(value: object) -> object:
    """An input of a call, kept alive. An input that could become a result (`h += conv(h)`) is kept as an alias of the
    same memory, so that the result does not keep itself alive."""
    if not isinstance(value, Tensor):
        return value
    if not value.requires_grad:
        kept = value.detach()
    elif value.is_leaf:
        kept = value
    else:
        with torch.enable_grad():
            kept = Alias.apply(value)
    return lambda: kept, None if value.is_inference() else value._version


def _revived(remembered: Sequence[object]) -> tuple[list[object], str]:
    """The inputs of a call, and the reason why they cannot be used ("" if they can)."""
    found = []
    for entry in remembered:
        if not isinstance(entry, tuple):
            found.append(entry)
            continue
        get, version = entry
        value = get()
        if value is None:
            return [], "an input is gone, since none was kept before; from now on they are, so repeat the step"
        if version is not None and value._version != version:
            return [], "an input was overwritten after the call"
        found.append(value)
    return found, "" if remembered else "its inputs were not kept: a backward ran before without retain_graph=True"
