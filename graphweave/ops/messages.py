"""Functions of one edge: DGL's built-ins by name, and functions of one's own, called on the rows of all edges."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.ops.ends import Features, differ, fields_of
from graphweave.udf.builtin import BINARY, BinaryMessage, CopyMessage

OwnFunction: TypeAlias = Callable[[Any, Any, Any], Tensor]
"""f(src, dst, edge): each a tensor [edges, ...] or a dict of them, as they were given -> [edges, ...]."""

EdgeFunction: TypeAlias = CopyMessage | BinaryMessage | OwnFunction

_ARGUMENT = {"u": "src", "v": "dst", "e": "edge"}
_OUT = "out"


def _copy(target: str) -> CopyMessage:
    return CopyMessage(target, _ARGUMENT[target], _OUT)


BUILT_IN: dict[str, CopyMessage | BinaryMessage] = {
    **{f"copy_{target}": _copy(target) for target in _ARGUMENT},
    **{name: build(_ARGUMENT[name[0]], _ARGUMENT[name[-1]], _OUT) for name, build in BINARY.items()},
}
"""DGL's built-in messages, `u_mul_e` and the like: u is `src`, v `dst`, e `edge`."""

SPMM = {**BUILT_IN, "copy_lhs": _copy("u"), "copy_rhs": _copy("e")}
SDDMM = {**BUILT_IN, "copy_lhs": _copy("u"), "copy_rhs": _copy("v")}
"""Messages by the names of DGL's `gspmm`, with operands u and e, and `gsddmm`, with operands u and v."""


def edge_function(
    what: str, given: Any, named: Mapping[str, CopyMessage | BinaryMessage], src: Features, dst: Features,
    edge: Features,
) -> EdgeFunction:  # fmt: skip
    """The function that the argument `what` stands for. DataError for an unknown name, and where a built-in lacks its
    operands."""
    if isinstance(given, str):
        if given not in named:
            raise DataError(
                f"{what} must be a function of (src, dst, edge) or one of {', '.join(named)} (got {given!r})."
                " Pass one of these."
            )
        found = named[given]
        data = {"u": src, "v": dst, "e": edge}
        for target in _reads(found):
            _check_single(what, given, _ARGUMENT[target], data[target])
        return found
    if not callable(given):
        raise DataError(
            f"{what} must be a function of (src, dst, edge) or the name of one (got {type(given).__name__})."
            " Pass one of these."
        )
    return given


def evaluated(what: str, function: EdgeFunction, src: Features, dst: Features, edge: Features) -> Tensor:
    """`function` of rows that are gathered already; plain PyTorch."""
    if isinstance(function, (CopyMessage, BinaryMessage)):
        edges: Any = _Edges(src, dst, edge)
        return function(edges)[_OUT]
    out = function(src, dst, edge)
    if not isinstance(out, Tensor):
        raise DataError(f"{what} must return a tensor (got {type(out).__name__}). Return one row for each edge.")
    return out


def is_built_in(function: EdgeFunction) -> bool:
    return isinstance(function, (CopyMessage, BinaryMessage))


def gathered(x: Features, index: Tensor) -> Features:
    """One row for each edge, in the form of `x`."""
    if x is None:
        return None
    if isinstance(x, Tensor):
        return x.index_select(0, index)
    return {name: field.index_select(0, index) for name, field in x.items()}


def on_edges(
    what: str, function: EdgeFunction, src_index: Tensor, dst_index: Tensor, src: Features, dst: Features,
    edge: Features,
) -> Tensor:  # fmt: skip
    """`function` of all edges, [edges, ...]. DataError for a result that has not one row for each edge."""
    out = evaluated(what, function, gathered(src, src_index), gathered(dst, dst_index), edge)
    if out.dim() == 0 or differ(out.shape[0], src_index.shape[0]):
        raise DataError(
            f"{what} returned a tensor of shape {list(out.shape)}, but there are {src_index.shape[0]} edges."
            " Return one row for each edge."
        )
    return out


class _Edges:
    """The fields that a built-in message reads, named like those of `graphweave.udf.arguments.EdgeBatch`."""

    def __init__(self, src: Features, dst: Features, edge: Features) -> None:
        self.src, self.dst, self.data = {"src": _single(src)}, {"dst": _single(dst)}, {"edge": _single(edge)}


def _single(x: Features) -> Any:
    """The only tensor of `x`."""
    return next(iter(x.values()), None) if isinstance(x, Mapping) else x


def _reads(message: CopyMessage | BinaryMessage) -> tuple[str, ...]:
    return (message.target,) if isinstance(message, CopyMessage) else (message.lhs, message.rhs)


def _check_single(what: str, name: str, argument: str, x: Features) -> None:
    count = len(list(fields_of(x)))
    if count != 1:
        got = "none" if count == 0 else f"{count} in a dict"
        raise DataError(f"{what} {name!r} reads one tensor of {argument} (got {got}). Pass {argument}=tensor.")
