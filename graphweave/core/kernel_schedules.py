"""Schedules of some kernels of a function, by the user's line, by the half, or by the kernel's name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from graphweave.core.errors import ScheduleError
from graphweave.core.lines import Location
from graphweave.core.schedule import COMPILERS_CHOICE, Schedule

HALVES = ("forward", "backward")
"""Keys that stand for all kernels of a half, which some calls of a function have not."""

_OF_ALL = {
    "rfactor": "kernels compare the sums that others compute again",
    "edge_format": "it decides which kernels there are",
}
"""Fields that are the same for all kernels of a function, and why."""


@dataclass(frozen=True, slots=True)
class KernelSchedules:
    """The mapping that a user gave. A key is a line ("model.py:12", or more of its path), "forward" or "backward", or
    the name of a kernel ("forward_0"), as `explain` prints them. A kernel follows the first key that names it, and
    without one the compiler's choice. The schedule of the key `sought` is the tuner's to find.
    """

    given: tuple[tuple[str, Schedule], ...]
    sought: str | None = None

    @staticmethod
    def of(given: Mapping[str, Schedule | Literal["tune"]]) -> KernelSchedules:
        """ScheduleError for a field that must be that of all kernels."""
        known = {key: COMPILERS_CHOICE if value == "tune" else value for key, value in given.items()}
        for key, schedule in known.items():
            for name in [name for name in _OF_ALL if name in schedule.given]:
                raise ScheduleError(
                    f"Schedule: {name!r} must be None for some of the kernels, since {_OF_ALL[name]} (got"
                    f" {schedule.given[name]!r} for {key!r}). Give the function one schedule."
                )
        sought = [key for key, value in given.items() if value == "tune"]
        return KernelSchedules(tuple(known.items()), *sought)

    def with_found(self, schedule: Schedule) -> KernelSchedules:
        """The mapping with `schedule` for the key that is sought."""
        return replace(self, given=tuple((key, schedule if key == self.sought else one) for key, one in self.given))

    def seeks(self, kernel: str, lines: Collection[str]) -> bool:
        """Whether the schedule of this kernel is the one that is sought."""
        return [key for key, _ in self.naming(kernel, lines)][:1] == [self.sought]

    def naming(self, kernel: str, lines: Collection[str]) -> list[tuple[str, Schedule]]:
        """The keys that name a kernel that computes `lines` (`lines_of`), and their schedules."""
        names = {kernel, kernel.partition("_")[0]}
        return [
            (key, schedule)
            for key, schedule in self.given
            if key in names or any(line == key or line.endswith(f"/{key}") for line in lines)
        ]


def lines_of(location: Location) -> set[str]:
    """The lines, "path:number", that a location has: the innermost one, and the user's own if that is a library's; each
    by its whole path and as `explain` prints it."""
    places = [at for at in (location, location.called_from) if at is not None and at.path]
    return {line for at in places for line in (f"{at.path}:{at.number}", at.line)}
