"""Closes gaps of Dynamo for the time of a compilation for this backend: Python that it could trace, but does not.

What is changed are classes of PyTorch's tracer, so it holds for `graphweave.compile` and for plain `torch.compile`, and
compiled code has no guards on it. A version of PyTorch without such a class, or whose class does the same itself, is
left as it is.
"""

from __future__ import annotations

import dis
import functools
import math
import operator
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any

import sympy
import torch
from torch import Tensor
from torch._dynamo import guards, variables
from torch._dynamo.bytecode_transformation import Instruction
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.source import AttrSource
from torch._dynamo.symbolic_convert import InstructionTranslator, InstructionTranslatorBase
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builder import VariableBuilder
from torch._dynamo.variables.tensor import SymNodeVariable
from torch._guards import Guard
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from graphweave.frontends.tracing.batching_rules import batches_of_any_size, in_vmap
from graphweave.frontends.tracing.branches import way_at
from graphweave.frontends.tracing.call_under_way import under_way
from graphweave.frontends.tracing.einsum_order import LIBRARY, orders_by_first_sizes
from graphweave.frontends.tracing.inner_gradients import (
    Args,
    Kwargs,
    Replaced,
    asks_for_gradients,
    gives_results_of_leaves,
    keeps_graphs,
    leaves_backward_to_python,
    makes_leaves,
    takes_gradients_by_arguments,
    wraps_leaves,
)
from graphweave.frontends.tracing.rows_of_data import FORMULAS, bincount, one_hot, repeat_rows
from graphweave.frontends.tracing.scripted_code import NotPython, python_function
from graphweave.frontends.tracing.traced_warnings import warns_while_tracing

_ACCESSORS = ("fget", "fset", "fdel")


@contextmanager
def gaps_closed() -> Iterator[None]:
    """Within the block, PyTorch's tracer also traces what this file adds."""
    with ExitStack() as held:
        held.enter_context(batches_of_any_size())
        for owner, name, added in _GAPS:
            original = vars(owner).get(name) or getattr(owner, name, None) if owner is not None else None
            if original is not None:
                own = name in vars(owner)
                setattr(owner, name, added(original))
                held.callback(setattr, owner, name, original) if own else held.callback(delattr, owner, name)
        for table in _tables(InstructionTranslatorBase):
            for opcode in _JUMPS:
                held.callback(table.__setitem__, opcode, table[opcode])
                table[opcode] = _decides_branches(table[opcode])
        yield


_JUMPS = tuple(code for name, code in dis.opmap.items() if name.startswith("POP_JUMP") and "_IF_" in name)
"""Opcodes of Python's conditional jumps."""


def _tables(translator: type[InstructionTranslatorBase]) -> Iterator[list[Replaced]]:
    """The tables by which Dynamo finds the method for an opcode, one for each kind of frame."""
    if isinstance(table := vars(translator).get("dispatch_table"), list):
        yield table
    for kind in translator.__subclasses__():
        yield from _tables(kind)


def _decides_branches(original: Replaced) -> Replaced:
    """A jump whose way does not depend on the data after all (`branches.py`)."""

    def jump(self: InstructionTranslatorBase, instruction: Instruction) -> None:
        way = way_at(self, instruction)
        if way is None:
            original(self, instruction)
            return
        self.pop()
        if way:
            self.jump(instruction)

    return jump


def _calls_accessors(original: Replaced) -> Replaced:
    """`descriptor.fset(obj, value)`, by which PyG's `Data` writes a field: the function behind it is traced."""

    def call_method(
        self: variables.functions.PropertyVariable, tx: InstructionTranslatorBase, name: str, args: Args, kwargs: Kwargs
    ) -> VariableTracker:
        function = getattr(self.descriptor, name, None) if name in _ACCESSORS else None
        if function is None:
            return original(self, tx, name, args, kwargs)
        source = AttrSource(self.source, name) if self.source else None
        return VariableTracker.build(tx, function, source=source, realize=True).call_function(tx, args, kwargs)

    return call_method


