"""The operator that a declaration is about: its overload, its arguments, and examples of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch._ops import OpOverload

from graphweave.core.errors import DeclarationError
from graphweave.frontends.calls.declared import formulas
from graphweave.frontends.calls.decompositions import decompositions
from graphweave.frontends.importing.importer import HANDLERS

ROWS, FEATURES = 6, 4
"""Numbers of rows and of features of the examples that are drawn."""


@dataclass(frozen=True, slots=True)
class Subject:
    """`call` is the overload. `said` is the declaration as the user wrote it, for errors. `own_derivative` tells
    whether the operator has an autograd formula."""

    call: Any
    said: str
    own_derivative: bool

    @property
    def name(self) -> str:
        """The name that the dispatcher uses: "mylib::op", or "mylib::op.overload"."""
        return str(self.call.name())

    @property
    def qualified(self) -> str:
        """The name with its overload: "mylib::op.default"."""
        library, _, rest = str(self.call).partition(".")
        return f"{library}::{rest}"

    @property
    def arguments(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.call._schema.arguments)

    @property
    def tensors(self) -> tuple[str, ...]:
        """The arguments that are tensors."""
        return tuple(a.name for a in self.call._schema.arguments if a.type.kind() == "TensorType")

    def position(self, argument: str) -> int:
        """The position of an argument. DeclarationError if the operator has no such argument."""
        if argument not in self.arguments:
            raise self.wrong(
                f"the operator has no argument {argument!r}; it has {', '.join(self.arguments)}. Name one of these"
            )
        return self.arguments.index(argument)

    def wrong(self, why: str) -> DeclarationError:
        return DeclarationError(f"{self.said}: {why}.")

    def operator(self, *args: object) -> Any:
        """The operator's result for its arguments, in the order of its schema."""
        said = list(zip(self.call._schema.arguments, args, strict=True))
        return self.call(*(x for a, x in said if not a.kwarg_only), **{a.name: x for a, x in said if a.kwarg_only})

    def run(self, args: Sequence[object]) -> tuple[Tensor, ...]:
        """The results of the operator as a tuple. DeclarationError if it does not take these arguments."""
        try:
            return results(self.operator(*args))
        except Exception as error:
            raise self.wrong(
                f"the operator does not run on {described(args)} ({in_a_line(error)}). "
                "Pass example=, a tuple of arguments as one would call it with"
            ) from error


def subject_of(kind: str, operator: str) -> Subject:
    """The operator called `operator`. DeclarationError if there is none, or if nothing can be declared about it."""
    said = f"graphweave.extend.{kind}({operator!r})"
    call = _overload(said, operator)
    schema = call._schema
    subject = Subject(call, said, _has_derivative(call))
    if call in HANDLERS or call in decompositions().keys() - formulas().keys():
        raise subject.wrong("the compiler knows this operator already. Leave it out")
    if schema.is_mutable or any(r.alias_info is not None for r in schema.returns):
        raise subject.wrong(f"it writes to an argument, or gives a view of one: {schema}. Write one that does neither")
    if torch.Tag.nondeterministic_seeded in call.tags:
        raise subject.wrong("it draws random numbers, of which a declaration says nothing. Leave it out")
    if _dispatches(call, "CompositeImplicitAutograd"):
        raise subject.wrong("PyTorch takes it apart into other operators, which the compiler sees. Name those")
    kinds = {r.type.kind() for r in schema.returns}
    if kinds != {"TensorType"}:
        raise subject.wrong(f"its results must be tensors (got {schema}). Return tensors")
    return subject


def _overload(said: str, operator: str) -> OpOverload:
    found = re.fullmatch(r"(\w+)::(\w+)(?:\.(\w+))?", operator)
    if found is None:
        raise DeclarationError(f"{said}: expected a name such as 'mylib::op' (got {operator!r}). Give one.")
    library, name, which = found.groups()
    packet = getattr(getattr(torch.ops, library), name, None)
    if packet is None:
        raise DeclarationError(
            f"{said}: PyTorch has no operator {library}::{name}. Check the name, and that its library is imported."
        )
    overloads = packet.overloads()
    if which is None and len(overloads) == 1:
        which = overloads[0]
    if (which or "default") not in overloads:
        listed = ", ".join(f"{library}::{name}.{o}" for o in overloads)
        raise DeclarationError(f"{said}: there is no such overload. Name one of {listed}.")
    return getattr(packet, which or "default")


def _has_derivative(call: OpOverload) -> bool:
    """Whether autograd knows the operator. Operators of `custom_op` all have an autograd kernel, perhaps without a
    formula."""
    defined = OPDEFS.get(call.name())
    if defined is not None:
        return defined._backward_fn is not None
    return any(_dispatches(call, key) for key in ("Autograd", "AutogradCPU", "AutogradCUDA"))


def _dispatches(call: OpOverload, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(call.name(), key))


# ---------------------------------------------------------------- arguments


def drawn(*size: int, seed: int = 0) -> Tensor:
    """Signed numbers of size about 1, float64."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def example_of(subject: Subject, example: Sequence[object] | None, given: dict[str, Any]) -> list[Any]:
    """Arguments to try: the user's, or those `given` by name with the defaults of the others."""
    schema = subject.call._schema.arguments
    if example is not None:
        defaults = [a.default_value for a in schema[len(example) :] if a.has_default_value()]
        args = [x.detach() if isinstance(x, Tensor) else x for x in (*example, *defaults)]
        if len(args) != len(schema):
            raise subject.wrong(f"example= must have {len(schema)} arguments (got {len(example)}). Give as many")
        return args
    missing = [a.name for a in schema if a.name not in given and not a.has_default_value()]
    if missing:
        raise subject.wrong(f"nothing is known of the argument {missing[0]!r}. Pass example=, a tuple of arguments")
    return [given.get(a.name, a.default_value) for a in schema]


def with_other_floats(subject: Subject, args: Sequence[object]) -> list[Sequence[object]]:
    """`args`, and if there are floats among them, also `args` with other floats, provided that the operator takes
    them."""
    other = [1.5 * a + 0.25 if isinstance(a, float) else a for a in args]
    if not any(isinstance(a, float) for a in args):
        return [args]
    try:
        subject.operator(*other)
    except Exception:  # a float has a range that only the operator knows
        return [args]
    return [args, other]


def results(out: Any) -> tuple[Tensor, ...]:
    return tuple(out) if isinstance(out, list | tuple) else (out,)


def described(args: Sequence[object]) -> str:
    return ", ".join(shown(a) if isinstance(a, Tensor) else repr(a) for a in args)


def shown(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}"


def in_a_line(error: Exception) -> str:
    """An error and the first line of its message."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"
