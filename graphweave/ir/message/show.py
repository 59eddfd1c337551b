"""Message programs as text; `parse.py` reads it back to the same value. The grammar is in GRAMMAR.md."""

from __future__ import annotations

import json

from graphweave.core.sizes import show as show_size
from graphweave.ir.message.nodes import MESSAGE, AnyType, Aten, Node, Program, ValueType
from graphweave.ir.message.values import show_name


def show(program: Program) -> str:
    """The text of `program`: a line for each space, a line for each node, and a line for the outputs."""
    rows = ((space, "" if size is None else show_size(size)) for space, size in program.spaces)
    lines = [f"space {show_name(space.name)} = {_rest(size)}" for space, size in rows]
    for ref, (node, t, loc) in enumerate(zip(program.nodes, program.types, program.locs, strict=True)):
        comment = f"  # {_rest(str(loc))}" if loc else ""
        lines.append(f"%{ref}: {show_type(t)} = {MESSAGE.write(node)}{comment}")
    outputs = ", ".join("none" if ref is None else f"%{ref}" for ref in program.outputs)
    lines.append(f"return {outputs}".rstrip())
    return "\n".join(lines) + "\n"


def show_type(t: ValueType) -> str:
    return f"any {json.dumps(str(t))}" if isinstance(t, AnyType) else MESSAGE.write(t)


def operation(node: Node) -> str:
    """The word for the kind of `node`, or the name of the operator that it calls."""
    return node.target if isinstance(node, Aten) else type(node).__name__.lower()


def _rest(text: str) -> str:
    """Text for the end of a line: quoted, unless a reader that strips blanks gets it back without quotes."""
    plain = text.isprintable() and text == text.strip() and text != "" and text[0] != '"'
    return text if plain else json.dumps(text)
