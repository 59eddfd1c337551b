"""How a program can count the rows of a space from sizes alone: numbers that are given, and sizes of index tensors."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from graphweave.analysis.flow import symbol_of
from graphweave.analysis.hoist import graph_only
from graphweave.core.types import UNIT, Space
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.nodes import AnyType, Arg, Aten, Input, Operand, Program, Ref, Type

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "builtin.add", ast.Sub: "builtin.sub", ast.Mult: "builtin.mul", ast.FloorDiv: "builtin.floordiv",
}  # fmt: skip


class Sizes:
    """`sources(space)` are the nodes of `program` that tell its rows, None where none do; `emit` makes the number."""

    def __init__(self, program: Program) -> None:
        self._texts = dict(program.spaces)
        self._known: dict[str, tuple[Ref, int | None]] = {}  # symbol -> a number, or a tensor and its dim
        only = graph_only(program)
        for ref, t in enumerate(program.types):
            symbol = symbol_of(t)
            if symbol is not None and symbol.isidentifier():
                self._known[symbol] = (ref, None)
        for ref, (node, t) in enumerate(zip(program.nodes, program.types, strict=True)):
            if not isinstance(node, Input | Aten) or ref not in only:
                continue
            if isinstance(t, Type) and self._texts.get(t.space, "").isidentifier():
                self._known.setdefault(self._texts[t.space], (ref, 0))
            elif isinstance(t, AnyType) and "[" in t.text:
                for d, part in enumerate(t.text[t.text.index("[") + 1 : -1].split(", ")):
                    if part.isidentifier():
                        self._known.setdefault(part, (ref, d))
        self._rows = {
            t.space: r for r, (n, t) in reversed(list(enumerate(zip(program.nodes, program.types, strict=True))))
            if isinstance(t, Type) and isinstance(n, Input | Aten)
        }  # fmt: skip

    def sources(self, space: Space) -> tuple[Ref, ...] | None:
        if space == UNIT:
            return ()
        tree = self._tree(space)
        if tree is not None:
            names = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name)]
            return tuple(self._known[n][0] for n in names)
        return (self._rows[space],) if space in self._rows else None

    def _tree(self, space: Space) -> ast.expr | None:
        """The text of a space's size, where every symbol in it is known."""
        text = self._texts.get(space, "")
        try:
            tree = ast.parse(text, mode="eval").body
        except SyntaxError:
            return None
        return tree if self._sayable(tree) else None

    def _sayable(self, tree: ast.expr) -> bool:
        match tree:
            case ast.Constant(value=int()):
                return True
            case ast.Name(id=name):
                return name in self._known
            case ast.BinOp(left=left, op=op, right=right):
                return type(op) in _BINARY and self._sayable(left) and self._sayable(right)
            case _:
                return False

    def emit(self, build: Builder, space: Space, where: dict[Ref, Ref]) -> Arg:
        """The number of rows of `space` in the program that is built; `where` its `sources` are there."""
        if space == UNIT:
            return 1
        tree = self._tree(space)
        if tree is None:
            return self._measured(build, where[self._rows[space]], 0, self._texts.get(space, space.name))
        return self._emit(build, tree, where)

    def _emit(self, build: Builder, tree: ast.expr, where: dict[Ref, Ref]) -> Arg:
        match tree:
            case ast.Constant(value=int(value)):
                return value
            case ast.Name(id=name):
                ref, dim = self._known[name]
                return Operand(where[ref]) if dim is None else self._measured(build, where[ref], dim, name)
            case ast.BinOp(left=left, op=op, right=right):
                args = (self._emit(build, left, where), self._emit(build, right, where))
                return Operand(build.add(Aten(_BINARY[type(op)], args, (), AnyType(f"Sym({ast.unparse(tree)})"))))
            case _:
                raise AssertionError(ast.dump(tree))

    def _measured(self, build: Builder, ref: Ref, dim: int, name: str) -> Arg:
        return Operand(build.add(Aten("aten.sym_size.int", (Operand(ref), dim), (), AnyType(f"Sym({name})"))))


def total(texts: Iterable[str]) -> str:
    """The text of a sum of sizes; "" where one has none."""
    texts = list(texts)
    if not all(texts):
        return ""
    if all(t.isdigit() for t in texts):
        return str(sum(map(int, texts)))
    return " + ".join(texts)
