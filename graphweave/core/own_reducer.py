"""A user's reducer of two numbers, as formulas: what a call of `graphweave::fold_rows` holds, as text."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass

from graphweave.core.types import OwnFold


@dataclass(frozen=True, slots=True)
class OwnReducer:
    """`combine` and `identity` are those of the `OwnFold`.

    `slope` is a formula for the derivative of the result in one of the values that were folded. It may name x, the
    value; out, the result; ties, how many values of the row equal the result; and rest, the fold of all other values of
    the row. Rest is the only one that is not known from x and rows of the result.
    """

    combine: str
    identity: float
    slope: str

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
        combine, identity, slope = json.loads(text)
        return OwnReducer(combine, float(identity), slope)
