"""One compilation for dictionaries of relations whose keys differ from call to call.

PyG's models take dictionaries with a tensor for each type of nodes or edges. A graph need not have all of them, and
compiled code has guards on the keys. So a call that lacks keys that others had, or relations that the model's layers
were made for, is made with all of them: a relation without edges, a type without nodes, and for each key a flag that
says whether it is given. The trace is told by the flags what eager mode would have left out
(`tracing/relation_formulas.py`, `spellings/given_values.py`). Results that eager mode would not have made are removed.

If the results of a function need what a call does not give, such calls are compiled as they are.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from graphweave.core.lines import is_library
from graphweave.core.log import logger
from graphweave.frontends.calls.given_calls import ALWAYS, given, result
from graphweave.frontends.dynamo.arguments import are_plain, as_traced
from graphweave.frontends.dynamo.background_frames import NotCompiledYet
from graphweave.frontends.dynamo.caller_state import CallerState
from graphweave.frontends.dynamo.lazy import make_parameters
from graphweave.frontends.halves.given_call import GivenCall, in_call
from graphweave.frontends.sparse.sparse_arguments import with_strides_of_edges
from graphweave.frontends.spellings.given_gradients import bits
from graphweave.frontends.spellings.given_values import NotGiven
from graphweave.frontends.tracing.asked_keys import KeysAsked
from graphweave.frontends.tracing.reasons import reason_of
from graphweave.frontends.tracing.relation_formulas import declared_relations

_log = logger(__name__)

Relation = tuple[str, str, str]
Key = str | Relation
"""A type of nodes, or a relation (source, name, destination)."""
Function = Callable[..., Any]
Dicts = dict[int | str, dict[Key, Tensor]]
"""Position or name of an argument -> the dictionary of tensors that it is."""

AS_GIVEN = object()
"""Stands for no result: the call has to be made as it is."""

_MAX_DEPTH = 4
"""Functions are searched for modules to this depth of functions that they call."""


class CompiledForAll(Protocol):
    """A compiled function. A call raises NotCompiledYet while a thread compiles it, and nothing of it has run."""

    def __call__(self, *args: object, **kwargs: object) -> object: ...

    def ask_for(self, args: tuple[object, ...], kwargs: dict[str, object], state: CallerState) -> None: ...

    def ready(self, timeout: float | None) -> bool: ...


@dataclass(frozen=True, slots=True)
class _CompletedCall:
    """A call of a `compiled` function with all keys, and what it gives of them."""

    compiled: CompiledForAll
    call: GivenCall
    args: tuple[object, ...]
    kwargs: dict[str, object]


class VaryingKeys:
    """Calls of one function with dictionaries of relations, completed to all keys known so far."""

    def __init__(self, target: Function, make: Callable[[Function], CompiledForAll]) -> None:
        """`make` compiles a function whole, for dictionaries with all keys."""
        self._target, self._make = target, make
        self._compiled: CompiledForAll | None = None
        self._known = _KnownKeys()
        self._refused = self._works = False
        self._flags: dict[bool, list[Tensor]] = {True: [], False: []}

    def call(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """The results of a call whose dictionaries lack keys; AS_GIVEN if they do not, or if it cannot be completed.
        While a thread compiles, the call runs as PyTorch's own."""
        made = self._completed(args, kwargs)
        if made is None:
            return AS_GIVEN
        compiled, call = made.compiled, made.call
        try:
            with in_call(call):
                out = compiled(*made.args, **made.kwargs)
        except NotCompiledYet:
            out = NotCompiledYet
        except Exception as error:
            if (why := refusal(error)) is None:
                raise
            self._refused = not (self._works and isinstance(error, NotGiven))  # a later call may give what this lacks
            name = getattr(self._target, "__name__", type(self._target).__name__)
            _log.info("%s is compiled for each set of keys: %s", name, why)
            return AS_GIVEN
        if out is NotCompiledYet:
            return self._target(*args, **kwargs)
        self._works = True
        return _existing(out, iter(call.existing))

    def ask_for(self, args: tuple[object, ...], kwargs: dict[str, object], state: CallerState) -> bool:
        """Let the thread compile for such calls, if their dictionaries lack keys. Returns whether they do."""
        made = self._completed(args, kwargs)
        if made is not None:
            with in_call(made.call):
                made.compiled.ask_for(made.args, made.kwargs, state)
        return made is not None

    def _completed(self, args: tuple[object, ...], kwargs: dict[str, object]) -> _CompletedCall | None:
        """A call with all keys and their flags; None if its dictionaries lack none, or if it cannot be completed."""
        if self._refused or not any(type(a) is dict for a in (*args, *kwargs.values())):
            return None
        dicts = _typed([*enumerate(args), *kwargs.items()])
        if not any(map(_of_relations, dicts.values())):
            return None
        if not self._known.declared_from:
            self._known.declare(self._target)
        keys = self._known.note(dicts)
        if keys is None or (self._compiled is None and all(len(keys[at]) == len(d) for at, d in dicts.items())):
            return None
        missing = self._known.missing
        full = {at: {k: as_traced(d[k]) if k in d else missing(at, k, d) for k in keys[at]} for at, d in dicts.items()}
        of_key: dict[Key, bool] = {}
        for at, d in dicts.items():
            of_key.update({k: k in d for k in keys[at]})
        numbers = (number for number, is_given in enumerate(of_key.values(), ALWAYS + 1) if is_given)
        others = (arg for at, arg in (*enumerate(args), *kwargs.items()) if at not in dicts)
        call = GivenCall(bits([ALWAYS, *numbers]), are_plain(others))
        flags = {k: self._flag(is_given, n) for n, (k, is_given) in enumerate(of_key.items())}
        all_args = tuple(full.get(n, arg) for n, arg in enumerate(args))
        named = {name: full.get(name, arg) for name, arg in kwargs.items()}
        if self._compiled is None:
            if isinstance(self._target, nn.Module):
                make_parameters(self._target, all_args, named)
            self._compiled = self._make(_with_flags(self._target))
        return _CompletedCall(self._compiled, call, (flags, *all_args), named)

    def ready(self, timeout: float | None) -> bool:
        """Whether calls that lack keys run compiled, as `graphweave.ready` says."""
        return self._compiled is not None and self._compiled.ready(timeout)

    def _flag(self, is_given: bool, number: int) -> Tensor:
        """A tensor of its own for each number: compiled code has guards on tensors that are the same object."""
        made = self._flags[is_given]
        while len(made) <= number:
            made.append(torch.empty(int(is_given), 0))
        return made[number]


