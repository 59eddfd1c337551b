"""Operators and rules from outside the package (`graphweave.extend`), through both doors; wrong ones are refused.

It imports nothing of the package but its public names.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import graphweave as gw
from graphweave import extend
from graphweave.extend import algebra
from tests import extend_operators as library
from tests.programs.graphs import EdgeList, zoo

pytestmark = pytest.mark.usefixtures("fresh_compiler")

DOORS: dict[str, Callable[[Any], Any]] = {
    "graphweave.compile": gw.compile,
    "torch.compile": lambda f: torch.compile(f, backend="graphweave"),
}
GRAPHS = {graph.name: graph for graph in zoo(3) if graph.square}
ops = torch.ops.gwtest

Declare = Callable[[ExitStack], None]


@pytest.fixture
def declared() -> Iterator[ExitStack]:
    """Declarations entered here are removed after the test."""
    with ExitStack() as stack:
        yield stack


def data(graph: EdgeList, width: int = 5, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Signed numbers, and the ends of the edges."""
    x = torch.randn(graph.num_src, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x, graph.src.clone(), graph.dst.clone()


def compared(
    made: Callable[..., Tensor], wanted: Callable[..., Tensor], *tensors: Tensor, again: bool = False, label: str = ""
) -> None:
    """Values and gradients of all floats among `tensors`, and with `again` the gradients of these."""
    found = []
    for f in (made, wanted):
        leaves = [t.clone().requires_grad_() if t.is_floating_point() else t for t in tensors]
        floats = [t for t in leaves if t.is_floating_point()]
        out = f(*leaves)
        weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
        grads = torch.autograd.grad(out, floats, weight, create_graph=again, allow_unused=True)
        results = [out, *grads]
        if again:
            total = sum((g * g).sum() for g in grads if g is not None)
            results += torch.autograd.grad(total, floats, allow_unused=True)
        found.append(results)
    for got, want in zip(*found, strict=True):
        assert (got is None) is (want is None), label
        if got is not None:
            torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9, msg=lambda said: f"{label}: {said}")


def nothing_is_left_to_pytorch(calls: int) -> None:
    """Nothing is left to PyTorch, and no operator has run since it was called `calls` times."""
    assert library.calls == calls
    counters = gw.counters()
    assert counters["compilations"] and counters["kernel_launches"]
    assert (counters["fallback_calls"], counters["graph_breaks"], counters["eager_fallbacks"]) == (0, 0, 0), counters


# ---------------------------------------------------------------- operators in models


def _rbf(stack: ExitStack) -> None:
    example = (torch.linspace(-1, 1, 5).double(), torch.linspace(0, 1, 3).double(), 0.5)
    stack.enter_context(extend.rowwise("gwtest::rbf", library.rbf_formula, shared=["centers"], example=example))


CENTERS = torch.linspace(0, 2, 3, dtype=torch.float64)


def rbf_layer(x: Tensor, src: Tensor, dst: Tensor, rbf: Callable[..., Tensor] = ops.rbf) -> Tensor:
    distance = (x[src] - x[dst]).pow(2).sum(-1)
    return torch.zeros_like(x).index_add(0, dst, rbf(distance, CENTERS, 0.7).sum(1, keepdim=True) * x[src])


def _unit(stack: ExitStack) -> None:
    stack.enter_context(extend.rowwise("gwtest::unit", library.unit_formula))
    stack.enter_context(extend.rowwise("gwtest::unit_backward", library.unit_backward_formula))


def unit_layer(x: Tensor, src: Tensor, dst: Tensor, unit: Callable[..., Tensor] = ops.unit) -> Tensor:
    return torch.zeros_like(x).index_add(0, dst, unit(x[src] - x[dst]))


def _parts(stack: ExitStack) -> None:
    stack.enter_context(extend.rowwise("gwtest::parts", library.parts_formula))


def parts_layer(x: Tensor, src: Tensor, dst: Tensor, parts: Callable[..., Any] = ops.parts) -> Tensor:
    rows, size = parts(x[src] - 2 * x[dst])
    return torch.zeros_like(x).index_add(0, dst, rows * size.unsqueeze(1).sin())


def _softsign(stack: ExitStack) -> None:
    slope = "g / ((1 + abs(x)) * (1 + abs(x)))"
    stack.enter_context(extend.pointwise("gwtest::softsign", "x / (1 + gw_abs(x))", derivative=slope))


def softsign_layer(x: Tensor, src: Tensor, dst: Tensor, softsign: Callable[..., Tensor] = ops.softsign) -> Tensor:
    return softsign(torch.zeros_like(x).index_add(0, dst, softsign(x[src] * 3) * x[dst]))


