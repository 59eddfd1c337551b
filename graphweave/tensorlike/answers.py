"""The base class of objects that stand for tensors, and the table of functions that each of its classes answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from graphweave.core.errors import GraphweaveError

Handler: TypeAlias = Callable[..., Any]

_HOMES = (torch, Tensor, torch.nn.functional, torch.special, torch.linalg)
"""Modules and classes in which one PyTorch function may appear under different names."""

_OF_LIBRARIES = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)
"""Types of registered operators (`torch.ops.mylib.exp`), whose names say nothing about what they do."""

_BINARY = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floor_divide", "mod": "remainder",
    "pow": "pow", "matmul": "matmul", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
}  # fmt: skip
"""Python operators with a reflected form -> PyTorch's function."""

_OTHER = {
    "lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "eq": "eq", "ne": "ne", "neg": "neg", "abs": "abs",
    "invert": "bitwise_not", "getitem": "getitem",
}  # fmt: skip
"""Python operators without a reflected form -> PyTorch's function."""


class NotExpressible(GraphweaveError):
    """An object that stands for a tensor cannot do what is asked of it. A reduce function then runs in buckets."""


class TensorLike:
    """Stands for a tensor, and keeps its numbers in another tensor, the data, whose first dim is rows (`tensor()`).

    Each dim that the user sees is either a feature dim, which the data has too, or an `outer` dim, which the data does
    not have.
    """

    answers: ClassVar[Mapping[str, Handler]] = {}
    """Name under which PyTorch passes a function -> the handler that answers it. Set once, by `answer`.

    It is a plain dict, since a trace would guard all keys of a read-only view.
    """
    called: ClassVar[str] = ""
    """The name of this kind of object in errors, such as "a mailbox"."""

    @classmethod
    def __torch_function__(cls, func: Any, types: object, args: Any = (), kwargs: Any = None) -> TensorLike:
        # looked up by name, because under Dynamo several objects stand for one function
        handler = None if isinstance(func, _OF_LIBRARIES) else cls.answers.get(func.__name__)
        if handler is None:
            raise cls.unknown(func.__name__)
        given = dict(kwargs or {})
        if given.pop("out", None) is not None:
            raise cls.unwritten(func.__name__)
        return handler(*args, **given)

    @classmethod
    def unknown(cls, name: str) -> GraphweaveError:
        """The error for a function that is missing in the table."""
        return NotExpressible(f"{name} of {cls.called}")

    @classmethod
    def unwritten(cls, name: str) -> GraphweaveError:
        """The error for a function that should write into a tensor (out=...)."""
        return NotExpressible(f"{name} of {cls.called} into a tensor")

    @classmethod
    def unchanged(cls) -> GraphweaveError:
        """The error for an operation that would edit the object in place."""
        return NotExpressible(f"an operation in place on {cls.called}")

    @property
    def outer(self) -> tuple[int, ...]:
        return ()

    @property
    def ndim(self) -> int:
        raise AttributeError(f"{self.called} has no dims")

    def tensor(self) -> Tensor:
        raise NotImplementedError

    def like(self, data: Tensor) -> Any:
        """An object of the same kind and the same rows with other data."""
        raise NotImplementedError

    def moved(self, data: Tensor, outer: tuple[int, ...]) -> TensorLike:
        """Like `like`, with the outer dims at the positions `outer`."""
        return self.like(data)

    def wrapped(self, dim: Any, more: int = 0) -> int:
        """The user's dim `dim` as a non-negative number, for an operation that adds `more` dims."""
        dim = constant(dim)
        d: int = dim + self.ndim + more if dim < 0 else dim
        return d

    def all_wrapped(self, dims: object) -> list[int]:
        """The user's dims, given as one number or several, as non-negative numbers in increasing order."""
        return sorted([self.wrapped(d) for d in (dims if isinstance(dims, (tuple, list)) else (dims,))])


def answer(cls: type[TensorLike], handlers: Mapping[str, Handler], refuse_others: bool = False) -> None:
    """Let objects of `cls` answer the functions of PyTorch that `handlers` names, in all their spellings.

    A function may be called as a function, a method or an operator. With `refuse_others`, all other methods of tensors
    raise `cls.unknown`; without it, they are missing attributes. What the class itself defines stays.
    """
    if "sub" in handlers:
        handlers = {**handlers, "rsub": _reflected(handlers["sub"])}
    table = {spelling: handler for name, handler in handlers.items() for spelling in _spellings(name)}
    methods = {name: handler for name, handler in handlers.items() if hasattr(Tensor, name)}
    for operator, name in {**_BINARY, **_OTHER}.items():
        if name in handlers:
            table[f"__{operator}__"] = methods[f"__{operator}__"] = handlers[name]
    for operator, name in _BINARY.items():
        if name in handlers:
            reflected = methods[f"__r{operator}__"] = _reflected(handlers[name])
            # in a trace, `tensor / x` arrives as a call of Tensor.__rdiv__
            table |= dict.fromkeys((f"__r{operator}__", f"__r{name}__"), reflected)
    if refuse_others:
        public = (name for name in dir(Tensor) if not name.startswith("_") and not hasattr(cls, name))
        others = {name: _missing(cls, name) for name in public if callable(getattr(Tensor, name))}
        methods = {**others, **methods}
    for name, method in methods.items():
        if name not in cls.__dict__:
            setattr(cls, name, method)
    cls.answers = table


def _spellings(name: str) -> Iterator[str]:
    """The names under which PyTorch passes the function `name`, called as a function, method or operator."""
    yield name
    yield f"__{name}__"
    for home in _HOMES:
        function = getattr(home, name, None)
        if callable(function):
            yield function.__name__


def _reflected(handler: Handler) -> Handler:
    def method(self: Any, other: object) -> TensorLike:
        return handler(other, self)

    return method


def _missing(cls: type[TensorLike], name: str) -> Handler:
    def method(self: Any, *args: object, **kwargs: object) -> object:
        raise cls.unknown("Tensor." + name)

    method.__name__ = name
    return method


def constant(n: object) -> Any:
    """`n`, a dim or a size of features, as a constant of a trace, where a number from outside would be a symbol."""
    return range(n, n + 1)[0] if isinstance(n, int) else n


def unpacked(given: tuple[object, ...]) -> tuple[Any, ...]:
    """The arguments `given`, which are numbers or one sequence of numbers, as a tuple of numbers."""
    return tuple(given[0]) if len(given) == 1 and isinstance(given[0], (tuple, list)) else given
