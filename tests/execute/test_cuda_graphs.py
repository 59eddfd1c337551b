"""CUDA graphs of compiled programs, on the CPU with a stand-in for the device; and in earnest where there is one."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import graphweave
from graphweave.core.errors import SettingsError
from graphweave.core.options import Options
from graphweave.core.types import Space
from graphweave.execute import executable
from graphweave.execute.calls import call_step
from graphweave.execute.capturable import CallWatch
from graphweave.execute.cuda_graph import GRAPHS, PLAIN_CALLS, CudaGraphs
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.nodes import NumbersOfSegments, RowsOfSegments
from graphweave.runtime import formats
from graphweave.runtime.index import Index
from graphweave.runtime.memo import Memo
from tests.execute.cuda_graph_support import StandIn
from tests.support import features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

INDEX = random_graph(12, 12, 40)
FIRST = PLAIN_CALLS + 1  # number of calls before the first replay


def counts() -> tuple[int, int, int, int]:
    """Captures, replays, skips, failures."""
    c = graphweave.counters()
    return tuple(c[f"cuda_graph_{name}"] for name in ("captures", "replays", "skips", "failures"))  # type: ignore[return-value]


# -------------------------------------------------------- the class alone


def gather_and_scale(args: list[Any]) -> list[Any]:
    """x[index] * n, the index, x, and a Python number."""
    x, index, n = args
    args.clear()
    rows = formats.flat(Index(index, x.shape[0]))
    return [x.index_select(0, rows) * n, index, x, n, None]


def graphs(device: StandIn, run: Callable[[list[Any]], list[Any]] = gather_and_scale) -> CudaGraphs:
    return CudaGraphs(run, "test", device, frozenset([1]))


def warm(made: CudaGraphs, *args: Any) -> None:
    for _ in range(FIRST):
        made(list(args))


def test_replays_follow_the_values_of_their_arguments() -> None:
    device = StandIn()
    made, index = graphs(device), INDEX[0].contiguous()
    for call in range(FIRST + 3):
        x = features(12, 3, seed=call)
        given = [x, index, 2]
        out = made(given)
        assert given == []
        torch.testing.assert_close(out[0], 2 * x[index])
        assert out[2] is x and out[3:] == [2, None]
        assert out[1].data_ptr() == index.data_ptr(), "the index itself, by which the backward knows its graph"
    assert counts() == (1, 3, 0, 0)
    assert (device.asides, device.captures, device.replays) == (1, 1, 3)


def test_results_of_an_earlier_call_stay_what_they_were() -> None:
    made, index = graphs(StandIn()), INDEX[0].contiguous()
    given = [features(12, 3, seed=call) for call in range(FIRST + 3)]
    outs = [made([x, index, 1])[0] for x in given]
    for x, out in zip(given, outs, strict=True):
        torch.testing.assert_close(out, x[index])
    assert len({out.data_ptr() for out in outs}) == len(outs)


def test_the_same_result_twice_is_one_tensor() -> None:
    def run(args: list[Any]) -> list[Any]:
        y = args[0].exp()
        args.clear()
        return [y, y]

    made = CudaGraphs(run, "test", StandIn())
    for _ in range(FIRST + 1):
        first, second = made([torch.ones(3)])
        assert first is second
    assert counts()[:2] == (1, 1)


@pytest.mark.parametrize("change", ["rows", "width", "dtype", "strides", "number", "index", "stream", "precision"])
def test_another_kind_of_arguments_is_captured_anew(change: str) -> None:
    device = StandIn()
    made = graphs(device)
    x, index, n = features(12, 3), INDEX[0].contiguous(), 2
    warm(made, x, index, n)
    match change:
        case "rows":
            x = features(20, 3)
        case "width":
            x = features(12, 4)
        case "dtype":
            x = x.double()
        case "strides":
            x = features(3, 12).t()
        case "number":
            n = 3
        case "index":
            index = INDEX[1].contiguous()
        case "stream":
            device.current = 1
        case "precision":
            torch.backends.cuda.matmul.allow_tf32 = not torch.backends.cuda.matmul.allow_tf32
    try:
        for call in range(FIRST + 1):
            torch.testing.assert_close(made([x + call, index, n])[0], n * (x + call)[index])
    finally:
        if change == "precision":
            torch.backends.cuda.matmul.allow_tf32 = not torch.backends.cuda.matmul.allow_tf32
    assert counts() == (2, 1, 0, 0)


def test_an_edited_index_drops_its_graph() -> None:
    made, x, index = graphs(StandIn()), features(12, 3), INDEX[0].clone()
    warm(made, x, index, 1)
    index[0] = (index[0] + 1) % 12
    for _ in range(FIRST + 1):
        torch.testing.assert_close(made([x, index, 1])[0], x[index])
    assert counts() == (2, 1, 0, 0)
    assert len(made._kinds) == 1


def test_another_index_at_the_same_address_is_another_graph() -> None:
    """The alias that a graph holds keeps the address from being given away."""
    made, x = graphs(StandIn()), features(12, 3)
    for seed in range(3 * FIRST):
        index = random_graph(12, 12, 40, seed)[0].contiguous()
        torch.testing.assert_close(made([x, index, 1])[0], x[index])
        del index
    assert counts() == (0, 0, 0, 0)


def test_there_are_few_graphs_and_the_least_recently_used_goes() -> None:
    made, index = graphs(StandIn()), INDEX[0].contiguous()
    for width in range(1, GRAPHS + 2):
        warm(made, features(12, width), index, 1)
    assert len(made._kinds) == GRAPHS
    assert counts()[:2] == (GRAPHS + 1, 0)
    made([features(12, 2), index, 1])
    assert counts()[:2] == (GRAPHS + 1, 1)
    made([features(12, 1), index, 1])  # drops the graph of width 3
    made([features(12, 2), index, 1])
    made([features(12, 3), index, 1])
    assert counts()[:2] == (GRAPHS + 1, 2)


def test_values_of_caches_live_as_long_as_the_graph_and_edits_are_noticed() -> None:
    cache = Memo()

    def degrees(index: Tensor) -> tuple[Tensor]:
        return (torch.bincount(index, minlength=12).float(),)

    def run(args: list[Any]) -> list[Any]:
        x, index = args
        args.clear()
        (found,) = cache(degrees, index)
        assert isinstance(found, Tensor)
        return [x * found[:, None], found]

    made, index, x = graphs(StandIn(), run), INDEX[0].contiguous(), features(12, 3)
    want = degrees(index)[0]
    warm(made, x, index)
    out, found = made([x, index])
    assert counts()[:2] == (1, 1)
    torch.testing.assert_close(out, x * want[:, None])
    assert torch.equal(found, want)
    (kind,) = made._kinds.values()
    assert kind.graph is not None
    assert any(t.data_ptr() == found.data_ptr() for t in kind.graph.read), "kept when the cache lets go of it"
    found.add_(1)
    out, again = made([x, index])
    torch.testing.assert_close(out, x * want[:, None])
    assert torch.equal(again, want)
    assert counts()[:2] == (1, 1)


def test_nothing_is_cached_while_it_is_captured() -> None:
    """A capture that would have to fill a cache fails, because nothing is computed during a capture."""

    def run(args: list[Any]) -> list[Any]:
        x, index = args
        args.clear()
        formats.clear()  # as if the bound in bytes were too small
        return [x.index_select(0, formats.flat(Index(index, x.shape[0]), wide=True))]

    made, x, index = graphs(StandIn(), run), features(12, 3), INDEX[0].int()
    warm_up = [made([x, index])[0] for _ in range(PLAIN_CALLS)]
    with pytest.warns(UserWarning, match="GRAPHWEAVE_FORMAT_BYTES"):
        warm_up += made([x, index])
    for out in (*warm_up, made([x, index])[0]):
        torch.testing.assert_close(out, x[index])
    assert counts() == (0, 0, 1, 1)


def test_a_capture_that_fails_warns_once_and_the_results_are_right() -> None:
    device = StandIn()
    device.fails = RuntimeError("operation not permitted when stream is capturing")
    made, x, index = graphs(device), features(12, 3), INDEX[0].contiguous()
    for _ in range(PLAIN_CALLS):
        made([x, index, 1])
    with pytest.warns(UserWarning, match="not permitted") as seen:
        torch.testing.assert_close(made([x, index, 1])[0], x[index])
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            torch.testing.assert_close(made([x, index, 1])[0], x[index])
    assert device.captures == 1
    assert counts() == (0, 0, 3, 1)


def test_an_error_of_the_program_is_the_users() -> None:
    def run(args: list[Any]) -> list[Any]:
        raise IndexError("index 99")

    made, index = graphs(StandIn(), run), INDEX[0].contiguous()
    for _ in range(FIRST + 1):
        with pytest.raises(IndexError, match="99"):
            made([features(12, 3), index])
    assert counts() == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("why", "call"),
    [
        ("_local_scalar_dense", lambda x: x * float(x.sum())),
        ("nonzero", lambda x: x.nonzero()),
        ("index.Tensor", lambda x: x[x[:, 0] > 0]),
        ("on meta", lambda x: x + torch.empty(2, 3, device="meta").shape[0]),
    ],
)
def test_what_a_run_asks_of_the_device_is_seen(
    why: str, call: Callable[[Tensor], Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    def run(args: list[Any]) -> list[Any]:
        (x,) = args
        args.clear()
        return [call(x)]

    made = CudaGraphs(run, "test", StandIn())
    with caplog.at_level(logging.WARNING):
        for _ in range(FIRST + 2):
            x = features(12, 3)
            torch.testing.assert_close(made([x])[0], call(x))
    (said,) = [r.message for r in caplog.records if "without a CUDA graph" in r.message]
    assert why in said
    assert counts() == (0, 0, 3, 0)


def test_an_index_that_is_no_mask_is_fine() -> None:
    with CallWatch("cpu") as watch:
        features(12, 3)[INDEX[0]].sum()
    assert watch.why is None


def test_arguments_elsewhere_inference_tensors_and_other_captures_run_as_they_are() -> None:
    device = StandIn()
    made, x, index = graphs(device), features(12, 3), INDEX[0].contiguous()
    with torch.inference_mode():
        fresh = index.clone()
    device.current = None
    for _ in range(FIRST + 1):
        torch.testing.assert_close(made([x, index, 1])[0], x[index])
    device.current = 0
    for _ in range(FIRST + 1):
        torch.testing.assert_close(made([x, fresh, 1])[0], x[index])
    device.kind = "cuda"
    for _ in range(FIRST + 1):
        torch.testing.assert_close(made([x, index, 1])[0], x[index])
    assert counts() == (0, 0, 3 * (FIRST + 1), 0)


def test_inference_mode_and_back() -> None:
    made, index = graphs(StandIn()), INDEX[0].contiguous()
    for call in range(2 * FIRST + 2):
        with torch.inference_mode(call % 2 == 0):
            x = features(12, 3, seed=call)
            torch.testing.assert_close(made([x, index, 1])[0], x[index])
    assert counts() == (1, FIRST + 2, 0, 0)


# -------------------------------------------------------- whole models


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """The stand-in, for everything that is compiled in the test."""
    made = StandIn()
    monkeypatch.setattr(executable, "graph_device", lambda options: made)
    return made


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "gcn": lambda: pyg.GCNConv(5, 4).double(),
    "gat": lambda: pyg.GATConv(5, 4, heads=2).double(),
    "max": lambda: pyg.SAGEConv(5, 4, aggr="max").double(),
}


def train(fn: Callable[..., Tensor], module: nn.Module, calls: int, where: str = "cpu") -> list[Tensor]:
    """Losses and gradients of steps on other features each, parameters moving."""
    optimiser = torch.optim.SGD(module.parameters(), lr=0.05)
    index, seen = INDEX.to(where), []
    for call in range(calls):
        x = features(12, 5, torch.float64, seed=call).to(where).requires_grad_()
        optimiser.zero_grad()
        loss = fn(x, index).sin().sum()
        loss.backward()
        assert x.grad is not None
        seen += [loss.detach(), x.grad, *(p.grad.clone() for p in module.parameters() if p.grad is not None)]
        optimiser.step()
    return seen


@pytest.mark.parametrize("name", LAYERS)
def test_training_step_by_step(name: str, device: StandIn) -> None:
    torch.manual_seed(0)
    layer, twin = LAYERS[name](), LAYERS[name]()
    twin.load_state_dict(layer.state_dict())
    compiled = graphweave.compile(twin, mode="reduce-overhead")
    torch.testing.assert_close(train(compiled, twin, 6), train(layer, layer, 6))
    assert counts() == (2, 2 * (6 - FIRST), 0, 0), "the forward and the backward"


@pytest.mark.parametrize("name", LAYERS)
def test_inference(name: str, device: StandIn) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name]().eval()
    compiled: Any = graphweave.compile(layer, mode="reduce-overhead")
    if name == "max":  # PyTorch alone captures it without breaks; after a break, each call has its own index
        compiled = torch.compile(layer, backend="graphweave", mode="reduce-overhead", dynamic=True)
    index = INDEX.clone()
    with torch.no_grad():
        for call in range(FIRST + 2):
            x = features(12, 5, torch.float64, seed=call)
            torch.testing.assert_close(compiled(x, index), layer(x, index))
        assert counts() == (1, 2, 0, 0)
        index[1] = index[1].flip(0)
        torch.testing.assert_close(compiled(x, index), layer(x, index))
    assert counts() == (1, 2, 0, 0)


def test_two_forwards_then_their_backwards(device: StandIn) -> None:
    """The second forward does not overwrite what the backward of the first needs."""
    torch.manual_seed(0)
    layer = pyg.GATConv(5, 4).double()
    compiled = graphweave.compile(layer, options={"cuda_graphs": True})
    for call in range(FIRST + 2):
        xs = [features(12, 5, torch.float64, seed=10 * call + i).requires_grad_() for i in range(2)]
        twins = [x.detach().clone().requires_grad_() for x in xs]
        outs, wants = [compiled(x, INDEX) for x in xs], [layer(x, INDEX) for x in twins]
        for out, want in zip(outs, wants, strict=True):
            out.sin().sum().backward()
            want.sin().sum().backward()
        for x, twin in zip(xs, twins, strict=True):
            torch.testing.assert_close(x.grad, twin.grad)
    assert counts()[0] == 2 and counts()[2:] == (0, 0)


def test_dropout_draws_anew_and_follows_the_seed(device: StandIn) -> None:
    """The seed is drawn within the graph; forward and backward have the same one, though it differs each time."""
    x, ones = torch.ones(12, 5), torch.ones(12, 5)

    def fn(x: Tensor, index: Tensor) -> Tensor:
        kept = nn.functional.dropout(x, 0.5)
        return torch.zeros_like(x).index_add(0, index[1], kept.index_select(0, index[0]))

    compiled = graphweave.compile(fn, mode="reduce-overhead")
    outs = []
    for call in range(FIRST + 3):
        torch.manual_seed(call // (FIRST + 1))
        given = ones.clone().requires_grad_()
        out = compiled(given, INDEX)
        out.sum().backward()
        outs.append(out.detach())
        assert given.grad is not None
        torch.testing.assert_close((given.grad * x).sum(), out.sum())  # linear: the gradient has the same mask
    assert torch.equal(outs[0], outs[FIRST])
    assert not torch.equal(outs[0], outs[FIRST + 1])
    assert counts()[0] == 2 and counts()[2:] == (0, 0)


@pytest.mark.parametrize("kind", ["mask", "unique", "index of data"])
def test_programs_that_ask_the_device_are_left_alone(
    kind: str, device: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    def fn(x: Tensor, index: Tensor) -> Tensor:
        messages = x.index_select(0, index[0]).tanh()
        if kind == "mask":
            messages = messages[messages[:, 0] > 0]
            return messages.exp()
        if kind == "unique":
            return messages.round().unique()
        to = x[:, 0].argsort().index_select(0, index[1])
        return torch.zeros_like(x).index_add(0, to, messages)

    compiled = graphweave.compile(fn, mode="reduce-overhead")
    with caplog.at_level(logging.WARNING), torch.no_grad():
        for call in range(FIRST + 1):
            x = features(12, 5, torch.float64, seed=call)
            torch.testing.assert_close(compiled(x, INDEX), fn(x, INDEX))
    assert device.asides == 0, "known from the program"
    assert counts() == (0, 0, FIRST + 1, 0)
    assert sum("without a CUDA graph" in r.message for r in caplog.records) == 1


def test_what_is_asked_of_the_graph_alone_is_asked_before(device: StandIn) -> None:
    """Self-loops that the graph has already are looked for once."""

    def fn(x: Tensor, index: Tensor) -> Tensor:
        index = index[:, index[0] != index[1]]
        return torch.zeros_like(x).index_add(0, index[1], x.index_select(0, index[0]).tanh())

    compiled = graphweave.compile(fn, mode="reduce-overhead")
    with torch.no_grad():
        for call in range(FIRST + 2):
            x = features(12, 5, torch.float64, seed=call)
            torch.testing.assert_close(compiled(x, INDEX), fn(x, INDEX))
    assert counts() == (1, 2, 0, 0)


def test_results_that_are_views_of_one_another_stay_so(device: StandIn) -> None:
    def fn(x: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        y = torch.zeros_like(x).index_add(0, index[1], x.index_select(0, index[0]).tanh())
        return y, y[:, 1], y.t()[2:]

    compiled = graphweave.compile(fn, mode="reduce-overhead")
    with torch.no_grad():
        for call in range(FIRST + 2):
            x = features(12, 5, seed=call)
            got, want = compiled(x, INDEX), fn(x, INDEX)
            for results in (got, want):
                results[1].mul_(2)
            for g, w in zip(got, want, strict=True):
                torch.testing.assert_close(g, w)
                assert g.stride() == w.stride()
    assert counts() == (1, 2, 0, 0)


def test_verified_calls_are_not_captured(device: StandIn) -> None:
    compiled = graphweave.compile(pyg.SAGEConv(5, 4).double(), mode="reduce-overhead", options={"verify": True})
    for _ in range(FIRST + 1):
        compiled(features(12, 5, torch.float64), INDEX)
    assert counts() == (0, 0, FIRST + 1, 0)


# -------------------------------------------------------- options


def test_on_the_cpu_the_mode_does_nothing() -> None:
    layer = pyg.GCNConv(5, 4).double()
    compiled = graphweave.compile(layer, mode="reduce-overhead")
    for _ in range(FIRST + 1):
        torch.testing.assert_close(
            compiled(features(12, 5, torch.float64), INDEX), layer(features(12, 5, torch.float64), INDEX)
        )
    assert counts() == (0, 0, 0, 0)


def test_unknown_modes_are_refused() -> None:
    layer = pyg.GCNConv(5, 4).double()
    for mode in (None, "default", "reduce-overhead"):
        graphweave.compile(layer, mode=mode)
    with pytest.raises(SettingsError, match="max-autotune"):
        graphweave.compile(layer, mode="max-autotune")
    with pytest.raises(SettingsError, match="cuda_graphs"):
        graphweave.compile(layer, mode="reduce-overhead", options={"cuda_graphs": False})
    with pytest.raises(SettingsError, match="cuda_graphs"):
        graphweave.compile(layer, options={"cuda_graphs": "yes"})
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"SettingsError: mode .* 'max-autotune'"):
        torch.compile(layer, backend="graphweave", mode="max-autotune")(features(12, 5, torch.float64), INDEX)


@pytest.mark.parametrize("kind", [RowsOfSegments, NumbersOfSegments])
def test_indices_made_from_numbers_lie_where_the_program_runs(kind: type[RowsOfSegments | NumbersOfSegments]) -> None:
    build, of = Builder(), (Space("A"), Space("B"))
    ref = build.add(kind(of, (0, 1), Space("U")))
    program = build.program([ref], [(of[0], 2), (of[1], 3), (Space("U"), 5)])
    step = call_step(program, ref, Options(device="meta"))
    assert step.spaces == of and step.run(2, 3).device.type == "meta"


# -------------------------------------------------------- on a real device


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_on_a_cuda_device(name: str) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name]().cuda()
    twin = LAYERS[name]().cuda()
    twin.load_state_dict(layer.state_dict())
    plain, compiled = graphweave.compile(layer), graphweave.compile(twin, mode="reduce-overhead")
    torch.testing.assert_close(train(compiled, twin, 8, "cuda"), train(plain, layer, 8, "cuda"))
    assert counts() == (2, 2 * (8 - FIRST), 0, 0)
    twin.load_state_dict(layer.state_dict())
    index, outs, wants = INDEX.cuda(), [], []
    with torch.no_grad():
        for call in range(FIRST + 3):
            x = features(12, 5, torch.float64, seed=call).cuda()
            outs.append(compiled(x, index))
            wants.append(plain(x, index))
    torch.testing.assert_close(outs, wants)
    assert counts()[0] == 3 and counts()[2:] == (0, 0)
