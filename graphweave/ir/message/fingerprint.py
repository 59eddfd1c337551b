"""A name for the value of a node that does not depend on the program around it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

from graphweave.ir.message.builder import operands, with_operands
from graphweave.ir.message.nodes import Node, Ref


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
