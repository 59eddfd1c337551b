"""Functions with closures, defaults, parameters, random numbers: each call uses their present values."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweave
from graphweave.udf.run import update_all
from tests.programs.graphs import zoo
from tests.udf.udf_support import Case, assert_same, case_of, in_buckets, on_sum, sends

ZOO = {e.name: e for e in zoo()}
pytestmark = pytest.mark.filterwarnings("ignore:graphweave.*cannot reduce all mailboxes at once")


@pytest.fixture
def case(fresh_compiler: None) -> Case:
    return case_of(ZOO["hub_dst"], (3,))


def check(case: Case, reduce: Any, extra: tuple[Tensor, ...] = (), message: Any = sends) -> None:
    got = update_all(case.ends, case.frames, message, reduce)
    assert_same(got, in_buckets(case, reduce, message), case.leaves + extra, 64)


def scaled(nodes: Any, scale: Any, shift: float = 0.0) -> dict[str, Tensor]:
    return {"o": (nodes.mailbox["m"] * scale + shift).sum(1)}


@pytest.mark.slow
def test_partial(case: Case) -> None:
    for scale in (2.0, torch.randn(3, dtype=torch.float64, requires_grad=True)):
        check(case, functools.partial(scaled, scale=scale), (scale,) if isinstance(scale, Tensor) else ())


def test_default_arguments(case: Case) -> None:
    for power in (1.0, 2.0):

        def reduce(nodes: Any, power: float = power) -> dict[str, Tensor]:
            return {"o": (nodes.mailbox["m"].abs() + 1).pow(power).sum(1)}

        check(case, reduce)


class Weighted(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(3, 3, generator=generator, dtype=torch.float64))
        self.flag = False

    def forward(self, nodes: Any) -> dict[str, Tensor]:
        return {"o": (nodes.mailbox["m"] @ self.weight).amax(1)}

    def method(self, nodes: Any) -> dict[str, Tensor]:
        box = nodes.mailbox["m"]
        return {"o": box.sort(1)[0][:, 0] if self.flag else (box @ self.weight).amin(1)}


class Sends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(6, 3, dtype=torch.float64)

    def forward(self, edges: Any) -> dict[str, Tensor]:
        return {"m": self.lin(torch.cat([edges.src["x"], edges.dst["q"]], -1)).relu()}


def test_modules_and_methods(case: Case) -> None:
    for seed in range(2):
        model = Weighted(seed)
        check(case, model, (model.weight,))
        check(case, model.method, (model.weight,))
    message = Sends()
    check(case, model, (model.weight, *message.parameters()), message)
    assert graphweave.counters()["graph_breaks"] == 0


def test_parameters_that_change(case: Case) -> None:
    model = Weighted(0)
    for _ in range(3):
        check(case, model, (model.weight,))
        with torch.no_grad():
            model.weight.mul_(-1.5)
    compilations = graphweave.counters()["compilations"]
    model.weight = nn.Parameter(torch.eye(3, dtype=torch.float64))
    check(case, model, (model.weight,))
    assert graphweave.counters()["compilations"] == compilations


def test_flags_decide_anew(case: Case) -> None:
    """One code, expressible or not: attributes and closures."""
    model = Weighted(0)
    buckets = 0
    for flag in (False, True, True, False, True):
        model.flag = flag
        check(case, model.method, (model.weight,))
        buckets += flag
        assert graphweave.counters()["bucketed_reductions"] == buckets
    for first in (True, False, True):
        check(case, lambda nodes: {"o": nodes.mailbox["m"][:, 0] if first else nodes.mailbox["m"].sum(1)})  # noqa: B023
        buckets += first
        assert graphweave.counters()["bucketed_reductions"] == buckets


@pytest.mark.slow  # by default, tests/udf/test_udf_kernels.py changes a number of a closure
def test_numbers_that_change(case: Case) -> None:
    for rate in (0.1, -2.0, 3):
        check(case, lambda nodes: {"o": (nodes.mailbox["m"] * rate).mean(1)})  # noqa: B023
    assert graphweave.counters()["bucketed_reductions"] == 0


@pytest.mark.slow
def test_functions_of_one_name(case: Case) -> None:
    def build(sign: int) -> Any:
        if sign > 0:

            def reduce(nodes: Any) -> dict[str, Tensor]:
                return {"o": nodes.mailbox["m"].amax(1)}
        else:

            def reduce(nodes: Any) -> dict[str, Tensor]:
                return {"o": nodes.mailbox["m"].amin(1)}

        return reduce

    for sign in (1, -1, 1):
        check(case, build(sign))


@pytest.mark.slow
def test_functions_of_one_code_around_others(case: Case) -> None:
    """A wrapper's closure tells its functions apart: each has its own compiled code."""

    def wrapped(function: Any) -> Any:
        return lambda nodes: {"o": function(nodes.mailbox["m"])}

    functions = [lambda m: m.sum(1), lambda m: m.mean(1), lambda m: m.amax(1), lambda m: m.amin(1),
                 lambda m: m.exp().sum(1), lambda m: m.tanh().sum(1), lambda m: m.sin().sum(1),
                 lambda m: m.cos().sum(1), lambda m: (m * m).sum(1)]  # fmt: skip
    with torch.no_grad():
        for function in functions:
            check(case, wrapped(function), message=_of_edges)
    assert graphweave.counters()["graph_breaks"] == graphweave.counters()["eager_fallbacks"] == 0


