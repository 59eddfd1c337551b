"""A stored capture put in the place of a trace."""

from __future__ import annotations

import importlib
import logging
import marshal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch._dynamo
from torch._dynamo import convert_frame
from torch._dynamo.bytecode_transformation import unique_id
from torch._dynamo.guards import _get_closure_vars
from torch._dynamo.output_graph import OutputGraphCommon
from torch._dynamo.types import ConvertFrameReturn, GuardedCode, wrap_guarded_code
from torch._dynamo.utils import CleanupHook, CleanupManager
from torch._guards import CompileContext, compile_context

from graphweave.core.interrupts import interrupt_in
from graphweave.frontends.captures.digests import Digests
from graphweave.frontends.captures.guards import KeptGuards
from graphweave.frontends.captures.keep import BUILTINS, GRAPH, NAMESPACE, stable_names
from graphweave.frontends.captures.names import changed
from graphweave.frontends.captures.stored import Guards, StoredCapture


class Misfit(Exception):
    """Why a stored capture does not fit a call. `outdated` says that it fits none, since code has changed."""

    def __init__(self, why: str, outdated: bool = False) -> None:
        super().__init__(why)
        self.outdated = outdated


def restored(
    content: bytes, given: Mapping[str, Any], graph_of_bytes: Callable[[bytes], Callable[..., object] | None]
) -> ConvertFrameReturn:
    """The compiled frame of a stored capture for PyTorch's arguments `given`. Raises Misfit."""
    try:
        capture = StoredCapture.of_bytes(content)
    except Exception as error:  # an object may fail to unpickle in any way
        raise Misfit(f"it cannot be read: {type(error).__name__}: {error}", outdated=True) from error
    digests = Digests()
    if (name := changed(capture.named, digests)) is not None:
        raise Misfit(f"{name} has changed", outdated=True)
    scope: dict[str, Any] = given["globals"]
    names = {name: unique_id(_prefix(name), with_uuid=True) for name in capture.fresh}
    cleanups: list[CleanupHook] = []
    try:
        _import(capture.imports, scope)
        manager = _guards(capture, given, names, digests, cleanups)
        if not manager.guard_manager.check(given["locals"]):
            raise Misfit("a guard failed")
        bytecode = _renamed(marshal.loads(capture.bytecode), names)
        graph = _graph(capture.graph, graph_of_bytes)
        for name in capture.fresh:
            if name.startswith(GRAPH):
                cleanups.append(CleanupHook.create(scope, names[name], graph))
    except BaseException:
        for hook in cleanups:
            hook()
        raise
    frames: Any = convert_frame
    frames.orig_code_map[bytecode] = given["code"]
    frames.output_codes.add(bytecode)
    CleanupManager.instance[bytecode] = cleanups
    region = f"Torch-Compiled Region: {given['compile_id']}"
    guards: Any = manager.guard_manager
    return wrap_guarded_code(GuardedCode(bytecode, guards, given["compile_id"], region))


def _guards(
    capture: StoredCapture, given: Mapping[str, Any], names: Mapping[str, str], digests: Digests,
    cleanups: list[CleanupHook],
) -> KeptGuards:  # fmt: skip
    """The guards, on the objects of this call. Raises Misfit if they ask for something else here."""
    scope: dict[str, Any] = given["globals"]
    earlier = given["cache_entries"] if "cache_entries" in given else given["cache_entry"]  # before PyTorch 2.13
    found: list[str] = []
    stable = {names[name]: word for name, word in stable_names(dict.fromkeys(capture.fresh)).items()}
    try:
        guards = Guards.of_bytes(capture.guards, names)
        state = guards.state
        state.local_scope, state.global_scope = given["locals"], scope
        builtins = state.name_of_builtins_dict_key_in_fglobals
        if builtins is not None:
            state.name_of_builtins_dict_key_in_fglobals = names[builtins]
        for name in capture.fresh:
            if name.startswith(BUILTINS):
                cleanups.append(CleanupHook.create(scope, names[name], given["builtins"]))
            elif name in guards.namespaces:
                function = guards.namespaces[name].get_value(
                    {"L": given["locals"], "G": scope}, _get_closure_vars(), {}
                )
                cleanups.append(CleanupHook.create(scope, names[name], function.__globals__))
        with compile_context(CompileContext(given["compile_id"])), _untold():
            made = KeptGuards(
                lambda kept: found.extend(kept.words(digests, stable)),
                given["code"], OutputGraphCommon(state), earlier, given["hooks"].guard_fail_fn,
                given["hooks"].guard_filter_fn, shape_code_parts=guards.sizes,
            )  # fmt: skip
    except Exception as error:  # a place that a guard asks for is not there, or holds another kind of object
        if interrupt_in(error) is not None:
            raise
        raise Misfit(f"a guard cannot be built: {type(error).__name__}: {error}") from error
    if tuple(found) != capture.asked:
        other = next(iter(set(capture.asked) - set(found)), "")
        raise Misfit(f"what is guarded is not the same: {other[:200]}")
    return made


@contextmanager
def _untold() -> Iterator[None]:
    """PyTorch logs no guard that this thread fails to build within the block: it asks for what another model has."""
    thread, log = threading.get_ident(), logging.getLogger("torch._guards")

    def of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    log.addFilter(of_others)
    try:
        yield
    finally:
        log.removeFilter(of_others)


def _graph(
    content: bytes, graph_of_bytes: Callable[[bytes], Callable[..., object] | None]
) -> Callable[..., object]:  # fmt: skip
    """The compiled graph, as Dynamo's bytecode calls it. Raises Misfit."""
    try:
        made = graph_of_bytes(content)
    except Exception as error:
        if interrupt_in(error) is not None:
            raise
        raise Misfit(f"its graph cannot be restored: {type(error).__name__}: {error}", outdated=True) from error
    if made is None:
        raise Misfit("its graph cannot be restored", outdated=True)
    return torch._dynamo.disable(made, reason="do not trace Dynamo-compiled graph")


def _prefix(name: str) -> str:
    return next((p.rstrip("_") for p in (GRAPH, BUILTINS, NAMESPACE) if name.startswith(p)), "___kept")


def _import(imports: Mapping[str, str], scope: dict[str, object]) -> None:
    try:
        for alias, module in imports.items():
            found = importlib.import_module(module)
            if scope.setdefault(alias, found) is not found:
                raise Misfit(f"{module} was imported anew")
    except ImportError as error:
        raise Misfit(str(error)) from error


def _renamed(code: CodeType, names: Mapping[str, str]) -> CodeType:
    constants = tuple(_renamed(c, names) if isinstance(c, CodeType) else c for c in code.co_consts)
    return code.replace(co_names=tuple(names.get(n, n) for n in code.co_names), co_consts=constants)
