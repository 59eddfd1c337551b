"""Everyday Python that Dynamo alone does not trace is part of one graph, through both doors."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric import utils
from torch_geometric.data import Batch, Data, HeteroData

import graphweave
from tests.support import features, random_graph

F64 = torch.float64
SIZES = ((6, 20), (9, 40), (5, 7))

DOORS: dict[str, Callable[[Any], Any]] = {
    "graphweave.compile": graphweave.compile,
    "torch.compile": lambda f: torch.compile(f, backend="graphweave", fullgraph=True),
}
pytestmark = pytest.mark.parametrize("door", DOORS)


def counts() -> tuple[int, int, int]:
    now = graphweave.counters()
    return now["compilations"], now["graph_breaks"], now["eager_fallbacks"]


class Block(nn.Module):
    """A layer as GraphGym writes it: it takes a batch and sets its fields."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.lin = pyg.GCNConv(4, 4), nn.Linear(4, 4)

    def forward(self, batch: Data) -> Data:
        batch.x = batch.x + self.conv(batch.x, batch.edge_index).relu()
        batch.edge_attr = self.lin(batch.edge_attr)
        batch.messages = batch.edge_attr * batch.x[batch.edge_index[0]]
        return batch


def test_layers_that_write_fields_of_a_batch(door: str, fresh_compiler: None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block()).double()
    compiled = DOORS[door](model)
    for nodes, edges in SIZES:
        one = Data(features(nodes, 4, F64), random_graph(nodes, nodes, edges), features(edges, 4, F64))
        for data in (one, Batch.from_data_list([one, one])):
            if isinstance(data, Batch) and nodes != SIZES[0][0]:
                continue
            want, got = model(copy.copy(data)), compiled(given := copy.copy(data))
            assert got is given
            for name in ("x", "edge_attr", "messages"):
                torch.testing.assert_close(got[name], want[name])
    assert counts() == (2, 0, 0)  # a batch has another class


def test_layers_that_write_fields_of_typed_data(door: str, fresh_compiler: None) -> None:
    def f(data: HeteroData) -> Tensor:
        src, dst = data["a", "to", "b"].edge_index
        data["b"].h = torch.zeros_like(data["b"].x).index_add(0, dst, data["a"].x[src])
        data["b"].x = data["b"].h.relu() + data["b"].x
        return data["b"].x.sum(1)

    compiled = DOORS[door](f)
    for nodes, edges in SIZES:
        data = HeteroData()
        data["a"].x, data["b"].x = features(nodes, 4, F64), features(nodes + 1, 4, F64, 3)
        data["a", "to", "b"].edge_index = random_graph(nodes, nodes + 1, edges)
        given = copy.copy(data)
        torch.testing.assert_close(compiled(given), f(want := copy.copy(data)))
        torch.testing.assert_close(given["b"].h, want["b"].h)
    assert counts() == (1, 0, 0)


SIZED: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "scatter": lambda x, i, n: utils.scatter(x, i, dim_size=n, reduce="mean"),
    "softmax": lambda x, i, n: utils.softmax(x, i, num_nodes=n),
    "pool": lambda x, i, n: pyg.global_max_pool(x, i, size=n),
    "size": lambda x, i, n: x.new_zeros((n, *x.size()[1:])).index_add(0, i, x),
    "added": lambda x, i, n: x.new_zeros(x.size()[:0] + (n,) + x.size()[1:]).index_add(0, i, x),  # noqa: RUF005
    "Size": lambda x, i, n: torch.zeros(torch.Size([n, 4]), dtype=F64).index_add(0, i, x),
}


@pytest.mark.parametrize("name", SIZED)
def test_a_number_of_rows_that_is_a_tensor(name: str, door: str, fresh_compiler: None) -> None:
    def f(x: Tensor, edges: Tensor) -> Tensor:
        index = edges[1]
        return SIZED[name](x[edges[0]].exp(), index, index.max() + 1)

    compiled = DOORS[door](f)
    for nodes, edges in SIZES:
        x, index = features(nodes, 4, F64), random_graph(nodes, nodes, edges)
        torch.testing.assert_close(compiled(x, index), f(x, index))
    assert counts() == (1, 0, 0)


CLASSES: dict[str, Callable[[Tensor], Tensor]] = {
    "left out": torch.nn.functional.one_hot,
    "an int": lambda t: torch.nn.functional.one_hot(t, int(t.max()) + 1),
    "a tensor": lambda t: torch.nn.functional.one_hot(t, num_classes=t.max() + 2),
}


@pytest.mark.parametrize("name", CLASSES)
def test_a_number_of_classes_that_data_decides(name: str, door: str, fresh_compiler: None) -> None:
    def f(x: Tensor, edges: Tensor, kinds: Tensor) -> Tensor:
        near = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]].exp())
        return CLASSES[name](kinds).to(x.dtype).T @ near

    compiled = DOORS[door](f)
    for nodes, edges in SIZES:
        given = features(nodes, 4, F64), random_graph(nodes, nodes, edges), torch.arange(nodes) % 3
        torch.testing.assert_close(compiled(*given), f(*given))
    assert counts() == (1, 0, 0)


