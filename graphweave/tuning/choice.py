"""The choices of the tuner: the form of a program, and a schedule for each of its halves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from graphweave.core.errors import SettingsError
from graphweave.core.locality import RowOrder
from graphweave.core.schedule import COMPILERS_CHOICE, Schedule

_EITHER = (None, True, False)


@dataclass(frozen=True, slots=True)
class ProgramForm:
    """The options of `graphweave.compile` that change the program: None leaves `compact` and `reorder` to the cost
    model, and nodes in the user's order."""

    compact: bool | None = None
    reorder: bool | None = None
    relabel: RowOrder | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The options that are not None, with their values."""
        named = ("compact", self.compact), ("reorder", self.reorder), ("relabel", self.relabel)
        return {name: value for name, value in named if value is not None}


@dataclass(frozen=True, slots=True)
class Choice:
    """A form of the program, a schedule for its forward, or for all of it if there is no backward, and one for its
    backward."""

    form: ProgramForm = field(default_factory=ProgramForm)
    forward: Schedule = COMPILERS_CHOICE
    backward: Schedule = COMPILERS_CHOICE

    def to_dict(self) -> dict[str, object]:
        """The choice as values that JSON has."""
        return {"form": self.form.given, "forward": self.forward.to_dict(), "backward": self.backward.to_dict()}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Choice:
        """The choice that `to_dict` gave. SettingsError, KeyError or TypeError for anything else."""
        form = ProgramForm(**given["form"])
        fits = form.relabel is None or form.relabel in get_args(RowOrder)
        if not fits or form.compact not in _EITHER or form.reorder not in _EITHER:
            raise SettingsError(
                f"expected a form of a program (got {given['form']!r}). Delete the entry, and tune again."
            )
        return cls(form, Schedule.from_dict(given["forward"]), Schedule.from_dict(given["backward"]))

    def __str__(self) -> str:
        parts = [f"{name}={value!r}" for name, value in self.form.given.items()]
        halves = ("forward", self.forward), ("backward", self.backward)
        parts += [f"{name}={value!r}" for name, value in halves if value.given]
        return ", ".join(parts) or "the compiler's choice"
