"""Message programs from text: `parse(show(program)) == program`, exactly. The grammar is in GRAMMAR.md."""

from __future__ import annotations

import json
import re

from graphweave.core.errors import ParseError
from graphweave.core.lines import NOWHERE, Location
from graphweave.core.sizes import Size, read, read_several, split
from graphweave.core.types import DType, Space
from graphweave.ir.codecs import QUOTED
from graphweave.ir.message.nodes import MESSAGE, AnyType, Node, Program, Ref, ValueType
from graphweave.ir.message.values import SPACE
from graphweave.ir.reader import Reader
from graphweave.ir.syntax import Literal, word

_ANY = re.compile(r'any\s*(?=")', re.ASCII)
_LINE = r"(.+?):(0|[1-9]\d*)"
_LOCATION = re.compile(rf"(?:{_LINE}(?: (.+?))?|(.+?))(?: <- (?!.* <- ){_LINE})?", re.ASCII | re.DOTALL)

_SPACE, _RETURN, _COLON, _EQUALS, _COMMA, _COMMENT = map(Literal, ("space", "return", ":", "=", ",", "#"))

_OUTPUT = word(r"%\d+|none\b", "an operand such as %3, or none", lambda text: None if text == "none" else int(text[1:]))


def parse(text: str) -> Program:
    """The program that `text` shows. Raises ParseError with the line and what was expected; checks no types."""
    nodes: list[Node] = []
    types: list[ValueType] = []
    locs: list[Location] = []
    spaces: list[tuple[Space, Size | None]] = []
    outputs: tuple[Ref | None, ...] | None = None
    for number, line in enumerate(text.split("\n"), start=1):
        reader = Reader(line, number, "line")
        if not line.strip() or _COMMENT.stands(reader):
            continue
        if outputs is not None:
            reader.parse(lambda reader: reader.miss("nothing after the outputs"))
        if _SPACE.stands(reader):
            spaces.append(reader.parse(_space_line))
        elif _RETURN.stands(reader):
            outputs = reader.parse(_return_line)
        else:
            node, t, loc = reader.parse(lambda reader: _node_line(reader, len(nodes)))
            nodes.append(node)
            types.append(t)
            locs.append(loc)
    if outputs is None:
        raise ParseError(f"line {text.count(chr(10)) + 1}: expected 'return' with the outputs at the end")
    return Program(tuple(nodes), tuple(types), tuple(locs), outputs, tuple(spaces))


def any_type(text: str) -> AnyType:
    """The type outside the algebra that `text` shows. A text of no known form becomes `other`."""
    if found := re.fullmatch(r"Sym\((.*)\)", text, re.DOTALL):
        return AnyType(size=read(found[1]))
    if found := re.fullmatch(r"(\w[\w ]*)\[([^\[\]]*)\]", text, re.ASCII):
        known = found[1] in DType.__members__
        dims = read_several(found[2])
        return AnyType(DType(found[1]), dims) if known else AnyType(dims=dims, other=found[1])
    if text.startswith("(") and text.endswith(")") and len(text) > 1:
        return AnyType(items=tuple(map(any_type, split(text[1:-1]))))
    return AnyType(other=text)


def read_location(text: str) -> Location:
    """The location that `text` shows. A text of no known form is one without a line."""
    found = _LOCATION.fullmatch(text)
    if found is None:
        return NOWHERE
    path, number, code, other, caller, line = found.groups()
    return Location(path or "", int(number or 0), code or other or "", Location(caller, int(line)) if caller else None)


# ---------------------------------------------------------------- lines


def _space_line(reader: Reader) -> tuple[Space, Size | None]:
    _SPACE.take(reader)
    space = SPACE.read(reader, {})
    _EQUALS.take(reader)
    text = _rest(reader)
    return space, read(text) if text else None


def _return_line(reader: Reader) -> tuple[Ref | None, ...]:
    _RETURN.take(reader)
    outputs: list[Ref | None] = []
    while reader.skip() < len(reader.text):
        if outputs:
            _COMMA.take(reader)
        outputs.append(_OUTPUT.read(reader, {}))
    return tuple(outputs)


def _node_line(reader: Reader, ref: Ref) -> tuple[Node, ValueType, Location]:
    Literal(f"%{ref}").take(reader)
    _COLON.take(reader)
    t = _value_type(reader)
    _EQUALS.take(reader)
    node = MESSAGE.read("Node", reader, {"type": t})
    if not _COMMENT.stands(reader):
        reader.end()
        return node, t, NOWHERE
    _COMMENT.take(reader)
    return node, t, read_location(_rest(reader))


def _value_type(reader: Reader) -> ValueType:
    if not reader.sees(_ANY):
        return MESSAGE.read("ValueType", reader, {})
    reader.take(_ANY, "a type")
    return any_type(QUOTED.read(reader, {}))


def _rest(reader: Reader) -> str:
    """The rest of the line, or if it is a quoted string, the content of that."""
    start, text = reader.at, reader.rest()
    if not text.startswith('"'):
        return text
    try:
        return str(json.loads(text))
    except json.JSONDecodeError:
        reader.at = start
        reader.miss("a string with JSON's escapes")