def _bump(stack: ExitStack) -> None:
    stack.enter_context(
        extend.pointwise(
            "gwtest::bump_backward",
            "V size = 1 + x * x;\nreturn -2 * height * grad * (x / size) / size;",
            example=(torch.randn(6, 4).double(), torch.randn(6, 4).double(), 0.5),
        )
    )
    stack.enter_context(extend.pointwise("gwtest::bump", "height / (1 + x * x)"))


def bump_layer(x: Tensor, src: Tensor, dst: Tensor, bump: Callable[..., Tensor] = ops.bump) -> Tensor:
    return torch.zeros_like(x).index_add(0, dst, bump(x[src] - x[dst], 0.25) + bump(x)[src])


def _bump_formula(x: Tensor, height: float = 1.0) -> Tensor:
    return height / (1 + x * x)


def _hypotenuse(stack: ExitStack) -> None:
    slopes = {"a": "g * a / out", "b": "g * b / out"}
    stack.enter_context(extend.pointwise("gwtest::hypotenuse", "gw_sqrt(1 + a * a + b * b)", derivative=slopes))


def hypotenuse_layer(x: Tensor, src: Tensor, dst: Tensor, hypotenuse: Callable[..., Tensor] = ops.hypotenuse) -> Tensor:
    messages = hypotenuse(x[src], x[dst][:, :1]) + hypotenuse(x[dst], x.sum(0).sin() + 1)
    return torch.zeros_like(x).index_add(0, dst, messages)


def _sum_along(stack: ExitStack) -> None:
    stack.enter_context(extend.pull("gwtest::gather", x="x", index="index"))
    stack.enter_context(extend.push("gwtest::segment_sum", x="x", index="index", rows="rows"))


def sum_layer(
    x: Tensor, src: Tensor, dst: Tensor, gather: Callable[..., Tensor] = ops.gather,
    segment_sum: Callable[..., Tensor] = ops.segment_sum,
) -> Tensor:  # fmt: skip
    return segment_sum(gather(x, src) * gather(x, dst).tanh(), dst, x.shape[0])


def _sum_formula(x: Tensor, index: Tensor, rows: int) -> Tensor:
    return x.new_zeros(rows, *x.shape[1:]).index_add(0, index, x)


def _most(stack: ExitStack) -> None:
    stack.enter_context(extend.push("gwtest::segment_max", x="x", index="index", rows="like", fold="max", empty=-1))
    stack.enter_context(extend.push("gwtest::segment_mean", x="x", index="index", rows="rows", fold="mean"))


def most_layer(
    x: Tensor, src: Tensor, dst: Tensor, segment_max: Callable[..., Tensor] = ops.segment_max,
    segment_mean: Callable[..., Tensor] = ops.segment_mean,
) -> Tensor:  # fmt: skip
    return segment_max(x[src].sin(), dst, x) * segment_mean(x[src] * x[dst], dst, x.shape[0])


def _max_formula(x: Tensor, index: Tensor, like: Tensor) -> Tensor:
    spread = index.long().unsqueeze(1).expand_as(x)
    return torch.full_like(like, -1).scatter_reduce(0, spread, x, "amax", include_self=False)


def _mean_formula(x: Tensor, index: Tensor, rows: int) -> Tensor:
    count = x.new_zeros(rows).index_add(0, index, x.new_ones(len(index))).clamp(min=1)
    return _sum_formula(x, index, rows) / count.unsqueeze(1)


CASES: dict[str, tuple[Declare, Callable[..., Tensor], tuple[Any, ...]]] = {
    "row-wise": (_rbf, rbf_layer, (library.rbf_formula,)),
    "row-wise, own backward": (_unit, unit_layer, (library.unit_formula,)),
    "row-wise, two results": (_parts, parts_layer, (library.parts_formula,)),
    "pointwise": (_softsign, softsign_layer, (torch.nn.functional.softsign,)),
    "pointwise, own backward": (_bump, bump_layer, (_bump_formula,)),
    "pointwise of two": (_hypotenuse, hypotenuse_layer, (lambda a, b: (1 + a * a + b * b).sqrt(),)),
    "pull and push": (_sum_along, sum_layer, (lambda x, index: x[index], _sum_formula)),
    "max and mean": (_most, most_layer, (_max_formula, _mean_formula)),
}
"""Name -> the declaration, a layer that calls the operator, and the functions that replace it in the reference."""


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", CASES)
def test_declared_operators_are_parts_of_kernels(name: str, door: str, declared: ExitStack) -> None:
    """Forward and gradients in float64 are those of plain PyTorch, and no call is left to PyTorch."""
    declare, layer, formulas = CASES[name]
    declare(declared)
    gw.reset_counters()
    calls = library.calls
    made = DOORS[door](lambda x, src, dst: layer(x, src, dst))
    for graph in ("unsorted", "isolated", "no_edges", "duplicates"):
        compared(made, lambda *t: layer(*t, *formulas), *data(GRAPHS[graph]), label=graph)
    nothing_is_left_to_pytorch(calls)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 16, 31, 33])
