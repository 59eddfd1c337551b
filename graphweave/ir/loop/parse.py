"""Text of the loop IR (GRAMMAR.md) back to a kernel: `parse(show(kernel)) == kernel`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import TypeVar

from graphweave.core.errors import ParseError
from graphweave.core.types import DType, Fold, Op
from graphweave.ir.loop.nodes import (
    Accum,
    Alloc,
    Buffer,
    Call,
    CastTo,
    Comment,
    Csr,
    Degree,
    Edges,
    Expr,
    FoldLanes,
    IndexSum,
    Kernel,
    Lanes,
    Let,
    Lit,
    Load,
    Place,
    Prefetch,
    Raise,
    Rescaled,
    Role,
    Rows,
    Stash,
    Stmt,
    Store,
    TileArray,
    TileGram,
    TileMatMul,
    TileRows,
    Tiles,
    Uniform,
    Var,
)

T = TypeVar("T")

_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*")|(?P<number>-?(?:\d+\.?\d*(?:e[+-]?\d+)?|inf\b))"""
    r"""|(?P<name>[A-Za-z_]\w*)|(?P<mark>//|[-+*%=<>:;,#(){}\[\]])|(?P<space>\s+)""",
)
_ROLES = {role.value: role for role in Role}
_FOLDS = {fold.value for fold in Fold}


