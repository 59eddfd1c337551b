"""Names for programs and for values of nodes that depend on their content alone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from graphweave.core.records import values_of
from graphweave.core.sizes import Opaque, Symbol
from graphweave.ir.message.aten import torch_value
from graphweave.ir.message.builder import operands, with_operands
from graphweave.ir.message.nodes import Aten, Atom, Node, Program, Ref


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


# ---------------------------------------------------------------- programs


def program_fingerprint(program: Program, seen: Callable[[Any], Any]) -> str:
    """64 hexadecimal digits that are equal for equal programs, wherever the user wrote them. Each part counts as what
    `seen` gives for it."""
    return hashlib.sha256("\0".join(_parts(replace(program, locs=()), seen)).encode()).hexdigest()


def _parts(value: Any, seen: Callable[[Any], Any]) -> Iterator[str]:
    value = seen(value)
    if not isinstance(value, tuple) and not is_dataclass(value):
        yield repr(value)
        return
    parts = value if isinstance(value, tuple) else values_of(value)
    yield f"{type(value).__name__} {len(parts)}"
    for part in parts:
        yield from _parts(part, seen)


def on_any_device(part: Any) -> Any:
    """`part` for programs that are alike on devices of one type."""
    device = torch_value(part.text) if isinstance(part, Atom) else None
    return device.type if isinstance(device, torch.device) else part


def with_any_numbers(part: Any) -> Any:
    """Like `on_any_device`, for programs that are alike but for numbers."""
    match part:
        case bool():
            return part
        case int() | float() | Symbol() | Opaque():
            return None
        case Aten():
            return _without_words(part)
    return on_any_device(part)


def with_symbols_in_order() -> Callable[[Any], Any]:
    """For programs that are alike but for the names of symbols, which PyTorch gives anew in each trace."""
    names: dict[Symbol, int] = {}

    def seen(part: Any) -> Any:
        match part:
            case Symbol():
                return "size", names.setdefault(part, len(names))
            case Opaque():
                return None
            case Aten():
                return _without_words(part)
        return part

    return seen


def _without_words(node: Aten) -> Aten:
    """`node` without texts among its arguments, such as messages about sizes."""
    return replace(node, args=_wordless(node.args), kwargs=tuple((k, _wordless(a)) for k, a in node.kwargs))


def _wordless(arg: Any) -> Any:
    return tuple(map(_wordless, arg)) if isinstance(arg, tuple) else None if isinstance(arg, str) else arg
