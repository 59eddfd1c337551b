"""Guards of a trace, kept for another process, which builds them on its own objects.

PyTorch's guards ask an object in some place ("L['args'][0]", "G['F'].relu") for what a trace assumed of it. Here a
guard is kept as its place and its kind, with words for what it asks. Another process builds the guard on what is in
that place there, and compares its words. So guards on the identity of functions and classes are as strict as in one
process, and objects without a name (closures, local classes) need none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._dynamo.guards import CheckFunctionManager, GuardBuilder, ShapeCodeParts, convert_int_to_concrete_values
from torch._dynamo.output_graph import OutputGraphCommon, OutputGraphGuardsState
from torch._guards import Guard
from torch.utils import _device, _pytree

from graphweave.frontends.captures.digests import Digests, Unknown

_ASK_FOR_IDENTITY = frozenset({
    "ID_MATCH", "BUILTIN_MATCH", "CLASS_MATCH", "CLOSURE_MATCH", "FUNCTION_MATCH", "MODULE_MATCH", "CONSTANT_MATCH",
    "EQUALS_MATCH",
})  # fmt: skip
"""Kinds of guards that compare an object with the one that was traced, by its address or by its value."""
_ASK_FOR_TEXT = frozenset({
    "AUTOGRAD_SAVED_TENSORS_HOOKS", "BOOL_MATCH", "DEFAULT_DEVICE", "DETERMINISTIC_ALGORITHMS", "DICT_CONTAINS",
    "DICT_KEYS_MATCH", "DICT_NOT_CONTAINS", "DUAL_LEVEL", "DUPLICATE_INPUT", "EMPTY_NN_MODULE_HOOKS_DICT",
    "FSDP_TRAINING_STATE", "GLOBAL_STATE", "GRAD_MODE", "HASATTR", "MAPPING_KEYS_CHECK", "NONE_MATCH",
    "NOT_NONE_MATCH", "NOT_PRESENT_IN_GENERIC_DICT", "RANGE_ITERATOR_MATCH", "SEQUENCE_LENGTH", "SET_CONTAINS",
    "SET_NOT_CONTAINS", "SHAPE_ENV", "TENSOR_MATCH", "TORCH_FUNCTION_STATE", "TUPLE_ITERATOR_LEN", "TYPE_MATCH",
})  # fmt: skip
"""Kinds of guards whose text, with the class of the object, says all that they ask."""
_ADDRESS_OF_TYPE = re.compile(r"(___check_(?:type|obj)_id\(.*, )\d+(\), type=)")
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}")


class KeptGuards(CheckFunctionManager):
    """Guards as PyTorch builds them, with words for each. `make` is called with them while what they ask is at hand."""

    def __init__(self, make: Callable[[KeptGuards], bytes | None], *args: Any, **kwargs: Any) -> None:
        self._make = make
        self.builder: GuardBuilder
        self.sorted: Sequence[Guard] = ()
        self.graph: OutputGraphCommon
        super().__init__(*args, **{**kwargs, "save_guards": True})

    def serialize_guards(
        self, builder: GuardBuilder, sorted_guards: list[Guard], output_graph: OutputGraphCommon
    ) -> Any:
        """PyTorch calls this last of all."""
        self.builder, self.sorted, self.graph = builder, sorted_guards, output_graph
        try:
            return self._make(self)
        finally:
            del self.builder, self.sorted, self.graph

    def words(self, digests: Digests, names: Mapping[str, str]) -> list[str]:
        """The question of each guard, in words. `names` has a name for each global variable that is named anew in each
        process."""
        state = self.graph
        if state.torch_function_mode_stack or state.functorch_layers or state.export:
            raise Unknown("a mode of PyTorch's, or a transform of torch.func")
        found = [self._words_of(guard, digests) for guard in self.sorted]
        found.append(f"device {_device.CURRENT_DEVICE!r} {state.current_device!r}")
        for name, stable in names.items():
            found = [words.replace(name, stable) for words in found]
        return sorted(found)

    def _words_of(self, guard: Guard, digests: Digests) -> str:
        kind, name = guard.create_fn_name(), guard.name
        text = [_ADDRESS_OF_TYPE.sub(r"\1_\2", part) for part in guard.code_list or ()]
        if kind not in _ASK_FOR_IDENTITY and kind not in _ASK_FOR_TEXT:
            raise Unknown(f"a guard {kind} on {name}")
        if not name:
            return f"{kind} {text}"
        value = self.builder.get(guard)
        if kind in _ASK_FOR_IDENTITY:
            return f"{kind} {name} {digests.of(value)}"
        if kind == "TENSOR_MATCH":
            if "___check_obj_id" in str(text):
                raise Unknown(f"a guard on the identity of the tensor {name}")
            text += self._words_of_tensor(value, digests)
        if value is _pytree.SUPPORTED_NODES:
            text = [str(sorted(digests.of(cls) for cls in value))]
        if kind == "AUTOGRAD_SAVED_TENSORS_HOOKS" and not str(text).endswith("== None']"):
            raise Unknown("hooks on saved tensors")
        words = f"{kind} {name} {digests.of_class(type(value))} {text}"
        if _ADDRESS.search(words):
            raise Unknown(f"a guard {kind} on {name}, which asks for an address")
        return words

    def _words_of_tensor(self, tensor: torch.Tensor, digests: Digests) -> list[str]:
        keys = torch._C._dispatch_keys(tensor)
        return [f"{tensor.dtype} {tensor.device} {tensor.requires_grad} {tensor.dim()} {tensor.layout} {keys}"]

    def state(self) -> tuple[OutputGraphGuardsState, ShapeCodeParts | None]:
        """All that another process needs to build the guards on its own objects."""
        graph = self.graph
        sizes = _pytree.tree_map(convert_int_to_concrete_values, graph.input_source_to_sizes_strides)
        kept = OutputGraphGuardsState(
            local_scope={}, global_scope={}, torch_function_mode_stack=[],
            guard_on_key_order=graph.guard_on_key_order, input_source_to_sizes_strides=sizes,
            dual_level=graph.dual_level, functorch_layers=[], current_device=graph.current_device,
            global_state_guard=graph.global_state_guard, _guards=[_bare(g) for g in self.sorted],  # type: ignore[arg-type]
            _aotautograd_guards=graph.aotautograd_guards, skip_guards_check=True,
            name_of_builtins_dict_key_in_fglobals=graph.name_of_builtins_dict_key_in_fglobals,
        )  # fmt: skip
        return kept, self.shape_code_parts


def _bare(guard: Guard) -> Guard:
    """A guard without what it remembers of this process."""
    made: Any = guard.create_fn
    if isinstance(made, partial):
        if made.func is GuardBuilder.TENSOR_MATCH:  # it has a reference to the tensor
            made = GuardBuilder.TENSOR_MATCH
        elif made.args:
            raise Unknown(f"a guard {guard.create_fn_name()} with arguments")
    return Guard(guard.originating_source, made)
