"""A function with everything that it reads, copied, so that it can be run again and again without a trace."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import MappingKey, keystr, tree_flatten_with_path, tree_leaves

from graphweave.core.errors import DataError
from graphweave.core.lines import is_library
from graphweave.frontends.dynamo.argument_names import parameters_of

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments by position and by name."""

_SHARED = (ModuleType, FunctionType, BuiltinFunctionType, type, str, bytes, int, float, complex, bool, type(None))
"""Values of variables that no call changes, or that are not data."""


@dataclass(frozen=True, slots=True)
class _Variable:
    """A variable that a function reads: its name, the cell of a closure or the module's dictionary that holds it, and
    its value."""

    name: str
    holder: CellType | dict[str, Any]
    value: Any

    @property
    def key(self) -> tuple[int, str]:
        return id(self.holder), self.name

    def set(self, value: object) -> None:
        if isinstance(self.holder, CellType):
            self.holder.cell_contents = value
        else:
            self.holder[self.name] = value


@dataclass(slots=True, eq=False)
class _NamedTensor:
    """A tensor of a copy, by the user's name for it, and the value that it has before each run. `data` numbers the
    call of which it is an argument; None if it belongs to the function."""

    name: str
    tensor: Tensor
    data: int | None = None
    before: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.before = self.tensor.detach().clone()


class ProgramCopy:
    """A copy of `target`, of the arguments of each of its calls, and of the variables that it reads.

    The variables (of closures and of the user's modules, followed through the user's own functions) have their copies
    as values within `in_place`, which is how functions, which Python does not copy, see them. `uncopied` names those
    that cannot be copied: the function reads and changes the user's own.
    """

    def __init__(self, target: Callable[..., object], calls: Sequence[Arguments], *, wide: bool = False) -> None:
        """`wide`: the copy has float64 in place of every other type of floating-point numbers."""
        self._memo: dict[int, Any] = {}
        self._wide = wide
        self._kept: list[Any] = [target, calls]  # the memo knows objects by their addresses
        self.uncopied: dict[str, str] = {}
        self.call = self._copied(getattr(target, "__name__", "the function"), target)
        self.calls: list[Arguments] = [
            (tuple(self._copied(f"argument {i + 1}", arg) for i, arg in enumerate(args)),
             {name: self._copied(f"argument {name!r}", arg) for name, arg in kwargs.items()})
            for args, kwargs in calls
        ]  # fmt: skip
        self._variables = [*self._copied_variables(target)]
        self._parameters = parameters_of(target)
        tensors = {id(t): t for t in self._memo.values() if isinstance(t, Tensor)}
        gradients = {id(t.grad) for t in tensors.values() if t.is_leaf and t.grad is not None}
        # Sparse tensors are taken to stay as they are: no model edits one in place.
        self._tensors = {key: t for key, t in tensors.items() if key not in gradients and t.layout is torch.strided}
        for t in self._tensors.values():
            if isinstance(t, (nn.UninitializedParameter, nn.UninitializedBuffer)):
                raise DataError("check needs parameters that have their values (got a lazy module). Call it once.")
            t.grad = None
            if wide:
                t.data = _widened(t.data)
        self._places = [*self._named()]

    @property
    def modules(self) -> list[nn.Module]:
        """The modules that the function is, belongs to or reads."""
        found = (self.call, getattr(self.call, "__self__", None), *(copied for _, copied in self._variables))
        return [x for x in found if isinstance(x, nn.Module)]

    @property
    def dtype(self) -> torch.dtype:
        """The commonest type of floating-point numbers, by numbers of tensors; float32 if there are none."""
        of = [t.dtype for t in self._tensors.values() if t.is_floating_point()]
        return max(set(of), key=of.count, default=torch.float32)

    def leaves(self, data: int) -> list[tuple[str, Tensor]]:
        """The tensors that require a gradient, by name: of the function and of call number `data`."""
        return [(place.name, place.tensor) for place in self._read_in(data) if place.tensor.requires_grad]

    def changed(self, data: int) -> dict[str, Tensor]:
        """The tensors that call number `data` has changed, by name."""
        return {
            place.name: place.tensor.detach().clone()
            for place in self._read_in(data)
            if not same_bits(place.tensor, place.before)
        }

    def _read_in(self, data: int) -> Iterator[_NamedTensor]:
        return (place for place in self._places if place.data in (None, data))

    def restore(self) -> None:
        """Give all tensors the values that they had when the copy was made."""
        with torch.no_grad():
            for place in self._places:
                if not same_bits(place.tensor, place.before):
                    place.tensor.copy_(place.before)
                place.tensor.grad = None

    def perturb(self, change: Callable[[Tensor], Tensor]) -> None:
        """Change the floating-point numbers of all tensors, until `restore`."""
        with torch.no_grad():
            for place in self._places:
                if place.tensor.is_floating_point():
                    place.tensor.copy_(change(place.before))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the block, variables hold their copies."""
        try:
            for variable, copied in self._variables:
                variable.set(copied)
            yield
        finally:
            for variable, _ in self._variables:
                variable.set(variable.value)

    def _copied(self, name: str, value: object) -> Any:
        memo = dict(self._memo)
        for leaf in tree_leaves(value):  # deepcopy takes neither tensors that were computed from others nor all layouts
            if isinstance(leaf, Tensor) and not (leaf.is_leaf and leaf.layout is torch.strided):
                made = _widened(leaf.detach()) if self._wide else leaf.detach().clone()
                memo.setdefault(id(leaf), made.requires_grad_(leaf.requires_grad))
        try:
            copied = copy.deepcopy(value, memo)
        except Exception as error:  # a class may refuse by any error
            raise DataError(
                f"check runs a function on copies, and {name} ({type(value).__name__}) cannot be copied by "
                f"copy.deepcopy: {error}. Pass it as tensors, or give its class a __deepcopy__."
            ) from error
        self._kept.append(memo.pop(id(memo), None))  # what deepcopy keeps alive, by an address that is free again
        self._memo.update(memo)
        return copied

    def _copied_variables(self, target: Callable[..., object]) -> Iterator[tuple[_Variable, object]]:
        for variable in _read_by(target):
            try:
                yield variable, self._copied(variable.name, variable.value)
            except DataError as error:
                self.uncopied[variable.name] = str(error)

    def _named(self) -> Iterator[_NamedTensor]:
        """The tensors of the copy, each once, by the user's names for them where they have any."""
        left = dict(self._tensors)
        roots = [("", self.call), *((variable.name, copied) for variable, copied in self._variables)]
        roots += [("", getattr(self.call, "__self__", None))]
        for name, root in roots:
            for tensor_name, tensor in _tensors_of(root):
                if left.pop(id(tensor), None) is not None:
                    yield _NamedTensor(".".join(filter(None, (name, tensor_name))), tensor)
        arguments: dict[int, tuple[str, set[int]]] = {}
        for data, call in enumerate(self.calls):
            for path, leaf in tree_flatten_with_path(call)[0]:
                if id(leaf) in left:
                    arguments.setdefault(id(leaf), (_argument(path, self._parameters), set()))[1].add(data)
        for key, (name, used_in) in arguments.items():
            yield _NamedTensor(name, left.pop(key), used_in.pop() if len(used_in) == 1 else None)
        for number, tensor in enumerate(left.values()):
            yield _NamedTensor(f"tensor {number + 1} inside of objects", tensor)


