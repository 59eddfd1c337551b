"""Data of nodes and edges: named tensors with one row for each node or edge, checked when they are set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false

from graphweave.core.errors import DataError
from graphweave.udf.arguments import TYPE, fix_sizes

NID = EID = "_ID"
"""Field with the numbers that nodes or edges had in the graph from which they were taken."""

NTYPE = ETYPE = TYPE
"""Field with the types of nodes or edges of a homogeneous graph, as positions in a list of type names."""


Initializer = Callable[[Any, torch.dtype, torch.device, slice], Tensor]
"""(shape, dtype, device, ids) -> the values of rows that have none yet."""


class Frame(MutableMapping[str, Tensor]):
    """Fields of one node type or edge type: name -> tensor [rows, ...] on the graph's device.

    Setting a field raises DataError unless it is a tensor with one row for each node or edge on the graph's device.
    Reading a missing field raises a KeyError that lists the existing ones. Tensors are never copied.
    """

    def __init__(self, where: str, like: Tensor | None, unit: str, fields: Mapping[str, Tensor] | None = None) -> None:
        """`where` ("ndata") and `unit` ("nodes") appear in messages. Fields must have as many rows as `like` and be on
        its device (None: any). The length of a tensor is a symbol under tracing; a number would be compiled in.
        """
        self._where = where
        self._like = like
        self._unit = unit
        self._fields: dict[str, Tensor] = dict(fields or {})
        self.initializers: dict[str | None, Initializer] = {}

    def initial(self, name: str, like: Tensor, ids: slice | None = None) -> Tensor:
        """The values of the rows `ids` (all of them by default) of a field before they are set: [rows, ...] with rows
        and dtype like those of `like`. Zeros, or what the initializer of the field, or of all fields, returns."""
        ids = slice(0, self.num_rows) if ids is None else ids
        make = self.initializers.get(name, self.initializers.get(None))
        shape = (ids.stop - ids.start, *like.shape[1:])
        return like.new_zeros(shape) if make is None else make(shape, like.dtype, like.device, ids)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._fields:
            raise KeyError(f"{self._where} has no field {name!r}; {_listed(self._fields)}")
        value = self._fields[name]
        if torch.compiler.is_compiling():
            fix_sizes(value)
        return value

    def __setitem__(self, name: str, value: Tensor) -> None:
        self._check(name, value)
        self._fields[name] = value

    def __delitem__(self, name: str) -> None:
        if name not in self._fields:
            raise KeyError(f"{self._where} has no field {name!r}; {_listed(self._fields)}")
        del self._fields[name]

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return repr(self._fields)

    @property
    def rows(self) -> Tensor:
        """A tensor with as many rows as each field has."""
        assert self._like is not None
        return self._like

    @property
    def num_rows(self) -> int:
        """The number of rows of each field; 0 for a frame without a fixed number."""
        return 0 if self._like is None else self._like.shape[0]

    def schemes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Field -> (shape of a row, dtype)."""
        return {name: (tuple(value.shape[1:]), value.dtype) for name, value in self._fields.items()}

    def take(self, rows: Tensor | None) -> dict[str, Tensor]:
        """The fields at `rows`, an index [k] or a mask; None takes all rows and copies nothing."""
        return dict(self._fields) if rows is None else {name: value[rows] for name, value in self._fields.items()}

    def copy(self) -> Frame:
        """Another frame with the same tensors."""
        out = Frame(self._where, self._like, self._unit, self._fields)
        out.initializers = dict(self.initializers)
        return out

    def map(self, fn: Callable[[Tensor], Tensor], like: Tensor | None) -> Frame:
        """A frame with `fn` applied to every field, for a graph whose rows and device are those of `like`."""
        return Frame(self._where, like, self._unit, {name: fn(value) for name, value in self._fields.items()})

    def _check(self, name: str, value: Tensor) -> None:
        if not isinstance(name, str):
            raise DataError(
                f"expected a string as the name of a field of {self._where} (got {name!r}). Name it by a string."
            )
        if not isinstance(value, Tensor):
            raise DataError(
                f"{self._where}[{name!r}] must be a tensor (got {type(value).__name__})."
                " Convert it with torch.as_tensor."
            )
        like = self._like
        if like is None:
            return
        if value.dim() == 0:
            raise DataError(
                f"{self._where}[{name!r}] has no rows (a scalar), but the graph has {self._sized()}."
                " Give it a row for each."
            )
        if value.device != like.device:
            raise DataError(
                f"{self._where}[{name!r}] is on {value.device}, but the graph is on {like.device}. "
                f"Move one of them with .to(...)."
            )
        # Under tracing, sizes may be unknown. Such a size passes here, and the compiled code asserts it.
        if guard_or_false(value.shape[0] != like.shape[0]):
            raise DataError(
                f"{self._where}[{name!r}] has {value.shape[0]} rows, but the graph has {self._sized()} "
                f"(shape {list(value.shape)})."
                " Give it a row for each."
            )
        if torch.compiler.is_compiling():
            torch._check(value.shape[0] == like.shape[0])

    def _sized(self) -> str:
        return f"{self.num_rows} {self._unit}"


class TypedFrames(MutableMapping[str, "dict[Any, Tensor]"]):
    """Fields of several types at once: name -> {type: tensor}, over the types that have the field.

    A field is set from a dict of the same form. Setting a tensor raises DataError, because its rows could belong to any
    of the types.
    """

    def __init__(self, where: str, frames: Mapping[Any, Frame]) -> None:
        self._where = where
        self._frames = dict(frames)

    def __getitem__(self, name: str) -> dict[Any, Tensor]:
        found = {key: frame[name] for key, frame in self._frames.items() if name in frame}
        if not found:
            raise KeyError(f"{self._where} has no field {name!r} of any type; {_listed(self._names())}")
        return found

    def __setitem__(self, name: str, value: dict[object, Tensor]) -> None:
        if not isinstance(value, Mapping):
            raise DataError(
                f"{self._where}[{name!r}]: the graph has several types, {', '.join(map(str, self._frames))}; "
                f"give a dict of type -> tensor (got {type(value).__name__})."
                " Name the types."
            )
        for key, tensor in value.items():
            self._frame(key)[name] = tensor

    def __delitem__(self, name: str) -> None:
        for key in self[name]:
            del self._frames[key][name]

    def __contains__(self, name: object) -> bool:
        return any(name in frame for frame in self._frames.values())

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __repr__(self) -> str:
        return repr({name: self[name] for name in self._names()})

    def _names(self) -> dict[str, None]:
        return {name: None for frame in self._frames.values() for name in frame}

    def _frame(self, key: object) -> Frame:
        """The frame of a type, or of the only relation with the name `key`."""
        if key in self._frames:
            return self._frames[key]
        same = [full for full in self._frames if isinstance(full, tuple) and full[1] == key]
        if len(same) != 1:
            why = "is not a type of the graph" if not same else "names several relations"
            raise DataError(
                f"{self._where}: {key!r} {why}; expected one of {', '.join(map(str, self._frames))}. Name one of these."
            )
        return self._frames[same[0]]


def _listed(names: Mapping[str, object]) -> str:
    return f"it has {', '.join(map(repr, names))}" if names else "it has no fields"


def described_fields(frame: Frame) -> str:
    """Name, dtype and shape of each field, as text."""
    named = [
        f"{name}: {str(dtype).removeprefix('torch.')}{list(shape)}" for name, (shape, dtype) in frame.schemes().items()
    ]
    return "{" + ", ".join(named) + "}"
