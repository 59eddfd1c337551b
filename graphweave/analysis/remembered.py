"""Methods whose answers their object keeps: `functools.cached_property` for methods with arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


class remembered(Generic[P, R]):
    """A method that each object runs once for the same arguments, which must be hashable.

    The answers are kept in the object, so they are freed with it.
    """

    def __init__(self, method: Callable[Concatenate[Any, P], R]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, asked: object, owner: type | None = None) -> Callable[P, R]:
        ask = cast(Callable[P, R], cache(partial(self._method, asked)))
        asked.__dict__[self._name] = ask  # Python finds it there before it looks at this descriptor
        return ask
