"""Functions of one edge and reducers, by DGL's names or of one's own: their forms, meanings and errors for all arrays.

`graphweave.ops` and `graphweave.jax` take the same arguments, and the messages of `graphweave.function` have the same
meanings. Nothing here knows whose arrays it gets: they have `shape`, `ndim`, `dtype` and operators, as those of
PyTorch, JAX and NumPy have.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar

from graphweave.core.errors import DataError, SettingsError
from graphweave.core.schedule import Schedule
from graphweave.core.types import Fold

P = ParamSpec("P")
R = TypeVar("R")

Features: TypeAlias = Any
"""Data of sources, destinations or edges: an array [rows, ...], or a mapping of several by name, or None."""

EdgeFunction: TypeAlias = Callable[[Any, Any, Any], Any]
"""f(src, dst, edge): each an array [edges, ...] or a mapping of them, as they were given -> [edges, ...]."""

PairFunction: TypeAlias = Callable[[Any, Any], Any]
"""An associative function of two values [k, ...] -> [k, ...]."""

FOLDS = {fold.facts.jax: fold for fold in Fold}
REDUCERS = ("sum", "mean", "max", "min", "prod")
"""Names of reducers. All but the mean are folds."""

_ARGUMENT = {"u": "src", "v": "dst", "e": "edge"}
_COUNTED = {"src": "sources", "dst": "destinations", "edge": "edges"}


class EdgeOperator(Generic[P, R]):
    """A function on edges. `operator.text(...)`, of the arguments of a call, is the code of its kernels, with what each
    computes, forward and backward. Nothing is run that the call does not need to be compiled."""

    def __init__(self, room: str, text: Callable[..., str], function: Callable[P, R]) -> None:
        """`text(function, *args, **kwargs)` tells the code of the kernels of a call; `room` is where users find it."""
        self._room, self._text, self._function = room, text, function
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    def __reduce__(self) -> str:
        return self._function.__name__  # pickled by name, as functions are

    def __repr__(self) -> str:
        return f"{self._room}.{self._function.__name__}"

    def text(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """The code of each kernel that a call with these arguments runs, forward and backward, with what each
        computes."""
        return self._text(self._function, *args, **kwargs)


# ---------------------------------------------------------------- messages by name


def _dot(x: Any, y: Any) -> object:
    """Two arrays [edges, ..., F] -> [edges, ..., 1]. With one number a row: two arrays [edges] -> [edges]."""
    return x * y if x.ndim == 1 else grown((x * y).sum(-1), x.ndim)


_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "dot": _dot,
}  # fmt: skip

OPERATIONS = tuple(_OPERATIONS)
"""The operations in the names of messages of two fields, such as `u_mul_e`."""


def combined(name: str, op: str, x: Any, y: Any, fields: tuple[str, str]) -> Any:
    """`op` of two arrays of one row for each edge, whose dims behind dim 0 broadcast from the right; `dot` sums the
    last dim and keeps it with size 1. DataError, which calls the message `name` and the operands `fields`, if the last
    dims of the operands of `dot` differ in size, since it does not broadcast them."""
    rank = max(x.ndim, y.ndim)
    x, y = (a.reshape(a.shape[0], *[1] * (rank - a.ndim), *a.shape[1:]) if a.ndim < rank else a for a in (x, y))
    if op == "dot" and x.shape[1:][-1:] != y.shape[1:][-1:]:
        raise DataError(
            f"{name}: the fields must have the same size in their last dim (got {fields[0]!r} of {list(x.shape[1:])} "
            f"and {fields[1]!r} of {list(y.shape[1:])} a row). Use {name.replace('dot', 'mul')} to multiply by one "
            "number a row."
        )
    return _OPERATIONS[op](x, y)


@dataclass(frozen=True)
class NamedMessage:
    """The operation `op` of the fields of `targets`, "u", "v" or "e". A copy has one target and the operation ""."""

    name: str
    targets: tuple[str, ...]
    op: str = ""

    def __call__(self, src: Features, dst: Features, edge: Features) -> object:
        data = {"u": src, "v": dst, "e": edge}
        found = [_single(data[t]) for t in self.targets]
        if len(found) == 1:
            return found[0]
        lhs, rhs = self.targets
        return combined(self.name, self.op, found[0], found[1], (_ARGUMENT[lhs], _ARGUMENT[rhs]))


_COPIES = {f"copy_{t}": NamedMessage(f"copy_{t}", (t,)) for t in _ARGUMENT}
BUILT_IN: dict[str, NamedMessage] = _COPIES | {
    f"{a}_{op}_{b}": NamedMessage(f"{a}_{op}_{b}", (a, b), op)
    for op in OPERATIONS for a in _ARGUMENT for b in _ARGUMENT if a != b
}  # fmt: skip
"""DGL's built-in messages, `u_mul_e` and the like: u is `src`, v `dst`, e `edge`."""

