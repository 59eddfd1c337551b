"""How an operator's kernels are scheduled: the one place that looks at the argument `schedule`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphweave.core.errors import SettingsError
from graphweave.core.schedule import Schedule


def check_schedule(schedule: Any) -> None:
    """SettingsError for what is no schedule."""
    if schedule not in ("auto", "tune") and not isinstance(schedule, Schedule):
        raise SettingsError(
            "schedule must be 'auto', the compiler's own choice, 'tune', the best that measuring finds, or a"
            f" graphweave.Schedule (got {schedule!r}). Pass one of these."
        )


def options_of(schedule: Any) -> Mapping[str, Any] | None:
    """`schedule` as an option of `graphweave.compile`."""
    return None if schedule == "auto" else {"schedule": schedule}
