"""The text of values that are written alike in every IR."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from enum import Enum

from graphweave.core.types import AnyFold, DType, Fold, Op, OwnFold
from graphweave.ir.reader import Reader
from graphweave.ir.syntax import Codec, word

NAME = r"[A-Za-z_]\w*"
STRING = r'"(?:[^"\\]|\\.)*"'
_CONSTANTS: dict[str, float] = {
    "true": True, "false": False, "inf": math.inf, "-inf": -math.inf, "nan": math.nan,
}  # fmt: skip
_END = r"(?![\w.])"


def member(kind: type[Enum]) -> Codec:
    """Members of `kind`, each written as its value."""
    return word(NAME, f"one of {', '.join(str(k.value) for k in kind)}", kind, lambda value: str(value.value))


def _number(text: str) -> float | int | bool:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


def _show_number(value: float | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def read_string(reader: Reader, around: Mapping[str, object]) -> str:
    """Reads a JSON string. If there is none, the reader's position does not move."""
    start = reader.skip()
    quoted = reader.take(_STRING, "a quoted string")
    try:
        return str(json.loads(quoted))
    except json.JSONDecodeError:
        reader.at = start
        reader.miss("a string with JSON's escapes")


_STRING = re.compile(STRING)

INTEGER = word(rf"-?\d+{_END}", "an integer", int)
NUMBER = word(
    rf"(?:(?:true|false|nan|-?inf)|-?\d+(?:\.\d*)?(?:e[+-]?\d+)?){_END}",
    "a number, true or false", _number, _show_number,
)  # fmt: skip
QUOTED = Codec(lambda text, around: json.dumps(text), read_string, STRING)


def _show_fold(fold: AnyFold, around: object) -> str:
    if isinstance(fold, Fold):
        return fold.value
    return f"own({json.dumps(fold.combine)}, {_show_number(fold.identity)})"


def _read_fold(reader: Reader, around: Mapping[str, object]) -> AnyFold:
    if not reader.sees(_OWN):
        fold: Fold = _FOLD.read(reader, around)
        return fold
    reader.take(_OWN, "own(")
    combine = read_string(reader, around)
    reader.take(_COMMA, "a comma")
    identity = float(NUMBER.read(reader, around))
    reader.take(_CLOSED, "a closing parenthesis")
    return OwnFold(combine, identity)


_FOLD = member(Fold)
_OWN, _COMMA, _CLOSED = re.compile(r"own\s*\("), re.compile(","), re.compile(r"\)")

COMMON = {
    "int": INTEGER, "bool": NUMBER, "float | int | bool": NUMBER, "float": NUMBER,
    "DType": member(DType), "Fold": _FOLD, "Op": member(Op),
    "AnyFold": Codec(_show_fold, _read_fold),
}  # fmt: skip
"""Codecs by annotation. The one of `bool` is for items of tuples: a field that is a `bool` is a flag."""
