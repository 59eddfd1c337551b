"""PyTorch's settings of one thread, under which a call is traced: gradients, inference mode, autocast, modes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import _get_current_function_mode_stack

_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class CallerState:
    """The settings that were in force in the thread that made this."""

    gradients: bool = field(default_factory=torch.is_grad_enabled)
    inference: bool = field(default_factory=torch.is_inference_mode_enabled)
    autocast: tuple[tuple[str, bool, torch.dtype], ...] = field(
        default_factory=lambda: tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES)
    )
    modes: tuple[Any, ...] = field(default_factory=lambda: tuple(_get_current_function_mode_stack()))
    """Modes that see calls of functions, such as the default device, outermost first."""
    context: Context = field(default_factory=copy_context)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Within the block, the settings are those of this thread, too."""
        with ExitStack() as held:
            for mode in self.modes:
                held.enter_context(mode)
            held.enter_context(torch.inference_mode(self.inference))
            held.enter_context(torch.set_grad_enabled(self.gradients))
            for device, enabled, dtype in self.autocast:
                if enabled:
                    held.enter_context(torch.autocast(device, dtype=dtype))
            yield

    def kind(self) -> tuple[Any, ...]:
        """A value that is equal for states under which a function is traced alike."""
        return self.gradients, self.inference, self.autocast, tuple(map(id, self.modes))