@pytest.mark.parametrize("name", CASES)
def test_declared_operators_on_every_graph(name: str, width: int, declared: ExitStack) -> None:
    declare, layer, formulas = CASES[name]
    declare(declared)
    made = gw.compile(lambda x, src, dst: layer(x, src, dst))
    for graph in GRAPHS.values():
        x, src, dst = data(graph, width)
        compared(made, lambda *t: layer(*t, *formulas), x, src, dst, label=graph.name)
        compared(made, lambda *t: layer(*t, *formulas), x, src.int(), dst.int(), label=f"{graph.name}, int32")


@pytest.mark.parametrize("fold", [*library.UFUNCS])
def test_every_fold_and_what_empty_rows_have(fold: Any, declared: ExitStack) -> None:
    """Values against the operator itself, which has no derivative: the declaration was compared with differences."""
    name = f"gwtest::fold_{fold}"
    declared.enter_context(extend.push(name, x="x", index="index", rows="rows", fold=fold, empty=3.0))
    call = getattr(ops, f"fold_{fold}")
    made = gw.compile(lambda x, src, dst: call(x[src] * 2, dst, x.shape[0]) + 1)
    for graph in ("isolated", "no_edges"):
        x, src, dst = data(GRAPHS[graph])
        want, calls = call(x[src] * 2, dst, len(x)) + 1, library.calls
        torch.testing.assert_close(made(x, src, dst), want)
        assert library.calls == calls and (graph == "isolated" or (want == 4).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bodies_in_other_types(dtype: torch.dtype, declared: ExitStack) -> None:
    """Half precision is computed in float32 and rounded once."""
    _softsign(declared)
    x = torch.randn(9, 33, generator=torch.Generator().manual_seed(2)).to(dtype)
    calls = library.calls
    got = gw.compile(lambda x: ops.softsign(x * 2).sum(1))(x)
    wide = torch.nn.functional.softsign((x * 2).double()).sum(1)
    assert library.calls == calls and got.dtype is dtype
    torch.testing.assert_close(got.double(), wide, rtol=1e-5 if dtype is torch.float32 else 2e-2, atol=1e-2)


def test_gradients_of_gradients(declared: ExitStack) -> None:
    """PyTorch computes them at each call, of a declared derivative and of a formula, and says so."""
    _softsign(declared)
    _rbf(declared)

    def layer(x: Tensor, src: Tensor, dst: Tensor, softsign: Any = ops.softsign, rbf: Any = ops.rbf) -> Tensor:
        return softsign_layer(x, src, dst, softsign) * rbf_layer(x, src, dst, rbf)

    softsign = torch.nn.functional.softsign
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "graphweave: gradients of gradients")
        compared(
            gw.compile(lambda *t: layer(*t)), lambda *t: layer(*t, softsign, library.rbf_formula),
            *data(GRAPHS["unsorted"]), again=True,
        )  # fmt: skip


def test_an_operator_without_a_derivative_stays_so(declared: ExitStack) -> None:
    """Declared without one, it computes in kernels, and raises in backward what eager mode raises."""
    declared.enter_context(extend.pointwise("gwtest::softsign", "x / (1 + gw_abs(x))"))
    x = torch.randn(6, 4, dtype=torch.float64)
    calls = library.calls
    torch.testing.assert_close(gw.compile(lambda x: ops.softsign(x) + 1)(x), torch.nn.functional.softsign(x) + 1)
    assert library.calls == calls
    with pytest.raises(Exception, match="no autograd formula was registered"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gw.compile(lambda x: ops.softsign(x) * 2)(x.requires_grad_()).sum().backward()


def test_numbers_of_other_types_stay_calls(declared: ExitStack) -> None:
    """A body is for floats of one type: what the operator makes of others is its own affair."""
    declared.enter_context(extend.pointwise("gwtest::hypotenuse", "gw_sqrt(1 + a * a + b * b)"))
    a, b = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 4)
    torch.testing.assert_close(gw.compile(lambda a, b: ops.hypotenuse(a, b) * 2)(a, b), ops.hypotenuse(a, b) * 2)


