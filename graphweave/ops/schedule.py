"""How an operator's kernels are scheduled: the one place that looks at the argument `schedule`."""

from __future__ import annotations

from typing import Any

from graphweave.core.errors import SettingsError


def check_schedule(schedule: Any) -> None:
    """SettingsError unless the compiler chooses the schedule."""
    if schedule != "auto":
        raise SettingsError(f"schedule must be 'auto', the compiler's own choice (got {schedule!r}). Leave it out.")