def test_classes_out_of_range_are_refused(door: str, fresh_compiler: None) -> None:
    f = lambda kinds, most: torch.nn.functional.one_hot(kinds, int(most) + 1) * 2  # noqa: E731
    compiled = DOORS[door](f)
    torch.testing.assert_close(compiled(torch.arange(3), torch.tensor(3)), f(torch.arange(3), torch.tensor(3)))
    for kinds, why in ((torch.arange(5), "smaller than num_classes"), (torch.tensor([-1, 0]), "non-negative")):
        with pytest.raises(RuntimeError, match=f"Class values must be {why}"):
            compiled(kinds, torch.tensor(3))


def test_a_number_of_rows_that_is_an_argument(door: str, fresh_compiler: None) -> None:
    f = lambda x, index, size: utils.scatter(x, index, dim_size=size)  # noqa: E731
    compiled = DOORS[door](f)
    for rows, size in ((6, 3), (9, 4)):
        given = features(rows, 4, F64), torch.arange(rows) % size, torch.tensor(size)
        torch.testing.assert_close(compiled(*given), f(*given))
    assert counts() == (1, 0, 0)


class Readout(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4, **options)

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        return self.norm(pyg.global_add_pool(x, batch)) * 2


@pytest.mark.parametrize("options", [{}, {"momentum": None}, {"track_running_stats": False, "affine": False}], ids=str)
def test_batch_norm_of_graphs_whose_number_data_decides(
    options: dict[str, Any], door: str, fresh_compiler: None
) -> None:
    model = Readout(**options).double()
    other = copy.deepcopy(model)
    compiled = DOORS[door](other)
    for training in (True, False):
        model.train(training)
        other.train(training)
        for nodes in (7, 10, 13):
            batch, results = torch.arange(nodes) // 3, []
            for call, module in ((model, model), (compiled, other)):
                x = features(nodes, 4, F64, nodes).requires_grad_()
                out = call(x, batch)
                (out * out.detach().cos()).sum().backward()
                results.append([out, x.grad, *[p.grad for p in module.parameters()], *module.buffers()])
            for got, want in zip(results[1], results[0], strict=True):
                torch.testing.assert_close(got, want)
    assert counts() == (2, 0, 0)


def test_batch_norm_of_rows_that_a_mask_picks_may_have_none_of_them_but_not_one(
    door: str, fresh_compiler: None
) -> None:
    norm, want = nn.BatchNorm1d(4).double(), nn.BatchNorm1d(4).double()
    compiled = DOORS[door](lambda x, mask: norm(x[mask]))
    x = features(5, 4, F64)
    for mask in (torch.ones(5, dtype=torch.bool), torch.zeros(5, dtype=torch.bool)):
        torch.testing.assert_close(compiled(x, mask), want(x[mask]))
        torch.testing.assert_close(norm.state_dict(), want.state_dict())
    told = r"more than 1 value per channel|Ne\(u0, 1\)"  # PyTorch 2.11 may leave the sentence out
    with pytest.raises(RuntimeError, match=told):
        compiled(x, torch.arange(5) == 2)


def _rectify(module: nn.Module, given: tuple[Tensor], out: Tensor) -> Tensor:
    return out.relu()


def test_a_scripted_module_with_hooks_breaks_the_graph_and_the_rest_is_compiled(
    door: str, fresh_compiler: None
) -> None:
    linear, hooked = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()
    hooked.register_forward_hook(_rectify)
    scripted = torch.jit.script(hooked)

    def f(x: Tensor, edges: Tensor) -> Tensor:
        hidden = scripted(linear(x).tanh())
        return torch.zeros_like(x).index_add(0, edges[1], hidden[edges[0]])

    compiled = graphweave.compile(f) if door == "graphweave.compile" else torch.compile(f, backend="graphweave")
    for nodes, edges in SIZES[:2]:
        given = features(nodes, 4, F64), random_graph(nodes, nodes, edges)
        torch.testing.assert_close(compiled(*given), f(*given))
    assert graphweave.counters()["compilations"] >= 2  # what stands in front of the call, and what behind it
    if door == "graphweave.compile":
        assert graphweave.counters()["graph_breaks"] > 0
        (found,) = graphweave.explain(f, *given).breaks
        assert "test_tracer_gaps.py" in found.where.own
        assert "scripted" in found.why


def test_an_einsum_of_three_operands_is_compiled_once(door: str, fresh_compiler: None) -> None:
    """PyTorch orders it by its sizes, which the trace would compile in."""

    def message(x: Tensor, y: Tensor, coupling: Tensor, edge_index: Tensor) -> Tensor:
        rows = torch.einsum("eci,ej,ijk->eck", x[edge_index[0]], y, coupling)
        return torch.zeros_like(x).index_add(0, edge_index[1], rows)

    torch.manual_seed(0)
    coupling = torch.randn(3, 2, 3, dtype=F64)
    compiled = DOORS[door](message)
    for nodes, edges in SIZES:
        x, y = features(nodes, 12, F64).view(-1, 4, 3), features(edges, 2, F64)
        given = x, y, coupling, random_graph(nodes, nodes, edges)
        torch.testing.assert_close(compiled(*given), message(*given))
    assert counts() == (1, 0, 0)