def _knows_accessors(original: Replaced) -> Replaced:
    """`hasattr(descriptor, "fset")` and `getattr(descriptor, "fset", None)`."""

    def call_obj_hasattr(
        self: variables.functions.PropertyVariable, tx: InstructionTranslatorBase, name: str
    ) -> object:
        if type(self.descriptor) is property and name in _ACCESSORS:
            return variables.ConstantVariable.create(True)
        return original(self, tx, name)

    return call_obj_hasattr


def _reads_inherited(original: Replaced) -> Replaced:
    """`super().num_nodes`, where that is a property, which Dynamo takes for the property itself."""

    def var_getattr(self: variables.SuperVariable, tx: InstructionTranslatorBase, name: str) -> object:
        value, source = self._resolved_getattr_and_source(tx, name)
        if type(value) is not property or not isinstance(self.objvar, variables.UserDefinedObjectVariable):
            return original(self, tx, name)
        getter = VariableTracker.build(tx, value.fget, source=source and AttrSource(source, "fget"))
        return getter.call_function(tx, [self.objvar], {})

    return var_getattr


def _reads_sizes(original: Replaced) -> Replaced:
    """`torch.Size` with a tensor of one integer in it (`x.size() + (index.max() + 1,)`), which Python reads as a
    number."""

    def init(self: object, items: list[VariableTracker], *args: object, **kwargs: object) -> None:
        original(self, [_number(item) for item in items], *args, **kwargs)

    return init


def _number(item: VariableTracker) -> VariableTracker:
    example = item.as_proxy().node.meta.get("example_value") if isinstance(item, variables.TensorVariable) else None
    if not isinstance(example, torch.Tensor) or example.dim() or example.is_floating_point() or example.is_complex():
        return item
    return item.call_method(InstructionTranslator.current_tx(), "item", [], {})


def _asks_no_rows(original: Replaced) -> Replaced:
    """A function of PyTorch that asks for the number of rows, where data decides it or a `vmap` would compile it in:
    its formula is traced. So is attention that gives weights, since they are seldom read."""

    def call_function(
        self: variables.TorchInGraphFunctionVariable, tx: InstructionTranslatorBase, args: Args, kwargs: Kwargs
    ) -> VariableTracker:
        formula = FORMULAS.get(self.value) if args else None
        asked = in_vmap() or any(_unknown_size(arg.realize()) for arg in args)
        if formula is None or not (asked or _gives_weights(self.value, kwargs)):
            return original(self, tx, args, kwargs)
        return _traced(formula).call_function(tx, list(args), kwargs)

    return call_function


def _gives_weights(function: object, kwargs: Kwargs) -> bool:
    if function is not torch.nn.functional.multi_head_attention_forward:
        return False
    asked = kwargs.get("need_weights", variables.ConstantVariable.create(True)).realize()
    return asked.is_python_constant() and bool(asked.as_python_constant())


def _counts_classes(original: Replaced) -> Replaced:
    """`F.one_hot` with a number of classes that data decides, which PyTorch traces only for a constant."""

    def call_function(
        self: variables.TorchInGraphFunctionVariable, tx: InstructionTranslatorBase, args: Args, kwargs: Kwargs
    ) -> VariableTracker:
        if self.value is not torch.nn.functional.one_hot:
            return original(self, tx, args, kwargs)
        named = dict(zip(("tensor", "num_classes"), args, strict=False), **kwargs)
        classes = named.pop("num_classes", variables.ConstantVariable.create(-1)).realize()
        if not isinstance(classes, variables.ConstantVariable):
            named["num_classes"] = classes
        elif classes.value != -1:
            return original(self, tx, args, kwargs)
        return _traced(one_hot).call_function(tx, [], named)

    return call_function


def _function_as(
    function: Callable[..., Tensor],
    formula: Callable[..., Tensor],
    meant: Callable[[Args, Kwargs], bool] = lambda *_: True,
) -> Callable[[Replaced], Replaced]:
    """A call of `function` that is `meant`: its formula is traced, in which the function means PyTorch's own."""
    assert isinstance(formula, FunctionType)
    own = formula.__code__

    def gap(original: Replaced) -> Replaced:
        def call_function(
            self: variables.TorchInGraphFunctionVariable, tx: InstructionTranslatorBase, args: Args, kwargs: Kwargs
        ) -> VariableTracker:
            if self.value is not function or tx.f_code is own or not meant(args, kwargs):
                return original(self, tx, args, kwargs)
            return _traced(formula).call_function(tx, list(args), kwargs)

        return call_function

    return gap


