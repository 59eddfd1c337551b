"""Operators that move rows along an index: pulls, which gather rows, and pushes, which reduce them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from graphweave.extend.checks import Formula, check_formula
from graphweave.extend.handle import Handle
from graphweave.extend.rowwise import declared_by
from graphweave.extend.subject import FEATURES, Subject, drawn, example_of, subject_of

FoldName = Literal["sum", "mean", "prod", "max", "min"]

_NODES = 5
_INDEX = (1, 0, 4, 1, 2, 1, 4)
"""Index of the examples, in which no edge reaches row 3 and several edges reach row 1."""


def pull(operator: str, *, x: str, index: str, example: Sequence[object] | None = None) -> Handle:
    """Declare that `operator` gathers rows: `out[e] = x[index[e]]`. `x: [V, ...], index: [E] int -> [E, ...]`.

    `x` and `index` are the names of its arguments; it must have no others. The operator becomes a pull of the algebra,
    so kernels read the rows where they need them. Its derivative is the push with a sum, unless the operator has an
    autograd formula, whose backward operator is then declared by `push`. In compiled models, an index below 0 or beyond
    the rows of `x` raises IndexError. `example`, the errors, and which graphs are affected are as in `rowwise`.
    """
    subject = subject_of("pull", operator)
    source, place = _places(subject, x=x, index=index)

    def formula(*args: Any) -> Tensor:
        gathered: Tensor = args[source].index_select(0, args[place])
        return gathered

    given = {x: drawn(_NODES, FEATURES), index: torch.tensor(_INDEX)}
    return _declared(subject, formula, ("pull", x, index), lambda: example_of(subject, example, given))


def push(
    operator: str, *, x: str, index: str, rows: str, fold: FoldName = "sum", empty: float = 0.0,
    example: Sequence[object] | None = None,
) -> Handle:  # fmt: skip
    """Declare that `operator` reduces rows: `out[v]` is the `fold` of `x[e]` over all e with `index[e] == v`.

    `x: [E, ...], index: [E] int -> [V, ...]`; a row v that no e points to has `empty` everywhere. `x`, `index` and
    `rows` are the names of the operator's arguments; it must have no others. `rows` is V, or a tensor with V rows. The
    operator becomes a push of the algebra, so kernels add up rows where they compute them. Indices are checked as in a
    pull. Its derivative is that of `torch.scatter_reduce` (a maximum that several rows reach divides its gradient among
    them equally), unless the operator has an autograd formula, whose backward operator is then declared as well.
    `example`, the errors, and which graphs are affected are as in `rowwise`.
    """
    subject = subject_of("push", operator)
    if fold not in get_args(FoldName):
        raise subject.wrong(f"fold must be one of {', '.join(get_args(FoldName))} (got {fold!r}). Pass one of these")
    source, place, count = _places(subject, x=x, index=index, rows=rows)

    def formula(*args: Any) -> Tensor:
        size = args[count]
        return _pushed(args[source], args[place], size.shape[0] if isinstance(size, Tensor) else size, fold, empty)

    given = {x: drawn(len(_INDEX), FEATURES), index: torch.tensor(_INDEX)}
    given[rows] = drawn(_NODES, FEATURES, seed=1) if rows in subject.tensors else _NODES  # type: ignore[assignment]
    key = ("push", x, index, rows, fold, repr(float(empty)))
    return _declared(subject, formula, key, lambda: example_of(subject, example, given), _hint(fold, empty))


def _pushed(x: Tensor, index: Tensor, rows: int, fold: FoldName, empty: float) -> Tensor:
    size = (rows, *x.shape[1:])
    if fold == "sum" and empty == 0:
        return x.new_zeros(size).index_add(0, index, x)
    if fold == "sum":
        total = x.new_zeros(size).index_add(0, index, x)
        count = x.new_zeros(rows).index_add(0, index, x.new_ones(index.shape[0]))
        return torch.where((count > 0).reshape(-1, *[1] * (x.dim() - 1)), total, empty)
    spread = index.long().reshape(-1, *[1] * (x.dim() - 1)).expand_as(x)
    reduce = {"mean": "mean", "prod": "prod", "max": "amax", "min": "amin"}[fold]
    return x.new_full(size, empty).scatter_reduce(0, spread, x, reduce, include_self=False)


def _hint(fold: FoldName, empty: float) -> str:
    return f". Declared are fold={fold!r} and empty={empty!r} for rows that none points to"


def _places(subject: Subject, **names: str) -> list[int]:
    """The positions of the operator's arguments with these names. DeclarationError if it has other arguments."""
    others = [name for name in subject.arguments if name not in names.values()]
    places = [subject.position(name) for name in names.values()]
    if others or len(set(places)) != len(places):
        words = ", ".join(f"{word}={name!r}" for word, name in names.items())
        raise subject.wrong(
            f"its arguments are {', '.join(subject.arguments)}, and {words} must name each of them once. "
            "Write an operator of these alone, or one around it in plain PyTorch"
        )
    return places


def _declared(
    subject: Subject, formula: Formula, key: object, args: Callable[[], list[object]], hint: str = ""
) -> Handle:  # fmt: skip
    return declared_by(subject, formula, key, lambda: check_formula(subject, formula, args(), hint))
