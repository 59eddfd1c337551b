"""Choice at run time: one compiled function holds several forms, and the statistics of the graph at hand decide."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import graphweave
from graphweave.core.counters import counters
from graphweave.core.errors import CompileError
from graphweave.core.settings import override
from graphweave.core.sizes import Symbol, read
from graphweave.core.types import Space
from graphweave.frontends.dynamo import captures_on_disk, tuned
from graphweave.frontends.halves import choices, forms
from graphweave.frontends.halves.call_rows import CallRows
from graphweave.frontends.importing import measure
from graphweave.frontends.importing.measure import RowCount, count_distinct
from graphweave.frontends.stored import store
from graphweave.runtime.entries import ByteStore
from graphweave.tuning.choice import Choice, ProgramForm
from graphweave.tuning.note import Outcome
from graphweave.tuning.order import OrderThatPays
from tests.programs.graphs import zoo
from tests.support import by_default, features

pytestmark = pytest.mark.usefixtures("fresh_compiler", "any_gain")

NODES, EDGES, RELATIONS, WIDTH = 4000, 6000, 4, 16
DOORS: dict[str, Callable[..., Any]] = {
    "compile": graphweave.compile,
    "plain": lambda f: torch.compile(f, backend="graphweave", dynamic=True),
}
GENERATOR = torch.Generator().manual_seed(0)


@pytest.fixture
def any_gain(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small graphs change their form for gains of a microsecond, and each is counted in its first call."""
    monkeypatch.setattr(choices, "SLACK", 1e-6)
    monkeypatch.setattr(forms, "_CALLS_A_COUNT", 0)
    yield


def relational(x: Tensor, w: Tensor, src: Tensor, rel: Tensor, dst: Tensor, a: Tensor) -> Tensor:
    """Few pairs of source and relation: products of pairs are pushed. Few of destination and relation: sums are
    multiplied."""
    messages = torch.bmm(x[src].unsqueeze(1), w[rel]).squeeze(1) * a[:, None]
    return torch.zeros_like(x).index_add(0, dst, messages)


