"""Captures on disk: a function that another process has traced is not traced again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch._dynamo import config, convert_frame
from torch._dynamo.types import ConvertFrameReturn

from graphweave.compiler.report import collecting
from graphweave.core.counters import bump
from graphweave.core.log import logger
from graphweave.frontends.captures.keep import Kept
from graphweave.frontends.captures.restore import Misfit, restored
from graphweave.frontends.captures.stored import StoredCapture
from graphweave.frontends.tracing.call_under_way import CallUnderWay

_log = logger(__name__)

_PLACES = 4
"""So many captures are kept for calls of one kind, which differ in what only their guards say (widths, for example)."""

class _Store(dict):
    def read(self,k): return self.get(k)
    def write(self,k,v): self[k]=v
STORE=_Store()
GRAPHS=[]
def graph_as_bytes(fn):
    GRAPHS.append(fn._torchdynamo_orig_callable)
    return str(len(GRAPHS)-1).encode()
def graph_of_bytes(b): return GRAPHS[int(b)]


class CapturesOnDisk:
    """The captures of one compiled function."""

    def __init__(self, target: Callable[..., Any], asked: str) -> None:
        """`asked`: all that the user asked for, as text."""
        self._target, self._asked = target, asked

    def compiled(
        self, given: Mapping[str, Any], call: CallUnderWay, compile_once: Callable[[], ConvertFrameReturn]
    ) -> ConvertFrameReturn:
        """A frame with PyTorch's arguments `given`, from disk if it is there, or else compiled by `compile_once` and
        kept."""
        if not _may_be_kept(given):
            return compile_once()
        keys = [self._key(call.arguments, i) for i in range(_PLACES)]
        place = None
        for key in keys:
            content = STORE.read(key)
            if content is None:
                place = place or key
                continue
            try:
                with config.patch(dict(call.settings[call.attempt].dynamo)):  # they decide which guards there are
                    found = restored(StoredCapture.of_bytes(content), given, graph_of_bytes)
            except Misfit as misfit:
                _log.info("a stored capture of %s is not used: %s", given["code"].co_name, misfit)
                if misfit.outdated:
                    place = place or key
            else:
                bump("stored_captures")
                return found
        kept = Kept(given["code"])
        with kept.watching():
            result = compile_once()
        self._keep(kept, result, place or keys[-1])
        return result

    def _keep(self, kept: Kept, result: ConvertFrameReturn, key: str) -> None:
        if result.guarded_code is None:
            return
        capture = kept.capture(result.guarded_code.code, graph_as_bytes)
        if capture is None:
            _log.info("a capture is not kept: %s", kept.reason)
        else:
            STORE.write(key, capture.as_bytes())

    def _key(self, arguments: tuple[Any, ...], place: int) -> str:
        parts = (self._asked, *_kind_of_call(self._target, arguments), place)
        return hashlib.sha256(repr(parts).encode()).hexdigest()


def _may_be_kept(given: Mapping[str, Any]) -> bool:
    """Whether nothing that PyTorch does for this compilation alone prevents that another one takes its place."""
    hooks = given["hooks"]
    return not (
        collecting()
        or given["export"]
        or given.get("package") is not None
        or hooks.guard_export_fn or hooks.guard_filter_fn
        or convert_frame._bytecode_hooks
        or (given["cache_entries"] and config.error_on_recompile)
        or torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
    )


def _kind_of_call(target: Callable[..., Any], arguments: tuple[Any, ...]) -> Iterator[str]:
    """What is likely to differ between captures of one function, so that few are tried: guards decide."""
    yield f"{torch.is_grad_enabled()} {torch.is_inference_mode_enabled()} {torch.is_autocast_enabled('cpu')}"
    if isinstance(target, torch.nn.Module):
        for name, module in target.named_modules():
            yield f"{name} {type(module).__qualname__} {module.training}"
        for name, parameter in target.named_parameters():
            yield f"{name} {parameter.dtype} {parameter.requires_grad} {tuple(parameter.shape)}"
    for value in torch.utils._pytree.tree_leaves(arguments):
        if isinstance(value, torch.Tensor):
            yield f"{value.dtype} {value.device} {value.requires_grad} {value.dim()}"
        else:
            yield type(value).__qualname__
