"""Message programs as text; `parse.py` reads it back to the same value. The grammar is in GRAMMAR.md."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from graphweave.core.sizes import show as show_size
from graphweave.core.types import DType, Space
from graphweave.ir.message.builder import operands
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

_NAME = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)


def show(program: Program) -> str:
    """One line a space, one a node, one for the outputs. The types of inputs, constants and calls are shown once."""
    rows = ((space, "" if size is None else show_size(size)) for space, size in program.spaces)
    lines = [f"space {_name(space.name)} = {_rest(size)}" for space, size in rows]
    for ref, (node, t, loc) in enumerate(zip(program.nodes, program.types, program.locs, strict=True)):
        comment = f"  # {_rest(loc)}" if loc else ""
        lines.append(f"%{ref}: {show_type(t)} = {show_node(node)}{comment}")
    outputs = ", ".join("none" if ref is None else f"%{ref}" for ref in program.outputs)
    lines.append(f"return {outputs}".rstrip())
    return "\n".join(lines) + "\n"


def show_type(t: ValueType) -> str:
    match t:
        case Type(space, shape, dtype):
            return f"{_name(space.name)}{list(shape)} {dtype.value}"
        case MapType(dom, cod):
            return f"{_name(dom.name)} -> {_name(cod.name)}"
        case AnyType():
            return f"any {json.dumps(str(t))}"
        case PairsType(dom, pairs):
            return f"pairs {_name(dom.name)} -> {_name(pairs.name)}"


def show_node(node: Node) -> str:
    match node:
        case Input(name):
            return f"input {_name(name)}"
        case Const(value):
            return f"const {_literal(value)}"
        case Random(seed):
            return f"random %{seed}"
        case MapOf(index, cod, wrap):
            return f"map %{index} to {_space(cod)}" + (" wrap" if wrap else "")
        case Push(x, m, fold, empty, fused):
            missing = "" if repr(empty) == "0.0" else f" empty={_literal(empty)}"
            return f"push.{fold.value} %{x}, %{m}{missing}" + (" fused" if fused else "")
        case Pointwise(op, args):
            return f"{op.value} {_refs(args)}".rstrip()
        case Reduce(x, fold, dims, keepdim):
            return f"reduce.{fold.value} %{x} {list(dims)}" + (" keepdim" if keepdim else "")
        case Slice(x, dim, start, stop, step):
            return f"slice %{x} dim={dim} {start}:{stop}:{step}"
        case Pad(x, dim, before, after):
            return f"pad %{x} dim={dim} {before}, {after}"
        case Concat(xs, dim):
            return f"concat dim={dim} {_refs(xs)}".rstrip()
        case Aten(target, args, kwargs, _, serial):
            given = [*map(_arg, args), *(f"{_name(k)}={_arg(a)}" for k, a in kwargs)]
            return f"call {_name(target)}({', '.join(given)})" + (f" serial={serial}" if serial else "")
        case _:
            others = [f for f in fields(node) if "Ref" not in str(f.type) and f.type != "bool"]
            said = [f"{f.name}=" * (len(others) > 1) + _field(getattr(node, f.name)) for f in others]
            flags = [f.name for f in fields(node) if f.type == "bool" and getattr(node, f.name)]
            return " ".join(filter(None, (operation(node), _refs(operands(node)), *said, *flags)))


def operation(node: Node) -> str:
    """The word for what `node` does, or the name of the operator that it calls."""
    return node.target if isinstance(node, Aten) else type(node).__name__.lower()


def _field(value: Any) -> str:
    match value:
        case Space():
            return _space(value)
        case DType():
            return value.value
        case str():
            return _name(value)
        case tuple():
            return f"[{', '.join(map(_field, value))}]"
        case _:
            return _literal(value)


def _arg(arg: Arg) -> str:
    match arg:
        case Operand(ref):
            return f"%{ref}"
        case Atom(text):
            return f"@{_name(text)}"
        case tuple():
            return f"[{', '.join(map(_arg, arg))}]"
        case str():
            return json.dumps(arg)
        case None:
            return "none"
        case _:
            return _literal(arg)


def _literal(value: float | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _refs(refs: Iterable[Ref]) -> str:
    return ", ".join(f"%{r}" for r in refs)


def _space(space: Space) -> str:
    return _name(space.name)


def _name(text: str) -> str:
    """Bare where the tokenizer takes it as one word, else quoted."""
    return text if _NAME.fullmatch(text) else json.dumps(text)


def _rest(text: str) -> str:
    """Text that ends its line: bare where a reader that strips blanks gets it back, else quoted."""
    plain = text.isprintable() and text == text.strip() and text != "" and text[0] != '"'
    return text if plain else json.dumps(text)
