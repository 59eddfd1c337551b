"""The handle that a declaration returns, and which declarations are in force."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from graphweave.core.errors import DeclarationError


class Handle:
    """A declaration in force. `remove()` revokes it, and so does the end of a `with` block.

    Code that was compiled before the declaration, or while it was in force, stays as it is.
    """

    def __init__(self, name: str, key: Hashable, undo: Callable[[], None]) -> None:
        self.name = name
        self._key, self._undo = key, undo

    def remove(self) -> None:
        """Revoke the declaration. Does nothing if that has been done."""
        if _in_force.get(self.name) is self:
            del _in_force[self.name]
            self._undo()

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        return f"<graphweave.extend: {self.name}{'' if _in_force.get(self.name) is self else ', removed'}>"


_in_force: dict[str, Handle] = {}


def known(name: str, key: Hashable) -> Handle | None:
    """The handle of `name` if the same thing has been declared. DeclarationError if something else has been."""
    found = _in_force.get(name)
    if found is not None and found._key != key:
        raise DeclarationError(
            f"{name} has been declared otherwise. Call remove() on what that call gave, or reuse it."
        )
    return found


def entered(name: str, key: Hashable, undo: Callable[[], None]) -> Handle:
    """A handle of a declaration that is in force from now on."""
    handle = _in_force[name] = Handle(name, key, undo)
    return handle


def identity(function: Callable[..., object]) -> Hashable:
    """A key that is equal for functions of the same code over the same values, so that a notebook cell may run
    twice."""
    code = getattr(function, "__code__", None)
    if code is None:
        return id(function)
    cells = tuple(_value(c.cell_contents) for c in getattr(function, "__closure__", None) or ())
    return code, cells, tuple(map(_value, getattr(function, "__defaults__", None) or ()))


def _value(x: object) -> Hashable:
    return (type(x).__name__, repr(x)) if isinstance(x, bool | int | float | str | None) else id(x)
