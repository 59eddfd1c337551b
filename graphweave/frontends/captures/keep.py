"""The parts of a trace that are kept, collected while PyTorch compiles a frame."""

from __future__ import annotations

import builtins
import dis
import marshal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any

from torch._dynamo import convert_frame
from torch._dynamo.guards import CheckFunctionManager
from torch._dynamo.source import AttrSource, TypeSource
from torch._guards import Source

from graphweave.frontends.captures.digests import Digests, Unknown
from graphweave.frontends.captures.guards import KeptGuards
from graphweave.frontends.captures.names import named_code
from graphweave.frontends.captures.stored import Guards, StoredCapture

GRAPH, BUILTINS, NAMESPACE = "__compiled_fn_", "__builtins_dict__", "___unnamed_scope_"
"""How Dynamo begins the names of global variables for a compiled graph, the builtins, and a function's namespace."""

_USES_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_NAME"})


class KeptTrace:
    """The parts of the trace of `code` that are kept: nothing if there is a `reason`."""

    def __init__(self, code: CodeType) -> None:
        self._code = code
        self.reason: str | None = "no guards were built"
        self._parts: tuple[Any, ...] = ()
        self._graph: Any = None
        self._scope: Mapping[str, Any] = {}
        self._traced: tuple[CodeType, ...] = ()
        self._digests = Digests()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Take part while PyTorch compiles in this block."""
        frames: Any = convert_frame
        before = frames.CheckFunctionManager

        def manager(code: CodeType, *args: object, **kwargs: object) -> CheckFunctionManager:
            if code is not self._code or kwargs.get("save_guards"):
                return before(code, *args, **kwargs)
            try:
                return KeptGuards(self._take, code, *args, **kwargs)
            except Exception as error:  # what cannot be kept must not stop what is compiled
                self.reason = f"PyTorch cannot save its guards ({type(error).__name__}: {error})"
                return before(code, *args, **kwargs)

        frames.CheckFunctionManager = manager
        try:
            yield
        finally:
            frames.CheckFunctionManager = before

    def _take(self, guards: KeptGuards) -> None:
        try:
            self._parts = self._parts_of(guards)
            self.reason = None
        except Unknown as error:
            self.reason = str(error)
        except Exception as error:  # PyTorch's state may be of a kind that was never seen
            self.reason = f"{type(error).__name__}: {error}"

    def _parts_of(self, guards: KeptGuards) -> tuple[tuple[str, ...] | dict[str, str] | bytes, ...]:
        graph: Any = guards.graph
        self._scope = graph.global_scope
        if getattr(graph, "torch_function_subclass_inlined", False) or graph.shape_env.specializations:
            raise Unknown("a subclass of tensors, or a graph for chosen sizes")
        fresh = {name: graph.global_scope[name] for name in graph.installed_globals if name not in graph.import_sources}
        graphs = [name for name in fresh if name.startswith(GRAPH)]
        if len(graphs) != 1:
            raise Unknown(f"{len(graphs)} graphs in place of one")
        self._graph = fresh[graphs[0]]
        stable = stable_names(fresh)
        asked = guards.words(self._digests, stable)
        self._traced = tuple(graph.traced_code)
        state, sizes = guards.state()
        found = Guards(state, sizes, _namespaces(guards, fresh)).as_bytes(fresh)
        return tuple(asked), dict(graph.import_sources), tuple(fresh), found

    def capture(
        self, bytecode: CodeType, graph_as_bytes: Callable[[Callable[..., object]], bytes | None]
    ) -> StoredCapture | None:
        """The capture, once PyTorch has compiled the frame to `bytecode`; None, with a reason, if it cannot be kept."""
        if self.reason is not None:
            return None
        try:
            asked, imports, fresh, guards = self._parts
            named = named_code(self._traced, self._digests)  # only now are libraries as they are between compilations
            imports = imports | modules_loaded_by(bytecode, self._scope, {*imports, *fresh, *self._code.co_names})
            graph = graph_as_bytes(self._graph)
            if graph is None:
                raise Unknown("its graph is not kept")
            return StoredCapture(named, asked, imports, fresh, guards, marshal.dumps(bytecode), graph)
        except (Unknown, ValueError) as error:  # a constant that marshal cannot write is a ValueError
            self.reason = str(error)
            return None


def stable_names(fresh: Mapping[str, object]) -> dict[str, str]:
    """Names for variables that are named anew in each process: the same in each, for words."""
    return {name: f"_{i}" for i, name in enumerate(fresh)}


def _namespaces(guards: KeptGuards, fresh: Mapping[str, object]) -> dict[str, Source]:
    """For variables that are the namespace of a function, the source of such a function."""
    wanted = {id(value): name for name, value in fresh.items() if not name.startswith((GRAPH, BUILTINS))}
    found: dict[str, Source] = {}
    for guard in guards.sorted if wanted else ():
        if not guard.name or any(f"'{name}'" in guard.name for name in wanted.values()):
            continue
        value, source = guards.builder.get(guard), guard.originating_source
        if isinstance(value, FunctionType) and (name := wanted.get(id(value.__globals__))) is not None:
            found.setdefault(name, source)
        for member, method in vars(type(value)).items():
            if isinstance(method, FunctionType) and (name := wanted.get(id(method.__globals__))) is not None:
                found.setdefault(name, AttrSource(TypeSource(source), member))
    if missing := [name for name in wanted.values() if name not in found]:
        raise Unknown(f"the global variable {missing[0]}")
    return found


def modules_loaded_by(bytecode: CodeType, scope: Mapping[str, object], known: set[str]) -> dict[str, str]:
    """The modules that bytecode loads as global variables besides the `known` ones. Raises Unknown for another global
    variable, which another process would not have."""
    found: dict[str, str] = {}
    for instruction in dis.get_instructions(bytecode):
        name = instruction.argval
        if instruction.opname not in _USES_GLOBAL or name in known or name in vars(builtins):
            continue
        value = scope.get(name)
        if not isinstance(value, ModuleType) or instruction.opname != "LOAD_GLOBAL":
            raise Unknown(f"the global variable {name}")
        found[name] = value.__name__
    for constant in bytecode.co_consts:
        if isinstance(constant, CodeType):
            found |= modules_loaded_by(constant, scope, known)
    return found