_scale = 1.0


@library.define("scaled", lambda x: torch.empty_like(x))
def scaled(x: Tensor) -> Tensor:
    return x * _scale


_library = torch.library.Library("gwtest_plain", "DEF")
_library.define("cubed.of(Tensor x, *, float factor=2.0) -> Tensor")
_library.define("cubed.plus(Tensor x, Tensor y) -> Tensor")
_library.impl("cubed.of", lambda x, *, factor=2.0: library.numbers(lambda a: factor * a**3, x), "CPU")
_library.impl("cubed.plus", lambda x, y: library.numbers(lambda a, b: a**3 + b, x, y), "CPU")
torch.library.register_fake("gwtest_plain::cubed.of", lambda x, *, factor=2.0: torch.empty_like(x), lib=_library)
torch.library.register_fake("gwtest_plain::cubed.plus", lambda x, y: torch.empty_like(x), lib=_library)


def test_overloads_of_a_library(declared: ExitStack) -> None:
    """Defined without `custom_op`, so that autograd knows nothing of them; with an argument that must be named."""
    with pytest.raises(ValueError, match="Name one of gwtest_plain::cubed"):
        extend.rowwise("gwtest_plain::cubed", torch.tanh)
    with pytest.raises(ValueError, match="'factor' is float; expected tensors and floats by position"):
        extend.pointwise("gwtest_plain::cubed.of", "factor * x * x * x")
    declared.enter_context(extend.rowwise("gwtest_plain::cubed.of", lambda x, factor: factor * x * x * x))
    slopes = {"x": "3 * x * x * g", "y": "g"}
    declared.enter_context(extend.pointwise("gwtest_plain::cubed.plus", "x * x * x + y", derivative=slopes))
    cubed, calls = torch.ops.gwtest_plain.cubed, library.calls

    def layer(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        messages = cubed.of(x[src], factor=3.0) + cubed(x[dst], x[src]) + cubed(x[dst])
        return torch.zeros_like(x).index_add(0, dst, messages)

    def plain(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, dst, 3 * x[src] ** 3 + x[dst] ** 3 + x[src] + 2 * x[dst] ** 3)

    gw.reset_counters()
    compared(gw.compile(layer), plain, *data(GRAPHS["unsorted"]))
    nothing_is_left_to_pytorch(calls)


# ---------------------------------------------------------------- wrong declarations


def _example(*args: Any) -> dict[str, Any]:
    return {"example": args}


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "no name": (lambda: extend.rowwise("softsign", torch.tanh), "expected a name such as 'mylib::op'"),
    "no operator": (lambda: extend.rowwise("gwtest::nothing", torch.tanh), "no operator gwtest::nothing"),
    "no overload": (lambda: extend.rowwise("gwtest::unit.out", torch.tanh), "Name one of gwtest::unit.default"),
    "known": (lambda: extend.rowwise("aten::tanh.default", torch.tanh), "knows this operator already"),
    "writes": (lambda: extend.rowwise("gwtest::add_to", torch.add), "it writes to an argument"),
    "no shape": (lambda: extend.rowwise("gwtest::shapeless", lambda x: x * 2), "register_fake"),
    "other numbers": (lambda: extend.rowwise("gwtest::unit", lambda x: x / 2), "formula gives other numbers"),
    "other shape": (
        lambda: extend.rowwise("gwtest::unit", lambda x: library.unit_formula(x)[:, :2]),
        re.escape("gives float64 [6, 2] where the operator gives float64 [6, 4]"),
    ),
    "other dtype": (
        lambda: extend.rowwise("gwtest::unit", lambda x: library.unit_formula(x).float()),
        re.escape("gives float32 [6, 4] where the operator gives float64 [6, 4]"),
    ),
    "fewer results": (lambda: extend.rowwise("gwtest::parts", library.unit_formula), "1 results where .* gives 2"),
    "formula raises": (lambda: extend.rowwise("gwtest::unit", lambda x: x @ x), "formula does not run on float64"),
    "formula mixes rows": (
        lambda: extend.rowwise("gwtest::unit", lambda x: library.unit_formula(x) + (0 if len(x) > 5 else x.sum(0))),
        "the formula mixes rows",
    ),
    "operator mixes rows": (lambda: extend.rowwise("gwtest::centered", lambda x: x - x.mean(0)), "operator mixes rows"),
    "formula branches": (
        lambda: extend.rowwise("gwtest::unit", lambda x: library.unit_formula(x) if x[0, 0] > -9 else x),
        "cannot trace the formula",
    ),
    "formula writes": (
        lambda: extend.rowwise("gwtest::unit", lambda x: library.unit_formula(x).add_(0)), "writes in place .aten.add_"
    ),
    "formula is detached": (
        lambda: extend.rowwise("gwtest::parts", lambda x: library.parts_formula(x.detach())),
        "derivative in 'x' is another than finite differences",
    ),
    "formula gives an argument": (
        lambda: extend.rowwise("gwtest::scaled", lambda x: x if _scale == 1 else x * _scale), "gives an argument"
    ),
    "formula in other memory": (
        lambda: extend.rowwise("gwtest::unit", lambda x: library.unit_formula(x).t().contiguous().t()),
        "has strides .1, 6., the operator's .4, 1.",
    ),
    "no such shared": (lambda: extend.rowwise("gwtest::unit", torch.tanh, shared=["w"]), "no argument 'w'; it has x"),
    "rows differ": (
        lambda: extend.rowwise(
            "gwtest::rbf", library.rbf_formula, **_example(torch.ones(6).double(), torch.ones(3).double())
        ),
        "Name those that are no rows in shared=",
    ),
    "bad example": (
        lambda: extend.rowwise("gwtest::unit", library.unit_formula, **_example(torch.ones(3), 2)),
        "must have 1 arguments",
    ),
    "wrong pull": (lambda: extend.pull("gwtest::gather", x="index", index="x"), "does not run|other numbers|gives"),
    "pull of others": (lambda: extend.pull("gwtest::segment_sum", x="x", index="index"), "must name each of them once"),
    "no fold": (
        lambda: extend.push("gwtest::segment_sum", x="x", index="index", rows="rows", fold="median"),  # type: ignore[arg-type]
        "fold must be one of sum, mean, prod, max, min",
    ),
    "wrong fold": (
        lambda: extend.push("gwtest::segment_sum", x="x", index="index", rows="rows", fold="max"),
        "other numbers than the operator: .* Declared are fold='max'",
    ),
    "wrong empty": (
        lambda: extend.push("gwtest::segment_max", x="x", index="index", rows="like", fold="max"),
        "0 instead of -1 .*empty=0.0",
    ),
    "body differs": (lambda: extend.pointwise("gwtest::softsign", "x / (1 + x)"), "for x=-0.001 its C.. gives"),
    "body of NaN": (
        lambda: extend.pointwise("gwtest::softsign", "gw_select(x == x, x / (1 + gw_abs(x)), V{})"),
        "for x=nan its C.. gives 0 in f64, the operator nan",
    ),
    "body without a float": (
        lambda: extend.pointwise("gwtest::bump", "1 / (1 + x * x)"), "for x=0, height=1.75 its C.. gives 1 in f64, the"
    ),
    "derivative without a float": (
        lambda: extend.pointwise(
            "gwtest::bump", "height / (1 + x * x)", derivative="g * -2 * x / ((1 + x * x) * (1 + x * x))"
        ),
        "derivative in 'x' is another than the operator's own",
    ),
    "formula without a float": (
        lambda: extend.rowwise(
            "gwtest::rbf", lambda d, c, width: library.rbf_formula(d, c, 2.0), shared=["centers"],
            **_example(torch.linspace(-1, 1, 5).double(), torch.linspace(0, 1, 3).double(), 2.0),
        ),
        "formula gives other numbers",
    ),
    "body of infinities": (
        lambda: extend.pointwise(
            "gwtest::softsign", "const V a = gw_abs(x);\nreturn gw_select(a < gw_const<V>(INFINITY), x / (1 + a), V{});"
        ),
        "for x=inf its C.. gives 0 in f64, the operator nan",
    ),
    "body does not compile": (lambda: extend.pointwise("gwtest::softsign", "x / (1 + fabulous(x))"), "fabulous"),
    "body mixes rows": (lambda: extend.pointwise("gwtest::centered", "x"), "for x=.* the operator nan"),
    "no argument of that name": (lambda: extend.pointwise("gwtest::softsign", "y + 1"), "'y'"),
    "arguments": (lambda: extend.pointwise("gwtest::gather", "x"), "Pass example=, a tuple of arguments"),
    "derivative differs": (
        lambda: extend.pointwise("gwtest::softsign", "x / (1 + gw_abs(x))", derivative="g / (1 + abs(x))"),
        "derivative in 'x' is another than finite differences",
    ),
    "derivative differs from its own": (
        lambda: extend.pointwise("gwtest::bump", "height / (1 + x * x)", derivative="g * x"),
        "derivative in 'x' is another than the operator's own",
    ),
    "derivative of no argument": (
        lambda: extend.pointwise("gwtest::softsign", "x", derivative={"w": "g"}), "speaks of 'w'; its tensors are x"
    ),
    "derivative says nothing": (
        lambda: extend.pointwise("gwtest::hypotenuse", "a", derivative={"a": "g"}), "says nothing of 'b'"
    ),
    "derivative with a name": (
        lambda: extend.pointwise("gwtest::softsign", "x", derivative="g * y"), "speaks of 'y'; there are x, g, out"
    ),
    "derivative with a function": (
        lambda: extend.pointwise("gwtest::softsign", "x", derivative="g * cosh(x)"), "'cosh' is not a valid Op"
    ),
    "derivative is no formula": (lambda: extend.pointwise("gwtest::softsign", "x", derivative="g *"), "is no formula"),
    "derivative of two": (
        lambda: extend.pointwise("gwtest::softsign", "x", derivative="tanh(g, x)"), "tanh takes 1 operands .got 2"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_declaration_is_refused(name: str) -> None:
    """The refusal comes at once, with the reason, and nothing of the declaration is left."""
    declare, why = WRONG[name]
    with pytest.raises(ValueError, match=why) as refused:
        declare()
    assert str(refused.value).startswith("graphweave.extend.")
    with pytest.raises(ValueError, match=why):  # the same declaration is refused again
        declare()


# ---------------------------------------------------------------- repeated and removed declarations


def test_the_same_again_is_the_same() -> None:
    def twice(width: float) -> Any:
        return extend.rowwise("gwtest::unit", lambda x: library.unit_formula(x) * width)

    with twice(1.0) as first:
        assert twice(1.0) is first
        with pytest.raises(ValueError, match="gwtest::unit has been declared otherwise"):
            twice(2.0)
        with pytest.raises(ValueError, match="declared otherwise"):
            extend.pointwise("gwtest::unit", "x")
    assert repr(first) == "<graphweave.extend: gwtest::unit, removed>"
    first.remove()
    with twice(1.0) as second:
        assert second is not first


def test_another_body_is_another_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The declaration of an operator is part of a kernel's key."""
    x = torch.randn(6, 4, dtype=torch.float64)
    made = []
    for scale in (2.0, 3.0):
        monkeypatch.setitem(globals(), "_scale", scale)
        with extend.pointwise("gwtest::scaled", f"x * {scale:g}"):
            made.append(gw.compile(lambda x: ops.scaled(x).sum(1)))
            torch.testing.assert_close(made[-1](x), scale * x.sum(1))
    torch.testing.assert_close(made[0](x), 2 * x.sum(1))  # stays as it was compiled


def test_what_is_no_longer_declared_is_pytorchs() -> None:
    x, src, dst = data(GRAPHS["unsorted"])
    with ExitStack() as stack:
        _sum_along(stack)
    calls = library.calls
    got = gw.compile(lambda *t: sum_layer(*t))(x, src, dst)
    torch.testing.assert_close(got, sum_layer(x, src, dst))
    assert library.calls > calls and gw.counters()["fallback_calls"]


@pytest.mark.filterwarnings("ignore:graphweave")
def test_an_index_out_of_range_is_an_index_error(declared: ExitStack) -> None:
    _sum_along(declared)
    x, src, dst = data(GRAPHS["unsorted"])
    src[3] = 99
    with pytest.raises(IndexError, match="index 99 at position 3 is out of range for 10 rows"):
        gw.compile(lambda *t: sum_layer(*t))(x, src, dst)


@pytest.mark.filterwarnings("ignore:graphweave. layer .* runs eagerly, since PyTorch could not trace it")  # buckets
def test_an_operator_is_not_the_function_of_its_name(declared: ExitStack) -> None:
    """`torch.ops.mylib.exp` of a mailbox is not `torch.exp`: it is called for each number of messages."""
    _softsign(declared)
    declared.enter_context(extend.rowwise("gwtest::sigmoid", lambda x: x.sin()))
    src, dst = torch.tensor([0, 1, 2, 2]), torch.tensor([1, 2, 0, 1])
    graph, h = gw.graph((src, dst), num_nodes=3), torch.randn(3, 4, dtype=torch.float64)

    def layer(graph: gw.Graph, h: Tensor) -> Tensor:
        with graph.local_scope():
            graph.ndata["h"] = h
            messages = lambda edges: {"m": ops.softsign(edges.src["h"])}  # noqa: E731
            graph.update_all(messages, lambda nodes: {"out": ops.sigmoid(nodes.mailbox["m"]).sum(1)})
            return graph.ndata["out"]  # type: ignore[no-any-return]

    want = torch.zeros_like(h).index_add(0, dst, torch.nn.functional.softsign(h[src]).sin())
    with pytest.warns(UserWarning, match="sigmoid of a mailbox"):
        torch.testing.assert_close(gw.compile(layer)(graph, h), want)


@library.define("sigmoid", lambda x: torch.empty_like(x))
def sigmoid(x: Tensor) -> Tensor:
    """A sine."""
    return library.numbers(np.sin, x)


# ---------------------------------------------------------------- rules


def monotone_max(build: algebra.Builder, ref: int) -> int | None:
    """push.max(softsign(x), m) -> softsign(push.max(x, m)), where rows that none points to have 0, which it keeps."""
    push = build.nodes[ref]
    if not isinstance(push, algebra.Push) or push.fold is not algebra.Fold.max or push.empty != 0:
        return None
    inner = build.nodes[push.x]
    if not isinstance(inner, algebra.Pointwise) or inner.op is not algebra.Op("gwtest__softsign"):
        return None
    most = build.add(algebra.Push(inner.args[0], push.map, algebra.Fold.max), build.locs[ref])
    return build.add(algebra.Pointwise(inner.op, (most,)), build.locs[ref])


def thrice(build: algebra.Builder, ref: int) -> int | None:
    """x + x -> x * 3, which is wrong."""
    node = build.nodes[ref]
    if not isinstance(node, algebra.Pointwise) or node.op is not algebra.Op.add or len(set(node.args)) > 1:
        return None
    t = build.types[ref]
    assert isinstance(t, algebra.Type)
    three = build.add(algebra.Const(3.0, algebra.Type(algebra.UNIT, (), t.dtype)))
    return build.add(algebra.Pointwise(algebra.Op.mul, (node.args[0], three)), build.locs[ref])


def max_layer(x: Tensor, src: Tensor, dst: Tensor, softsign: Callable[..., Tensor] = ops.softsign) -> Tensor:
    spread = dst.unsqueeze(1).expand(-1, x.shape[1])
    return torch.zeros_like(x).scatter_reduce(0, spread, softsign(x[src] * 3), "amax", include_self=False) + 1


def doubled(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    sums = torch.zeros_like(x).index_add(0, dst, x[src].sin())
    return sums + sums


@pytest.mark.parametrize("when", ["by cost", "always"])
@pytest.mark.parametrize("door", DOORS)
def test_a_rule_rewrites(when: Any, door: str, declared: ExitStack) -> None:
    """Values and gradients stay. The rule is also taken by cost, since there are more edges than nodes."""
    _softsign(declared)
    fired: list[int] = []

    def counted(build: algebra.Builder, ref: int) -> int | None:
        new = monotone_max(build, ref)
        fired.extend([] if new is None else [ref])
        return new

    declared.enter_context(
        extend.rule("monotone-max", "push.max(softsign(x), m)", "softsign(push.max(x, m))", counted, when=when)
    )
    made = DOORS[door](lambda *t: max_layer(*t))
    for graph in ("unsorted", "isolated", "no_edges"):
        tensors = data(GRAPHS[graph])
        torch.testing.assert_close(
            made(*tensors), max_layer(*tensors, torch.nn.functional.softsign), rtol=0, atol=1e-12
        )
        compared(made, lambda *t: max_layer(*t, torch.nn.functional.softsign), *tensors, label=graph)
    assert fired


def test_explain_tells_of_a_rule(declared: ExitStack) -> None:
    _softsign(declared)
    tensors = data(GRAPHS["unsorted"])
    before = gw.explain(lambda *t: max_layer(*t), *tensors, detail="costs")
    declared.enter_context(extend.rule("monotone-max", "push.max(f(x), m)", "f(push.max(x, m))", monotone_max))
    after = gw.explain(lambda *t: max_layer(*t), *tensors, detail="costs")
    assert "monotone-max" not in str(before) and "monotone-max" in str(after)


def test_what_was_compiled_before_stays(declared: ExitStack) -> None:
    tensors = data(GRAPHS["unsorted"])
    first = gw.compile(lambda *t: doubled(*t))
    torch.testing.assert_close(first(*tensors), doubled(*tensors))
    handle = declared.enter_context(extend.rule("thrice", "x + x", "x * 3", thrice, when="always"))
    torch.testing.assert_close(first(*tensors), doubled(*tensors))
    wrong = gw.compile(lambda *t: doubled(*t))
    torch.testing.assert_close(wrong(*tensors), 1.5 * doubled(*tensors))
    handle.remove()
    torch.testing.assert_close(wrong(*tensors), 1.5 * doubled(*tensors))
    torch.testing.assert_close(gw.compile(lambda *t: doubled(*t))(*tensors), doubled(*tensors))


def test_verify_names_the_rule_that_changes_values(declared: ExitStack) -> None:
    """The error gives the lines of the rule's function and of the user; a correct rule is in force too."""
    _softsign(declared)
    declared.enter_context(extend.rule("monotone-max", "push.max(f(x), m)", "f(push.max(x, m))", monotone_max))
    declared.enter_context(extend.rule("thrice", "x + x", "x * 3", thrice, when="always"))
    tensors = data(GRAPHS["unsorted"])
    right = gw.compile(lambda *t: max_layer(*t), options={"verify": True})
    torch.testing.assert_close(right(*tensors), max_layer(*tensors))
    wrong = gw.compile(lambda *t: doubled(*t), options={"verify": True})
    line = thrice.__code__.co_firstlineno
    said = (
        rf"differs from eager mode's.* The rule 'thrice' \(.*test_extending.py:{line}\) has changed a value, at .*\.py"
    )
    with pytest.raises(Exception, match=said):
        wrong(*tensors)


def _not_one_minus(build: algebra.Builder, ref: int) -> int | None:
    """1 - x -> x, which is wrong, and occurs in the derivative of tanh alone."""
    match build.nodes[ref]:
        case algebra.Pointwise(algebra.Op.sub, (one, x)) if isinstance(build.nodes[one], algebra.Const):
            return x if build.types[x] == build.types[ref] else None
    return None


def test_verify_names_a_rule_of_the_backward(declared: ExitStack) -> None:
    declared.enter_context(extend.rule("not-one-minus", "1 - x", "x", _not_one_minus, when="always"))
    x, src, dst = data(GRAPHS["unsorted"])

    def layer(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, dst, x[src].tanh())

    made = gw.compile(layer, options={"verify": True})
    out = made(x.requires_grad_(), src, dst)
    with pytest.raises(Exception, match=r"gradient of input .* The rule 'not-one-minus'"):
        out.sum().backward()


def _narrower(build: algebra.Builder, ref: int) -> int | None:
    match build.nodes[ref]:
        case algebra.Pointwise(algebra.Op.sin, (x,)):
            return build.add(algebra.Cast(x, algebra.DType.f32))
    return None


def _of_itself(build: algebra.Builder, ref: int) -> int | None:
    match build.nodes[ref]:
        case algebra.Pointwise(algebra.Op.sin, _):
            return build.add(algebra.Pointwise(algebra.Op.neg, (ref,)))
    return None


def _raising(build: algebra.Builder, ref: int) -> int | None:
    raise KeyError("of the rule")


def _nowhere(build: algebra.Builder, ref: int) -> int | None:
    return 10**6


BROKEN: dict[str, tuple[Callable[..., Any], str]] = {
    "narrower": (_narrower, "gave a value of .*f32.* for .*f64"),
    "of-itself": (_of_itself, "built upon the node that it was to replace"),
    "raising": (_raising, "raised KeyError: 'of the rule'"),
    "nowhere": (_nowhere, "gave 1000000: expected the position of a node"),
}


@pytest.mark.parametrize("when", ["by cost", "always"])
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_leaves_the_graph_to_pytorch(name: str, when: Any, declared: ExitStack) -> None:
    """Results are right, and a warning names the rule, its line, and what it did."""
    function, why = BROKEN[name]
    declared.enter_context(extend.rule(name, "sin(x)", "x", function, when=when))
    tensors = data(GRAPHS["unsorted"])
    line = function.__code__.co_firstlineno
    with pytest.warns(
        UserWarning, match=rf"rule '{name}' \(.*test_extending.py:{line}\) {why}.*, unless the rule is yours to correct"
    ):
        got = gw.compile(lambda *t: doubled(*t))(*tensors)
    torch.testing.assert_close(got, doubled(*tensors))


def test_wrong_registrations_of_rules(declared: ExitStack) -> None:
    declared.enter_context(extend.rule("thrice", "x + x", "x * 3", thrice))
    for name, function, more, why in (
        ("two words", thrice, {}, "expected a name of letters, digits and hyphens"),
        ("other", thrice, {"when": "never"}, "when must be 'always' or 'by cost'"),
        ("other", 3, {}, "expected a function"),
        ("thrice", monotone_max, {}, "rule thrice has been declared otherwise"),
        ("thrice", thrice, {"when": "always"}, "rule thrice has been declared otherwise"),
    ):
        with pytest.raises(ValueError, match=why):
            extend.rule(name, "x + x", "x * 3", function, **more)  # type: ignore[arg-type]
