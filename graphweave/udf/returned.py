"""Checks what user-defined functions return."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.udf.mailbox import Mailbox


def check_fields(out: object, rows: int, who: str, of: str) -> dict[str, Tensor]:
    """`out` as a dict of tensors with `rows` rows. Raises DataError, which names the field that is not one."""
    if not isinstance(out, Mapping):
        raise DataError(f"{who} must return a dict of tensors (got {type(out).__name__}). Return one.")
    for name, x in out.items():
        if isinstance(x, Mailbox):
            raise DataError(
                f"{who} returned {name!r} for each message ({x!r}), where one row for each node is expected. "
                "Reduce it along dim 1, with .sum(1) for instance."
            )
        if not isinstance(x, Tensor):
            raise DataError(f"{who} must return tensors (got {type(x).__name__} for {name!r}). Return tensors.")
        if x.dim() == 0 or x.shape[0] != rows:
            raise DataError(
                f"{who} returned {name!r} of shape {tuple(x.shape)}, but there are {rows} {of}. Return a row for each."
            )
    return dict(out)