class _Pair(tuple[int, int]):
    def __len__(self) -> int:
        raise NotImplementedError


def test_tuples_that_refuse_to_tell_their_length(door: str, fresh_compiler: None) -> None:
    """The irreducible representations of e3nn are such tuples."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pairs = [(2, _Pair((1, -1)))]

        def forward(self, x: Tensor) -> Tensor:
            scale, (a, b) = self.pairs[0]
            return x * scale + a - 3 * b

    layer, x = Layer(), features(4, 3)
    compiled = DOORS[door](layer)
    for other in ((1, -1), (4, 5)):
        layer.pairs = [(2, _Pair(other))]
        torch.testing.assert_close(compiled(x), layer(x))
    assert counts() == (2, 0, 0)


def warns(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    warnings.warn("slow here", stacklevel=1)
    warnings.warn("soon removed", FutureWarning, stacklevel=2)
    return torch.zeros_like(x).index_add(0, dst, x[src].tanh())


def warned(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return warns(x, src, dst).square()


def test_warnings_are_issued_while_tracing(door: str, fresh_compiler: None) -> None:
    x, (src, dst) = features(6, 4, F64), random_graph(6, 6, 20)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        want = warned(x, src, dst)
    expected = [(str(one.message), one.category, one.filename, one.lineno) for one in told]
    compiled = DOORS[door](warned)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for _ in range(2):
            torch.testing.assert_close(compiled(x, src, dst), want)
    assert [(str(one.message), one.category, one.filename, one.lineno) for one in told] == expected
    assert counts() == (1, 0, 0)


def test_a_warning_that_a_filter_makes_an_error_is_raised(door: str, fresh_compiler: None) -> None:
    compiled = (
        graphweave.compile(warned) if door == "graphweave.compile" else torch.compile(warned, backend="graphweave")
    )
    x, (src, dst) = features(6, 4, F64), random_graph(6, 6, 20)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "slow here")
        with pytest.raises(UserWarning, match="slow here"):
            compiled(x, src, dst)


@dataclass(frozen=True)
class _Power:
    exponent: int

    def __call__(self, x: Tensor) -> Tensor:
        return x**self.exponent


def test_a_frozen_dataclass_that_the_trace_makes_and_calls(door: str, fresh_compiler: None) -> None:
    """PyTorch 2.11 asks for its hash before it has fields."""

    def f(x: Tensor, edges: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, edges[1], _Power(3)(x[edges[0]]))

    compiled = DOORS[door](f)
    for nodes, edges in SIZES:
        given = features(nodes, 4, F64), random_graph(nodes, nodes, edges)
        torch.testing.assert_close(compiled(*given), f(*given))
    assert counts() == (1, 0, 0)


def test_default_values_of_a_function_that_is_an_argument(door: str, fresh_compiler: None) -> None:
    """PyTorch 2.11 has no guards on them by default, and computed with those of the first call."""

    def f(x: Tensor, src: Tensor, dst: Tensor, message: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.zeros_like(x).index_add(0, dst, message(x[src]))

    def message_to(power: float) -> Callable[[Tensor], Tensor]:
        def message(x: Tensor, power: float = power, *, scale: float = power) -> Tensor:
            return x.abs() ** power * scale

        return message

    compiled, x, (src, dst) = DOORS[door](f), features(6, 4, F64), random_graph(6, 6, 20)
    for power in (1.0, 2.0, 3.0):
        message = message_to(power)
        torch.testing.assert_close(compiled(x, src, dst, message), f(x, src, dst, message))


@pytest.mark.parametrize("as_method", [True, False])
def test_rows_that_are_repeated_equally_often_with_a_size(as_method: bool, door: str, fresh_compiler: None) -> None:
    """PyTorch 2.11 compiles the size in, or breaks the graph where data decides it."""

    def f(x: Tensor, edges: Tensor) -> Tensor:
        count = torch.bincount(edges[1])
        rows, known = 2 * count.numel(), 3 * x.size(0)
        if as_method:
            found, twice = x.repeat_interleave(3, 0, output_size=known), count.repeat_interleave(2, output_size=rows)
        else:
            found = torch.repeat_interleave(x, 3, dim=0, output_size=known)
            twice = torch.repeat_interleave(count, 2, output_size=rows)
        return found.sum() * twice.to(F64)

    compiled = DOORS[door](f)
    for nodes, edges in SIZES:
        given = features(nodes, 4, F64), random_graph(nodes, nodes, edges)
        torch.testing.assert_close(compiled(*given), f(*given))
    assert counts() == (1, 0, 0)