@dataclass(slots=True)
class _KnownKeys:
    """The keys that dictionaries had so far, and the relations that layers were made for."""

    declared: dict[Key, None] = field(default_factory=dict)
    declared_from: bool = False
    """Whether the function has been searched for layers."""
    empty: dict[int | str, dict[Key, Tensor]] = field(default_factory=dict)
    """For each dictionary and key a tensor without rows, an object of its own."""

    def declare(self, target: Function) -> None:
        self.declared_from = True
        for module in _modules_of(target, _MAX_DEPTH):
            self.declared.update(dict.fromkeys(declared_relations(module)))

    def note(self, dicts: Dicts) -> dict[int | str, list[Key]] | None:
        """All keys of each dictionary, of which a call gives `dicts`; None if its dictionaries contradict each other:
        one lacks a key that another one has, or a relation's type of nodes."""
        for at, d in dicts.items():
            known = self.empty.setdefault(at, {})
            for key, value in d.items():
                old = known.get(key)
                if old is None or not _looks_like(old, value):
                    known[key] = _without_rows(value)
        self._complete_relations(dicts)
        keys = {at: list(self.empty[at]) for at in dicts}
        lacking = {k for at, d in dicts.items() for k in keys[at] if k not in d}
        if any(k in d for d in dicts.values() for k in lacking):
            return None
        relations = [k for d in dicts.values() for k in d if isinstance(k, tuple)]
        if any(src in lacking or dst in lacking for src, _, dst in relations):
            return None
        return keys

    def _complete_relations(self, dicts: Dicts) -> None:
        """Add the relations that layers were made for, where nothing but their edges need be known: the features of
        their types are, and there are no features of edges."""
        relational = {at for at, d in dicts.items() if _of_relations(d)}
        if not self.declared or not all(_is_edges(next(iter(dicts[at].values()))) for at in relational):
            return
        features = [self.empty[at].keys() for at in dicts if at not in relational]
        usable = [key for key in self.declared if all(key[0] in known and key[2] in known for known in features)]
        for at in relational:
            like = next(iter(self.empty[at].values()))
            self.empty[at].update({key: _without_rows(like) for key in usable if key not in self.empty[at]})

    def missing(self, at: int | str, key: Key, d: Mapping[Key, Tensor]) -> Tensor:
        """A tensor without rows for a key that a dictionary lacks. Edges have the dtype and device of those of `d`."""
        empty, like = self.empty[at][key], next(iter(d.values()))
        if _is_edges(empty) and (empty.dtype, empty.device) != (like.dtype, like.device):
            empty = self.empty[at][key] = _without_rows(like)
        return empty


