"""A compiled graph as bytes, and back: `restore(stored_form(...))` is a function like the compiled one.

The bytes hold the plans of the halves with their kernels' texts, what AOTAutograd's function is made of, what is known
of gradients, and guards on sizes that the compilation added. They are unpickled, so they must come from this user
(`runtime/entries.py`) and from the same versions and switches (`state_key.py`): whoever keeps them sees to both.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch._dynamo import disable
from torch._dynamo.convert_frame import compile_lock
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.printers import PythonPrinter

from graphweave.core.boxed import Boxed, boxed
from graphweave.core.counters import bump
from graphweave.core.errors import CompileError
from graphweave.core.log import logger
from graphweave.core.spans import RESTORE, span
from graphweave.execute.begun import Begun
from graphweave.execute.executable import Executable
from graphweave.frontends.halves.autograd_function import Gradients, equipped
from graphweave.frontends.halves.forms import Forms
from graphweave.frontends.halves.forward_mode import refuse_forward_mode
from graphweave.frontends.halves.handover import Handed
from graphweave.frontends.stored.runtime_parts import RuntimeParts

_log = logger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Compilation:
    """A compiled graph as data. `about` names it in messages, and `guards` are conditions on its sizes as Python texts.

    The forward is an executable, for an inference, or a half together with its `backward`. `forms` makes others for
    other graphs.
    """

    about: str
    guards: tuple[str, ...]
    parts: RuntimeParts
    forward: Executable | Handed
    backward: Handed | None = None
    gradients: Gradients | None = None
    forms: Forms | None = None

    def to_bytes(self) -> bytes:
        """The compilation as bytes. Raises what pickle raises for an object without bytes."""
        return zlib.compress(pickle.dumps(self, pickle.HIGHEST_PROTOCOL), 1)

    @property
    def executables(self) -> tuple[Executable, ...]:
        ahead = self.forward.executable if isinstance(self.forward, Handed) else self.forward
        return (ahead,) if self.backward is None else (ahead, self.backward.executable)

    def hold(self, env: ShapeEnv) -> bool:
        """Whether the guards hold for the sizes of the graph that is captured now, of which `env` knows. If so, they
        are guards of it."""
        if not all(env.evaluate_symexpr(guard) for guard in self.guards):
            return False
        return all([bool(env.deserialize_symexpr(guard)) for guard in self.guards])

    def function(self) -> Callable[..., object]:
        """The compiled function. Its kernels are loaded, and those that are gone are compiled again. Raises
        CompileError or OSError if one cannot be."""
        begun = Begun()
        for one in self.executables:
            begun.add(str(one.plan.name), one.steps.all)
        for one in self.executables:
            one.prepare()
        begun.wait()
        backward, forms = self.backward, self.forms
        if backward is None or self.gradients is None:
            assert isinstance(self.forward, Executable)
            run = boxed_inference(self.forward) if forms is None else forms.inference(self.forward)
            made = self.parts.function(run, None, _no_module)
        else:
            assert isinstance(self.forward, Handed)
            forward = self.forward.boxed() if forms is None else forms.forward(self.forward, self.parts.saved_numbers)
            run = backward.boxed() if forms is None else forms.backward(backward, self.gradients)
            finished = self.gradients.finish(run)
            untraced = disable(finished, reason="do not trace the compiled backward")
            with compile_lock, equipped(lambda: self.gradients):
                made = self.parts.function(forward, untraced, backward.module)
        return refuse_forward_mode(_unboxed(made), self.about)

    def function_or_none(self) -> Callable[..., object] | None:
        """The compiled function; None if one of its kernels cannot be compiled, so that the graph is compiled afresh,
        which tells what is wrong."""
        try:
            return self.function()
        except (CompileError, OSError) as error:
            _log.info("%s: its stored compilation has a kernel that cannot be compiled: %s", self.about, error)
            return None


def restore(content: bytes) -> Callable[..., object] | None:
    """The function of a compilation that was stored as bytes. None if it cannot be made under the modes in force."""
    with span(RESTORE):
        found = from_bytes(content)
        if found is None or found.parts.disable_amp != torch._C._is_any_autocast_enabled():
            return None
        made = found.function_or_none()
    if made is not None:
        bump("restored_graphs")
    return made


def from_bytes(content: bytes) -> Compilation | None:
    """The compilation that was stored as bytes; None if they are not those of one."""
    try:
        found = pickle.loads(zlib.decompress(content))
    except Exception as error:  # an object may fail to unpickle in any way
        _log.warning("a stored compilation cannot be read: %s: %s", type(error).__name__, error)
        return None
    return found if isinstance(found, Compilation) else None


def boxed_inference(executable: Boxed) -> Boxed:
    """The executable of an inference as a function that AOTAutograd may call."""

    def run(args: list[object]) -> list[object]:
        return executable(args)

    return boxed(run)


def guard_texts(guards: Sequence[Any]) -> tuple[str, ...]:
    """PyTorch's guards on sizes as Python texts."""
    printer = PythonPrinter()
    return tuple(printer.doprint(guard.expr) for guard in guards)


def _unboxed(made: Callable[[list[object]], object]) -> Callable[..., object]:
    def run(*args: object) -> object:
        return made(list(args))

    return run


def _no_module() -> NoReturn:
    raise AssertionError("an inference has no backward")
