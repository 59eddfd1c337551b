"""Message programs from text: `parse(show(program)) == program`, exactly. The grammar is in GRAMMAR.md."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import fields
from enum import Enum
from functools import partial
from typing import Any, NoReturn, TypeVar, get_args

from graphweave.core.errors import ParseError
from graphweave.core.sizes import Size, read, read_several, split
from graphweave.core.types import DType, Fold, Op, Space
from graphweave.ir.message.nodes import (
    AnyType,
    Arg,
    Aten,
    Atom,
    Concat,
    Const,
    Input,
    MapOf,
    MapType,
    Node,
    Operand,
    Pad,
    PairsType,
    Pointwise,
    Program,
    Push,
    Random,
    Reduce,
    Ref,
    Slice,
    Type,
    ValueType,
)

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<ref>%\d+)
    | (?P<arrow>->)
    | (?P<number>-inf\b|-?\d+(?:\.\d*)?(?:e[+-]?\d+)?)
    | (?P<word>[A-Za-z_][\w.]*)
    | (?P<mark>[\[\](),=:@])
    )""",
    re.VERBOSE | re.ASCII,
)
_E = TypeVar("_E", bound=Enum)
_T = TypeVar("_T")
_BY_FIELDS = {
    kind.__name__.lower(): kind for kind in get_args(Node)
    if kind not in (Input, Const, Random, MapOf, Push, Pointwise, Reduce, Slice, Pad, Concat, Aten)
}  # fmt: skip
"""Nodes whose text is that of their fields."""

_CONSTANTS: dict[str, float] = {"true": True, "false": False, "inf": math.inf, "nan": math.nan}


def parse(text: str) -> Program:
    """The program that `text` shows. Raises ParseError with the line and what was expected; checks no types."""
    nodes: list[Node] = []
    types: list[ValueType] = []
    locs: list[str] = []
    spaces: list[tuple[Space, Size | None]] = []
    outputs: tuple[Ref | None, ...] | None = None
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        read = _Line(line, number)
        if outputs is not None:
            read.fail("nothing after the outputs")
        match read.peek():
            case "space":
                spaces.append(read.space_line())
            case "return":
                outputs = read.return_line()
            case _:
                node, t, loc = read.node_line(len(nodes))
                nodes.append(node)
                types.append(t)
                locs.append(loc)
    if outputs is None:
        raise ParseError(f"line {text.count(chr(10)) + 1}: expected 'return' with the outputs at the end")
    return Program(tuple(nodes), tuple(types), tuple(locs), outputs, tuple(spaces))


def any_type(text: str) -> AnyType:
    """The type outside the algebra that `text` shows; what is of no other form only describes."""
    if found := re.fullmatch(r"Sym\((.*)\)", text, re.DOTALL):
        return AnyType(size=read(found[1]))
    if found := re.fullmatch(r"(\w[\w ]*)\[([^\[\]]*)\]", text, re.ASCII):
        known = found[1] in DType.__members__
        dims = read_several(found[2])
        return AnyType(DType(found[1]), dims) if known else AnyType(dims=dims, other=found[1])
    if text.startswith("(") and text.endswith(")") and len(text) > 1:
        return AnyType(items=tuple(map(any_type, split(text[1:-1]))))
    return AnyType(other=text)