def graph(few: str, edges: int = EDGES, nodes: int = NODES) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Source, relation, destination and a number of each edge. Of the ends `few`, there are eight nodes."""
    src, dst = (torch.randint(nodes, (edges,), generator=GENERATOR) for _ in range(2))
    rel = torch.randint(RELATIONS, (edges,), generator=GENERATOR)
    src, dst = (src % 8 if few == "src" else src), (dst % 8 if few == "dst" else dst)
    return src, rel, dst, torch.randn(edges, generator=GENERATOR, dtype=torch.float64)


def weights(nodes: int = NODES) -> tuple[Tensor, Tensor]:
    x = features(nodes, WIDTH, torch.float64).requires_grad_()
    w = features(RELATIONS * WIDTH, WIDTH, torch.float64, seed=2).reshape(RELATIONS, WIDTH, WIDTH)
    return x, w.requires_grad_()


def results(f: Callable[..., Tensor], *args: Any) -> list[Tensor]:
    out = f(*args)
    inputs = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    return [out.detach(), *torch.autograd.grad((out * out.detach().cos()).sum(), inputs)]


def check(compiled: Callable[..., Tensor], original: Callable[..., Tensor], *args: Any) -> None:
    for got, want in zip(results(compiled, *args), results(original, *args), strict=True):
        torch.testing.assert_close(got, want)


def counted(*names: str) -> tuple[int, ...]:
    return tuple(counters()[name] for name in names)


@pytest.mark.parametrize("door", DOORS)
def test_two_graphs_of_equal_sizes_take_two_forms_of_one_compilation(door: str) -> None:
    compiled, few_src, few_dst = DOORS[door](relational), graph("src"), graph("dst")
    for each in (few_src, few_dst, few_src, few_src, few_dst):
        check(compiled, relational, *weights(), *each)
    assert counted("compilations", "forms_made", "form_switches", "eager_fallbacks") == (1, 1, 3, 0)


def test_a_backward_belongs_to_the_form_of_its_forward() -> None:
    """Backwards run in another order than forwards, twice, with hooks on what is saved, and behind a checkpoint."""
    compiled, graphs = graphweave.compile(relational), [graph("src"), graph("dst")]
    wants = [results(relational, *weights(), *g)[1:] for g in graphs]
    for way in ("retain", "hooks", "checkpoint"):
        inputs = [weights() for _ in graphs]
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda t: t):
            hooked = [compiled(*i, *g) for i, g in zip(inputs, graphs, strict=True)]
        outs = hooked if way == "hooks" else [compiled(*i, *g) for i, g in zip(inputs, graphs, strict=True)]
        if way == "checkpoint":
            outs = [checkpoint(compiled, *i, *g, use_reentrant=False) for i, g in zip(inputs, graphs, strict=True)]
        for at in (1, 0, 1) if way == "retain" else (0, 1):
            tangent = outs[at].detach().cos() * outs[at]
            got = torch.autograd.grad(tangent.sum(), inputs[at], retain_graph=way == "retain")
            for one, want in zip(got, wants[at], strict=True):
                torch.testing.assert_close(one, want)
    assert counted("forms_made") == (1,)


def test_gradients_of_gradients_of_a_later_form() -> None:
    compiled, few_dst = graphweave.compile(relational), graph("dst")
    check(compiled, relational, *weights(), *graph("src"))

    def second(f: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        x, w = weights()
        (first,) = torch.autograd.grad(f(x, w, *few_dst).tanh().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), (x, w))

    for got, want in zip(second(compiled), second(relational), strict=True):
        torch.testing.assert_close(got, want)
    assert counted("forms_made", "eager_fallbacks") == (1, 0)


def test_a_compiled_engine_of_autograd_has_one_form() -> None:
    compiled, few_dst = graphweave.compile(relational), graph("dst")
    for each in (graph("src"), few_dst):
        check(compiled, relational, *weights(), *each)
    engine = torch.compile(backend="eager")
    with torch._dynamo.compiled_autograd._enable(engine):
        check(compiled, relational, *weights(), *few_dst)
    out = compiled(*weights(), *few_dst)
    with torch._dynamo.compiled_autograd._enable(engine), pytest.raises(RuntimeError, match="cannot run the form"):
        out.sum().backward()


def test_results_that_nobody_needs_leave_gradients_none() -> None:
    def two(x: Tensor, w: Tensor, *edges: Tensor) -> tuple[Tensor, Tensor]:
        return relational(x, w, *edges), w.square().sum()

    compiled = graphweave.compile(two)
    for each in (graph("src"), graph("dst")):
        x, w = weights()
        compiled(x, w, *each)[1].backward()
        assert x.grad is None
        torch.testing.assert_close(w.grad, 2 * w.detach())


def test_forms_draw_the_same_random_numbers() -> None:
    def dropped(x: Tensor, w: Tensor, src: Tensor, rel: Tensor, dst: Tensor, a: Tensor) -> Tensor:
        return relational(F.dropout(x, 0.5), w, src, rel, dst, a)

    compiled, reference = graphweave.compile(dropped), graphweave.compile(dropped, options={"compact": False})
    for each in (graph("src"), graph("dst")):
        torch.manual_seed(7)
        got = results(compiled, *weights(), *each)
        torch.manual_seed(7)
        for one, want in zip(got, results(reference, *weights(), *each), strict=True):
            torch.testing.assert_close(one, want)
    assert counted("forms_made", "forms_refused") == (1, 0)


def test_an_inference_chooses_as_well() -> None:
    compiled, args = graphweave.compile(relational), weights()
    with torch.no_grad():
        for each in (graph("src"), graph("dst"), graph("src")):
            torch.testing.assert_close(compiled(*args, *each), relational(*args, *each))
    assert counted("compilations", "forms_made", "form_switches") == (1, 1, 2)


def test_an_edited_index_is_another_graph() -> None:
    compiled, (src, rel, dst, a) = graphweave.compile(relational), graph("src")
    check(compiled, relational, *weights(), src, rel, dst, a)
    few_dst = graph("dst")
    src.copy_(few_dst[0])
    dst.copy_(few_dst[2])
    check(compiled, relational, *weights(), src, rel, dst, a)
    assert counted("forms_made", "form_switches") == (1, 1)


@pytest.mark.parametrize("dtype", by_default([torch.int32, torch.int64], torch.int32))
def test_later_forms_on_awkward_graphs(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = graphweave.compile(relational)
    for few in ("src", "dst"):
        check(compiled, relational, *weights(), *(t if t.is_floating_point() else t.to(dtype) for t in graph(few)))
    monkeypatch.setattr(forms.Forms, "_taken", lambda self, _: len(self._runs) - 1)
    for each in zoo():
        nodes = max(each.num_src, each.num_dst)
        if nodes < 2:
            continue  # one row is another compilation
        a = torch.randn(len(each.src), generator=GENERATOR, dtype=torch.float64)
        rel = torch.arange(len(each.src)) % RELATIONS
        edges = [t.to(dtype) for t in (each.src, rel, each.dst)]
        check(compiled, relational, *weights(nodes), *edges, a)
    assert counted("forms_made", "eager_fallbacks") == (1, 0)


def test_sizes_choose_without_another_compilation() -> None:
    """Weights before or behind the sum over edges: whichever of nodes and edges are fewer."""

    def pairs(x: Tensor, y: Tensor, src: Tensor, dst: Tensor, w: Tensor) -> Tensor:
        messages = torch.relu(torch.cat([x[src], y[dst]], 1) @ w)
        return torch.zeros_like(y).index_add(0, dst, messages).tanh()

    compiled = graphweave.compile(pairs)
    for nodes, edges in ((50, 3000), (3000, 50), (50, 3000)):
        shapes = (nodes, 1), (nodes, 2), (2 * WIDTH, 3)
        x, y, w = (features(rows, WIDTH, torch.float64, seed).requires_grad_() for rows, seed in shapes)
        src, dst = (torch.randint(nodes, (edges,), generator=GENERATOR) for _ in range(2))
        check(compiled, pairs, x, y, src, dst, w)
    assert counted("compilations", "forms_made", "form_switches") == (1, 1, 2)


@pytest.mark.parametrize("both_first", by_default([False, True], True))
def test_one_direction_or_both_of_each_edge(both_first: bool) -> None:
    """A network of lengths is computed once for both directions of an edge, where most edges have two."""

    def energy(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        length = (x[dst] - x[src]).square().sum(1, keepdim=True)
        hidden = torch.tanh(torch.exp(-length * torch.linspace(0, 1, 32, dtype=x.dtype)) @ w)
        return torch.zeros(x.shape[0], w.shape[1], dtype=x.dtype).index_add(0, dst, hidden)

    a, b = torch.randperm(200 * 200, generator=GENERATOR)[:1000].sort().values, 200
    half = torch.stack([a // b, a % b])
    both = torch.cat([half, half.flip(0)], 1)
    other = torch.stack([a // b, a % b]).repeat(1, 2)
    other[1, 1000:] = (other[1, 1000:] + 1) % 200
    compiled = graphweave.compile(energy)
    for edges in (both, other, both, other) if both_first else (other, both, other, both):
        x = features(200, 3, torch.float64).requires_grad_()
        check(compiled, energy, x, features(32, 32, torch.float64).requires_grad_(), edges[0], edges[1])
    assert counted("compilations", "forms_made", "form_switches") == (1, 1, 3)


def test_a_form_that_cannot_be_made_is_refused_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise CompileError("no such instruction")

    compiled = graphweave.compile(relational)
    check(compiled, relational, *weights(), *graph("src"))
    monkeypatch.setattr(forms, "build", refused)
    with pytest.warns(UserWarning, match="keeps the form that it has.*no such instruction"):
        check(compiled, relational, *weights(), *graph("dst"))
    check(compiled, relational, *weights(), *graph("dst"))
    assert counted("forms_made", "forms_refused", "form_switches") == (0, 1, 0)


def test_a_restored_function_makes_forms_as_well(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "COMPILATIONS", ByteStore(str(tmp_path)))
    monkeypatch.setattr(captures_on_disk, "CAPTURES", ByteStore(str(tmp_path / "captures")))
    with override(store_compilations=True):
        check(graphweave.compile(relational), relational, *weights(), *graph("src"))
        torch._dynamo.reset()
        graphweave.reset_counters()
        compiled = graphweave.compile(relational)
        for few in ("src", "dst", "src"):
            check(compiled, relational, *weights(), *graph(few))
    assert counted("compilations", "restored_graphs", "forms_made", "form_switches") == (0, 1, 1, 2)


def test_graphs_that_never_come_again_are_rarely_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "_CALLS_A_COUNT", 4)
    seen: list[bool] = []
    rows = RowCount.rows
    monkeypatch.setattr(RowCount, "rows", lambda self, *args: seen.append(True) or rows(self, *args))
    compiled = graphweave.compile(relational)
    for _ in range(10):
        check(compiled, relational, *weights(), *graph("src"))
    assert len(seen) == 2 * 2, "two kinds of pairs, in the first and the sixth call"
    again = graph("dst")
    for _ in range(3):
        check(compiled, relational, *weights(), *again)
    assert counted("forms_made", "form_switches") == (1, 1)


def test_different_rows_are_counted_to_a_few_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (torch.randint(3000, (200_000,), generator=GENERATOR) for _ in range(2))
    exact = int(torch.stack([a, b]).unique(dim=1).shape[1])
    assert count_distinct((a, b.int())) == pytest.approx(exact, rel=0.05)
    monkeypatch.setattr(measure, "_COUNTED_EXACTLY", 1 << 20)
    assert count_distinct((a, b)) == exact
    assert count_distinct((a[:0], b[:0])) == 0


def test_rows_that_sizes_tell_are_numbers_of_the_call() -> None:
    """A size that is divided by nothing is not known."""
    texts = {"A": "s0", "B": "2*s0 + s1 - 1", "C": "Max(s0, 3)*s1", "D": "s0//s1", "E": "Mod(s0, s1) + 1", "F": "7"}
    sizes = tuple((Space(name), read(text)) for name, text in texts.items())
    symbols = ((Symbol("s0"), 0, None), (Symbol("s1"), 1, 0))
    known = CallRows((), symbols, sizes, (), ()).known_of()

    def named(numbers: tuple[int, int]) -> dict[str, int]:
        return {space.name: n for space, n in known(numbers).items()}

    assert named((5, 2)) == {"unit": 1, "A": 5, "B": 11, "C": 10, "D": 2, "E": 2, "F": 7}
    assert named((0, 0)) == {"unit": 1, "A": 0, "B": -1, "C": 0, "F": 7}


def test_explain_prices_the_forms_for_the_graph_at_hand() -> None:
    few_src, few_dst = (
        graphweave.explain(relational, *weights(), *graph(few)).forms[0].forms for few in ("src", "dst")
    )
    taken = [[form.name for form in found if form.taken] for found in (few_src, few_dst)]
    assert len(taken[0]) == len(taken[1]) == 1
    assert taken[0] != taken[1]
    for found in (few_src, few_dst):
        assert len(found) > 1
        assert min(found, key=lambda form: form.seconds).taken
    text = graphweave.explain(relational, *weights(), *graph("src")).text()
    assert "ms a call by the cost model, taken" in text


def test_what_the_tuner_has_measured_goes_before_the_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph like one that was tuned takes the form that was found then, and others the cheapest."""
    asked: list[str] = []

    def stored(key: dict[str, str]) -> Outcome | None:
        asked.append(key["graph"])
        form = ProgramForm() if key["graph"] == asked[0] else ProgramForm(compact=False, reorder=False)
        return Outcome(Choice(form), measured=1.0, untuned_measured=1.0, finished=True)

    monkeypatch.setattr(tuned, "_stored", stored)
    compiled = graphweave.compile(relational, options={"schedule": "tune"})
    few, fewer = graph("src"), graph("src", EDGES // 4)
    for each in (few, fewer, few, fewer):
        check(compiled, relational, *weights(), *each)
    assert len(asked) == 2, "once for each graph"
    assert counted("compilations", "tuning_hits", "forms_made", "form_switches") == (1, 2, 1, 3)
    monkeypatch.setattr(tuned, "_stored", lambda key: None)
    check(compiled, relational, *weights(), *graph("dst", 2 * EDGES))
    assert counted("compilations", "tuning_hits", "forms_refused") == (1, 2, 0)


def test_whether_nodes_are_put_into_an_order_is_measured_for_each_kind_of_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured: list[int] = []

    def chosen(self: Any, *_: object) -> tuple[str | None, str]:
        measured.append(1)
        return (None, "near") if len(measured) == 1 else ("locality", "far")

    def sums(x: Tensor, src: Tensor, dst: Tensor, w: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, dst, torch.tanh(x[src] * x[dst])) @ w

    monkeypatch.setattr(OrderThatPays, "__call__", chosen)
    compiled = graphweave.compile(sums, options={"relabel": "auto"})
    near = torch.arange(EDGES) % (NODES - 1)
    far = torch.randint(NODES, (2, EDGES), generator=GENERATOR)
    x, w = weights()
    for src, dst in ((near, near + 1), tuple(far), (near, near + 1), tuple(far)):
        check(compiled, sums, x, src, dst, w[0])
    assert len(measured) == 2
    assert counted("compilations", "forms_made", "form_switches") == (1, 1, 3)
