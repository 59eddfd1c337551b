"""Declares operators that work on each row by itself, by a formula in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphweave.extend.checks import Formula, check_formula, check_rows
from graphweave.extend.handle import Handle, entered, identity, known
from graphweave.extend.subject import FEATURES, ROWS, Subject, drawn, example_of, subject_of
from graphweave.frontends.calls.declared import Declared, add, arguments, discard


def rowwise(
    operator: str,
    formula: Callable[..., object],
    *,
    shared: Sequence[str] = (),
    example: Sequence[object] | None = None,
) -> Handle:
    """Declare that `operator` ("mylib::op") is `formula` of its arguments, and works on each row by itself.

    `out[r] = formula(..., x[r], ...)`, for tensors `x: [N, ...]` of N rows each, and the tensors named in `shared`,
    which all rows have in common, such as weights. `formula` is plain PyTorch: it takes the operator's arguments in the
    order of its schema and returns what the operator returns, a tensor or a tuple of tensors, in new memory. It is
    traced in the operator's place, so its calls join kernels like any others, on every target and in every dtype.

    Its derivative is the formula's, unless the operator has an autograd formula of its own
    (`torch.library.register_autograd`). In that case the calls of that formula are traced, and a backward operator
    among them may be declared as well. Eager mode runs the operator itself, which has no derivative there without an
    autograd formula.

    Formula and operator are compared at once, on `example`, a tuple of arguments with a few rows. If it is left out,
    tensors are drawn: float64, [6, 4] for rows and [4] for `shared`; other arguments have their defaults.
    Graphs that were compiled before are not affected.

    Raises ValueError (DeclarationError) with the reason: there is no such operator; it writes, draws random numbers, or
    cannot be traced; the formula gives another shape, dtype or number; one of them mixes rows; the formula's derivative
    differs from finite differences of an operator without a derivative of its own.
    """
    subject = subject_of("rowwise", operator)
    apart = {subject.position(name) for name in shared}
    of_rows = [i for name in subject.tensors if (i := subject.position(name)) not in apart]
    if not of_rows:
        raise subject.wrong("none of its arguments is a tensor of rows. Name fewer in shared=")

    def check() -> None:
        sizes = {n: (FEATURES,) if n in shared else (ROWS, FEATURES) for n in subject.tensors}
        given = {n: drawn(*size, seed=seed) for seed, (n, size) in enumerate(sizes.items())}
        args = example_of(subject, example, given)
        check_formula(subject, formula, args)
        check_rows(subject, formula, args, of_rows)

    return declared_by(subject, formula, ("rowwise", identity(formula), tuple(shared)), check)


def declared_by(subject: Subject, formula: Formula, key: object, check: Callable[[], None]) -> Handle:
    """Declare that `subject` is what `formula` returns, once `check` has accepted it."""
    found = known(subject.name, key)
    if found is not None:
        return found
    check()

    def replaced(*args: object, **kwargs: object) -> object:
        return formula(*arguments(subject.call, args, kwargs))

    replaced.__name__ = replaced.__qualname__ = subject.name.replace("::", "__").replace(".", "__")
    declared = Declared(subject.call, formula=replaced, differentiable=None if subject.own_derivative else replaced)
    add(declared)
    return entered(subject.name, key, lambda: discard(declared))
