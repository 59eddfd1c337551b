"""How values in steps of tapes are written, by annotation."""

from __future__ import annotations

import json
from collections.abc import Mapping

from graphweave.core.sizes import read as read_size
from graphweave.core.sizes import show as show_size
from graphweave.ir.codecs import COMMON, INTEGER, QUOTED
from graphweave.ir.message.layouts import Promise
from graphweave.ir.message.types import Ref
from graphweave.ir.message.values import LINK, NAME, REF, SPACE
from graphweave.ir.reader import Reader
from graphweave.ir.syntax import Codec, Literal, word
from graphweave.ir.tape.limits import Limit, StepLimit
from graphweave.ir.tape.types import TAPE

_GIVEN = word(
    r"%\d+|none\b", "an operand such as %3, or none",
    lambda text: None if text == "none" else int(text[1:]), lambda ref: "none" if ref is None else f"%{ref}",
)  # fmt: skip
_IN, _ORDER, _CLOSE, _COMMA, _END, _BELOW = map(Literal, ("in", "order [", "]", ",", ")", "below"))
_FLAGS = "own", "fresh", "loose"


def _show_promise(promise: Promise, around: object) -> str:
    order = [] if promise.order is None else [f"order [{', '.join(map(str, promise.order))}]"]
    return " ".join(["in", *order, *(flag for flag in _FLAGS if getattr(promise, flag))])


def _read_promise(reader: Reader, around: Mapping[str, object]) -> Promise:
    _IN.take(reader)
    order: list[int] | None = None
    if _ORDER.stands(reader):
        _ORDER.take(reader)
        order = []
        while not _CLOSE.stands(reader):
            if order:
                _COMMA.take(reader)
            order.append(INTEGER.read(reader, around))
        _CLOSE.take(reader)
    flags = dict.fromkeys(_FLAGS, False)
    for flag in _FLAGS:
        said = Literal(flag)
        if said.stands(reader):
            said.take(reader)
            flags[flag] = True
    return Promise(None if order is None else tuple(order), **flags)


def _show_limits(limits: frozenset[Limit], around: object) -> str:
    return ", ".join(sorted(map(TAPE.write, limits)))


def _read_limits(reader: Reader, around: Mapping[str, object]) -> frozenset[Limit]:
    found: set[Limit] = set()
    while not _END.stands(reader):
        if found:
            _COMMA.take(reader)
        found.add(TAPE.read("Limit", reader, around))
    return frozenset(found)


def _show_zeros(zeros: tuple[Ref, Limit | None], around: StepLimit) -> str:
    value, upto = zeros
    return f"%{value}" if upto is None else f"%{value} below {TAPE.write(upto)}"


def _read_zeros(reader: Reader, around: Mapping[str, object]) -> tuple[Ref, Limit | None]:
    value = REF.read(reader, around)
    if not _BELOW.stands(reader):
        return value, None
    _BELOW.take(reader)
    return value, TAPE.read("Limit", reader, around)


TAPE.complete(
    COMMON
    | {
        "str": NAME,
        "Ref": REF,
        "Made": REF,
        "Begun": REF,
        "Freed": REF,
        "Mapped": REF,
        "Given": _GIVEN,
        "Space": SPACE,
        "LinkName": LINK,
        "Size": Codec(
            lambda size, around: json.dumps(show_size(size)),
            lambda reader, around: read_size(QUOTED.read(reader, around)),
            QUOTED.begins,
        ),
        "frozenset[Limit]": Codec(_show_limits, _read_limits),
        "tuple[Ref, Limit | None]": Codec(_show_zeros, _read_zeros),
        "Promise": Codec(_show_promise, _read_promise),
    }
)