def _method_as(
    method: str, formula: Callable[..., Tensor], meant: Callable[[Args, Kwargs], bool] = lambda *_: True
) -> Callable[[Replaced], Replaced]:
    """A call of a tensor's `method` that is `meant`, of the tensor and the arguments: its formula is traced."""

    def gap(original: Replaced) -> Replaced:
        def call_method(
            self: variables.TensorVariable, tx: InstructionTranslatorBase, name: str, args: Args, kwargs: Kwargs
        ) -> VariableTracker:
            if name != method or not meant([self, *args], kwargs):
                return original(self, tx, name, args, kwargs)
            return _traced(formula).call_function(tx, [self, *args], kwargs)

        return call_method

    return gap


def _repeats_equally(args: Args, kwargs: Kwargs) -> bool:
    """Whether `torch.repeat_interleave` repeats all rows equally often, and is told how many rows that makes."""
    repeats = args[1] if len(args) > 1 else kwargs.get("repeats")
    size = kwargs.get("output_size")
    if repeats is None or size is None or (size.is_python_constant() and size.as_python_constant() is None):
        return False
    return not isinstance(repeats.realize(), variables.TensorVariable)


def _counts_by_tensors(original: Replaced) -> Replaced:
    """`range` with a tensor of one integer, which Python reads as a number."""

    def call_function(
        self: variables.BuiltinVariable, tx: InstructionTranslatorBase, args: Args, kwargs: Kwargs
    ) -> VariableTracker:
        if self.fn is range:
            args = [_number(arg.realize()) for arg in args]
        return original(self, tx, args, kwargs)

    return call_function


def _reads_changing_numbers(original: object) -> staticmethod[..., object]:
    """`random.random() * 2`: the numbers from which Dynamo computes an example of the result. It asks for constants
    alone, and a number of Python that changes from call to call is none."""

    def unwrap_unspec_args_kwargs(args: Args, kwargs: Kwargs) -> tuple[list[object], dict[str, object]]:
        return [_example(x) for x in args], {name: _example(x) for name, x in kwargs.items()}

    return staticmethod(unwrap_unspec_args_kwargs)


def _example(x: VariableTracker) -> object:
    return x.raw_value if isinstance(x, variables.UnspecializedPythonVariable) else x.as_python_constant()


def _calls_operators(original: Replaced) -> Replaced:
    """An operator between a tensor and an object of a user's class: `matrix @ x`, `degree * matrix`. Python calls the
    method of the class, behind the tensor's own, which does not take the object. So does `matrix @ matrix`, which
    Dynamo leaves out."""

    def call_function(
        self: variables.BuiltinVariable, tx: InstructionTranslatorBase, args: Args, kwargs: Kwargs
    ) -> VariableTracker:
        names = _METHODS.get(self.fn) if len(args) == 2 and not kwargs else None
        if names is not None:
            one, other = (arg.realize() for arg in args)
            alike = self.fn is operator.matmul and type(one) is type(other) and one.python_type() is other.python_type()
            if _has_method(one, names[0]) and (alike or isinstance(other, variables.TensorVariable)):
                return one.call_method(tx, names[0], [other], {})
            if _has_method(other, names[1]) and isinstance(one, variables.TensorVariable):
                return other.call_method(tx, names[1], [one], {})
        return original(self, tx, args, kwargs)

    return call_function


_METHODS = {
    getattr(operator, name): (f"__{name}__", f"__r{name}__")
    for name in ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow")
}
"""Operator -> its method, and that of the second operand."""


def _has_method(x: object, name: str) -> bool:
    if not isinstance(x, variables.UserDefinedObjectVariable):
        return False
    kind = x.python_type()
    return hasattr(kind, name) and not hasattr(kind, "__torch_function__")


def _calls_new_objects(original: Replaced) -> Replaced:
    """A call of an object that the trace has made and whose hash reads its fields, such as a frozen dataclass. PyTorch
    2.11 asks whether it is a function of `random` by the hash of an example, which has no fields yet."""

    def is_supported_random(self: variables.UserDefinedObjectVariable) -> bool:
        try:
            return bool(original(self))
        except AttributeError:
            return False

    return is_supported_random


