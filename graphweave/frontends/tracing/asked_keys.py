"""Questions of the user's code about which keys a dictionary has, in a trace with all keys of dictionaries that calls
give in part: the answer would be compiled in, and it is another one in other calls. Such a trace ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo.symbolic_convert import InstructionTranslatorBase as Translator
from torch._dynamo.variables import ConstDictVariable, TensorVariable, VariableTracker

from graphweave.core.lines import is_library
from graphweave.frontends.tracing.call_under_way import under_way

_METHODS = frozenset({"__contains__", "__len__", "get", "pop", "popitem", "setdefault"})
_OF_KEYS = frozenset({"__iter__", "__reversed__", "keys"})
"""Methods that give the keys without the items."""
_CHANGES = {"update": "existing_or", "__setitem__": "existing_as"}
"""Methods that change items, and graphweave's operators that say what becomes of an item that was there before."""
_QUESTIONS = ("sq_contains", "mp_length")
"""Methods of Dynamo's dictionaries behind `in` and `len`; in some versions of PyTorch these are calls of methods."""
_WALKS = ("tp_iter_impl", "unpack_var_sequence")
"""Methods of Dynamo's dictionaries that give the keys, as `for key in x` does."""


_OF_MODELS = "<eval_with_key>"
"""The file of code that torch.fx writes, such as that of PyG's `to_hetero`, which takes each key by `get`."""

_SETS = "mp_ass_subscript_impl"
"""The method behind `x[key] = value`; in some versions of PyTorch this is a call of `__setitem__`."""

_GETS = "mp_subscript_impl"
"""The method behind `x[key]`; in some versions of PyTorch this is a call of `__getitem__`."""


class KeysAsked(Exception):
    """The user's code asks which keys a dictionary has, which differ from call to call."""


@contextmanager
def _telling_of_changes(op: str | None, items: ConstDictVariable, tx: Translator) -> Iterator[None]:
    """After the block, call the operator of this name with each item that was another one before, and that one, if the
    user's code has changed it."""
    before = {} if op is None or is_library(tx.f_code.co_filename) else dict(items.items)
    yield
    for key, old in before.items():
        if (new := items.items.get(key, old)) is not old and are_tensors(old, new):
            items.items[key] = marked(tx, str(op), new, old)


def _existing(items: ConstDictVariable, tx: Translator, found: VariableTracker) -> VariableTracker:
    """`found`, an item that was looked up by its key. If the user's code did that, it must exist, and the dictionary
    has it as such from here on."""
    if is_library(tx.f_code.co_filename) or not are_tensors(found):
        return found
    told = marked(tx, "existing", found)
    items.items.update({key: told for key, value in items.items.items() if value is found})
    return told


def _of_varying_keys(items: ConstDictVariable, tx: Translator) -> bool:
    """Whether the user's code has this dictionary, which has a key that some calls do not give."""
    call = under_way.get()
    path = tx.f_code.co_filename
    if call is None or (is_library(path) and not path.startswith(_OF_MODELS)):
        return False
    varying = call.arguments[0][0]
    return any(key.vt.is_python_constant() and key.vt.as_python_constant() in varying for key in items.items)


def _all_existing(items: ConstDictVariable, tx: Translator) -> None:
    """All items of a dictionary must exist from here on, since the user's code takes its keys without the items."""
    if _of_varying_keys(items, tx):
        told = {key: marked(tx, "existing", value) for key, value in items.items.items() if are_tensors(value)}
        items.items.update(told)


def marked(tx: Translator, op: str, *values: VariableTracker) -> VariableTracker:
    """The first of some values, with what an operator of graphweave's says of it."""
    return VariableTracker.build(tx, getattr(torch.ops.graphweave, op).default).call_function(tx, [*values], {})


def are_tensors(*values: VariableTracker) -> bool:
    return all(isinstance(value.realize(), TensorVariable) for value in values)


@contextmanager
def keys_not_asked() -> Iterator[None]:
    """Within the block, a trace ends with KeysAsked where the user's code asks which keys a dictionary has of
    those that calls give in part. Layers of PyG ask, too, but compute nothing in place of what is missing.

    Where a dictionary is put over another one (`{**x, **out}`, `x | out`, `x.update(out)`), items of the latter stay in
    calls in which the former has none: `existing_or` says so in the graph. An item that is set by itself must exist. So
    must all items of a dictionary whose keys are taken without them, as in `for key in out`."""
    kept: dict[str, Callable[..., Any]] = {}

    def asks(self: ConstDictVariable, tx: Translator) -> None:
        if _of_varying_keys(self, tx):
            raise KeysAsked("the function asks which keys a dictionary has, which differ from call to call")

    def method(self: ConstDictVariable, tx: Translator, name: str, *args: object, **kwargs: object) -> object:
        if name in _METHODS:
            asks(self, tx)
        if name in _OF_KEYS:
            _all_existing(self, tx)
        with _telling_of_changes(_CHANGES.get(name), self, tx):
            found = kept["call_method"](self, tx, name, *args, **kwargs)
        return _existing(self, tx, found) if name == "__getitem__" else found

    def sets_item(self: ConstDictVariable, tx: Translator, *args: object) -> object:
        with _telling_of_changes("existing_as", self, tx):
            return kept[_SETS](self, tx, *args)

    def gets_item(self: ConstDictVariable, tx: Translator, *args: object) -> object:
        return _existing(self, tx, kept[_GETS](self, tx, *args))

    def after(does: Callable[[ConstDictVariable, Translator], None], name: str) -> Callable[..., object]:
        def told(self: ConstDictVariable, tx: Translator, *args: object) -> object:
            does(self, tx)
            return kept[name](self, tx, *args)

        return told

    changes = {
        "call_method": method,
        _SETS: sets_item,
        _GETS: gets_item,
        **{name: after(asks, name) for name in _QUESTIONS},
        **{name: after(_all_existing, name) for name in _WALKS},
    }
    names = [name for name in changes if name in vars(ConstDictVariable)]
    kept |= {name: vars(ConstDictVariable)[name] for name in names}
    try:
        for name, changed in ((name, changes[name]) for name in names):
            setattr(ConstDictVariable, name, changed)
        yield
    finally:
        for name, original in kept.items():
            setattr(ConstDictVariable, name, original)
