"""Checks whether a function works row by row, by changing one row and looking at the others.

A function f of rows is row-wise if row i of f(x) depends on row i of x alone. Every schedule of a kernel rests on it,
and a function that mixes rows (`x - x.mean(0)`, a sort, a running sum) would mean something else for each order of
edges. So a function is run, as plain PyTorch, on `_ROWS` rows that are drawn from its operands, and again with each of
these rows replaced: no other row of the result may change by a bit.

Limits: it is done once for each code of a function, with the kinds of the modules that it closes over, and each width
of its operands, so a function that mixes rows only for other values of its closure, or only for values that were not
drawn, is not found. Rows are made distinct by scaling
floating-point numbers down, which may leave the domain of a function (`acosh`): where everything is NaN nothing is
found. A function whose results differ from run to run cannot be judged, and is taken as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from graphweave.core.edge_functions import Features, fields_of
from graphweave.core.errors import DataError

_ROWS = 5
_MOST = 1024
_checked: set[Hashable] = set()
"""Keys of checks that found nothing wrong. The set is emptied when it has become too large."""


def check_row_wise(what: str, function: Callable[..., Tensor], operands: Sequence[tuple[Features, Tensor]]) -> None:
    """DataError, naming the argument `what`, if `function` of features at rows (features, index of rows) mixes rows.

    An index has `_ROWS` places (see `drawn`). Nothing is found out about a function of no tensors.
    """
    features = [x for x, _ in operands]
    if not any(list(fields_of(x)) for x in features):
        return
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad(), _repeatable(features):
        first, other = ([_rows(x, at, generator) for x, at in operands] for _ in range(2))
        base = _result(what, function, first)
        if not _same(base, _result(what, function, first)):
            return
        for row in range(_ROWS):
            changed = _result(what, function, [_replaced(x, y, row) for x, y in zip(first, other, strict=True)])
            kept = torch.arange(_ROWS, device=base.device) != row
            if changed.shape != base.shape or not _same(base[kept], changed[kept]):
                raise DataError(
                    f"{what} mixes rows: the result of one edge changes with the data of another. It must compute each "
                    "row from that row alone. Pass what edges share as src, dst or edge, computed before."
                )


def plainly(call: Callable[[], Tensor], features: Sequence[Features]) -> None:
    """Makes a call for the errors that it may raise, and leaves no trace of it."""
    with torch.no_grad(), _repeatable(features):
        call()


def modules_of(function: object) -> Hashable:
    """The kinds of the modules that a function is, is a method of or closes over, and whether they are training."""
    cells = getattr(function, "__closure__", None) or ()
    held = (function, getattr(function, "__self__", None), *(_contents(cell) for cell in cells))
    modules = [m for x in held if isinstance(x, torch.nn.Module) for m in x.modules()]
    return tuple([(type(m), m.training) for m in modules])


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that has no value yet
        return None


def once(key: Hashable, check: Callable[[], None]) -> None:
    """`check()`, unless one of this key has found nothing wrong before."""
    if key in _checked:
        return
    check()
    if len(_checked) >= _MOST:
        _checked.clear()
    _checked.add(key)


def drawn(index: Tensor) -> Tensor:
    """`_ROWS` places of an index of at least one, spread over it."""
    places = torch.linspace(0, index.shape[0] - 1, _ROWS).long().to(index.device)
    return index.index_select(0, places)


def _result(what: str, function: Callable[..., Tensor], operands: Sequence[Features]) -> Tensor:
    torch.manual_seed(0)
    try:
        out = function(*operands)
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"{what} could not be computed for {_ROWS} of the edges alone ({type(error).__name__}: {error}). It must "
            "work for any number of rows. Pass what belongs to edges or nodes as src, dst or edge."
        ) from error
    if not isinstance(out, Tensor) or out.dim() == 0 or out.shape[0] != _ROWS:
        got = f"shape {list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise DataError(
            f"{what} must return one row for each edge (got {got} for {_ROWS} edges). Return such a tensor."
        )
    return out


@contextlib.contextmanager
def _repeatable(features: Sequence[Features]) -> Iterator[None]:
    """Restores the state of the random number generators afterwards."""
    tensors = [t for x in features for _, t in fields_of(x)]
    devices = sorted({t.device.index or 0 for t in tensors if t.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        yield


def _rows(x: Features, at: Tensor, generator: torch.Generator) -> Features:
    return _mapped(x, lambda t: _distinct(t.detach().index_select(0, at), generator))


def _distinct(x: Tensor, generator: torch.Generator) -> Tensor:
    """`x` with each floating-point number replaced by a random one between x / 2 and x, or between 0 and 1/2 if it is
    0."""
    if not (x.is_floating_point() or x.is_complex()):
        return x
    share = 0.5 + 0.5 * torch.rand(x.shape, generator=generator)
    share = share.to(x.device, x.real.dtype if x.is_complex() else x.dtype)
    return torch.where(x == 0, (share - 0.5).to(x.dtype), x * share)


def _replaced(x: Features, other: Features, row: int) -> Features:
    """`x` with another row in place of `row`: the next of `other`."""
    others = dict(fields_of(other))
    names = iter(others)

    def replaced(t: Tensor) -> Tensor:
        out = t.clone()
        out[row] = others[next(names)][(row + 1) % _ROWS]
        return out

    return _mapped(x, replaced)


def _mapped(x: Features, function: Callable[[Tensor], Tensor]) -> Features:
    if x is None:
        return None
    if isinstance(x, Mapping):
        return {name: function(t) for name, t in x.items()}
    return function(x)


def _same(one: Tensor, other: Tensor) -> bool:
    both: Any = (one == other) | ((one != one) & (other != other))
    return bool(both.all())
