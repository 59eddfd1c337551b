"""Captures on disk: a function that another process has traced is not traced again."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

import torch
from torch._dynamo import config, convert_frame
from torch._dynamo.distributed import get_compile_pg
from torch._dynamo.eval_frame import innermost_fn
from torch._dynamo.types import ConvertFrameReturn
from torch.utils._pytree import tree_leaves

from graphweave.compiler.dump import stages_wanted
from graphweave.compiler.report import collecting
from graphweave.core.counters import bump
from graphweave.core.log import logger
from graphweave.core.settings import settings
from graphweave.core.spans import RESTORE, STORE, span
from graphweave.frontends.captures.digests import Unknown
from graphweave.frontends.captures.keep import KeptTrace
from graphweave.frontends.captures.restore import Misfit, restored
from graphweave.frontends.dynamo.arguments import Widths
from graphweave.frontends.dynamo.captured_request import checked_choices
from graphweave.frontends.stored.compilation import restore
from graphweave.frontends.stored.graph_key import Unkeyed
from graphweave.frontends.stored.state_key import state_text
from graphweave.frontends.tracing.call_under_way import CallUnderWay
from graphweave.frontends.tracing.capture_settings import MAX_COMPILATIONS
from graphweave.runtime.entries import ByteStore

_log = logger(__name__)

_PLACES = 4
"""So many captures are kept for calls of one kind, which differ in what only their guards say (widths, for example)."""

CAPTURES = ByteStore("captures")


class CapturesOnDisk:
    """The captures of one compiled function."""

    def __init__(self, target: Callable[..., object], options: Mapping[str, object], more: str, widths: Widths) -> None:
        """`options` are the user's, `more` says whatever else was asked for, and `widths` is told of each capture."""
        self._target, self._more, self._widths = target, more, widths
        self._choices = checked_choices(options)

    def compiled(
        self, given: Mapping[str, Any], call: CallUnderWay, compile_once: Callable[[], ConvertFrameReturn]
    ) -> ConvertFrameReturn:
        """A frame with PyTorch's arguments `given`, from disk if it is there, or else compiled by `compile_once` and
        kept."""
        try:
            _check_that_it_may_be_kept(given)
            keys = self._keys(call)
        except (Unkeyed, Unknown) as why:
            _log.info("captures of %s are not kept on disk: %s", _name(self._target), why)
            return compile_once()
        found, place = self._found(keys, given, call)
        if found is not None:
            return found
        kept = KeptTrace(given["code"])
        with kept.watching():
            result = compile_once()
        if result.guarded_code is not None:
            self._keep(kept, result.guarded_code.code, place)
        return result

    def _found(
        self, keys: Sequence[str], given: Mapping[str, object], call: CallUnderWay
    ) -> tuple[ConvertFrameReturn | None, str]:
        """The stored capture that fits, and where to keep another one."""
        places = []
        for key in keys:
            content = CAPTURES.read(key)
            if content is None:
                places.append(key)
                continue
            try:
                with span(RESTORE), config.patch(dict(call.settings[call.attempt].dynamo)):  # they decide on guards
                    found = restored(content, given, restore)
            except Misfit as misfit:
                _log.info("a stored capture of %s is not used: %s", _name(self._target), misfit)
                if misfit.outdated:
                    places.append(key)
                continue
            bump("restored_captures")
            self._widths.note(call.arguments)
            return found, key
        return None, (*places, keys[-1])[0]

    def _keep(self, kept: KeptTrace, bytecode: CodeType, key: str) -> None:
        with span(STORE):
            try:
                capture = kept.capture(bytecode, _graph_as_bytes)
                if capture is not None:
                    CAPTURES.write(key, capture.as_bytes())
            except Exception as error:  # the frame is compiled, whether it can be kept or not
                kept.reason = f"{type(error).__name__}: {error}"
        if kept.reason is not None:
            bump("unstored_captures")
            _log.info("a capture of %s is not kept on disk: %s", _name(self._target), kept.reason)

    def _keys(self, call: CallUnderWay) -> list[str]:
        """The keys of the captures for calls of this kind. Raises Unkeyed."""
        parts = (state_text(self._choices), self._more, *_kind_of_call(self._target, call.arguments))
        digest = hashlib.sha256("\0".join(parts).encode())
        return [hashlib.sha256(digest.digest() + bytes([place])).hexdigest() for place in range(_PLACES)]


def _graph_as_bytes(graph: Callable[..., object]) -> bytes | None:
    return getattr(innermost_fn(graph), "stored", None)


def _check_that_it_may_be_kept(given: Mapping[str, Any]) -> None:
    """Raises Unkeyed where another compilation cannot take the place of this one."""
    hooks, package = given["hooks"], given.get("package")
    watched = hooks.guard_export_fn or hooks.guard_filter_fn or convert_frame._bytecode_hooks
    compilations = given["cache_size"].num_cache_entries
    modes = torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack()
    whys = {
        "Python before 3.11 does not tell the full name of code": sys.version_info < (3, 11),
        "they are switched off": not settings().store_compilations or stages_wanted(),
        "the compilation is to be explained": collecting(),
        "PyTorch exports the function": given["export"] or package is not None,
        "a hook watches the compilation": watched,
        "an error is to be raised in place of a compilation": compilations and config.error_on_recompile,
        "a mode of PyTorch's is in force": modes,
        "it has been compiled too often": compilations >= MAX_COMPILATIONS,
        "several processes compile together": get_compile_pg() is not None,
    }
    for why, holds in whys.items():
        if holds:
            raise Unkeyed(why)


def _kind_of_call(target: Callable[..., object], arguments: tuple[object, ...]) -> Iterator[str]:
    """Words that are likely to differ between captures of one function, so that few are tried: guards decide."""
    yield f"{getattr(target, '__module__', '')} {getattr(target, '__qualname__', '')} {type(target)}"
    yield f"{torch.get_num_threads()} {_settings_of_dynamo()}"
    if isinstance(target, torch.nn.Module):
        yield from (f"{name} {type(m).__qualname__} {m.training}" for name, m in target.named_modules())
        for name, parameter in target.named_parameters():
            yield f"{name} {parameter.dtype} {parameter.requires_grad} {tuple(parameter.shape)}"
    for value in tree_leaves(arguments):
        yield type(value).__qualname__
        if isinstance(value, torch.Tensor):
            # choices by cost are made for the rows of the first call, so that much larger graphs have their own
            yield f"{value.dtype} {value.device} {value.requires_grad} {value.dim()} {value.numel().bit_length()}"


def _settings_of_dynamo() -> str:
    """Dynamo's settings that have a text which is the same in each process."""
    settings = config.get_config_copy()
    plain = {name: value for name, value in settings.items() if type(value) in (bool, int, float, str, type(None))}
    return str(sorted(plain.items()))


def _name(target: Callable[..., object]) -> str:
    return str(getattr(target, "__name__", type(target).__name__))