SPMM = {**BUILT_IN, "copy_lhs": _COPIES["copy_u"], "copy_rhs": _COPIES["copy_e"]}
SDDMM = {**BUILT_IN, "copy_lhs": _COPIES["copy_u"], "copy_rhs": _COPIES["copy_v"]}
"""Messages by the names of DGL's `gspmm`, with operands u and e, and `gsddmm`, with operands u and v."""


# ---------------------------------------------------------------- arguments


def find_function(
    what: str, given: object, named: Mapping[str, NamedMessage], src: Features, dst: Features, edge: Features
) -> EdgeFunction:
    """The function that the argument `what` stands for. DataError for an unknown name, and where a built-in lacks its
    operands."""
    if isinstance(given, str):
        if given not in named:
            raise DataError(
                f"{what} must be a function of (src, dst, edge) or one of {', '.join(named)} (got {given!r})."
                " Pass one of these."
            )
        data = {"u": src, "v": dst, "e": edge}
        for target in named[given].targets:
            _check_single(f"{what} {given!r}", _ARGUMENT[target], data[target])
        return named[given]
    if not callable(given):
        raise DataError(
            f"{what} must be a function of (src, dst, edge) or the name of one (got {type(given).__name__})."
            " Pass one of these."
        )
    function: EdgeFunction = given
    return function


def reducer(reduce: object) -> str | tuple[PairFunction, float]:
    """`reduce`, checked: a name, or an associative function of two values with its identity. DataError if neither."""
    found = sloped_reducer(reduce)
    if isinstance(found, str):
        return found
    combine, identity, slope = found
    if slope is not None:
        raise DataError(
            "reduce must be a pair (function of two values, identity) here (got a slope, too). Leave it out."
        )
    return combine, identity


def sloped_reducer(reduce: Any) -> str | tuple[PairFunction, float, PairFunction | None]:
    """`reduce`, checked: a name, or an associative function of two values with its identity, and its slope or None."""
    if isinstance(reduce, str) and reduce in REDUCERS:
        return reduce
    if not isinstance(reduce, (tuple, list)) or len(reduce) not in (2, 3) or not all(map(callable, reduce[::2])):
        raise DataError(
            f"reduce must be one of {', '.join(REDUCERS)}, or a pair (function of two values, identity) "
            f"(got {reduce!r}). Pass one of these."
        )
    combine, identity, *slope = reduce
    if isinstance(identity, bool) or not isinstance(identity, (int, float)):
        raise DataError(
            "reduce must be a pair of a function of two values and its identity, a number "
            f"(got {type(identity).__name__}). Pass what a destination without edges gets."
        )
    return combine, identity, slope[0] if slope else None


def check_schedule(schedule: object, *words: str) -> None:
    """SettingsError for what is neither 'auto', nor one of `words`, nor a Schedule."""
    if schedule != "auto" and schedule not in words and not isinstance(schedule, Schedule):
        also = "".join(f", {word!r}" for word in words)
        raise SettingsError(
            f"schedule must be 'auto', the compiler's own choice{also}, or a graphweave.Schedule (got {schedule!r})."
            " Pass one of these."
        )


