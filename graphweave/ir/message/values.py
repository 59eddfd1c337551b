"""How values in nodes of message programs are written, by annotation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from graphweave.core.ranks import LinkName
from graphweave.core.types import Space
from graphweave.ir.codecs import COMMON, NUMBER, QUOTED, STRING
from graphweave.ir.message.nodes import MESSAGE, AnyType, Arg, Aten, Atom, Operand, Type
from graphweave.ir.reader import Reader
from graphweave.ir.syntax import Codec, Literal, word

_BARE = r"[A-Za-z_][\w.]*"
_NAMED = re.compile(rf"(?:{_BARE}|{STRING})\s*=", re.ASCII)
_QUOTE, _OPEN, _CLOSE, _COMMA, _EQUALS, _NONE = map(Literal, ('"', "[", "]", ",", "=", "none"))

Around = Mapping[str, Any]


def show_name(text: str) -> str:
    """`text` bare if a reader takes it as one word, else quoted."""
    return text if re.fullmatch(_BARE, text, re.ASCII) else json.dumps(text)


def _read_name(reader: Reader, around: Around) -> str:
    return str((QUOTED if _QUOTE.stands(reader) else _WORD).read(reader, around))


_WORD = word(_BARE, "a name", str)
NAME = Codec(lambda name, around: show_name(name), _read_name, rf"(?:{_BARE}|{STRING})")
SPACE = Codec(
    lambda space, around: show_name(space.name), lambda reader, around: Space(_read_name(reader, around)), NAME.begins
)


def _read_link(reader: Reader, around: Around) -> LinkName:
    group, colon, node_type = _read_name(reader, around).partition(":")
    if not colon:
        reader.miss('a link such as "part0:_N"')
    return LinkName(group, node_type)


LINK = Codec(lambda link, around: show_name(str(link)), _read_link, NAME.begins)
REF = word(r"%\d+", "an operand such as %3", lambda text: int(text[1:]), lambda ref: f"%{ref}")


# ---------------------------------------------------------------- arguments of calls


def _show_arg(arg: Arg, around: Aten) -> str:
    match arg:
        case Operand(ref):
            return f"%{ref}"
        case Atom(text):
            return f"@{show_name(text)}"
        case tuple():
            return f"[{', '.join(_show_arg(a, around) for a in arg)}]"
        case None:
            return "none"
    return (QUOTED if isinstance(arg, str) else NUMBER).write(arg, around)


def _read_arg(reader: Reader, around: Around) -> Arg:
    if reader.sees(_NAMED):
        reader.miss("an argument without a name")
    match reader.text[reader.at : reader.at + 1]:
        case "%":
            return Operand(REF.read(reader, around))
        case "@":
            Literal("@").take(reader)
            return Atom(_read_name(reader, around))
        case "[":
            return _read_args(reader, around)
    if _NONE.stands(reader):
        _NONE.take(reader)
        return None
    return (QUOTED if _QUOTE.stands(reader) else NUMBER).read(reader, around)


def _read_args(reader: Reader, around: Around) -> tuple[Arg, ...]:
    _OPEN.take(reader)
    args: list[Arg] = []
    while not _CLOSE.stands(reader):
        if args:
            _COMMA.take(reader)
        args.append(_read_arg(reader, around))
    _CLOSE.take(reader)
    return tuple(args)


def _read_named(reader: Reader, around: Around) -> tuple[str, Arg]:
    name = _read_name(reader, around)
    _EQUALS.take(reader)
    return name, _read_arg(reader, around)


# ---------------------------------------------------------------- types that the line tells


def _row_type(reader: Reader, around: Around) -> Type:
    if not isinstance(around["type"], Type):
        reader.miss("a value type in this line")
    return around["type"]


def _type(reader: Reader, around: Around) -> Type | AnyType:
    if not isinstance(around["type"], Type | AnyType):
        reader.miss("no map type and no distinct rows in this line")
    return around["type"]


def _nothing(value: object, around: object) -> str:
    return ""


MESSAGE.complete(
    COMMON
    | {
        "str": NAME,
        "RowOrder": NAME,
        "Space": SPACE,
        "LinkName": LINK,
        "Ref": REF,
        "Arg": Codec(_show_arg, _read_arg),
        "tuple[str, Arg]": Codec(
            lambda pair, around: f"{show_name(pair[0])}={_show_arg(pair[1], around)}", _read_named
        ),
        "Type": Codec(_nothing, _row_type),
        "Type | AnyType": Codec(_nothing, _type),
    }
)
