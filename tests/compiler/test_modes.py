"""What a user does to a module besides training it: modes, copies, moves, other entry points, options."""

from __future__ import annotations

import copy
import os
import textwrap
from pathlib import Path

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import graphweave
from graphweave.core.errors import SettingsError
from tests import fresh_process
from tests.support import assert_matches, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Net(nn.Module):
    """Convolution, batch norm, dropout, convolution."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = pyg.SAGEConv(5, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(dropout)
        self.second = pyg.GCNConv(8, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.drop(self.norm(self.first(x, edge_index)).relu()), edge_index)


def _net(dropout: float = 0.0) -> Net:
    torch.manual_seed(0)
    return Net(dropout)


INDEX = random_graph(12, 12, 40)


def test_no_grad_and_inference_mode() -> None:
    net = _net().eval()
    compiled = graphweave.compile(net)
    x = features(12, 5)
    want = net(x, INDEX).detach()
    with torch.no_grad():
        out = compiled(x, INDEX)
        assert not out.requires_grad
        torch.testing.assert_close(out, want)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x, INDEX), want)
    out = compiled(x, INDEX)
    assert out.requires_grad
    torch.testing.assert_close(out, want)


def test_tensors_made_in_inference_mode() -> None:
    """These tensors have no version counter, so the graph cache has to work without one."""
    net = _net().eval()
    compiled = graphweave.compile(net)
    with torch.inference_mode():
        index, x = INDEX.clone(), features(12, 5)
        torch.testing.assert_close(compiled(x, index), net(x, index))
        index[1] = index[1].flip(0)
        torch.testing.assert_close(compiled(x, index), net(x, index))


def test_train_and_eval_with_batch_norm() -> None:
    """Running statistics change in training, stay fixed in evaluation, and are used in both as in eager mode."""
    net, twin = _net().double(), _net().double()
    compiled = graphweave.compile(twin)
    for training in (True, False, True, False):
        net.train(training)
        twin.train(training)
        assert_matches(compiled, net, features(12, 5, torch.float64), INDEX, module=net, compiled_module=twin)
        assert net.norm.running_mean is not None and twin.norm.running_mean is not None
        torch.testing.assert_close(twin.norm.running_mean, net.norm.running_mean)


def test_dropout_keeps_and_scales() -> None:
    """Masks follow the seed, differ from call to call, and vanish in evaluation."""
    net = _net(dropout=0.5)
    compiled = graphweave.compile(net)
    x = features(12, 5)
    torch.manual_seed(3)
    first, second = compiled(x, INDEX), compiled(x, INDEX)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(compiled(x, INDEX), first)
    net.eval()
    torch.testing.assert_close(compiled(x, INDEX), net(x, INDEX))


@pytest.mark.slow  # by default, tests/runtime/test_random.py compares all gradients of a layer with dropout
def test_attention_dropout_gradient_uses_the_mask_of_the_forward() -> None:
    """The layer is linear in its input weights: a scaled loss scales the gradient, with the same mask."""
    torch.manual_seed(0)
    layer = pyg.GATConv(5, 4, heads=2, dropout=0.5)
    compiled = graphweave.compile(layer)
    assert_matches(compiled, layer, features(12, 5), INDEX, module=layer)


def test_backward_twice_through_a_kept_graph() -> None:
    layer = pyg.GATConv(5, 4)
    compiled = graphweave.compile(layer)
    out = compiled(features(12, 5), INDEX).sin().sum()
    out.backward(retain_graph=True)
    once = [parameter.grad.clone() for parameter in layer.parameters() if parameter.grad is not None]
    out.backward()
    for parameter, grad in zip(layer.parameters(), once, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, 2 * grad)


def test_training_lowers_the_loss_like_eager() -> None:
    net, twin = _net(), _net()
    compiled = graphweave.compile(twin)
    x, y = features(12, 5), torch.arange(12) % 4
    losses: list[list[float]] = [[], []]
    optimisers = [torch.optim.Adam(one.parameters(), lr=0.05) for one in (net, twin)]
    for _ in range(15):
        for seen, model, optimiser in zip(losses, (net, compiled), optimisers, strict=True):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(x, INDEX), y)
            loss.backward()
            optimiser.step()
            seen.append(loss.item())
    assert losses[1][-1] < 0.5 * losses[1][0]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_state_dict_both_ways() -> None:
    net = _net()
    compiled = graphweave.compile(net)
    state = compiled.state_dict()
    other = graphweave.compile(Net())
    other.load_state_dict(state)
    compiled.eval()
    other.eval()
    x = features(12, 5)
    torch.testing.assert_close(other(x, INDEX), compiled(x, INDEX))
    assert {name.removeprefix("_orig_mod.") for name in state} == set(net.state_dict())


def test_deepcopy_trains_its_own_parameters() -> None:
    compiled = graphweave.compile(_net())
    x = features(12, 5)
    compiled(x, INDEX)
    twin = copy.deepcopy(compiled)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(0.5)
    twin(x, INDEX).sum().backward()
    assert all(parameter.grad is None for parameter in compiled.parameters())
    assert all(parameter.grad is not None for parameter in twin.parameters())


def test_to_another_type_after_compiling() -> None:
    net = _net()
    compiled = graphweave.compile(net)
    compiled(features(12, 5), INDEX)
    compiled.to(torch.float64)
    assert_matches(compiled, net, features(12, 5, torch.float64), INDEX, module=net)


def test_backend_by_name() -> None:
    layer = pyg.SAGEConv(5, 4)
    compiled = torch.compile(layer, backend="graphweave", dynamic=True)
    assert_matches(compiled, layer, features(12, 5), INDEX, module=layer)
    assert graphweave.counters()["kernel_launches"] > 0


def test_verify_runs_eager_beside() -> None:
    layer = pyg.GATConv(5, 4)
    compiled = graphweave.compile(layer, options={"verify": True})
    assert_matches(compiled, layer, features(12, 5), INDEX, module=layer)


def test_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="verfy"):
        graphweave.compile(pyg.SAGEConv(5, 4), options={"verfy": True})(features(12, 5), INDEX)


def test_calls_inside_a_larger_program() -> None:
    """A loop over layers with Python between them, and a list of outputs."""
    torch.manual_seed(0)
    layers = nn.ModuleList([pyg.SAGEConv(5, 5) for _ in range(3)])

    def fn(x: Tensor, edge_index: Tensor) -> list[Tensor]:
        seen = []
        for layer in layers:
            x = layer(x, edge_index).tanh()
            seen.append(x)
        return seen

    assert_matches(graphweave.compile(fn), fn, features(12, 5), INDEX, module=layers)


def test_without_a_compiler_one_warning_and_eager(tmp_path: Path) -> None:
    """Runs in a process of its own, in which no compiler is found and the cache holds no kernel."""
    script = textwrap.dedent("""
        import warnings
        import torch
        import graphweave

        def fn(x, index):
            return torch.zeros_like(x).index_add(0, index[1], x.index_select(0, index[0]).tanh())

        x, index = torch.randn(6, 3), torch.randint(6, (2, 20))
        compiled = graphweave.compile(fn)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                torch.testing.assert_close(compiled(x, index), fn(x, index))
        mine = [str(one.message) for one in caught if "compiler" in str(one.message)]
        assert len(mine) == 1, mine
        assert graphweave.counters()["kernel_launches"] == 0
        counts = graphweave.counters()
        assert counts["fallback_calls"] + counts["eager_fallbacks"] > 0, counts
    """)
    environment = {key: value for key, value in os.environ.items() if key not in ("CXX", "GRAPHWEAVE_CXX")}
    environment |= {"PATH": str(tmp_path), "GRAPHWEAVE_CACHE_DIR": str(tmp_path / "cache")}
    fresh_process.checked(script, environment)
