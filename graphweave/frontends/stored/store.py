"""Compilations of captured graphs on disk: found by the graph and all else that they depend on, or kept."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import fx
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._dynamo.symbolic_convert import TensorifyState
from torch._guards import TracingContext
from torch.utils._sympy.symbol import SymT, symbol_is_type

from graphweave.compiler.dump import stages_wanted
from graphweave.compiler.report import collecting
from graphweave.core.choices import Choices
from graphweave.core.counters import bump
from graphweave.core.log import logger
from graphweave.core.settings import settings
from graphweave.core.spans import RESTORE, span
from graphweave.execute.gains import NothingGained
from graphweave.frontends.stored.compilation import Compilation, from_bytes, guard_texts
from graphweave.frontends.stored.graph_key import Unkeyed, graph_text, shape_env
from graphweave.frontends.stored.runtime_parts import are_known
from graphweave.frontends.stored.state_key import state_text
from graphweave.runtime.entries import COMPILATIONS

_log = logger(__name__)
_LEFT = b"left as it is"
"""The entry of a graph that gains nothing by being compiled."""
_RAISES = "graphweave::_assert_is"
"""The operator that raises exceptions of the user's, which a trace keeps by line (`frontends/tracing/branches.py`)."""
_TRACED_AGAIN = b"traced again with these as numbers: "
"""Begins the entry of a graph that PyTorch captures again, with the names of symbolic floats that become constants."""


@dataclass(slots=True, eq=False)
class Slot:
    """The place of a captured graph in the store. `env` knows its sizes, with the `symbols` of sizes that are known
    before a call, and the guards in `begun`, which were there before the compilation. `aliases` is the number of guards
    that compare arguments with each other, and `specialized` names floats that have become constants already.
    A graph that `needs_trace` calls what only a trace of the same function makes known.
    """

    key: str
    about: str
    env: Any
    begun: tuple[Any, ...]
    symbols: frozenset[Any]
    aliases: int
    specialized: frozenset[str]
    needs_trace: bool
    content: bytes | None = None

    def find(self) -> Callable[..., object] | None:
        """The compiled function that was kept; None if there is none for these sizes.

        Raises what the compilation raised: NothingGained, and PyTorch's request to capture the graph again.
        """
        with span(RESTORE):
            content = self.content = COMPILATIONS.read(self.key)
            if content is None:
                return None
            if content == _LEFT:
                raise NothingGained
            if content.startswith(_TRACED_AGAIN):
                names = set(json.loads(content[len(_TRACED_AGAIN) :]))
                if names <= self.specialized:  # it would be captured in the same way again
                    return None
                TensorifyState.force_specializations.update(names)
                raise TensorifyScalarRestartAnalysis(restart_reason="a float becomes a constant")
            found = from_bytes(content)
            if found is None or not (self.env is None or found.hold(self.env)):
                return None
            made = found.function_or_none()
            if made is None:
                return None
        bump("restored_graphs")
        _log.info("%s: restored from compilation %s", self.about, self.key[:12])
        made.stored = None if self.needs_trace else content  # type: ignore[attr-defined]
        return made

    def keep_left(self) -> None:
        """Keep that the graph gains nothing by being compiled."""
        self._write(_LEFT)

    def keep_restart(self) -> None:
        """Keep that PyTorch has asked to capture the graph again, after it found floats that become constants."""
        names = sorted(TensorifyState.force_specializations - self.specialized)
        self._write(_TRACED_AGAIN + json.dumps(names).encode())

    def _write(self, content: bytes) -> None:
        if content != self.content:
            COMPILATIONS.write(self.key, content)

    def keep(self, found: Compilation) -> bytes | None:
        """Keep a compilation, and return it as bytes for a store of whole captures; None if it has none there."""
        added = self._added()
        if added is None:
            return None
        try:
            content = Compilation(
                found.about, guard_texts(added), found.parts, found.forward, found.backward, found.gradients,
                found.forms,
            ).to_bytes()  # fmt: skip
        except (pickle.PicklingError, TypeError, AttributeError, ValueError, RuntimeError) as error:
            unstored(self.about, f"it has no bytes ({type(error).__name__}: {error})")
            return None
        self._write(content)
        return None if self.needs_trace else content

    def _added(self) -> list[object] | None:
        """The guards on sizes that the compilation has added; None if it has added what cannot be stored."""
        if _aliases() != self.aliases:
            unstored(self.about, "some of its arguments are the same tensor, or overlap")
            return None
        if self.env is None:
            return []
        now = self.env.guards
        if tuple(now[: len(self.begun)]) != self.begun:
            unstored(self.about, "PyTorch has changed earlier guards")
            return None
        added = list(now[len(self.begun) :])
        if any(not guard.expr.free_symbols <= self.symbols for guard in added):
            unstored(self.about, "a guard is on a size that is none of its arguments'")
            return None
        if any(symbol_is_type(s, SymT.FLOAT) for guard in added for s in guard.expr.free_symbols):
            unstored(self.about, "a guard is on a float")
            return None
        return added


def slot(module: fx.GraphModule, choices: Choices, more: str, about: str) -> Slot | None:
    """The place of a captured graph; None where it is compiled afresh. `more` is what it depends on besides."""
    if not (are_known() and settings().store_compilations) or stages_wanted() or collecting():
        return None
    try:
        if choices.verify or choices.cuda_graphs or choices.tunes or choices.relabel == "auto":
            raise Unkeyed("an option asks for more than compiled code, or for measurements on this graph")
        text = "\0".join((state_text(choices), graph_text(module), more, about))
        env, context = shape_env(module), TracingContext.try_get()
        if context is not None and context.fakify_first_call:
            raise Unkeyed("it is a part of a graph that PyTorch has divided")
    except Unkeyed as why:
        unstored(about, str(why))
        return None
    key, begun = hashlib.sha256(text.encode()).hexdigest(), () if env is None else tuple(env.guards)
    symbols = frozenset(() if env is None else env.backed_var_to_val)
    specialized = frozenset(TensorifyState.force_specializations)
    return Slot(key, about, env, begun, symbols, _aliases(), specialized, _RAISES in text)


def unstored(about: str, why: str) -> None:
    """Count and log a graph whose compilation is not kept."""
    bump("unstored_graphs")
    _log.info("%s is not kept on disk: %s", about, why)


def _aliases() -> int:
    """The number of guards by which PyTorch compares arguments with each other."""
    context = TracingContext.try_get()
    return 0 if context is None else len(context.guards_context.aotautograd_guards)
