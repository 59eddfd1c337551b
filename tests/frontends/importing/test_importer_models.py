"""Real models as message programs: the program computes what the captured graph does, and little stays outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

from graphweave.core.errors import GraphweaveError
from graphweave.ir.message.nodes import MapOf
from tests.captures import Capture, capture, check
from tests.pyg.zoo_cases import CASES, build
from tests.support import features, random_graph

N, E, IN, OUT, EDGE = 11, 37, 6, 8, 5
ROWS = ["aten.select.int", "aten.select.int"]
"""Taking the rows of edge_index is all that a graph without inserted self-loops leaves to ATen."""


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def _mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, OUT), nn.ReLU(), nn.Linear(OUT, OUT))


WHOLE: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "GATConv": (lambda: pyg.GATConv(IN, OUT, heads=4, add_self_loops=False), False),
    "GATConv-edge": (lambda: pyg.GATConv(IN, OUT, heads=2, edge_dim=EDGE, add_self_loops=False), True),
    "GATv2Conv": (lambda: pyg.GATv2Conv(IN, OUT, heads=4, edge_dim=EDGE, add_self_loops=False), True),
    "GCNConv": (lambda: pyg.GCNConv(IN, OUT, normalize=False), False),
    "SAGEConv": (lambda: pyg.SAGEConv(IN, OUT), False),
    "SAGEConv-max": (lambda: pyg.SAGEConv(IN, OUT, aggr="max", project=True), False),
    "GINConv": (lambda: pyg.GINConv(_mlp(IN), train_eps=True), False),
    "GINEConv": (lambda: pyg.GINEConv(_mlp(IN), edge_dim=EDGE), True),
    "EdgeConv": (lambda: pyg.EdgeConv(_mlp(2 * IN)), False),
    "TransformerConv": (lambda: pyg.TransformerConv(IN, OUT, heads=2, edge_dim=EDGE, beta=True), True),
    "PNAConv": (
        lambda: pyg.PNAConv(IN, OUT, ["mean", "min", "max", "std"], ["identity", "amplification"], torch.arange(9) + 1),
        False,
    ),
    "ResGatedGraphConv": (lambda: pyg.ResGatedGraphConv(IN, OUT), False),
    "GatedGraphConv": (lambda: pyg.GatedGraphConv(OUT, 2), False),
    "CGConv": (lambda: pyg.CGConv(IN, EDGE), True),
    "GMMConv": (lambda: pyg.GMMConv(IN, OUT, EDGE, 3), True),
    "LEConv": (lambda: pyg.LEConv(IN, OUT), False),
    "FiLMConv": (lambda: pyg.FiLMConv(IN, OUT), False),
    "GraphConv": (lambda: pyg.GraphConv(IN, OUT, aggr="mean"), False),
    "TAGConv": (lambda: pyg.TAGConv(IN, OUT, normalize=False), False),
    "GeneralConv": (lambda: pyg.GeneralConv(IN, OUT, in_edge_channels=EDGE, attention=True), True),
}
"""Name -> (module, whether it takes edge_attr). Only taking the rows of edge_index stays outside the algebra."""


def _captured(module: nn.Module, edge_attr: bool, dynamic: bool = True) -> Capture:
    x = features(N, IN, torch.float64).requires_grad_()
    args = [x, random_graph(N, N, E, seed=7)]
    if edge_attr:
        args.append(features(E, EDGE, torch.float64, seed=3))
    (captured,) = capture(module, *args, dynamic=dynamic)
    check(captured)
    return captured


@pytest.mark.parametrize("name", WHOLE)
def test_convolution_is_whole(name: str) -> None:
    torch.manual_seed(0)
    make, edge_attr = WHOLE[name]
    captured = _captured(make(), edge_attr)
    # two biases with one gradient get a copy each
    assert [t for t in captured.targets() if t != "aten.clone.default"] == ROWS
    assert not captured.imported.refused
    assert sum(isinstance(n, MapOf) for n in captured.imported.program.nodes) == 2


@pytest.mark.parametrize("name", ["GATConv", "SAGEConv-max", "EdgeConv"])
def test_convolution_of_fixed_sizes_is_whole(name: str) -> None:
    torch.manual_seed(0)
    make, edge_attr = WHOLE[name]
    captured = _captured(make(), edge_attr, dynamic=False)
    assert captured.targets() == ROWS
    assert all(isinstance(n, int) for n in captured.imported.space_rows.values())


@pytest.mark.parametrize(
    "make", [pytest.param(pyg.GAT, id="GAT", marks=pytest.mark.slow), pytest.param(pyg.GCN, id="GCN")]
)
def test_layers_share_the_self_loops_that_each_inserts(make: Callable[..., nn.Module]) -> None:
    torch.manual_seed(0)
    captured = _captured(make(IN, OUT, 2, 4), False)
    assert captured.targets().count("aten.index.Tensor") == 1
    assert sum(isinstance(n, MapOf) for n in captured.imported.program.nodes) == 2


def test_of_batch_norm_no_call_stays_and_of_dropout_only_the_seeds() -> None:
    torch.manual_seed(0)
    captured = _captured(pyg.GAT(IN, OUT, 2, 4, dropout=0.3, norm="batch_norm", add_self_loops=False), False)
    kept = [t for t in captured.targets() if t not in ROWS]
    assert [t for t in kept if t != "aten.randint.default"] == []
    assert captured.kinds().count("Random") == kept.count("aten.randint.default") == 3


@pytest.mark.zoo
@pytest.mark.parametrize("name", CASES)
def test_every_case_of_the_zoo(name: str) -> None:
    built = build(name)
    try:
        captures = capture(lambda *args: built.module(*args, **built.kwargs), *built.args, whole=False)
    except GraphweaveError:
        raise
    except (RuntimeError, IndexError) as cannot:
        pytest.skip(f"PyTorch cannot trace it with data-dependent sizes: {type(cannot).__name__}")
    for captured in captures:
        names = {n.name for n in captured.gm.graph.nodes if n.op == "placeholder"}
        if names <= set(captured.inputs):
            check(captured)
