"""How values in nodes of kernels are written, by annotation."""

from __future__ import annotations

import re
from collections.abc import Mapping

from graphweave.ir.codecs import COMMON, INTEGER, NAME, QUOTED, member
from graphweave.ir.loop.nodes import LOOP, Lane, Place, Role, Term
from graphweave.ir.reader import Reader
from graphweave.ir.syntax import Codec, Literal, word

_NAMED = word(NAME, "a name", str)
_BELOW, _TIMES = Literal("<"), Literal("*")
_ELEMENT = re.compile(rf"{NAME}\s*\[", re.ASCII)


def _read_lane(reader: Reader, around: Mapping[str, object]) -> Lane:
    name = _NAMED.read(reader, around)
    _BELOW.take(reader)
    return name, INTEGER.read(reader, around)


def _read_term(reader: Reader, around: Mapping[str, object]) -> Term:
    coefficient = INTEGER.read(reader, around)
    _TIMES.take(reader)
    return _NAMED.read(reader, around), coefficient


def _show_place(place: Place, around: object) -> str:
    return place if isinstance(place, str) else LOOP.write(place)


def _read_place(reader: Reader, around: Mapping[str, object]) -> Place:
    return (LOOP.codec("Rows") if reader.sees(_ELEMENT) else _NAMED).read(reader, around)


LOOP.complete(
    COMMON
    | {
        "str": _NAMED,
        "Text": QUOTED,
        "Role": member(Role),
        "Lane": Codec(lambda lane, around: f"{lane[0]} < {lane[1]}", _read_lane),
        "Term": Codec(lambda term, around: f"{term[1]}*{term[0]}", _read_term),
        "Place": Codec(_show_place, _read_place),
    }
)
