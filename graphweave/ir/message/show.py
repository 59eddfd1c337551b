"""Message programs as text; `parse.py` reads it back to the same value. The grammar is in GRAMMAR.md."""

from __future__ import annotations

import json

from graphweave.core.sizes import show as show_size
from graphweave.ir.message.nodes import MESSAGE, AnyType, Aten, Node, Program, ValueType
from graphweave.ir.message.values import show_name


def show(program: Program) -> str:
    """One line a space, one a node, one for the outputs. The types of inputs, constants and calls are shown once."""
    rows = ((space, "" if size is None else show_size(size)) for space, size in program.spaces)
    lines = [f"space {show_name(space.name)} = {_rest(size)}" for space, size in rows]
    for ref, (node, t, loc) in enumerate(zip(program.nodes, program.types, program.locs, strict=True)):
        comment = f"  # {_rest(loc)}" if loc else ""
        lines.append(f"%{ref}: {show_type(t)} = {MESSAGE.write(node)}{comment}")
    outputs = ", ".join("none" if ref is None else f"%{ref}" for ref in program.outputs)
    lines.append(f"return {outputs}".rstrip())
    return "\n".join(lines) + "\n"


def show_type(t: ValueType) -> str:
    return f"any {json.dumps(str(t))}" if isinstance(t, AnyType) else MESSAGE.write(t)


def operation(node: Node) -> str:
    """The word for what `node` does, or the name of the operator that it calls."""
    return node.target if isinstance(node, Aten) else type(node).__name__.lower()


def _rest(text: str) -> str:
    """Text that ends its line: bare where a reader that strips blanks gets it back, else quoted."""
    plain = text.isprintable() and text == text.strip() and text != "" and text[0] != '"'
    return text if plain else json.dumps(text)