def _with_flags(target: Function) -> Function:
    """The function that is traced: `target` on dictionaries with all keys, of which `flags` says whether they are
    given."""

    def of_all_keys(flags: dict[Key, Tensor], *args: object, **kwargs: object) -> object:
        if not torch.compiler.is_compiling():
            raise NotGiven("the function runs as Python")
        numbers = {key: number for number, key in enumerate(flags, ALWAYS + 1)}

        def told(arg: object) -> object:
            if type(arg) is not dict or not arg or not all(key in numbers for key in arg):
                return arg
            return {k: given(v, flags[k], numbers[k], int(_is_edges(v))) for k, v in arg.items()}

        return _numbered(target(*map(told, args), **{name: told(arg) for name, arg in kwargs.items()}), [], False)

    of_all_keys.__name__ = getattr(target, "__name__", type(target).__name__)
    return of_all_keys


def _numbered(out: object, numbers: list[None], in_dict: bool) -> object:
    """The results of a function, each tensor with its number."""
    if isinstance(out, Tensor):
        numbers.append(None)
        return result(out, len(numbers) - 1, in_dict)
    if type(out) is list:
        return [_numbered(item, numbers, False) for item in out]
    if type(out) is tuple:
        return tuple([_numbered(item, numbers, False) for item in out])
    if type(out) is dict:
        return {key: _numbered(item, numbers, True) for key, item in out.items()}
    if out is None:
        return None
    raise NotGiven("a result is neither a tensor nor a list, tuple or dict of tensors")


def _existing(out: object, exists: Iterator[bool | None]) -> object:
    """The results, without those items of dictionaries that eager mode would not have made, and with None for those
    that are None there."""
    if isinstance(out, Tensor):
        next(exists)
        return out
    if type(out) is list:
        return [_existing(item, exists) for item in out]
    if type(out) is tuple:
        return tuple([_existing(item, exists) for item in out])
    if type(out) is dict:
        kept = {}
        for key, item in out.items():
            if not isinstance(item, Tensor):
                kept[key] = _existing(item, exists)
            elif (found := next(exists)) is not False:
                kept[key] = None if found is None else item
        return kept
    return out


def refusal(error: BaseException) -> str | None:
    """Why a function cannot be compiled for all keys, if `error` says so: it could not be traced, or its results need
    what is not given."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, NotGiven | KeysAsked):
            return str(seen)
        seen = getattr(seen, "inner_exception", None) or seen.__cause__
    return reason_of(error)[0] if isinstance(error, torch._dynamo.exc.TorchDynamoException) else None


def _typed(arguments: Iterable[tuple[int | str, object]]) -> Dicts:
    """The arguments that are dictionaries of tensors by types of nodes or by relations."""
    return {
        at: arg
        for at, arg in arguments
        if type(arg) is dict
        and arg
        and all(map(_is_plain, arg.values()))
        and (all(isinstance(k, str) for k in arg) or _of_relations(arg))
    }


def _is_plain(value: object) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided and value.dim() > 0


def _of_relations(arg: Mapping[Key, object]) -> bool:
    return all(isinstance(k, tuple) and len(k) == 3 and all(isinstance(part, str) for part in k) for k in arg)


def _is_edges(value: Tensor) -> bool:
    """Whether a tensor is an index [2, edges] and not a feature for each row."""
    # in a trace, a question about a number of rows is a guard
    return value.dtype in (torch.int64, torch.int32) and value.dim() == 2 and value.size(0) == 2


def _without_rows(value: Tensor) -> Tensor:
    if _is_edges(value):
        return with_strides_of_edges(value.new_empty((2, 0)))
    return value.detach().new_empty((0, *value.shape[1:])).requires_grad_(value.requires_grad)


def _looks_like(empty: Tensor, value: Tensor) -> bool:
    same = empty.dtype == value.dtype and empty.device == value.device and empty.requires_grad == value.requires_grad
    return same and empty.shape[1:] == value.shape[1:] if not _is_edges(value) else same


def _modules_of(target: object, depth: int) -> Iterator[nn.Module]:
    """The modules that a function reaches: its own, and those in closures and globals of the user's functions."""
    if isinstance(target, nn.Module):
        yield target
    elif isinstance(target, types.MethodType):
        yield from _modules_of(target.__self__, depth)
    elif isinstance(target, functools.partial):
        for part in (target.func, *target.args, *target.keywords.values()):
            yield from _modules_of(part, depth)
    elif isinstance(target, types.FunctionType) and depth and not is_library(target.__code__.co_filename):
        held = [cell.cell_contents for cell in target.__closure__ or () if _is_set(cell)]
        for value in (*held, *(target.__globals__.get(name) for name in target.__code__.co_names)):
            yield from _modules_of(value, depth - 1)


def _is_set(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
