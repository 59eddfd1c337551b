"""A shorter way through AOTAutograd's autograd function, for graphs that need little of what it does.

AOTAutograd prepares for inputs that are written, results that alias inputs, tensor subclasses, random state on a GPU,
and checks what the two halves return. For a graph without any of these, which its metadata says, what is left is to
save values, to call the halves, and to look at the gradients. Where a call meets something else, AOTAutograd's own way
is taken, as it is in a version of PyTorch whose metadata does not say these things.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor
from torch._functorch._aot_autograd import runtime_wrappers
from torch._functorch._aot_autograd.schemas import ViewAndMutationMeta

from graphweave.core.boxed import Boxed

if TYPE_CHECKING:  # PyTorch 2.11 has no such class
    from torch._functorch._aot_autograd.runtime_wrappers import AOTDispatchAutogradCompileSpec

_ABSENT = (
    "num_mutated_inp_runtime_indices", "num_outputs_aliased", "num_unsafe_view_outputs", "num_intermediate_bases",
    "num_tensors_saved_with_no_vc_check", "num_opaque_objects_saved_for_bw", "num_graphsafe_rng_states",
    "num_backward_tokens", "tokens", "is_rng_op_functionalized",
    "indices_of_inputs_that_requires_grad_with_mutations_in_bw",
)  # fmt: skip
"""Fields of a graph's metadata that count what the short way leaves out."""
_ABSENT_IN_COMPILATION = ("maybe_subclass_meta", "disable_amp", "backward_state_indices")
"""Fields of the specification of a compilation, likewise."""

_mark_sizes: Any = getattr(runtime_wrappers, "mark_dynamo_propagated_dynamic_indices", None)
"""PyTorch's function that notes which sizes of a saved tensor vary, for a compiled engine of autograd."""
_lay_out: Any = getattr(runtime_wrappers, "coerce_to_expected_memory_format", None)
"""PyTorch's function that gives a tangent the memory layout for which a backward was compiled."""
_PlainTangent: Any = getattr(runtime_wrappers, "PlainTensorMeta", None)


_Backward: TypeAlias = Callable[..., tuple[Tensor | None, ...]]


def needs_little(compilation: AOTDispatchAutogradCompileSpec) -> bool:
    """Whether a graph needs none of what the short way leaves out. `compilation` is AOTAutograd's specification."""
    try:
        about = compilation.fw_metadata
        absent = [getattr(about, name) for name in _ABSENT]
        absent += [getattr(compilation, name) for name in _ABSENT_IN_COMPILATION]
        plain = all(type(tangent) is _PlainTangent and tangent.memory_format for tangent in about.subclass_tangent_meta)
        return plain and not any(absent) and _mark_sizes is not None and _lay_out is not None
    except AttributeError:  # another version of PyTorch
        return False


def short_forward(about: ViewAndMutationMeta) -> Callable[..., tuple[object, ...]]:
    """The function in place of AOTAutograd's `_fwd_fn`, for a graph with metadata `about`."""
    tensors, numbers = about.tensors_saved_for_backwards_with_vc_check_slice, about.symints_saved_for_backwards_slice
    varying = tuple(about.dynamic_saved_tensors_idxs.items())
    returned = about.num_forward_returns
    undifferentiable = [i for i, result in enumerate(about.output_info) if not result.requires_grad]

    def forward(
        ctx: Any, args: Sequence[object], add_random_state: object, save: object, finish: object, compiled: Boxed
    ) -> tuple[object, ...]:  # fmt: skip
        out = compiled([*args])
        saved = [t.detach() if t._is_view() else t for t in out[tensors]]
        for i, dims in varying:
            _mark_sizes(saved[i], dims)
        ctx.save_for_backward(*saved)
        ctx.symints = out[numbers]
        ctx.opaque_objects = ctx._tensors_no_vc_check = ()  # a compiled engine of autograd reads them
        results = tuple(out[:returned])
        if undifferentiable:
            ctx.mark_non_differentiable(*[results[i] for i in undifferentiable if isinstance(results[i], Tensor)])
        ctx._materialize_non_diff_grads = False
        return results

    return forward


def short_backward(function: Any, positions: Sequence[int], long_way: _Backward) -> _Backward:
    """The function in place of AOTAutograd's `_bwd_fn`, `long_way`, for the autograd function `function`. `positions`
    are those of the backward's tangents among the gradients that autograd gives."""
    layouts = [tangent.memory_format for tangent in function.metadata.subclass_tangent_meta]

    def backward(boxed: tuple[list[Tensor], ...], ctx: Any, *rest: object) -> tuple[Tensor | None, ...]:
        run = function.compiled_bw
        if (
            run is None  # not compiled yet
            or torch.is_grad_enabled()
            or torch.are_deterministic_algorithms_enabled()
            or torch._C._functorch.peek_interpreter_stack() is not None
        ):
            return long_way(boxed, ctx, *rest)
        grads = boxed[0]
        if not all(type(grads[i]) is Tensor for i in positions):
            return long_way(boxed, ctx, *rest)
        given = [*ctx.symints, *ctx.saved_tensors]
        given += [_lay_out(grads[i], layout) for i, layout in zip(positions, layouts, strict=True)]
        grads.clear()  # so that each is freed after its last use
        ctx.maybe_clear_saved_tensors()
        context = torch._C._get_obj_in_tls("context") if torch._C._is_key_in_tls("context") else None
        return tuple(run(given) if context is None else context.run(run, given))

    return backward
