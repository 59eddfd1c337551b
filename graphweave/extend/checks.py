"""Compares a declaration with the operator itself on examples: values, shapes, rows, derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from graphweave.core.errors import DeclarationError
from graphweave.extend.subject import Subject, described, drawn, in_a_line, results, shown, with_other_floats

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}
"""Allowed difference, relative to the values or to 1. A formula may round in other places than the operator."""

_STEP = {torch.float64: 1e-5, torch.float32: 1e-2}
"""Steps of finite differences."""

_SLOPE = {torch.float64: 1e-4, torch.float32: 1e-1}
"""Tolerance of derivatives, relative to the values or to 1."""

Formula = Callable[..., Any]


def check_formula(subject: Subject, formula: Formula, args: Sequence[object], hint: str = "") -> None:
    """Raise DeclarationError unless `formula` returns what the operator returns, can be captured, and has its
    derivative.

    `hint` says what else to look at if values differ.
    """
    check_captured(subject, args)
    tries = with_other_floats(subject, args)
    for some in tries:
        check_values(subject, formula, some, hint)
    check_memory(subject, formula, args)
    check_traced(subject, formula, args)
    for some in () if subject.own_derivative else tries:
        check_slopes(subject, formula, some)


def check_values(subject: Subject, formula: Formula, args: Sequence[object], hint: str = "") -> None:
    want, got = subject.run(args), of_formula(subject, formula, args)
    if len(want) != len(got):
        raise subject.wrong(f"the formula gives {len(got)} results where the operator gives {len(want)}. Correct it")
    for w, g in zip(want, got, strict=True):
        if not isinstance(g, Tensor) or g.shape != w.shape or g.dtype != w.dtype:
            other = shown(g) if isinstance(g, Tensor) else repr(g)
            raise subject.wrong(
                f"of {described(args)} the formula gives {other} where the operator gives {shown(w)}. Correct it"
            )
        differs = difference(g, w)
        if differs:
            raise subject.wrong(
                f"of {described(args)} the formula gives other numbers than the operator: {differs}{hint}. Correct it"
            )


def check_memory(subject: Subject, formula: Formula, args: Sequence[object]) -> None:
    """Check that results lie in memory as the operator's do, which PyTorch expects: in new memory, with equal
    strides."""
    got = of_formula(subject, formula, args)
    for g, w in zip(got, subject.run(args), strict=True):
        if _strides(g) != _strides(w):
            raise subject.wrong(
                f"the formula's result has strides {g.stride()}, the operator's {w.stride()}. Add .contiguous()"
            )
    taken = {_place(a) for a in args if isinstance(a, Tensor)}
    places = [_place(g) for g in got if g.numel()]
    if len(taken.union(places)) < len(taken) + len(places):
        raise subject.wrong("the formula gives an argument, a view of one, or one result twice. Add .clone()")


def _place(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _strides(x: Tensor) -> list[int]:
    """The strides that determine where an element lies."""
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1]


def of_formula(subject: Subject, formula: Formula, args: Sequence[object]) -> tuple[Tensor, ...]:
    try:
        return results(formula(*args))
    except Exception as error:
        raise subject.wrong(
            f"the formula does not run on {described(args)} ({in_a_line(error)}). Correct it"
        ) from error


def difference(got: Tensor, want: Tensor, tolerance: float | None = None) -> str:
    """A sentence that says where two tensors of one shape and type differ most; "" if they do not differ. NaN equals
    NaN."""
    if not want.is_floating_point():
        wrong = got != want
    else:
        allowed = TOLERANCE.get(want.dtype, 0.0) if tolerance is None else tolerance
        wrong = ~torch.isclose(got, want, rtol=allowed, atol=allowed, equal_nan=True)
    if not bool(wrong.any()):
        return ""
    off = (got.double() - want.double()).abs().nan_to_num(nan=torch.inf)
    at = int(torch.where(wrong, off, -1).argmax())
    return f"{got.flatten()[at].item():.6g} instead of {want.flatten()[at].item():.6g} at element {at}"


# ---------------------------------------------------------------- capture


def check_captured(subject: Subject, args: Sequence[object]) -> None:
    """Check that the operator says which shape it returns. Without that, PyTorch cannot trace it at all."""
    given = subject.run(args)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(a) if isinstance(a, Tensor) else a for a in args]
        try:
            said = subject.run(fakes)
        except DeclarationError as error:
            raise subject.wrong(
                f"PyTorch cannot trace it ({error.__cause__}). Call torch.library.register_fake to say its shape"
            ) from error
    for fake, real in zip(said, given, strict=True):
        if fake.shape != real.shape or fake.dtype != real.dtype:
            raise subject.wrong(
                f"of {described(args)} it gives {shown(real)}, and {shown(fake)} by its register_fake. Correct that"
            )


def check_traced(subject: Subject, formula: Formula, args: Sequence[object]) -> None:
    """Check that the formula can be traced for tensors of any size and writes to no tensor."""
    places = [i for i, a in enumerate(args) if isinstance(a, Tensor)]

    def of_tensors(*tensors: Tensor) -> Tensor | tuple[Tensor, ...]:
        given = dict(zip(places, tensors, strict=True))
        return formula(*(given.get(i, a) for i, a in enumerate(args)))

    try:
        graph = make_fx(of_tensors, tracing_mode="symbolic")(*(args[i] for i in places)).graph
    except Exception as error:
        raise subject.wrong(
            f"PyTorch cannot trace the formula ({in_a_line(error)}). Write it without branches on data"
        ) from error
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            raise subject.wrong(f"the formula writes in place ({node.target}). Use the call that gives a new tensor")


# ---------------------------------------------------------------- rows


def check_rows(subject: Subject, formula: Formula, args: Sequence[Any], of_rows: Sequence[int]) -> None:
    """Check that row r of every result depends only on row r of the arguments `of_rows`."""
    counts: set[int] = {args[i].shape[0] if args[i].dim() else -1 for i in of_rows}
    if len(counts) != 1 or -1 in counts:
        raise subject.wrong(
            f"its tensors must have as many rows each (got {described(args)}). Name those that are no rows in shared="
        )
    (count,) = counts
    want = subject.run(args)
    for out in want:
        if not out.dim() or out.shape[0] != count:
            raise subject.wrong(
                f"a result of {shown(out)} has no row for each of the {count} rows of its arguments. "
                "Use pull or push for what moves rows"
            )
    chosen = [torch.tensor([r]) for r in range(count)] + [torch.arange(count).flip(0)[: max(count - 1, 1)]]
    for rows in chosen:
        some = [a[rows] if i in of_rows else a for i, a in enumerate(args)]
        for who, got in (("operator", subject.run(some)), ("formula", of_formula(subject, formula, some))):
            for part, whole in zip(got, want, strict=True):
                if part.shape != whole[rows].shape or difference(part, whole[rows]):
                    raise subject.wrong(
                        f"the {who} mixes rows: rows {rows.tolist()} alone give other numbers than among {count}. "
                        "Write what works on each row by itself"
                    )
    none = [a[:0] if i in of_rows else a for i, a in enumerate(args)]
    for part, whole in zip(of_formula(subject, formula, none), want, strict=True):
        if part.shape != whole[:0].shape:
            raise subject.wrong(f"of no rows the formula gives {shown(part)}; expected {shown(whole[:0])}. Correct it")


# ---------------------------------------------------------------- derivatives


def check_slopes(subject: Subject, formula: Formula, args: Sequence[Any]) -> None:
    """Compare gradients of `formula` with the operator's own, or with finite differences of the operator."""
    wanted = [i for i, a in enumerate(args) if isinstance(a, Tensor) and a.is_floating_point()]
    places = [i for i in wanted if args[i].dtype in _STEP]
    weights = [drawn(*w.shape, seed=3).to(w.dtype) if w.is_floating_point() else None for w in subject.run(args)]
    if not any(w is not None for w in weights):
        return
    ours = _gradients(formula, args, places, weights)
    theirs = _gradients(subject.operator, args, places, weights) if subject.own_derivative else None
    for at, i in enumerate(places):
        argument, dtype = subject.arguments[i], args[i].dtype
        if theirs is not None:
            told = difference(ours[at], theirs[at], _SLOPE[dtype])
            if told:
                raise subject.wrong(
                    f"the derivative in {argument!r} is another than the operator's own: {told}. Leave it out"
                )
            continue
        along = drawn(*args[i].shape, seed=4 + i).to(dtype)
        numeric = _slope(subject, args, i, along * _STEP[dtype], weights) / (2 * _STEP[dtype])
        got = float((ours[at] * along).sum())
        if not math.isclose(got, numeric, rel_tol=_SLOPE[dtype], abs_tol=_SLOPE[dtype]):
            raise subject.wrong(
                f"the derivative in {argument!r} is another than finite differences of the operator: "
                f"{got:.6g} instead of {numeric:.6g} along a random direction from {described(args)}. "
                "Pass example= if it has none there"
            )


def _gradients(
    function: Formula, args: Sequence[Any], places: Sequence[int], weights: Sequence[Tensor | None]
) -> list[Tensor]:
    leaves = {i: args[i].detach().clone().requires_grad_() for i in places}
    out = results(function(*(leaves.get(i, a) for i, a in enumerate(args))))
    pairs = [(o, w) for o, w in zip(out, weights, strict=True) if w is not None and o.requires_grad]
    if not pairs:
        return [torch.zeros_like(args[i]) for i in places]
    outs, grads = zip(*pairs, strict=True)
    found = torch.autograd.grad(outs, list(leaves.values()), grads, allow_unused=True)
    return [torch.zeros_like(args[i]) if f is None else f for i, f in zip(places, found, strict=True)]


def _slope(subject: Subject, args: Sequence[Any], i: int, step: Tensor, weights: Sequence[Tensor | None]) -> float:
    """The weighted sum of the changes of the results when argument `i` takes a step to either side."""
    ahead, back = (subject.run([a + s * step if j == i else a for j, a in enumerate(args)]) for s in (1, -1))
    pairs = zip(ahead, back, weights, strict=True)
    return sum(float((w * (a - b)).sum()) for a, b, w in pairs if w is not None)
