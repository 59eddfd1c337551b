"""The parts of AOTAutograd's function of a graph besides the compiled halves: noted as it is made, and made again.

AOTAutograd hands these parts to two functions that prepare its own cache (PyTorch 2.13). A version without them notes
nothing, and nothing is stored.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import fx
from torch._functorch import aot_autograd as _loads_the_parts  # noqa: F401
from torch._functorch._aot_autograd import runtime_wrappers
from torch._functorch._aot_autograd.runtime_wrappers import AOTDispatchAutograd
from torch._functorch._aot_autograd.schemas import AOTConfig, ViewAndMutationMeta

from graphweave.core.boxed import boxed

_COMPILES: Any = getattr(torch._functorch._aot_autograd, "graph_compile", None)
"""PyTorch's module that makes the functions."""
_TRAINING = (
    "aot_config", "flat_args", "compiled_fw_func", "compiled_bw_func", "fw_module_str", "bw_module_str",
    "joint_graph_str", "wrappers", "maybe_subclass_meta", "fw_metadata", "num_fw_outs_saved_for_bw",
    "_indices_of_inps_to_detach", "num_symints_saved_for_bw", "bw_module", "min_cut_info_str",
)  # fmt: skip
_INFERENCE = (
    "aot_config", "fw_metadata", "maybe_subclass_meta", "compiled_fw", "aot_forward_graph_str", "wrappers",
)  # fmt: skip
_TAKES = {"_cache_autograd_info": _TRAINING, "_cache_inference_info": _INFERENCE}
"""The functions of that module that get the parts, and the names of their parameters."""


@cache
def are_known() -> bool:
    """Whether this version of PyTorch makes its functions of the parts that are known here."""
    found = {name: getattr(_COMPILES, name, None) for name in _TAKES}
    return hasattr(runtime_wrappers, "CachedAutogradLazyBackwardCompileInfo") and all(
        f is not None and tuple(inspect.signature(f).parameters) == _TAKES[name] for name, f in found.items()
    )


@dataclass(slots=True, eq=False)
class RuntimeParts:
    """`backward` is the module of the backward half (None for an inference), and is not stored.

    The others are AOTAutograd's: its settings, what it knows of inputs and results, the wrappers around the function
    for equal and overlapping inputs, inputs to detach, and the numbers that are saved for the backward.
    """

    config: Any
    metadata: Any
    wrappers: Sequence[Any]
    detached: Sequence[int]
    saved_numbers: int
    disable_amp: bool
    backward: fx.GraphModule | None

    def __getstate__(self) -> tuple[object, ...]:
        return (
            self.config, self.metadata, self.wrappers, self.detached, self.saved_numbers, self.disable_amp,
        )  # fmt: skip

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        (
            self.config, self.metadata, self.wrappers, self.detached, self.saved_numbers, self.disable_amp,
        ) = state  # fmt: skip
        self.backward = None

    def function(
        self,
        forward: Callable[..., object],
        backward: Callable[..., object] | None,
        module: Callable[[], fx.GraphModule],
    ) -> Callable[[list[Any]], object]:
        """AOTAutograd's function of a list of arguments. `module` gives the backward as a graph, for a compiled engine
        of autograd."""
        wrapper = runtime_wrappers.FunctionalizedRngRuntimeWrapper(return_new_outs=backward is None)
        wrapped = boxed(wrapper.post_compile(forward, self.config, runtime_metadata=self.metadata))
        if backward is None:
            made = runtime_wrappers.RuntimeWrapper(
                indices_of_inps_to_detach=list(self.detached), trace_joint=False, disable_amp=self.disable_amp
            ).post_compile(wrapped, self.config, runtime_metadata=self.metadata)
        else:
            made = AOTDispatchAutograd.post_compile(
                runtime_wrappers.AOTDispatchAutogradCompileSpec(
                    compiled_fw_func=wrapped,
                    compiled_bw_func=backward,
                    maybe_subclass_meta=None,
                    num_symints_saved_for_bw=self.saved_numbers,
                    backward_state_indices=[],
                    disable_amp=self.disable_amp,
                    indices_of_inps_to_detach=list(self.detached),
                    lazy_backward_info=runtime_wrappers.CachedAutogradLazyBackwardCompileInfo(module),
                    bw_compiler=None,
                    aot_config=self.config,
                    fw_metadata=self.metadata,
                    try_save_cache_entry=None,
                )
            )
        done, _ = runtime_wrappers.post_compile(list(self.wrappers), made, self.config, runtime_metadata=self.metadata)
        function: Callable[[list[Any]], object] = done
        return function


@contextmanager
def noted_parts() -> Iterator[list[RuntimeParts]]:
    """The parts of the functions that AOTAutograd makes in the block, of those that can be stored."""
    notes: list[RuntimeParts] = []
    if not are_known():
        yield notes
        return
    training, inference = _COMPILES._cache_autograd_info, _COMPILES._cache_inference_info

    def of_training(config: AOTConfig, args: Sequence[object], forward: object, backward: object, *rest: Any) -> object:
        made = training(config, args, forward, backward, *rest)
        _, _, _, wrappers, subclass, metadata, _, detached, numbers, module, _ = rest
        plain = subclass is None and not any(type(a).__name__ == "BackwardState" for a in args)
        if plain and not metadata.tokens:
            notes.append(_parts(config, metadata, wrappers, detached, numbers, module))
        return made

    def of_inference(
        config: AOTConfig,
        metadata: ViewAndMutationMeta,
        subclass: object,
        forward: object,
        text: object,
        wrappers: Sequence[object],
    ) -> object:
        made = inference(config, metadata, subclass, forward, text, wrappers)
        if subclass is None and not metadata.tokens:
            notes.append(_parts(config, metadata, wrappers, (), 0, None))
        return made

    _COMPILES._cache_autograd_info, _COMPILES._cache_inference_info = of_training, of_inference
    try:
        yield notes
    finally:
        _COMPILES._cache_autograd_info, _COMPILES._cache_inference_info = training, inference


def _parts(
    config: AOTConfig, metadata: object, wrappers: Sequence[object], detached: Sequence[int], numbers: int,
    module: fx.GraphModule | None,
) -> RuntimeParts:  # fmt: skip
    autocast = torch._C._is_any_autocast_enabled()
    return RuntimeParts(config.to_cacheable(), metadata, wrappers, detached, numbers, autocast, module)
