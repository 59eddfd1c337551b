"""The outcome of a search, as data that `explain` prints, tests read and the store keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from graphweave.compiler.report import RacedCandidate, TuningNote
from graphweave.tuning.choice import Choice


@dataclass(frozen=True, slots=True)
class Outcome:
    """A choice, its predicted and measured seconds of a call (forward and backward), and those of the compiler's own
    choice. `tried` counts the candidates that were measured, `raced` lists those of forms and of schedules; `finished`
    says whether the search ended before its `budget` seconds did. Times are None where nothing was measured, and `why`
    then gives the reason."""

    choice: Choice = field(default_factory=Choice)
    predicted: float | None = None
    measured: float | None = None
    untuned_predicted: float | None = None
    untuned_measured: float | None = None
    tried: int = 0
    finished: bool = False
    budget: float = 0.0
    why: str = ""
    raced: tuple[RacedCandidate, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """The outcome as values that JSON has."""
        times = "predicted", "measured", "untuned_predicted", "untuned_measured"
        kept = {name: getattr(self, name) for name in (*times, "tried", "finished", "budget")}
        return {"choice": self.choice.to_dict(), **kept, "raced": [asdict(one) for one in self.raced]}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Outcome:
        """The outcome that `to_dict` gave. SettingsError, KeyError or TypeError for anything else."""
        rest = {name: value for name, value in given.items() if name not in ("choice", "raced")}
        return cls(
            Choice.from_dict(given["choice"]), **rest, raced=tuple(RacedCandidate(**r) for r in given.get("raced", ()))
        )

    def note(self, seconds: float, stored: bool) -> TuningNote:
        """The outcome for reports, found in `seconds`, or `stored` by an earlier search."""
        return TuningNote(
            str(self.choice), self.predicted, self.measured, self.untuned_predicted, self.untuned_measured, self.tried,
            seconds, stored, self.finished, self.why, self.raced,
        )  # fmt: skip
