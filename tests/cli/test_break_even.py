"""When compiling has paid: the formula, what `explain` measures, and the last lines of `graphweave train`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import graphweave
from graphweave.cli.main import main
from graphweave.cli.report import pays
from graphweave.core.break_even import BreakEven
from graphweave.examples.training import History


@pytest.mark.parametrize(
    ("first", "eager", "compiled", "steps"),
    [
        (10.0, 3.0, 1.0, 5), (10.0, 1.5, 1.0, 18), (1.0, 3.0, 1.0, 1), (0.5, 3.0, 1.0, 1), (10.0, 1.0, 1.0, None),
        (10.0, 1.0, 2.0, None),
    ],
)  # fmt: skip
def test_paid_is_the_first_step_at_which_the_sums_of_seconds_meet(
    first: float, eager: float, compiled: float, steps: int | None
) -> None:
    one = BreakEven(first, eager, compiled)
    assert one.steps == steps
    for n in range(1, 40):
        assert (n * eager >= first + (n - 1) * compiled) == (steps is not None and n >= steps)


def test_it_is_said_in_one_line() -> None:
    assert BreakEven(10.9, 5.3e-3, 2.1e-3).text() == (
        "the first step took 10.9 s, with compilation; each later one takes 2.1 ms, eagerly 5.3 ms: 3.2 ms saved each "
        "time, so that compiling has paid after 3,406 steps"
    )
    assert (
        BreakEven(10.9, 2e-5, 5e-5)
        .text("epoch")
        .endswith("eagerly 20 us: compiling never pays here, so run it as PyTorch's own")
    )


class Normed(nn.Module):
    """Sums of neighbours, with running statistics, dropout and a count of its own calls."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        h = torch.dropout(self.norm(self.lin(x)), 0.5, self.training)
        return torch.zeros_like(h).index_add(0, dst, h[src] * 2).relu()


def test_explain_measures_a_step_and_leaves_no_trace() -> None:
    model, x = Normed(), torch.randn(30, 4)
    src, dst = torch.randint(30, (2, 90))
    model.lin.bias.grad = torch.ones(4)
    told = graphweave.explain(model, x, src, dst, detail="break-even")
    assert told.break_even is not None
    assert min(told.break_even.eager_step_seconds, told.break_even.compiled_step_seconds) > 0
    assert told.break_even.first_call_seconds == told.time.seconds > told.break_even.compiled_step_seconds
    assert f"== break-even: {told.break_even.text()}" in str(told)
    assert torch.equal(model.lin.bias.grad, torch.ones(4)) and model.lin.weight.grad is None
    assert model.norm.num_batches_tracked == 1  # by the call that explain makes


def test_a_function_with_nothing_to_compile_can_never_gain() -> None:
    told = graphweave.explain(lambda x: x + 1, torch.randn(3), detail="break-even")
    assert told.text("break-even").endswith(
        "== break-even: nothing is compiled, so nothing can be gained: run it as PyTorch's own\n"
    )


class Way:
    def __init__(self, way: str, seconds: list[float]) -> None:
        self.way, self.history = way, History(seconds=seconds)


def test_train_ends_with_what_compiling_cost_and_when_it_has_paid() -> None:
    compiled, eager = Way("graphweave", [9.0, 1.0, 1.0]), Way("eager", [3.0, 3.0, 3.0])
    (line,) = pays([compiled, eager])  # type: ignore[list-item]
    assert line.startswith("break-even: the first epoch took 9 s") and line.endswith("has paid after 4 epochs")
    (line,) = pays([compiled])  # type: ignore[list-item]
    assert line == "break-even: compiling took 8 s of the first epoch; --compare says after how many it has paid"
    assert not list(pays([Way("graphweave", [9.0])])) and not list(pays([eager]))  # type: ignore[list-item]


def test_the_command_prints_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--data", "karate", "--model", "gcn", "--epochs", "2", "--threads", "1"]) == 0
    assert "break-even: compiling took " in capsys.readouterr().out
