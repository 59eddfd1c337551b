"""A user's reducer of two numbers, as formulas: what a call of `graphweave::fold_rows` holds, as text."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass

from graphweave.core.types import OwnFold


@dataclass(frozen=True, slots=True)
class OwnReducer:
    """`combine` and `identity` are those of the `OwnFold`.

    `slope` is a formula for the derivative of the result in one of the values that were folded. It may name x, the
    value; out, the result; and ties, how many values of the row equal the result. A derivative that does not follow
    from these has a `pivot`, a formula of x and out. The value of a row with the least pivot is left out of a second
    fold; slope may also name that fold, kept; the value that was left out, left; and chosen, whether x is that value.
    """

    combine: str
    identity: float
    slope: str
    pivot: str | None = None

    @property
    def fold(self) -> OwnFold:
        return OwnFold(self.combine, self.identity)

    @property
    def text(self) -> str:
        """The argument of the call."""
        return json.dumps(astuple(self))

    @staticmethod
    def of(text: str) -> OwnReducer:
        """The reducer whose `text` this is."""
        combine, identity, slope, pivot = json.loads(text)
        return OwnReducer(combine, float(identity), slope, pivot)

    @property
    def without_slope(self) -> OwnReducer:
        """The reducer of a fold whose result has no gradient."""
        return OwnReducer(self.combine, self.identity, "")
