"""Questions of the user's code whether a layer's result is None, in a trace with all keys of dictionaries that calls
give in part. The result is a tensor in the trace, marked by `none_without`, and None in other calls.

A dictionary of those results that are not None, `{k: f(v) for k, v in out.items() if v is not None}`, has no item in
calls in which `v` is None: `not_none` and `existing_with` say so in the graph. Any other question ends the trace.

A dictionary that a loop over another one's items makes, `{k: f(v) for k, v in out.items()}`, has an item in calls in
which `v` exists, which `existing_with` says, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo import symbolic_convert
from torch._dynamo.symbolic_convert import InstructionTranslatorBase as Translator
from torch._dynamo.variables import BuiltinVariable, ConstDictVariable, TensorVariable, VariableTracker

from graphweave.core.lines import is_library
from graphweave.frontends.tracing.asked_keys import KeysAsked, are_tensors, marked

_ANSWERS = {"is": False, "is not": True}
"""Comparisons with None, and their answers for a tensor. Dynamo makes them of jumps that ask for None."""

_EFFECTS = ("STORE", "DELETE", "RETURN", "YIELD", "RAISE", "RERAISE")
"""Beginnings of the names of instructions that do more than compute a value."""


@contextmanager
def none_not_asked() -> Iterator[None]:
    """Within the block, a trace ends with KeysAsked where the user's code asks whether a result is None that is None in
    some calls only, unless it leaves such results out of a dictionary."""
    translator: Any = Translator
    dictionary: Any = ConstDictVariable
    handlers = symbolic_convert.compare_op_handlers
    compare, call, method = dict(handlers), translator.call_function, dictionary.call_method
    chosen: dict[Translator, VariableTracker] = {}  # frame whose next item is left out with a value -> that value

    def compared(how: str) -> Callable[..., object]:
        def answer(tx: Translator, args: Sequence[VariableTracker], kwargs: object) -> object:
            value = _asked_by_user(tx, args)
            if value is not None and any(x.is_python_constant() and x.as_python_constant() is None for x in args):
                if not _chooses_items(tx, _ANSWERS[how]):
                    raise KeysAsked("the function asks whether a result is None, which differs from call to call")
                chosen[tx] = not_none = marked(tx, "not_none", value)
                tx.symbolic_locals.update({name: not_none for name, x in tx.symbolic_locals.items() if x is value})
            return compare[how](tx, args, kwargs)

        return answer

    def call_method(
        self: ConstDictVariable, tx: Translator, name: str, args: Sequence[VariableTracker], kwargs: object
    ) -> object:
        if name == "__setitem__" and tx.current_instruction.opname == "MAP_ADD":
            key, item = args
            value = chosen.pop(tx, None)
            if value is not None and not are_tensors(item):
                raise KeysAsked("what the function makes of results that are not None is not a dictionary of tensors")
            value = _value_of_loop(tx) if value is None else value
            if value is not None and are_tensors(item):
                args = (key, marked(tx, "existing_with", item, value))
        return method(self, tx, name, args, kwargs)

    def call_function(self: Translator, fn: object, args: Sequence[VariableTracker], kwargs: object) -> None:
        if isinstance(fn, BuiltinVariable) and _asked_by_user(self, args) is not None:
            raise KeysAsked("the function asks what a result is, which is None in other calls")
        call(self, fn, args, kwargs)

    try:
        handlers.update({how: compared(how) for how in _ANSWERS})
        translator.call_function, dictionary.call_method = call_function, call_method
        yield
    finally:
        handlers.update(compare)
        translator.call_function, dictionary.call_method = call, method


def _value_of_loop(tx: Translator) -> VariableTracker | None:
    """The value `v` at which a loop of the user's is that makes a dictionary, `{k: f(v) for k, v in ...}`."""
    code, after = tx.instructions, tx.instruction_pointer
    if after is None or is_library(tx.f_code.co_filename):
        return None
    loop = _after_jumps(tx, after)
    if code[loop].opname != "FOR_ITER" or (code[loop + 1].opname, code[loop + 1].argval) != ("UNPACK_SEQUENCE", 2):
        return None
    stores = itertools.takewhile(lambda inst: inst.opname.startswith("STORE_FAST"), code[loop + 2 : loop + 4])
    names = [name for inst in stores for name in (inst.argval if isinstance(inst.argval, tuple) else (inst.argval,))]
    value = tx.symbolic_locals.get(names[1]) if len(names) > 1 else None
    return None if value is None or not are_tensors(value) or _asked_by_user(tx, [value]) is not None else value


def _asked_by_user(tx: Translator, values: Sequence[VariableTracker]) -> VariableTracker | None:
    """The first of some values that is None in some calls only, if it is the user's code that has it."""
    if is_library(tx.f_code.co_filename):
        return None
    is_marked = torch.ops.graphweave.none_without.default
    return next((x for x in values if isinstance(x, TensorVariable) and x.as_proxy().node.target is is_marked), None)


def _chooses_items(tx: Translator, answer: bool) -> bool:
    """Whether the question that is being asked chooses the items of a dictionary: a loop goes on at once unless this is
    the answer, and adds an item, and does nothing else, if it is."""
    code, after = tx.instructions, tx.instruction_pointer
    assert after is not None
    jump = code[after]
    if jump.target is None or not jump.opname.startswith("POP_JUMP"):
        return False
    ways = [after + 1, tx.indexof[jump.target]]
    item, no_item = ways if ("IF_FALSE" in jump.opname) is answer else reversed(ways)
    while code[item].opname != "MAP_ADD":
        if code[item].target is not None or code[item].opname.startswith(_EFFECTS):
            return False
        item += 1
    goes_on = _after_jumps(tx, no_item)
    return code[goes_on].opname == "FOR_ITER" and _after_jumps(tx, item + 1) == goes_on


def _after_jumps(tx: Translator, at: int) -> int:
    """The number of the first instruction from number `at` on that is no jump, along jumps without a condition."""
    while (inst := tx.instructions[at]).opname == "NOP" or (
        inst.opname.startswith("JUMP_") and "IF" not in inst.opname
    ):
        at = at + 1 if inst.target is None else tx.indexof[inst.target]
    return at
