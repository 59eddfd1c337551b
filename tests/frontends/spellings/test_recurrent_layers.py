"""PyTorch's recurrent layers over rows: unrolled over few steps, left to PyTorch over many and over steps that vary."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweave
from graphweave.frontends.tracing import recurrent_formulas
from graphweave.tensorlike.answers import NotExpressible
from graphweave.udf.mailbox import Mailbox, Received
from tests.support import assert_matches, by_default, features

pytestmark = pytest.mark.usefixtures("fresh_compiler")

LAYERS: dict[str, tuple[type[nn.RNNBase], dict[str, Any]]] = {
    "GRU both ways": (nn.GRU, {"bidirectional": True, "batch_first": True}),
    "two LSTMs both ways": (nn.LSTM, {"bidirectional": True, "batch_first": True, "num_layers": 2}),
    "LSTM with projection": (nn.LSTM, {"proj_size": 2, "bias": False}),
    "two RNNs": (nn.RNN, {"num_layers": 2, "nonlinearity": "relu"}),
    "RNN": (nn.RNN, {}),
}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No layer was unrolled before."""
    monkeypatch.setattr(recurrent_formulas, "_step_counts", {})
    return monkeypatch


@pytest.mark.parametrize("given", by_default([False, True], True))
@pytest.mark.parametrize("name", by_default(LAYERS, "GRU both ways"))
def test_few_steps_are_kernels(name: str, given: bool, counted: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    kind, options = LAYERS[name]
    layer = kind(4, 3, **options).double()

    def model(x: Tensor, state: Any = None) -> tuple[Tensor, ...]:
        out, last = layer(x, state)
        return (out, *last) if isinstance(last, tuple) else (out, last)

    rows = features(21, 4, torch.float64)
    x = rows.view(7, 3, 4) if layer.batch_first else rows.view(3, 7, 4)
    with torch.no_grad():
        shapes = [t.shape for t in model(x)[1:]]
    states = [features(3 * 4 * 7, 1, torch.float64, seed=i).view(-1)[: s.numel()].view(s) for i, s in enumerate(shapes)]
    state = () if not given else (tuple(states),) if kind is nn.LSTM else (states[0],)
    assert_matches(graphweave.compile(model), model, x, *state, module=layer)
    counts = graphweave.counters()
    assert (counts["compilations"], counts["graph_breaks"], counts["eager_fallbacks"]) == (1, 0, 0)


def test_a_step_leaves_no_call_to_pytorch(counted: pytest.MonkeyPatch) -> None:
    layer = nn.GRU(4, 3, batch_first=True).double()
    compiled = graphweave.compile(lambda *xs: layer(torch.stack(xs, dim=1))[0])
    compiled(*(features(7, 4, torch.float64, seed=i) for i in range(3))).sum().backward()
    assert graphweave.counters()["fallback_calls"] == 0


def test_steps_that_vary_and_many_steps_run_as_they_are(counted: pytest.MonkeyPatch) -> None:
    """The first number of steps is compiled in; the others break the graph, all by the same compilation."""
    counted.setattr(recurrent_formulas, "MAX_STEP_COUNTS", 1)
    counted.setattr(recurrent_formulas, "MAX_UNROLLED_STEPS", 5)
    layer = nn.GRU(4, 3, batch_first=True).double()
    compiled = graphweave.compile(layer)
    with torch.no_grad():
        for steps in (3, 5, 2, 9, 4, 3):
            x = features(2 * steps, 4, torch.float64).view(2, steps, 4)
            torch.testing.assert_close(compiled(x), layer(x))
    assert graphweave.counters()["compilations"] == 1


def test_what_stands_for_a_tensor_answers_the_layer_itself() -> None:
    box = Mailbox(torch.randn(4, 3), Received(torch.tensor([0, 1, 1, 0]), torch.empty(2, 0)))
    with pytest.raises(NotExpressible, match="lstm"):
        recurrent_formulas.recurrent(nn.LSTM(3, 3, batch_first=True), box)