class _Line:
    """One line, read token by token from the left."""

    def __init__(self, line: str, number: int) -> None:
        self.line = line
        self.number = number
        self.at = 0

    # ------------------------------------------------------------ lines

    def space_line(self) -> tuple[Space, Size | None]:
        self.take("space")
        space = self.space()
        self.take("=")
        text = self.rest()
        return space, read(text) if text else None

    def return_line(self) -> tuple[Ref | None, ...]:
        self.take("return")
        outputs = self.several(self.output) if self.peek() else ()
        self.end()
        return outputs

    def output(self) -> Ref | None:
        return None if self.flag("none") else self.ref()

    def node_line(self, ref: Ref) -> tuple[Node, ValueType, str]:
        self.take(f"%{ref}")
        self.take(":")
        t = self.value_type()
        self.take("=")
        node = self.node(t)
        return node, t, self.loc()

    def loc(self) -> str:
        if not self.line[self.at :].lstrip().startswith("#"):
            self.end()
            return ""
        self.at = self.line.index("#", self.at) + 1
        return self.rest()

    # ------------------------------------------------------------ types and nodes

    def value_type(self) -> ValueType:
        if self.peek() == "any":
            start = self.at
            self.take("any")
            if self.peek().startswith('"'):
                return any_type(self.name())
            self.at = start
        space = self.space()
        if space.name == "pairs" and self.peek() not in ("->", "["):
            dom = self.space()
            self.take("->")
            return PairsType(dom, self.space())
        if self.peek() == "->":
            self.take("->")
            return MapType(space, self.space())
        return Type(space, self.ints(), self.member(DType, self.word("an element type")))

    def node(self, t: ValueType) -> Node:
        word = self.word("an operation")
        head, _, fold = word.partition(".")
        match head:
            case "input":
                return Input(self.name(), self.plain(t))
            case "const":
                return Const(self.value(), self.row_type(t, "a constant"))
            case "random":
                return Random(self.ref(), self.row_type(t, "a random number"))
            case "map":
                index = self.ref()
                self.take("to")
                return MapOf(index, self.space(), self.flag("wrap"))
            case "push":
                x = self.ref()
                self.take(",")
                return Push(x, self.ref(), self.member(Fold, fold), self.empty(), self.flag("fused"))
            case "concat":
                dim = self.keyword_int("dim")
                return Concat(self.refs(), dim)
            case "call":
                return self.call(t)
            case "reduce" | "slice" | "pad":
                return self.reshaping(head, fold)
            case _ if word in _BY_FIELDS:
                return self.node_of(_BY_FIELDS[word])
            case _:
                return Pointwise(self.member(Op, word), self.refs())

    def node_of(self, kind: type) -> Node:
        """A node as its fields: operands in their order, then what else there is, by name where that is several."""
        refs = list(self.refs())
        named = sum("Ref" not in str(f.type) and f.type != "bool" for f in fields(kind)) > 1
        given: dict[str, Any] = {}
        for f in fields(kind):
            if f.type == "tuple[Ref, ...]":
                given[f.name], refs = tuple(refs), []
            elif "Ref" in str(f.type):
                if not refs and f.type == "Ref":
                    self.fail(f"an operand such as %3 as {f.name}")
                given[f.name] = refs.pop(0) if refs else None
            elif f.type == "bool":
                given[f.name] = self.flag(f.name)
            else:
                read = partial(self.field, str(f.type))
                given[f.name] = self.keyword(f.name, read) if named else read()
        if refs:
            self.fail(f"only the operands {', '.join(given)}")
        return kind(**given)

    def field(self, annotation: str) -> Any:
        if annotation.startswith("tuple["):
            return self.block(partial(self.field, annotation[len("tuple[") : -len(", ...]")]))
        match annotation:
            case "Space":
                return self.space()
            case "DType":
                return self.member(DType, self.word("an element type"))
            case "int":
                return self.integer()
            case "bool":
                return self.value()
            case _:
                return self.name()

    def reshaping(self, head: str, fold: str) -> Node:
        x = self.ref()
        match head:
            case "reduce":
                return Reduce(x, self.member(Fold, fold), self.ints(), self.flag("keepdim"))
            case "slice":
                dim, start = self.keyword_int("dim"), self.integer()
                self.take(":")
                stop = self.integer()
                self.take(":")
                return Slice(x, dim, start, stop, self.integer())
            case _:
                dim, before = self.keyword_int("dim"), self.integer()
                self.take(",")
                return Pad(x, dim, before, self.integer())

    def call(self, t: ValueType) -> Aten:
        target = self.name()
        self.take("(")
        args: list[Arg] = []
        kwargs: list[tuple[str, Arg]] = []
        while self.peek() != ")":
            if args or kwargs:
                self.take(",")
            start = self.at
            name = self.peek()
            self.skip()
            if self.peek() == "=":
                self.take("=")
                kwargs.append((json.loads(name) if name.startswith('"') else name, self.arg()))
                continue
            self.at = start
            args.append(self.arg())
        self.take(")")
        serial = self.keyword_int("serial") if self.peek() == "serial" else 0
        return Aten(target, tuple(args), tuple(kwargs), self.plain(t), serial)

    def arg(self) -> Arg:
        token = self.peek()
        if token.startswith("%"):
            return Operand(self.ref())
        if token.startswith('"'):
            return self.name()
        if token == "@":
            self.skip()
            return Atom(self.name())
        if self.flag("none"):
            return None
        if token != "[":
            return self.value()
        return self.block(self.arg)

    # ------------------------------------------------------------ pieces

    def plain(self, t: ValueType) -> Type | AnyType:
        if isinstance(t, MapType | PairsType):
            self.fail("no map type and no pairs for an input or a call")
        return t

    def row_type(self, t: ValueType, what: str) -> Type:
        if not isinstance(t, Type):
            self.fail(f"{what} to have a value type")
        return t

    def refs(self) -> tuple[Ref, ...]:
        return self.several(self.ref) if self.peek().startswith("%") else ()

    def space(self) -> Space:
        return Space(self.name())

    def several(self, item: Callable[[], _T]) -> tuple[_T, ...]:
        items = [item()]
        while self.peek() == ",":
            self.skip()
            items.append(item())
        return tuple(items)

    def block(self, item: Callable[[], _T]) -> tuple[_T, ...]:
        self.take("[")
        items = () if self.peek() == "]" else self.several(item)
        self.take("]")
        return items

    def ints(self) -> tuple[int, ...]:
        return self.block(self.integer)

    def keyword(self, name: str, value: Callable[[], _T]) -> _T:
        self.take(name)
        self.take("=")
        return value()

    def keyword_int(self, name: str) -> int:
        return self.keyword(name, self.integer)

    def flag(self, word: str) -> bool:
        present = self.peek() == word
        if present:
            self.skip()
        return present

    def empty(self) -> float:
        return self.keyword("empty", self.value) if self.peek() == "empty" else 0.0

    def member(self, kind: type[_E], text: str) -> _E:
        try:
            return kind(text)
        except ValueError:
            self.fail(f"one of {', '.join(str(k.value) for k in kind)} instead of {text!r}")

    def value(self) -> Any:
        token = self.peek()
        if token not in _CONSTANTS and not re.match(r"-?\d|-inf$", token):
            self.fail("a number, true or false")
        self.skip()
        if token in _CONSTANTS:
            return _CONSTANTS[token]
        return int(token) if re.fullmatch(r"-?\d+", token) else float(token)

    def integer(self) -> int:
        token = self.peek()
        if not re.fullmatch(r"-?\d+", token):
            self.fail("an integer")
        self.skip()
        return int(token)

    def ref(self) -> Ref:
        token = self.peek()
        if not token.startswith("%"):
            self.fail("an operand such as %3")
        self.skip()
        return int(token[1:])

    def name(self) -> str:
        token = self.peek()
        if token.startswith('"'):
            self.skip()
            return self.unquote(token)
        return self.word("a name")

    def word(self, wanted: str) -> str:
        token = self.peek()
        if not re.match(r"[A-Za-z_]", token):
            self.fail(wanted)
        self.skip()
        return token

    def unquote(self, quoted: str) -> str:
        try:
            return str(json.loads(quoted))
        except json.JSONDecodeError:
            self.fail("a string with JSON's escapes")

    # ------------------------------------------------------------ tokens

    def peek(self) -> str:
        """The next token, '' where there is none."""
        found = _TOKEN.match(self.line, self.at)
        return found[0].lstrip() if found else ""

    def skip(self) -> None:
        found = _TOKEN.match(self.line, self.at)
        if found is None:
            self.fail("more")
        self.at = found.end()

    def take(self, token: str) -> None:
        if self.peek() != token:
            self.fail(repr(token))
        self.skip()

    def rest(self) -> str:
        text = self.line[self.at :].strip()
        self.at = len(self.line)
        return self.unquote(text) if text.startswith('"') else text

    def end(self) -> None:
        if self.line[self.at :].strip():
            self.fail("the end of the line")

    def fail(self, wanted: str) -> NoReturn:
        got = self.line[self.at :].strip() or "the end of the line"
        raise ParseError(f"line {self.number}, column {self.at + 1}: expected {wanted}, got {got[:60]!r}")
