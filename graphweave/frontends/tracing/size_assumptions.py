"""Assumptions about sizes that PyTorch makes while it captures, and which of them have a guard.

Under `backed_size_oblivious` PyTorch compiles one graph for sizes of 0, 1 and more. Wherever its own code asks whether
a size is 0 or 1, it takes the answer that holds for large sizes, without a guard. That is harmless where both answers
lead to the same values, for example where strides are compared or an error is looked for. It is wrong where the
answer decides about the result: `squeeze()` would keep a dim of size 1. In the same mode PyTorch declares each size
positive, so that `edge_index.size(1) == 0` in the user's code is False before any size is read.

Three changes keep one compilation for many sizes without wrong answers. A size is declared to be not negative, so that
comparisons in the user's code are decided by the size at hand and become guards. PyTorch's own questions are
answered without a guard only in the places listed in `NEUTRAL`; everywhere else they become guards as well. And the
strides of a contiguous tensor without elements are those products of its sizes that they are for a tensor with
elements, where PyTorch takes a stride of 0 for a number, so that every later tensor would be a compilation.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import sympy
import torch
from torch.fx.experimental import _config as shape_config
from torch.fx.experimental import sym_node, symbolic_shapes

T = TypeVar("T", int, sympy.Expr)

NEUTRAL: dict[str, frozenset[str] | None] = {
    # Strides and contiguity: an undecided tensor counts as not contiguous, which costs a copy at most.
    "c10/core/Contiguity.h": None,
    "aten/src/ATen/TensorUtils.cpp": None,
    "torch/_subclasses/meta_utils.py": None,
    "torch/_prims_common/__init__.py": frozenset({
        "check_contiguous_sizes_strides", "is_contiguous", "is_channels_last_contiguous_2d",
        "is_channels_last_contiguous_3d", "_is_non_overlapping_and_dense_or_false", "_check_strides_helper",
        "are_strides_like_channels_last_or_false", "should_swap", "ge", "compute_required_storage_length",
        "__lt__",  # sorts dims by strides
        # A size that is a symbol never stands for one to be inferred, so it is not -1.
        "infer_size",
        # Shapes that are not known to be the same are broadcast, see below.
        "same_shape",
    }),
    # Whether a view can have strides of its own, of which one answer or the other is asserted.
    "torch/_subclasses/fake_impls.py": frozenset({
        "_compute_stride", "maybe_guard_or_false", "maybe_guard_or_true", "_view_unbacked_meta", "_hinted_eq",
        "_is_contiguous_with_hinted_checks", "infer_size", "fast_binary_impl",
    }),
    "torch/_prims/__init__.py": frozenset({"_broadcast_in_dim_meta", "_collapse_view_helper"}),
    # Broadcasting: sizes that are not known to be 1 are asserted to be equal. PyTorch adds a guard where the size at
    # hand has to be broadcast.
    "torch/_refs/__init__.py": frozenset({"_broadcast_shapes", "should_expand", "expand", "diagonal_scatter"}),
    "aten/src/ATen/ExpandUtils.h": None,
    # Gradients whose shape may differ from that of their tensor are summed where it does.
    "torch/csrc/autograd/input_metadata.cpp": None,
    "torch/_functorch/_aot_autograd/functional_utils.py": None,
    "torch/_functorch/_aot_autograd/graph_capture_wrappers.py": None,
    "torch/_functorch/_aot_autograd/graph_compile.py": None,
    # Whether the storage of an empty tensor overflows.
    "aten/src/ATen/EmptyTensor.cpp": None,
    # Checks of shapes that eager mode leaves out for empty indices.
    "torch/_meta_registrations.py": frozenset({
        "meta_gather", "meta_index_Tensor", "scatter_gather_dtype_check", "scatter_shape_check",
    }),
}  # fmt: skip
"""Places in PyTorch whose questions about sizes have answers that lead to the same values: for each file the functions,
or None for the whole file. In a place that is not listed a question becomes a guard, which may cost a compilation."""

_NEUTRAL_AS_AT_HAND = ("aten/src/ATen/native/Linear.cpp",)
"""Places whose questions are answered as the sizes at hand answer them, without a guard where that is also PyTorch's
assumption: `einsum` asks whether a letter's size is 1, which would stand for any. Sizes of one letter that are not 1
are asserted to be equal, and a product over equal sizes is right for one row, too."""


@contextmanager
def sizes_may_be_nothing() -> Iterator[None]:
    """Within the block, sizes under `backed_size_oblivious` may be 0 for sympy too, assumptions have guards, and the
    strides of tensors without elements are symbols."""
    names = vars(symbolic_shapes)
    shape_env: Any = symbolic_shapes.ShapeEnv
    make_symbol, answer, strides_of = names["make_symbol"], names["_guard_or"], shape_env._compute_symbolic_stride

    def symbol(prefix: object, position: object, **facts: object) -> Any:
        if _one_for_all_sizes() and facts.pop("positive", None):
            facts["nonnegative"] = True
        return make_symbol(prefix, position, **facts)

    def guarded(question: object, default: bool) -> bool:
        if not isinstance(question, torch.SymBool):
            return answer(question, default)
        known = symbolic_shapes._static_eval_sym_bool(question)
        if known is not None:
            return known
        asking = sys._getframe(2)
        if symbolic_shapes.free_unbacked_symbols(question):
            decides = _squeezes(asking)
        else:
            as_at_hand = _file_of(asking).endswith(_NEUTRAL_AS_AT_HAND) and question.node.hint == default
            decides = _one_for_all_sizes() and not (as_at_hand or _is_neutral(asking))
        return bool(question) if decides else answer(question, default)

    def strides(
        self: object, source: object, size: Sequence[sympy.Expr], ex_size: Sequence[int], ex_stride: Sequence[int],
        *args: object, **named: object,
    ) -> list[sympy.Expr]:  # fmt: skip
        if _one_for_all_sizes() and 0 in ex_size and tuple(ex_stride) == tuple(_products_behind(ex_size)):
            return [sympy.sympify(stride) for stride in _products_behind(size)]
        return strides_of(self, source, size, ex_size, ex_stride, *args, **named)

    names |= {"make_symbol": symbol, "_guard_or": guarded}
    shape_env._compute_symbolic_stride = strides
    try:
        yield
    finally:
        names |= {"make_symbol": make_symbol, "_guard_or": answer}
        shape_env._compute_symbolic_stride = strides_of


def _products_behind(sizes: Sequence[T]) -> list[T | int]:
    """For each dim the product of the sizes behind it: the strides of a contiguous tensor with elements."""
    return [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]


def _one_for_all_sizes() -> bool:
    return bool(shape_config.backed_size_oblivious)


def _is_neutral(asking: FrameType) -> bool:
    """Whether the place that asks is listed in `NEUTRAL`."""
    file = _file_of(asking)
    function = asking.f_code.co_name if file == asking.f_code.co_filename else ""
    if function == "cat" and file == torch._refs.__file__:  # it leaves out empty tensors of one dim among others
        return all(t.dim() == 1 for t in asking.f_locals["tensors"])
    for place, functions in NEUTRAL.items():
        if file.endswith(place):
            return functions is None or function in functions
    return False


def _file_of(asking: FrameType) -> str:
    """The file of the place that asks. Native code asks by a method that is given its own."""
    file = asking.f_code.co_filename
    return str(asking.f_locals.get("file", "")) if file == sym_node.__file__ else file


def _squeezes(asking: FrameType) -> bool:
    """Whether `squeeze` asks which dims it removes."""
    caller = asking.f_back
    return (
        asking.f_code.co_filename == torch._refs.__file__ and caller is not None and caller.f_code.co_name == "squeeze"
    )
