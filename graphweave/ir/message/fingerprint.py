"""Names for programs and for values of nodes that depend on their content alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass, replace
from functools import lru_cache

import torch

from graphweave.core.records import values_of
from graphweave.core.sizes import Symbol
from graphweave.ir.message.aten import torch_value
from graphweave.ir.message.builder import operands, with_operands
from graphweave.ir.message.nodes import NOTHING, Aten, Atom, Node, Program, Ref


def fingerprint(nodes: Sequence[Node], ref: Ref) -> str:
    """16 hexadecimal digits that are equal for equal terms over equal inputs, at any positions of any programs."""
    done: dict[Ref, str] = {}
    todo = [ref]
    while todo:
        at = todo[-1]
        missing = [r for r in operands(nodes[at]) if r not in done]
        if missing:
            todo.extend(missing)
            continue
        todo.pop()
        text = " ".join([_own(nodes[at]), *(done[r] for r in operands(nodes[at]))])
        done[at] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return done[ref]


@lru_cache(maxsize=1 << 16)
def _own(node: Node) -> str:
    """The text of a node without its operands. Each pair of maps asks for that of all index arithmetic before it."""
    return repr(with_operands(node, lambda r: -1))


def program_fingerprint(program: Program, *, numbers: bool = True) -> str:
    """64 hexadecimal digits that are equal for equal programs, wherever the user wrote them, on all devices of a type,
    and whatever symbols are called and checks say. Without `numbers`, all numbers and sizes count as equal."""
    symbols: dict[Symbol, int] = {}

    def parts(value: object) -> Iterator[str]:
        match value:
            case Symbol() | int() | float() if not numbers and not isinstance(value, bool):
                yield "number"
            case Symbol():
                yield f"size {symbols.setdefault(value, len(symbols))}"
            case Atom(text) if isinstance(device := torch_value(text), torch.device):
                yield device.type
            case Aten(args=args) if value.type == NOTHING and any(isinstance(a, str) for a in args):
                yield from parts(replace(value, args=tuple(a for a in args if not isinstance(a, str))))
            case _ if isinstance(value, tuple) or is_dataclass(value):
                inner = value if isinstance(value, tuple) else values_of(value)
                yield f"{type(value).__name__} {len(inner)}"
                for part in inner:
                    yield from parts(part)
            case _:
                yield repr(value)

    return hashlib.sha256("\0".join(parts(replace(program, locs=()))).encode()).hexdigest()
