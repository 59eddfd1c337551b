"""Methods whose answers their object keeps, as `functools.cached_property` keeps those without arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


class remembered(Generic[P, R]):
    """A method that each object runs once for the same arguments, which are hashable.

    The answers live in the object itself, so they go when it goes.
    """

    def __init__(self, method: Callable[Concatenate[Any, P], R]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, asked: Any, owner: type | None = None) -> Callable[P, R]:
        ask = cast(Callable[P, R], cache(partial(self._method, asked)))
        asked.__dict__[self._name] = ask  # found before this descriptor from now on
        return ask
