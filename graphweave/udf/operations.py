"""The tables of PyTorch functions that mailboxes, pairs of messages and numbers of messages answer."""

from __future__ import annotations

from collections.abc import Callable

from graphweave.tensorlike.answers import answer
from graphweave.tensorlike.views import matrix_transpose
from graphweave.udf.contract import PRODUCTS
from graphweave.udf.extent import EXTENT, Extent
from graphweave.udf.mailbox import Mailbox
from graphweave.udf.message_pairs import OVER_PAIRS, PairBox
from graphweave.udf.reductions import REDUCTIONS
from graphweave.udf.rowwise import CREATED, ROWWISE
from graphweave.udf.shapes import SHAPES, shape


def _in_place(name: str) -> Callable[..., object]:
    """The method for `m += x` and similar operators. As with a tensor, everyone who holds the mailbox sees the
    change."""

    def method(self: Mailbox, other: object) -> Mailbox:
        self.messages = self.answers[name](self, other).messages
        return self

    return method


for _name, _function in {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "pow": "pow"}.items():
    setattr(Mailbox, f"__i{_name}__", _in_place(_function))
Mailbox.shape = property(shape)  # type: ignore[attr-defined]
Mailbox.mT = property(matrix_transpose)  # type: ignore[attr-defined]

answer(Mailbox, {**ROWWISE, **CREATED, **REDUCTIONS, **SHAPES, **PRODUCTS}, refuse_others=True)
answer(PairBox, {**ROWWISE, **OVER_PAIRS}, refuse_others=True)
answer(Extent, EXTENT)