def _calls_scripted(original: Replaced) -> Replaced:
    """A scripted module: its code is traced as Python (`scripted_code.py`)."""

    def wrap(self: VariableBuilder, value: object) -> object:
        if isinstance(value, torch.jit.ScriptModule):
            self.install_guards(GuardBuilder.ID_MATCH)
            return _Scripted(value, source=self.source)
        return original(self, value)

    return wrap


def _reads_scripted(original: Replaced) -> Replaced:
    """Guards on attributes of scripted modules, whose dictionaries of parameters and buffers are no dictionaries."""
    return lambda value: not isinstance(value, torch.jit.ScriptModule) and original(value)


def _guards_tuples(original: Replaced) -> Replaced:
    """A tuple whose class refuses to tell its length, such as the irreducible representations of e3nn: the guard is on
    the object, which nothing can change."""

    @functools.wraps(original)
    def sequence_length(self: GuardBuilder, guard: Guard) -> None:
        value = self.get(guard)
        refuses = isinstance(value, tuple) and type(value).__len__ is not tuple.__len__
        (self.ID_MATCH if refuses else functools.partial(original, self))(guard)

    return sequence_length


class _Scripted(VariableTracker):
    """A scripted module, as Dynamo sees it."""

    def __init__(self, value: torch.jit.ScriptModule, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.value = value

    def python_type(self) -> type:
        return type(self.value)

    def var_getattr(self, tx: InstructionTranslatorBase, name: str) -> VariableTracker:
        if self.source is None or not hasattr(self.value, name):
            return super().var_getattr(tx, name)
        source, value = AttrSource(self.source, name), getattr(self.value, name)
        if callable(value) and not isinstance(value, torch.nn.Module):
            return variables.GetAttrVariable(self, name, source=source)
        return VariableTracker.build(tx, value, source)

    def call_function(self, tx: InstructionTranslatorBase, args: Args, kwargs: Kwargs) -> VariableTracker:
        return self.call_method(tx, "forward", args, kwargs)

    def call_method(self, tx: InstructionTranslatorBase, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        try:
            if self.value._forward_hooks or self.value._forward_pre_hooks:
                raise NotPython("it has hooks")
            function = python_function(self.value, name)
        except NotPython as why:
            text = f"a scripted module runs in TorchScript, since {why}. Call the module that was scripted"
            return variables.misc.DelayGraphBreakVariable(source=self.source, msg=text).call_function(tx, args, kwargs)
        return _traced(function).call_function(tx, [self, *args], kwargs)


def _compiles_floats_in(original: Replaced) -> Replaced:
    """A Python float (a slope, a rate) that has had one value in all traces of a function: it is compiled in.

    Most floats cannot stay symbols, and PyTorch finds that out late and then traces everything again.
    """

    def wrap(self: VariableBuilder, value: float) -> object:
        call = under_way.get()
        place = self.tx.f_code, self.name
        if call is None or call.floats.setdefault(place, value) != value:
            if call is not None:
                call.floats[place] = math.nan  # it stays a symbol
            return original(self, value)
        self.install_guards(GuardBuilder.CONSTANT_MATCH)
        return variables.ConstantVariable.create(value=value, source=self.source)

    return wrap


def _infers_sizes(original: Replaced) -> Replaced:
    """`x.reshape(B, N, -1)` where data decides B and N, and the size left out is a number: it is put in."""

    def call_method(
        self: variables.TensorVariable, tx: InstructionTranslatorBase, name: str, args: Args, kwargs: Kwargs
    ) -> VariableTracker:
        if name in ("reshape", "view") and not kwargs and _unknown_size(self):
            args = _with_inferred(self, list(args))
        return original(self, tx, name, args, kwargs)

    return call_method


def _with_inferred(x: variables.TensorVariable, sizes: list[VariableTracker]) -> list[VariableTracker]:
    """`sizes`, the one that is -1 replaced by a number if the others leave one."""
    known = [size.as_proxy() for size in sizes] if all(map(_is_size, sizes)) else []
    given = [n if isinstance(n, int) else n.node.meta["example_value"].node.expr for n in known]
    if given.count(-1) != 1:
        return sizes
    at = given.index(-1)
    del given[at]
    shape = x.as_proxy().node.meta["example_value"].shape
    total = math.prod(n.node.expr if isinstance(n, torch.SymInt) else n for n in shape)
    left = sympy.cancel(total / math.prod(given)) if 0 not in given else total
    if not getattr(left, "is_Integer", False):
        return sizes
    sizes[at] = variables.ConstantVariable.create(int(left))
    return sizes


def _is_size(size: VariableTracker) -> bool:
    size = size.realize()
    if isinstance(size, SymNodeVariable):
        return isinstance(size.as_proxy().node.meta.get("example_value"), torch.SymInt)
    return isinstance(size, variables.ConstantVariable) and type(size.value) is int


def _traced(formula: Any) -> variables.UserFunctionVariable:
    """A Python function, as Dynamo sees it, whose trace it then follows."""
    return variables.UserFunctionVariable(formula)


def _unknown_size(x: object) -> bool:
    example = x.as_proxy().node.meta.get("example_value") if isinstance(x, variables.TensorVariable) else None
    return isinstance(example, torch.Tensor) and bool(free_unbacked_symbols(example.shape))


_GAPS: tuple[tuple[Any, str, Callable[[Replaced], Replaced]], ...] = (
    (getattr(variables.functions, "PropertyVariable", None), "call_method", _calls_accessors),
    (getattr(variables.functions, "PropertyVariable", None), "call_obj_hasattr", _knows_accessors),
    (getattr(variables, "SuperVariable", None), "var_getattr", _reads_inherited),
    (getattr(variables.lists, "SizeVariable", None), "__init__", _reads_sizes),
    (getattr(variables, "TorchInGraphFunctionVariable", None), "call_function", _asks_no_rows),
    (getattr(variables, "TorchInGraphFunctionVariable", None), "call_function", _counts_classes),
    (getattr(variables, "TorchInGraphFunctionVariable", None), "call_function", _function_as(torch.bincount, bincount)),
    (
        getattr(variables, "TorchInGraphFunctionVariable", None),
        "call_function",
        _function_as(torch.repeat_interleave, repeat_rows, _repeats_equally),
    ),
    (variables.TensorVariable, "call_method", _method_as("bincount", bincount)),
    (variables.TensorVariable, "call_method", _method_as("repeat_interleave", repeat_rows, _repeats_equally)),
    (variables.TensorVariable, "call_method", _infers_sizes),
    (getattr(variables, "TorchInGraphFunctionVariable", None), "call_function", keeps_graphs),
    (getattr(variables, "TorchInGraphFunctionVariable", None), "call_function", makes_leaves),
    (getattr(variables, "TorchInGraphFunctionVariable", None), "call_function", takes_gradients_by_arguments),
    (VariableBuilder, "wrap_tensor", wraps_leaves),
    (variables.TensorVariable, "method_backward", leaves_backward_to_python),
    (variables.TensorVariable, "method_requires_grad_", asks_for_gradients),
    (OutputGraph, "_check_requires_grad_intermediate_outputs", gives_results_of_leaves),
    (getattr(variables, "BuiltinVariable", None), "call_function", _calls_operators),
    (getattr(variables, "BuiltinVariable", None), "call_function", _counts_by_tensors),
    (getattr(variables, "BuiltinVariable", None), "unwrap_unspec_args_kwargs", _reads_changing_numbers),
    (variables.UserDefinedObjectVariable, "is_supported_random", _calls_new_objects),
    (VariableBuilder if hasattr(variables.misc, "DelayGraphBreakVariable") else None, "_wrap", _calls_scripted),
    (GuardBuilder, "SEQUENCE_LENGTH", _guards_tuples),
    (guards, "should_optimize_getattr_on_nn_module", _reads_scripted),
    (VariableBuilder, "wrap_symfloat", _compiles_floats_in),
    (LIBRARY, "contract_path", orders_by_first_sizes),
    (getattr(variables, "SkipFunctionVariable", None), "call_function", warns_while_tracing),
)
"""Owner, attribute, and the function that makes its replacement from the original."""
