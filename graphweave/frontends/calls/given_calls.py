"""Operators that say, in a captured graph, which of its inputs some calls do not give.

A function whose dictionaries have other keys in each call is traced with all keys (`dynamo/varying_keys.py`). These
operators stand in Dynamo's graph only: `spellings/given_values.py` reads them and takes them out before AOTAutograd
sees the graph. All of them return their first operand, which is what they mean if every key is given.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_library = torch.library.Library("graphweave", "FRAGMENT")
_library.define("given(Tensor x, Tensor flag, int number, int dim) -> Tensor")
_library.define("where_given(Tensor x, Tensor[] witnesses, float otherwise) -> Tensor")
_library.define("given_with_any(Tensor x, Tensor[] witnesses) -> Tensor")
_library.define("existing_with(Tensor x, Tensor y) -> Tensor")
_library.define("none_without(Tensor x, Tensor[] witnesses) -> Tensor")
_library.define("not_none(Tensor x) -> Tensor")
_library.define("existing_or(Tensor x, Tensor otherwise) -> Tensor")
_library.define("existing(Tensor x) -> Tensor")
_library.define("existing_as(Tensor x, Tensor before) -> Tensor")
_library.define("result(Tensor x, int number, bool may_be_absent) -> Tensor")


def _given(x: Tensor, flag: Tensor, number: int, dim: int) -> Tensor:
    """The argument `x`, which is given if `flag` [1, 0] has a row. If `flag` [0, 0] has none, `x` has no rows, either,
    which are its `dim`. `number` is the flag's: arguments of one key share it. A flag is a size, so that what is given
    is known before anything is read."""
    return x


def _where_given(x: Tensor, witnesses: Sequence[Tensor], otherwise: float) -> Tensor:
    """`x` in calls that give all witnesses, the number `otherwise` in others."""
    return x


def _given_with_any(x: Tensor, witnesses: Sequence[Tensor]) -> Tensor:
    """`x`, which exists in calls that give one of the witnesses, and only there."""
    return x


def _existing_with(x: Tensor, y: Tensor) -> Tensor:
    """`x`, which exists in calls in which `y` exists, and only there."""
    return x


def _none_without(x: Tensor, witnesses: Sequence[Tensor]) -> Tensor:
    """`x` in calls that give one of the witnesses, None in others: an item of a layer's results that is None there and
    keeps its key."""
    return x


def _not_none(x: Tensor) -> Tensor:
    """`x`, an item that is None in some calls, where the user's code goes on with those items that are not None."""
    return x


def _existing_or(x: Tensor, otherwise: Tensor) -> Tensor:
    """`x` in calls in which it exists, `otherwise` in others: an item of a dictionary that another one is put over."""
    return x


def _existing(x: Tensor) -> Tensor:
    """`x`, which must exist: an item that the user's code has looked up by its key, or whose key it has taken."""
    return x


def _existing_as(x: Tensor, before: Tensor) -> Tensor:
    """`x`, the new value of an item of a dictionary, whose old value is `before`. It must exist in each call in which
    `before` exists."""
    return x


def _result(x: Tensor, number: int, may_be_absent: bool) -> Tensor:
    """The `number`th result of the function. Where it does not exist, the item of a dictionary that it is is left out
    if it `may_be_absent`; others must exist."""
    return x


for _name, _meaning in {
    "given": _given,
    "where_given": _where_given,
    "given_with_any": _given_with_any,
    "existing_with": _existing_with,
    "none_without": _none_without,
    "not_none": _not_none,
    "existing_or": _existing_or,
    "existing": _existing,
    "existing_as": _existing_as,
    "result": _result,
}.items():
    _library.impl(_name, _meaning, "CompositeImplicitAutograd")

given, where_given = torch.ops.graphweave.given.default, torch.ops.graphweave.where_given.default
given_with_any, result = torch.ops.graphweave.given_with_any.default, torch.ops.graphweave.result.default
existing_or, existing_as = torch.ops.graphweave.existing_or.default, torch.ops.graphweave.existing_as.default
existing = torch.ops.graphweave.existing.default
existing_with, none_without = torch.ops.graphweave.existing_with.default, torch.ops.graphweave.none_without.default
not_none = torch.ops.graphweave.not_none.default
ALWAYS = 0
"""A flag's number, which is that of no key: it is given in all calls."""
