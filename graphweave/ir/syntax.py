"""The text of nodes: each class has a template, by which its nodes are written and read back.

    @node("push.{fold} {x}, {map}| empty={empty}| {fused}")
    @dataclass(frozen=True, slots=True)
    class Push: ...

- `{field}` is a hole. The field's annotation says how its value is written and read: it is a key of
  `Language.codecs`, or the name of a class with a template or of a union of such classes. A tuple is written as its
  items with ", " between them; `{field: + }` sets another separator. None is written as nothing, a flag (`bool`) as its
  name or nothing.
- `{a+b}` is one list: the items of a, then the items of b.
- `{^k}` repeats the field k of the enclosing node.
- `|...|` is written only if a field in it differs from its default.
- A tuple at the end of any line of the template but the first has a line for each item.
- All other text stands for itself. Blanks only separate words. If a hole is written as nothing and a blank or the end
  follows it, the blank before it is not written. A word in front of "[" or "->" begins no node: it is a name.

A template must name each field once, or declaring its class fails. A class without a template is written as its fields:
first operands in order, then other fields, each with its name if there are several, then flags.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from enum import Enum
from functools import partial
from typing import Any, TypeAlias, TypeVar

from graphweave.core.exact import exact
from graphweave.ir.reader import Miss, Reader

_T = TypeVar("_T")
_PIECE = re.compile(
    r"\n(?P<indent> *)(?P<head>[^\n{}|]*)\{(?P<lines>\w+)\}(?=\n)"
    r"|\{(?P<holes>\w+(?:\+\w+)*)(?::(?P<between>[^}]*))?\}|\{\^(?P<outer>\w+)\}"
)
_HOLES = re.compile(r"\{(\w+(?:\+\w+)*)(?::[^}]*)?\}")


class _Count(Enum):
    """How many values a field holds."""

    one = "one"
    maybe = "one or None"
    many = "any number"


@dataclass(frozen=True)
class Codec:
    """How values are written and read back. `write` also gets the enclosing node, and `read` a mapping of those fields
    of it that have been read."""

    write: Callable[[Any, Any], str]
    read: Callable[[Reader, Mapping[str, Any]], Any]
    begins: str = ""
    """A regular expression that matches the whole text, if the text is one word."""


def word(pattern: str, wanted: str, make: Callable[[str], _T], write: Callable[[_T], str] = str) -> Codec:
    """The codec of values that are one word; `make` raises ValueError if a word is none of them."""
    compiled = re.compile(pattern, re.ASCII)

    def read(reader: Reader, around: Mapping[str, object]) -> _T:
        start = reader.skip()
        try:
            return make(reader.take(compiled, wanted))
        except ValueError:
            reader.at = start
            reader.miss(wanted)

    return Codec(lambda value, around: write(value), read, pattern)


class Literal:
    """Text that stands for itself."""

    lone = False

    def __init__(self, text: str) -> None:
        self.text, self._wanted = text, repr(text.strip())
        words = re.findall(r"\w+|[^\w\s]", text)
        self.pattern = r"\s*".join(re.escape(w) + r"\b" * w[-1].isalnum() for w in words)
        self._compiled = re.compile(self.pattern, re.ASCII)

    def write(self, node: object, around: object) -> str:
        return self.text

    def stands(self, reader: Reader) -> bool:
        return reader.sees(self._compiled)

    def take(self, reader: Reader, before: str = "") -> None:
        if self.pattern:
            reader.take(self._compiled, self._wanted + before)

    def read(self, reader: Reader, given: dict[str, object], around: Mapping[str, object]) -> None:
        self.take(reader)


class _Outer:
    """A repeated field of the enclosing node."""

    lone = False

    def __init__(self, name: str) -> None:
        self._name = name

    def write(self, node: object, around: object) -> str:
        return str(getattr(around, self._name))

    def read(self, reader: Reader, given: dict[str, object], around: Mapping[str, Any]) -> None:
        Literal(around[self._name]).take(reader)


class _Unsaid:
    """A field that is not written, because the surrounding text determines it."""

    lone = False

    def __init__(self, name: str, codec: Codec) -> None:
        self._name, self._codec = name, codec

    def write(self, node: object, around: object) -> str:
        return ""

    def read(self, reader: Reader, given: dict[str, object], around: Mapping[str, object]) -> None:
        given[self._name] = self._codec.read(reader, around)


class _Holes:
    """Fields that are written as one list."""

    def __init__(self, held: Sequence[tuple[str, Codec, _Count]], between: str, lone: bool) -> None:
        self.held, self.lone = held, lone
        self._between, self._comma = between, Literal(between)

    def write(self, node: object, around: object) -> str:
        texts: list[str] = []
        for name, codec, count in self.held:
            value = getattr(node, name)
            if count is _Count.many:
                texts.extend(codec.write(v, node) for v in value)
            elif count is _Count.one or value is not None:
                texts.append(codec.write(value, node))
        return self._between.join(texts)

    def read(self, reader: Reader, given: dict[str, object], around: Mapping[str, object]) -> None:
        self._read(0, False, reader, given)

    def _read(self, i: int, begun: bool, reader: Reader, given: dict[str, object]) -> None:
        if i == len(self.held):
            return
        name, codec, count = self.held[i]
        if count is not _Count.many:
            start = reader.at
            try:
                given[name] = self._item(codec, begun, reader, given, f" before {name}")
                return self._read(i + 1, True, reader, given)
            except Miss:
                if count is _Count.one:
                    raise
                reader.at = start
                given[name] = None
                return self._read(i + 1, begun, reader, given)
        given[name] = tuple(self._items(codec, begun, reader, given))
        self._read(i + 1, begun or bool(given[name]), reader, given)

    def _items(self, codec: Codec, begun: bool, reader: Reader, given: dict[str, object]) -> Iterator[object]:
        while True:
            start = reader.at
            try:
                item = self._item(codec, begun, reader, given)
            except Miss:
                reader.at = start
                return
            yield item
            begun = True

    def _item(self, codec: Codec, begun: bool, reader: Reader, given: dict[str, object], before: str = "") -> object:
        if begun:
            self._comma.take(reader, before)
        return codec.read(reader, given)


class _OwnLine(_Holes):
    """A field that has a line of its own, or several, if its text has."""

    def __init__(self, held: tuple[str, Codec, _Count], indent: str, lone: bool) -> None:
        super().__init__([held], "", lone)
        self._indent = "\n" + indent

    def write(self, node: object, around: object) -> str:
        return super().write(node, around).replace("\n", self._indent)


class _Lines(_Holes):
    """Fields whose items have a line each."""

    def __init__(self, name: str, codec: Codec, indent: str, head: str) -> None:
        super().__init__([(name, codec, _Count.many)], "", lone=False)
        self._indent, self._head = "\n" + indent, Literal(head)

    def write(self, node: object, around: object) -> str:
        ((name, codec, _),) = self.held
        texts = (self._head.text + codec.write(v, node) for v in getattr(node, name))
        return "".join(self._indent + text.replace("\n", self._indent) for text in texts)

    def _item(self, codec: Codec, begun: bool, reader: Reader, given: dict[str, object], before: str = "") -> object:
        self._head.take(reader)
        return codec.read(reader, given)


@dataclass(frozen=True)
class _Optional:
    """Parts that are written if a field has another value than in `absent`.

    If the parts are not in the text, the fields have the values in `absent`; if they are, those in `present`.
    """

    parts: Sequence[_Part]
    absent: Mapping[str, Any]
    present: Mapping[str, Any]
    lone: bool

    def write(self, node: object, around: object) -> str:
        plain = all(exact(getattr(node, name)) == exact(value) for name, value in self.absent.items())
        return "" if plain else _written(self.parts, node, around)


_Part: TypeAlias = "Literal | _Outer | _Unsaid | _Holes | _Optional"


def _written(parts: Sequence[_Part], node: object, around: object) -> str:
    out = ""
    for part in parts:
        text = part.write(node, around)
        out = out.removesuffix(" ") if part.lone and not text else out + text
    return out


def _read(
    parts: Sequence[_Part], reader: Reader, given: dict[str, object], around: Mapping[str, object]
) -> dict[str, object]:
    """`given` and the fields that `parts` read. Each optional part is first tried as present, then as absent."""
    for i, part in enumerate(parts):
        if isinstance(part, _Optional):
            start = reader.at
            try:
                return _read([*part.parts, *parts[i + 1 :]], reader, {**given, **part.present}, around)
            except Miss:
                reader.at = start
                given |= part.absent
        else:
            part.read(reader, given, around)
    return given


@dataclass(frozen=True)
class Form:
    """How nodes of one class are written and read.

    A text that begins like the pattern `begins` is of this form. If several forms fit, the one with the least `rank`
    is taken: 0 if the text begins with a word of its own, 1 if a mark follows the first hole, else 2.
    """

    kind: type
    parts: Sequence[_Part]
    begins: re.Pattern[str]
    rank: int

    def write(self, node: object, around: object) -> str:
        return _written(self.parts, node, around)

    def read(self, reader: Reader, around: Mapping[str, object]) -> Any:
        return self.kind(**_read(self.parts, reader, {}, around))


class Language:
    """The nodes of one IR. Annotations of operands contain `operand`. Fields with an annotation in `unsaid` are not
    written, because the surrounding text determines them."""

    def __init__(self, operand: str = "", unsaid: Iterable[str] = ()) -> None:
        self._operand, self._unsaid = operand, frozenset(unsaid)
        self._kinds: dict[str, list[type]] = {}
        self._templates: dict[type, str] = {}
        self._forms: dict[type, Form] = {}
        self.codecs: dict[str, Codec] = {}

    def union(self, name: str) -> Callable[..., Callable[[type[_T]], type[_T]]]:
        """A decorator that declares a dataclass of the union `name`; its argument is the template."""

        def of(template: str | None = None) -> Callable[[type[_T]], type[_T]]:
            def declare(kind: type[_T]) -> type[_T]:
                said = {f.name: f for f in _fields(kind) if f.type not in self._unsaid}
                self._templates[kind] = text = self._by_fields(kind, said.values()) if template is None else template
                if sorted(_named(text)) != sorted(said):
                    raise TypeError(f"{kind.__name__}: expected {', '.join(said)} (got {text!r})")
                for optional in text.split("|")[1::2]:
                    _defaults(kind, optional)
                self._kinds.setdefault(name, []).append(kind)
                self._kinds.setdefault(kind.__name__, [kind])
                return kind

            return declare

        return of

    def complete(self, codecs: Mapping[str, Codec]) -> None:
        """Adds the codecs of other annotations. KeyError if a declared field has none then."""
        self.codecs |= codecs
        for kind in self._templates:
            self._form(kind)

    def write(self, node: object, around: object = None) -> str:
        return self._form(type(node)).write(node, around)

    def read(self, union: str, reader: Reader, around: Mapping[str, object]) -> Any:
        """A node of that union. Its form is the first whose beginning fits the text; forms that begin alike are tried
        one after the other."""
        forms = sorted(map(self._form, self._kinds[union]), key=lambda form: form.rank)
        chosen = next((form for form in forms if reader.sees(form.begins)), forms[-1])
        start = reader.at
        *others, last = [form for form in forms if form.begins == chosen.begins]
        for form in others:
            try:
                return form.read(reader, around)
            except Miss:
                reader.at = start
        return last.read(reader, around)

    def codec(self, annotation: str) -> Codec:
        """The codec of values with that annotation, which is not of a tuple."""
        if annotation in self.codecs or annotation not in self._kinds:
            return self.codecs[annotation]
        return Codec(self.write, partial(self.read, annotation))

    # ------------------------------------------------------------ forms

    def _by_fields(self, kind: type, said: Iterable[Field[object]]) -> str:
        operands = [f.name for f in said if self._operand and self._operand in str(f.type)]
        flags = [f.name for f in said if f.type == "bool"]
        others = [f for f in said if f.name not in (*operands, *flags)]
        text = [kind.__name__.lower(), *(["{" + "+".join(operands) + "}"] if operands else ())]
        for f in others:
            hole = f"[{{{f.name}}}]" if str(f.type).startswith("tuple[") else f"{{{f.name}}}"
            text.append(f"{f.name}={hole}" if len(others) > 1 else hole)
        return " ".join([*text, *(f"{{{name}}}" for name in flags)])

    def _form(self, kind: type) -> Form:
        if kind not in self._forms:
            said = {f.name: f for f in _fields(kind)}
            parts: list[_Part] = []
            for i, text in enumerate(self._templates[kind].split("|")):
                inner = list(self._parts(text, said, optional=i % 2 == 1))
                parts += [_Optional(inner, _defaults(kind, text), {}, lone=False)] if i % 2 else inner
            parts += [_Unsaid(f.name, self.codecs[str(f.type)]) for f in said.values() if f.type in self._unsaid]
            self._forms[kind] = Form(kind, parts, *_beginning(parts))
        return self._forms[kind]

    def _parts(self, text: str, said: Mapping[str, Field[object]], optional: bool) -> Iterator[_Part]:
        at = 0
        for found in _PIECE.finditer(text):
            if before := text[at : found.start()]:
                yield Literal(before)
            at = found.end()
            lone = text[at : at + 1] in ("", " ", "\n")
            if lines := found["lines"]:
                codec, count = self._held(said[lines], optional)
                if count is _Count.many:
                    yield _Lines(lines, codec, found["indent"], found["head"])
                else:
                    yield Literal(f"\n{found['indent']}{found['head']}")
                    yield _OwnLine((lines, codec, count), found["indent"], lone)
            elif outer := found["outer"]:
                yield _Outer(outer)
            elif said[found["holes"].split("+")[0]].type == "bool":
                yield _Optional([Literal(found["holes"])], {found["holes"]: False}, {found["holes"]: True}, lone)
            else:
                held = [(name, *self._held(said[name], optional)) for name in found["holes"].split("+")]
                yield _Holes(held, ", " if found["between"] is None else found["between"], lone)
        if text[at:]:
            yield Literal(text[at:])

    def _held(self, f: Field[object], optional: bool) -> tuple[Codec, _Count]:
        annotation = str(f.type)
        if annotation.startswith("tuple["):
            return self.codec(annotation.removeprefix("tuple[").removesuffix(", ...]")), _Count.many
        count = _Count.maybe if annotation.endswith(" | None") and not optional else _Count.one
        return self.codec(annotation.removesuffix(" | None")), count


def _fields(kind: Any) -> tuple[Field[object], ...]:
    return fields(kind)


def _named(template: str) -> list[str]:
    """The fields in holes of `template`."""
    return [name for holes in _HOLES.findall(template) for name in holes.split("+")]


def _defaults(kind: type, template: str) -> dict[str, object]:
    """The values of the fields of an optional `template` that is not in the text. TypeError if a field has no
    default."""
    found: dict[str, Any] = {}
    for f in _fields(kind):
        if f.name in _named(template):
            if f.default is MISSING and not str(f.type).endswith((" | None", ", ...]")):
                raise TypeError(f"{kind.__name__}: expected a default of {f.name} (got none), as its text is optional")
            found[f.name] = f.default if f.default is not MISSING else () if "..." in str(f.type) else None
    return found


def _beginning(parts: Sequence[_Part]) -> tuple[re.Pattern[str], int]:
    """The pattern of how a text of `parts` begins, up to the first mark, and the rank of its form."""
    pattern = ""
    for i, part in enumerate(parts):
        if isinstance(part, Literal) and part.pattern:
            own = part.pattern + r"(?!\s*(?:\[|->))" * (i == 0 and part.text.rstrip()[-1].isalnum())
            return re.compile(pattern + own, re.ASCII), int(i > 0)
        if isinstance(part, _Holes) and len(part.held) == 1:
            pattern += part.held[0][1].begins + r"\s*"
        elif not isinstance(part, Literal):
            break
    return re.compile(pattern, re.ASCII), 2