def fields_of(x: Features) -> Sequence[tuple[str, Any]]:
    """The arrays of `x`, each with what follows the argument's name in errors: "" or "['h']"."""
    if x is None:
        return []
    if isinstance(x, Mapping):
        return [(f"[{name!r}]", field) for name, field in x.items()]
    return [("", x)]


def with_fields(x: Features, fields: Sequence[object]) -> Features:
    """`x` with other arrays in place of its own, in the order of `fields_of`."""
    if x is None:
        return None
    return dict(zip(x, fields, strict=True)) if isinstance(x, Mapping) else fields[0]


def _single(x: Features) -> object:
    """The only array of `x`."""
    return next(iter(x.values())) if isinstance(x, Mapping) else x


def _check_single(what: str, argument: str, x: Features) -> None:
    count = len(fields_of(x))
    if count != 1:
        got = "none" if count == 0 else f"{count} in a dict"
        raise DataError(f"{what} reads one field of {argument} (got {got}). Pass it alone, as {argument}.")


# ---------------------------------------------------------------- errors about what does not fit


def wrong_rows(end: str, field: str, shape: Sequence[int], rows: int) -> DataError:
    """The error about an array of `end` that has not the `rows` that there are."""
    return DataError(
        f"{end}{field} has {shape[0]} rows (shape {list(shape)}), but there are {rows} {_COUNTED[end]}."
        " Give it a row for each."
    )


def check_identity(identity: float, dtype: object, is_floating: bool) -> None:
    """DataError if messages of `dtype` cannot be `identity`."""
    if not (math.isfinite(identity) or is_floating):
        raise DataError(
            f"reduce: the identity of messages of {dtype} must be one of their numbers (got {identity})."
            " Pass such a number, or return floating-point messages."
        )


def check_pairs(out: Any, given: Any) -> Any:
    """`out`, what a function of two values made of `given` and others like it. DataError if it is of another type."""
    if getattr(out, "shape", None) != given.shape or out.dtype != given.dtype:
        got = f"{out.dtype} {list(out.shape)}" if hasattr(out, "shape") else type(out).__name__
        raise DataError(
            f"reduce: the function of two values must return what it takes, {given.dtype} {list(given.shape)} "
            f"(got {got}). Return one value for each pair."
        )
    return out


def not_numbers(reduce: str, dtype: object) -> DataError:
    """The error about messages that `reduce` does not take."""
    return DataError(
        f"reduce {reduce!r} takes real numbers (got messages of {dtype})."
        " Convert what message returns, or reduce it by 'sum'."
    )


def weights_of(scores: Any, values: Any, is_floating: bool, softmax: Callable[[Any], object]) -> Any:
    """The weights of `values` [edges, ...], by a softmax of their scores. DataError for scores that are no
    floating-point numbers, and for those that do not broadcast with values from the left."""
    if not is_floating:
        raise DataError(f"score must return floating-point numbers (got {scores.dtype}). Convert what it returns.")
    while scores.ndim > values.ndim and scores.shape[-1] == 1:
        scores = scores.squeeze(-1)
    weights = grown(softmax(scores), values.ndim)
    fits = [s in (1, v) for s, v in zip(weights.shape[1:], values.shape[1:], strict=False)]
    if weights.ndim > values.ndim or not all(fits):
        raise DataError(
            f"score returned rows of shape {list(scores.shape[1:])} for values of {list(values.shape[1:])}: a dim of "
            "scores must be 1 or that of values at the same place. Reshape one of them."
        )
    return weights


def grown(x: Any, rank: int) -> Any:
    """`x` with dims of size 1 behind its own, up to `rank` of them."""
    return x.reshape(*x.shape, *[1] * (rank - x.ndim)) if x.ndim < rank else x