def parse(text: str) -> Kernel:
    """The kernel that `text` shows.

    Raises:
        ParseError: with the line, where the text does not follow the grammar.
    """
    reader = _Reader(text)
    kernel = reader.kernel()
    if reader.peek() != "":
        raise reader.error("the end of the text")
    return kernel


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, int]] = []  # (text, line)
        self._at = 0
        position, line = 0, 1
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise ParseError(f"Line {line}: unexpected character {text[position]!r}.")
            if match.lastgroup != "space":
                self._tokens.append((match.group(), line))
            line += match.group().count("\n")
            position = match.end()
        self._tokens.append(("", line))

    # ------------------------------------------------------------ tokens

    def peek(self, ahead: int = 0) -> str:
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)][0]

    def take(self) -> str:
        token = self.peek()
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def error(self, expected: str) -> ParseError:
        token, line = self._tokens[self._at]
        return ParseError(f"Line {line}: expected {expected}, got {token!r}.")

    def expect(self, *tokens: str) -> None:
        for token in tokens:
            if self.peek() != token:
                raise self.error(repr(token))
            self.take()

    def accept(self, token: str) -> bool:
        if self.peek() != token:
            return False
        self.take()
        return True

    def name(self) -> str:
        if not self.peek().isidentifier():
            raise self.error("a name")
        return self.take()

    def string(self) -> str:
        if not self.peek().startswith('"'):
            raise self.error("a quoted string")
        return str(json.loads(self.take()))

    def integer(self) -> int:
        if not re.fullmatch(r"-?\d+", self.peek()):
            raise self.error("an integer")
        return int(self.take())

    def number(self) -> float | int | bool:
        token = self.peek()
        if token in ("true", "false"):
            return self.take() == "true"
        if token == "nan":
            self.take()
            return math.nan
        if re.fullmatch(r"-?\d+", token):
            return int(self.take())
        if re.fullmatch(r"-?(\d.*|inf)", token):
            return float(self.take())
        raise self.error("a number")

    def member(self, kind: Callable[[str], T], what: str) -> T:
        try:
            value = kind(self.peek())
        except ValueError:
            raise self.error(what) from None
        self.take()
        return value

    def dtype(self) -> DType:
        return self.member(DType, "an element type")

    def fold(self) -> Fold:
        return self.member(Fold, "a fold")

    def items(self, item: Callable[[], T], close: str) -> tuple[T, ...]:
        """Items between commas, up to and including `close`."""
        out: list[T] = []
        while not self.accept(close):
            if out:
                self.expect(",")
            out.append(item())
        return tuple(out)

    # ------------------------------------------------------------ the kernel

    def kernel(self) -> Kernel:
        self.expect("kernel")
        name = self.name()
        self.expect("(")
        row = self.name()
        self.expect("<")
        sizes = self.items(self.name, ";")
        index = self.dtype()
        self.expect(")", "{")
        header: list[str] = []
        csrs: list[Csr] = []
        buffers: list[Buffer] = []
        stashes: list[Stash] = []
        while not self.accept("do"):
            if self.accept("header"):
                header.append(self.string())
            elif self.accept("csr"):
                csrs.append(Csr(self.name()))
            elif self.accept("stash"):
                stashes.append(self.stash())
            else:
                buffers.append(self.buffer())
        tile = None
        if self.peek() == "tile" and self.peek(2) == "<":
            self.take()
            tile = self.lane()
        body = self.block()
        return Kernel(name, row, sizes, index, tuple(csrs), tuple(buffers), tuple(stashes), body, tuple(header), tile)

    def buffer(self) -> Buffer:
        if self.peek() not in _ROLES:
            raise self.error("a declaration or 'do'")
        role, name = _ROLES[self.take()], self.name()
        self.expect(":")
        dtype = self.dtype()
        self.expect("[")
        rows = None if self.peek() == ";" else self.name()
        self.expect(";")
        shape = self.items(self.integer, "]")
        fold = self.fold() if self.peek() in _FOLDS else None
        return Buffer(name, role, dtype, rows, shape, fold)

    def stash(self) -> Stash:
        return Stash(*self.array())

    def array(self) -> tuple[str, str, DType, tuple[int, ...]]:
        """Name, what its rows are the positions of, dtype and shape of a row."""
        name = self.name()
        self.expect(":")
        dtype = self.dtype()
        self.expect("[")
        of = self.name()
        self.expect(";")
        return name, of, dtype, self.items(self.integer, "]")

    # ------------------------------------------------------------ statements

    def block(self) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        while not self.accept("}"):
            out.append(self.statement())
        return tuple(out)

    def statement(self) -> Stmt:
        # a buffer may carry a keyword's name: `let[...]` is an element, `let x` a statement
        keyword = self.peek() if self.peek(1) != "[" else ""
        match keyword:
            case "#":
                self.take()
                return Comment(self.string())
            case "let":
                return self.let()
            case "alloc":
                return self.alloc()
            case "raise":
                return self.raise_()
            case "fold":
                return self.fold_lanes()
            case "lanes":
                self.take()
                return Lanes(self.lanes(), self.block())
            case "edges":
                return self.edges()
            case "tiles":
                return self.tiles()
            case "rows":
                self.take()
                self.expect("of")
                tile = self.name()
                self.expect("{")
                return TileRows(tile, self.block())
            case "array":
                self.take()
                return TileArray(*self.array())
            case "matmul":
                return self.matmul()
            case "gram":
                return self.gram()
        return self.assignment()

    def let(self) -> Let:
        self.expect("let")
        name = self.name()
        self.expect(":")
        dtype = self.dtype()
        self.expect("=")
        return Let(name, dtype, self.expr())

    def alloc(self) -> Alloc:
        self.expect("alloc")
        name = self.name()
        self.expect(":")
        dtype = self.dtype()
        self.expect("[")
        shape = self.items(self.integer, "]")
        return Alloc(name, dtype, shape, self.number() if self.accept("=") else None)

    def assignment(self) -> Store | Accum:
        buffer = self.name()
        self.expect("[")
        index = self.items(self.expr, "]")
        if self.accept("="):
            return Store(buffer, index, self.expr())
        fold = self.fold()
        self.expect("=")
        return Accum(buffer, index, fold, self.expr())

    def raise_(self) -> Raise:
        self.expect("raise")
        reference = self.name()
        self.expect("[")
        lane = self.lane()
        self.expect("]", "to")
        value = self.expr()
        self.expect("of")
        tile = self.name()
        self.expect("{")
        sums: list[Rescaled] = []
        while not self.accept("}"):
            sums.append(self.rescaled())
        return Raise(tile, reference, lane, value, tuple(sums))

    def rescaled(self) -> Rescaled:
        self.expect("rescale")
        lanes = self.lanes()
        buffer = self.name()
        self.expect("[")
        index = self.items(self.expr, "]")
        self.expect("by", "{")
        of = self.index_sum()
        self.expect("}")
        return Rescaled(lanes, buffer, index, of)

    def fold_lanes(self) -> FoldLanes:
        self.expect("fold")
        name = self.name()
        self.expect(":")
        dtype = self.dtype()
        self.expect("=")
        fold, lanes = self.fold(), self.lanes()
        body: list[Let] = []
        while not self.accept("yield"):
            body.append(self.let())
        value = self.expr()
        self.expect("}")
        return FoldLanes(name, dtype, fold, lanes, tuple(body), value)

    def lanes(self) -> tuple[tuple[str, int], ...]:
        return self.items(self.lane, "{")

    def lane(self) -> tuple[str, int]:
        name = self.name()
        self.expect("<")
        return name, self.integer()

    def edges(self) -> Edges:
        self.expect("edges")
        k = self.name()
        self.expect("in")
        csr = self.name()
        self.expect("[")
        row = self.name()
        self.expect("]")
        tile = self.name() if self.accept("of") else None
        hints: list[Prefetch] = []
        while self.accept("prefetch"):
            buffer = self.name()
            self.expect("[")
            column = self.name()
            self.expect("[", k, "+")
            shift = self.name() if self.peek().isidentifier() else None
            if shift is not None:
                self.expect("+")
            hints.append(Prefetch(buffer, column, self.integer(), shift))
            self.expect("]", "]")
        self.expect("{")
        return Edges(k, csr, row, tuple(hints), self.block(), tile)

    def tiles(self) -> Tiles:
        self.expect("tiles")
        tile, size = self.lane()
        self.expect("in")
        csr = self.name()
        self.expect("[")
        row = self.name()
        self.expect("]", "{")
        return Tiles(tile, size, csr, row, self.block())

    def matmul(self) -> TileMatMul:
        self.expect("matmul")
        blocks = self.blocks()
        out = self.place()
        self.expect("=")
        add, x = None, self.place()
        if self.accept("+"):
            add, x = x, self.place()
        self.expect(",")
        transposed = self.peek() == "transposed" and self.peek(1).isidentifier() and self.peek(1) != "of"
        if transposed:
            self.take()
        w, row = self.name(), None
        if self.accept("["):
            row = self.name()
            self.expect("]")
        self.expect("of")
        return TileMatMul(self.name(), out, x, w, add, row, transposed, blocks)

    def gram(self) -> TileGram:
        self.expect("gram")
        blocks = self.blocks()
        out = self.name()
        self.expect("=")
        x = self.place()
        self.expect(",")
        y = self.place()
        self.expect("of")
        return TileGram(self.name(), out, x, y, blocks)

    def blocks(self) -> int:
        return self.integer() if self.peek().isdigit() else 1

    def place(self) -> Place:
        name = self.name()
        if not self.accept("["):
            return name
        column = self.name()
        shift = self.name() if self.accept("+") else None
        self.expect("]")
        return Rows(name, column, shift)

    # ------------------------------------------------------------ expressions

    def expr(self) -> Expr:
        if self.accept("{"):
            return self.index_sum()
        following = self.peek(1)
        if following == "[":
            buffer = self.name()
            self.expect("[")
            return Load(buffer, self.items(self.expr, "]"))
        if following == ":":
            value = self.number()
            self.expect(":")
            return Lit(value, self.dtype())
        if following == "(":
            return self.call()
        return Var(self.name())

    def call(self) -> Expr:
        if self.accept("cast"):
            self.expect("(")
            x = self.expr()
            self.expect(",")
            cast = CastTo(x, self.dtype())
            self.expect(")")
            return cast
        if self.accept("degree"):
            self.expect("(")
            csr = self.name()
            self.expect(",")
            degree = Degree(csr, self.expr())
            self.expect(")")
            return degree
        if self.accept("uniform"):
            return self.uniform()
        op = self.member(Op, "an operator")
        self.expect("(")
        return Call(op, self.items(self.expr, ")"))

    def uniform(self) -> Uniform:
        self.expect("(")
        seed = self.expr()
        self.expect(",")
        row = self.expr()
        self.expect(",")
        size = self.integer()
        self.expect(",", "{")
        index = self.index_sum()
        self.expect(",")
        dtype = self.dtype()
        self.expect(")")
        return Uniform(seed, row, size, index, dtype)

    def index_sum(self) -> IndexSum:
        terms: list[tuple[str, int]] = []
        number = self.integer()
        while self.accept("*"):
            terms.append((self.name(), number))
            self.expect("+")
            number = self.integer()
        div = self.integer() if self.accept("//") else 1
        mod = self.integer() if self.accept("%") else None
        self.expect("}")
        return IndexSum(tuple(terms), number, div, mod)