def _of_edges(edges: Any) -> dict[str, Tensor]:
    return {"m": edges.data["e"]}


@pytest.mark.slow
def test_layers_of_many_widths(fresh_compiler: None) -> None:
    with torch.no_grad():
        for width in range(1, 11):
            check(case_of(ZOO["isolated"], (width,)), on_sum, message=_of_edges)
    assert graphweave.counters()["eager_fallbacks"] == graphweave.counters()["graph_breaks"] == 0


def dropped(nodes: Any) -> dict[str, Tensor]:
    return {"o": torch.nn.functional.dropout(nodes.mailbox["m"], 0.5).sum(1)}


@pytest.mark.slow
def test_random_numbers(case: Case) -> None:
    frames = case.frames

    def run(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return update_all(case.ends, frames, lambda edges: {"m": torch.ones_like(edges.src["x"])}, dropped)["o"]

    a, b, c = run(1), run(1), run(2)
    assert torch.equal(a, b) and not torch.equal(a, c)
    assert not torch.equal(run(1), update_all(case.ends, frames, sends, dropped)["o"])
    assert set((a / 2).unique().tolist()) <= {float(k) for k in range(25)}
    assert 0.2 < float(a.sum()) / (2 * 48 * 3) < 0.8


def test_gradient_of_dropout_uses_its_mask(case: Case) -> None:
    out = update_all(case.ends, case.frames, lambda edges: {"m": edges.data["e"]}, dropped)["o"]
    (grad,) = torch.autograd.grad(out.sum(), case.frames.edge["e"])
    assert set(grad.unique().tolist()) == {0.0, 2.0}
    again = (
        (grad * case.frames.edge["e"]).new_zeros(out.shape).index_add(0, case.ends.dst, grad * case.frames.edge["e"])
    )
    assert torch.allclose(again, out)


def test_gradient_modes(case: Case) -> None:
    model = Weighted(0)
    want = in_buckets(case, model)["o"]
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode, torch.enable_grad, torch.no_grad):
        with mode():
            got = update_all(case.ends, case.frames, sends, model)["o"]
            assert torch.allclose(got, want)
            assert got.requires_grad == (mode is torch.enable_grad)
    check(case, model, (model.weight,))
    model.requires_grad_(False)
    check(case, model)
    assert graphweave.counters()["graph_breaks"] == graphweave.counters()["eager_fallbacks"] == 0


def test_functions_are_not_kept_alive() -> None:
    import gc
    import weakref

    case = case_of(ZOO["isolated"], (3,))
    model = Weighted(0)
    update_all(case.ends, case.frames, sends, model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