def _widened(x: Tensor) -> Tensor:
    """A copy of `x` with numbers of 64 bits in place of other floating-point numbers."""
    return x.to(torch.float64 if x.is_floating_point() else torch.complex128 if x.is_complex() else x.dtype, copy=True)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same numbers, NaN in the same places."""
    return a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | ((a != a) & (b != b))).all())


def _argument(path: Sequence[Any], parameters: Sequence[str]) -> str:
    """The place of a tensor among arguments: "x", "x_dict['paper']"; "argument 2" if its parameter has no name."""
    _, first, *inner = path
    if isinstance(first, MappingKey):
        return str(first.key) + keystr(tuple(inner))
    named = parameters[first.idx] if first.idx < len(parameters) else "*"
    return (f"argument {first.idx + 1}" if named.startswith("*") else named) + keystr(tuple(inner))


def _tensors_of(root: object) -> Iterator[tuple[str, Tensor]]:
    if isinstance(root, Tensor):
        yield "", root
    elif isinstance(root, nn.Module):
        yield from root.named_parameters()
        yield from root.named_buffers()


def _read_by(target: Callable[..., object]) -> Iterator[_Variable]:
    """The variables that a call of `target` reads, in closures and in the user's modules, as far as they hold data."""
    todo, seen = [*_functions_of(target)], set[Any]()
    while todo:
        function = todo.pop()
        if function in seen:
            continue
        seen.add(function)
        own = not is_library(function.__code__.co_filename)
        for variable in _variables_of(function):
            if variable.key in seen:
                continue
            seen.add(variable.key)
            todo += _functions_of(variable.value)
            # Of a library's function, such as a decorator's, only data in its closure can be the user's.
            if not isinstance(variable.value, _SHARED) and (own or isinstance(variable.value, (Tensor, nn.Module))):
                yield variable


def _functions_of(value: object) -> Iterator[FunctionType]:
    """The functions that a call of `value` runs and that may read the user's variables, as far as can be told."""
    if isinstance(value, ModuleType):
        return
    value = getattr(value, "_gw_original", value)  # of a compiled function
    value = getattr(value, "__func__", getattr(value, "func", value))  # of a method, of a partial
    if isinstance(value, FunctionType):
        if not is_library(value.__code__.co_filename) or value.__closure__:
            yield value
        return
    objects = value.modules() if isinstance(value, nn.Module) else [value]
    for base in {base for x in objects for base in type(x).__mro__}:
        for method in vars(base).values():
            if isinstance(method, FunctionType) and not is_library(method.__code__.co_filename):
                yield method


def _variables_of(function: FunctionType) -> Iterator[_Variable]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a variable that has no value yet
            yield _Variable(name, cell, cell.cell_contents)
    if not is_library(code.co_filename):
        scope = function.__globals__
        yield from (_Variable(name, scope, scope[name]) for name in sorted(_names_in(code)) if name in scope)


def _names_in(code: CodeType) -> set[str]:
    inner = (_names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)
