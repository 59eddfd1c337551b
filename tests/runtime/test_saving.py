"""What is compiled goes to files and other processes, and PyTorch exports it (docs/saving.md)."""

from __future__ import annotations

import copy
import inspect
import io
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torch_geometric.nn import GCNConv

import graphweave as gw


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(5, 7), GCNConv(7, 3)

    def forward(self, x: Tensor, edge_index: Tensor, scale: float = 1.0) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index) * scale


class PartlyCompiled(nn.Module):
    """A model of which one layer is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = gw.compile(GCNConv(5, 7)), nn.Linear(7, 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.head(self.conv(x, edge_index).relu())


@gw.compile
def spread(x: Tensor, edge_index: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]].tanh())


class WithFunction(nn.Module):
    """A model that calls a compiled function."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return spread(x, edge_index) * 2


class WithLayer(nn.Module):
    """A model with a layer and an operator of graphweave."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = gw.nn.GraphConv(5, 7, allow_zero_in_degree=True)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        graph = gw.graph((edge_index[0], edge_index[1]), num_nodes=x.shape[0])
        return gw.ops.spmm(graph, lambda src, dst, edge: src.tanh(), src=self.conv(graph, x))


def example(nodes: int = 30, edges: int = 90) -> tuple[Tensor, Tensor]:
    numbers = torch.Generator().manual_seed(nodes)
    return torch.randn(nodes, 5, generator=numbers), torch.randint(nodes, (2, edges), generator=numbers)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(5)
    return Model().eval()


# ---------------------------------------------------------------- files and copies


def test_state_dicts_are_those_of_the_model(model: nn.Module, tmp_path: Path) -> None:
    compiled = gw.compile(Model().eval())
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    compiled.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert torch.equal(compiled(*example()), gw.compile(model)(*example()))
    other = Model()
    other.load_state_dict(compiled.state_dict())
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())


def test_a_copy_has_weights_of_its_own(model: nn.Module) -> None:
    compiled = gw.compile(model)
    want = compiled(*example())
    copied = copy.deepcopy(compiled)
    assert torch.equal(copied(*example()), want)
    with torch.no_grad():
        compiled.get_parameter("second.bias").add_(1)
    assert torch.equal(copied(*example()), want)
    torch.testing.assert_close(compiled(*example()), want + 1)


LOADER = """
import sys
import torch
import graphweave as gw

compiled, function, arguments, want = torch.load(sys.argv[1], weights_only=False)
torch.testing.assert_close(compiled(*arguments), want, rtol=1e-6, atol=1e-6)
torch.testing.assert_close(function(*arguments), function._gw_original(*arguments))
counts = gw.counters()
assert counts["kernel_launches"] > 0 and counts["eager_fallbacks"] == 0, counts
"""


@pytest.mark.slow
def test_another_process_loads_what_was_saved(model: nn.Module, tmp_path: Path) -> None:
    compiled = gw.compile(model)
    want = compiled(*example())
    torch.save((compiled, spread, example(), want.detach()), tmp_path / "saved.pt")
    folders = [str(Path(__file__).parents[2])]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    run = [sys.executable, "-c", LOADER, str(tmp_path / "saved.pt")]
    done = subprocess.run(run, env=found, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_function_goes_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(spread)) is spread
    assert copy.deepcopy(spread) is spread
    other = gw.compile(spread._gw_original)
    with pytest.raises(pickle.PicklingError, match=r"not the same object as .*spread"):
        pickle.dumps(other)


class Spreading(Dataset[Tensor]):
    """Features that a worker computes by compiled code."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __len__(self) -> int:
        return 3

    def __getitem__(self, at: int) -> Tensor:
        x, edge_index = example(10 + at)
        with torch.no_grad():
            return self.model(x, edge_index).sum(0) + spread(x, edge_index).sum()


def compute(model: nn.Module, given: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
    with torch.no_grad():
        return model(*given), gw.counters()["kernel_launches"]


@pytest.mark.slow
def test_spawned_processes_run_compiled(model: nn.Module) -> None:
    compiled = gw.compile(model)
    with torch.no_grad():
        want = compiled(*example())
    with get_context("spawn").Pool(1) as pool:
        got, launches = pool.apply(compute, (compiled, example()))
    assert torch.equal(got, want) and launches > 0
    data = Spreading(compiled)
    loader = DataLoader(data, batch_size=1, num_workers=1, multiprocessing_context="spawn")
    for (row,), at in zip(loader, range(3), strict=True):
        torch.testing.assert_close(row, data[at])


# ---------------------------------------------------------------- torch.export


def test_a_compiled_model_has_the_signature_of_its_forward(model: nn.Module) -> None:
    assert inspect.signature(gw.compile(model).forward) == inspect.signature(model.forward)
    assert list(inspect.signature(spread).parameters) == ["x", "edge_index"]


def compiled_model() -> nn.Module:
    return gw.compile(Model())


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "make", [compiled_model, pytest.param(PartlyCompiled, marks=pytest.mark.slow), WithFunction, WithLayer]
)
def test_pytorch_exports_what_is_compiled(make: Callable[[], nn.Module], strict: bool) -> None:
    torch.manual_seed(1)
    model = make().eval()
    nodes, edges = torch.export.Dim("nodes", min=2), torch.export.Dim("edges", min=2)
    program = torch.export.export(
        model, example(), dynamic_shapes={"x": {0: nodes}, "edge_index": {1: edges}}, strict=strict
    )
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert any("index" in name or "scatter" in name for name in called)
    assert not any(name.startswith("graphweave") for name in called)
    stream = io.BytesIO()
    torch.export.save(program, stream)
    stream.seek(0)
    loaded = torch.export.load(stream).module()
    given = example(40, 200)
    with torch.no_grad():
        want = model(*given)
        torch.testing.assert_close(loaded(*given), want, rtol=1e-5, atol=1e-6)
        gw.reset_counters()
        torch.testing.assert_close(gw.compile(loaded)(*given), want, rtol=1e-5, atol=1e-6)
    counts = gw.counters()
    assert counts["kernel_launches"] > 0 and counts["eager_fallbacks"] == 0
