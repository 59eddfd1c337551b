"""Dictionaries of relations with other keys in each call: one compilation, and eager mode's results, keys and
gradients, None included."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import graphweave
from graphweave.core.errors import IndexRangeError
from tests import patience
from tests.support import by_default, features, random_graph

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:There exist node types:UserWarning"),  # types that nobody sends to
]

Relation = tuple[str, str, str]
Nodes = dict[str, Tensor]
Edges = dict[Relation, Tensor]

W = 4
SIZES = {"a": 5, "b": 3, "c": 1}
CYCLE: list[Relation] = [("a", "to", "b"), ("b", "to", "a"), ("a", "in", "a"), ("b", "by", "c"), ("c", "of", "a")]
CALLS = ((0, 1), (1, 0, 2), (0, 1, 2, 3, 4), (2,), (0, 1, 3, 4), (0, 1))
"""The relations of each call of one compiled function."""


class Layers(nn.Module):
    def __init__(self, layer: Callable[[], nn.Module], depth: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([layer() for _ in range(depth)])

    def forward(self, x: Nodes, edges: Edges) -> Nodes:
        for layer in self.layers:
            x = {kind: rows.tanh() for kind, rows in layer(x, edges).items()}
        return x


def hetero(conv: Callable[[], nn.Module], aggr: str = "sum") -> Callable[[], nn.Module]:
    return lambda: pyg.HeteroConv({relation: conv() for relation in CYCLE}, aggr=aggr)


def sage() -> nn.Module:
    return pyg.SAGEConv((W, W), W)  # the root's weights and a bias are not zero without edges


def gat() -> nn.Module:
    return pyg.GATConv((W, W), W // 2, heads=2, add_self_loops=False)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "sage-sum": hetero(sage),
    "sage-max": hetero(sage, "max"),
    "gat-mean": hetero(gat, "mean"),
    "hgt": lambda: pyg.HGTConv(W, W, (list(SIZES), CYCLE), heads=2),
}
QUICK = "sage-sum"


def nodes() -> Nodes:
    return {kind: features(n, W, torch.float64, seed=n) for kind, n in SIZES.items()}


def edges(chosen: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.int64) -> Edges:
    """Some relations; the last of several has no edges, the first has one edge."""
    counts = {chosen[0]: 1} if len(chosen) < 3 else {chosen[0]: 1, chosen[-1]: 0}
    out = {}
    for r in chosen:
        src, _, dst = CYCLE[r]
        out[CYCLE[r]] = random_graph(SIZES[src], SIZES[dst], counts.get(r, 7), seed=seed + r).to(dtype)
    return out


def loss_of(out: Nodes) -> Tensor:
    weights = {"a": 1.0, "b": -2.0, "c": 3.0}
    return torch.stack([(rows * weights[kind]).sin().sum() for kind, rows in sorted(out.items())]).sum()


def assert_same(
    model: nn.Module, compiled: Callable[..., Nodes], *args: object, eager: tuple[object, ...] = ()
) -> None:
    """Equal keys, results and gradients, which are None for the same parameters. `eager`: other arguments of the
    model's own call."""
    found = []
    for f, given in ((compiled, args), (model, eager or args)):
        model.zero_grad(set_to_none=True)
        out = f(*given)
        loss_of(out).backward()
        found.append((out, {name: p.grad for name, p in model.named_parameters()}))
    (out, grads), (wanted, expected) = found
    assert out.keys() == wanted.keys()
    torch.testing.assert_close(out, {kind: wanted[kind] for kind in out})
    assert {n for n, g in grads.items() if g is None} == {n for n, g in expected.items() if g is None}
    torch.testing.assert_close(grads, expected)


def once() -> tuple[int, int, int]:
    found = graphweave.counters()
    return found["compilations"] + found["restored_graphs"], found["graph_breaks"], found["eager_fallbacks"]


@pytest.mark.parametrize("name", by_default(MODELS, QUICK))
def test_one_compilation_serves_all_sets_of_relations(name: str) -> None:
    model = Layers(MODELS[name]).double()
    compiled = graphweave.compile(model)
    for seed, chosen in enumerate(CALLS):
        # with other orders of relations than its own, HGTConv takes weights of other relations
        chosen = tuple(sorted(chosen)) if name == "hgt" else chosen
        assert_same(model, compiled, nodes(), edges(chosen, seed))
    assert once() == (1, 0, 0)


def test_types_of_nodes_may_be_missing() -> None:
    """The first call says how wide the features of a type are; later ones may lack the type, and its relations."""
    model = Layers(hetero(sage), 1).double()
    compiled = graphweave.compile(model)
    assert_same(model, compiled, nodes(), edges((0, 1, 2, 3)))
    for chosen, types in (((0, 1), "ab"), ((2,), "a"), ((3,), "bc"), ((0, 3), "abc")):
        assert_same(model, compiled, {kind: nodes()[kind] for kind in types}, edges(chosen))
    assert once() == (1, 0, 0)


@pytest.mark.slow
def test_a_type_of_two_nodes_is_not_taken_for_an_index() -> None:
    """Whether a tensor has two rows, as an index has, was asked in the trace of features, too, and became a guard."""
    model = Layers(hetero(sage), 1).double()
    compiled = graphweave.compile(model)
    for rows, chosen in ((2, (2,)), (5, (2,)), (2, (1, 2))):
        x = {**nodes(), "a": features(rows, W, torch.float64, seed=3)}
        index = {CYCLE[r]: random_graph(SIZES[CYCLE[r][0]] if r == 1 else rows, rows, 7, seed=r) for r in chosen}
        assert_same(model, compiled, x, index)
    assert once() == (1, 0, 0)


def test_a_loss_inside_reads_one_type() -> None:
    model = Layers(hetero(sage), 1).double()

    def loss(x: Nodes, edges: Edges) -> Tensor:
        return model(x, edges)["a"].square().sum()

    compiled = graphweave.compile(loss)
    for chosen in ((1,), (2, 4), (0, 1, 2, 3, 4)):
        model.zero_grad(set_to_none=True)
        compiled(nodes(), edges(chosen)).backward()
        grads = [p.grad for p in model.parameters()]
        model.zero_grad(set_to_none=True)
        loss(nodes(), edges(chosen)).backward()
        for grad, p in zip(grads, model.parameters(), strict=True):
            assert (grad is None) == (p.grad is None)
            if grad is not None:
                torch.testing.assert_close(grad, p.grad)
    assert once() == (1, 0, 0)
    with pytest.raises(KeyError, match="a"):  # as in eager mode
        compiled(nodes(), edges((0,)))
    before = once()
    compiled(nodes(), edges((1, 4)))  # one call that lacks what the function reads changes nothing for others
    assert once() == before


def test_what_needs_all_relations_is_compiled_for_each_set_of_keys() -> None:
    """A loop of the user's own: what it leaves out for a missing relation is not known."""

    def loop(x: Nodes, edges: Edges) -> Tensor:
        out = x["a"]
        for (src, _, dst), index in edges.items():
            if dst == "a":
                out = torch.zeros_like(out).index_add(0, index[1], x[src][index[0]].exp()) + out.cos()
        return out

    compiled = graphweave.compile(loop)
    for chosen in ((1, 2), (2,), (1, 2, 4), (1,)):
        torch.testing.assert_close(compiled(nodes(), edges(chosen)), loop(nodes(), edges(chosen)))
    assert once()[1:] == (0, 0)


class Layered(nn.Module):
    """Layers whose results are put over what they were computed of."""

    def __init__(self, put: Callable[[Nodes, Nodes], Nodes]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.put, self.layers = put, nn.ModuleList([hetero(sage)() for _ in range(2)])

    def forward(self, x: Nodes, edges: Edges) -> Nodes:
        for layer in self.layers:
            x = self.put(x, {kind: rows.tanh() for kind, rows in layer(x, edges).items()})
        return x


def update(x: Nodes, out: Nodes) -> Nodes:
    for kind in list(x):
        x[kind] = x[kind].sin()
    x.update(out)
    return x


PUT: dict[str, Callable[[Nodes, Nodes], Nodes]] = {
    "in-one": lambda x, out: {**x, **out},
    "or": lambda x, out: x | out,
    "update": lambda x, out: update(dict(x), out),
}


@pytest.mark.parametrize("how", by_default(PUT, "in-one"))
def test_types_that_receive_nothing_keep_their_rows(how: str) -> None:
    """A dictionary that is put over another one leaves those items that it lacks, and their gradients."""
    model = Layered(PUT[how]).double()
    compiled = graphweave.compile(model)
    for chosen in CALLS[:4]:
        assert_same(model, compiled, nodes(), edges(chosen))
    assert once() == (1, 0, 0)


@pytest.mark.slow
def test_items_that_are_set_in_a_loop_are_those_that_there_are() -> None:
    """Items that a loop over results does not set stay as they were; this is compiled for each set of keys."""

    def add(x: Nodes, out: Nodes) -> Nodes:
        x = dict(x)
        for kind, rows in out.items():
            x[kind] = x[kind] + rows
        return x

    model = Layered(add).double()
    compiled = graphweave.compile(model)
    for chosen in CALLS[:3]:
        assert_same(model, compiled, nodes(), edges(chosen))
    assert once()[1:] == (0, 0)


def own_layer(x: Nodes, edges: Edges) -> Nodes:
    out = {}
    for kind in x:
        out[kind] = x[kind]
        for (src, _, dst), index in edges.items():
            if dst == kind:
                out[kind] = out[kind] + torch.zeros_like(x[kind]).index_add(0, index[1], x[src][index[0]])
    return out


CONV = hetero(sage)().double()
COMBINED: dict[str, tuple[Callable[[Nodes, Edges], Nodes], int]] = {
    "own-layer": (own_layer, 3),
    "sum": (lambda x, e: {"all": torch.stack([rows.sum() for rows in CONV(x, e).values()]).sum()}, 3),
    "residual": (lambda x, e: {kind: rows + x[kind] for kind, rows in CONV(x, e).items()}, 1),
    "others": (lambda x, e: {kind: x[kind].sin() for kind, _rows in CONV(x, e).items()}, 1),
    "keys": (lambda x, e: {kind: x[kind].sin() for kind in CONV(x, e)}, 3),
    "keys, by a method": (lambda x, e: {kind: x[kind].sin() for kind in sorted(CONV(x, e).keys())}, 3),
    "keys, by reversed": (lambda x, e: {kind: x[kind].sin() for kind in reversed(CONV(x, e))}, 3),
    "keys that are given": (lambda x, e: CONV({kind: x[kind].sin() for kind in x}, e), 1),
}
"""Functions, and the number of compilations for three sets of relations."""


@pytest.mark.parametrize("name", by_default(COMBINED, "others", "keys"))
def test_what_is_made_of_several_items_is_not_left_out(name: str) -> None:
    """A sum over items of a dictionary is another sum in calls that lack some of them, and no item less. What a loop
    over them makes of one item is left out with it."""
    f, compilations = COMBINED[name]
    compiled = graphweave.compile(f)
    for chosen in ((0, 1, 2), (0, 1), (0,)):
        out, wanted = compiled(nodes(), edges(chosen)), f(nodes(), edges(chosen))
        assert out.keys() == wanted.keys()
        torch.testing.assert_close(out, {kind: wanted[kind] for kind in out})
    assert once() == (compilations, 0, 0)


@pytest.mark.slow
def test_second_derivatives_of_calls_that_lack_relations() -> None:
    model = Layers(hetero(sage), 1).double()
    compiled = graphweave.compile(model)
    for chosen in CALLS[:3]:
        found = []
        for f in (compiled, model):
            x = {kind: rows.requires_grad_() for kind, rows in nodes().items()}
            wanted = [*model.parameters(), *x.values()]
            first = torch.autograd.grad(loss_of(f(x, edges(chosen))), wanted, create_graph=True, allow_unused=True)
            total = torch.stack([g.square().sum() for g in first if g is not None]).sum()
            second = torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)
            found.append((first, second))
        assert [g is None for g in found[0][0]] == [g is None for g in found[1][0]]
        torch.testing.assert_close(found[0], found[1])
    assert once()[1:] == (0, 0)  # second derivatives are compiled by themselves


@pytest.mark.slow
def test_plain_torch_compile_compiles_each_set_of_keys() -> None:
    """PyTorch's tracer guards on the keys of dictionaries before graphweave sees them."""
    model = Layers(hetero(sage), 1).double()
    compiled = torch.compile(model, backend="graphweave", dynamic=True)
    for chosen in ((0, 1), (1, 2), (0, 1)):
        assert_same(model, compiled, nodes(), edges(chosen))
    assert once() == (2, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("asks", [lambda x: "b" in x, lambda x: len(x) > 1, lambda x: x.get("b") is not None])
def test_code_that_asks_for_keys_is_compiled_for_each_set_of_keys(asks: Callable[[Nodes], bool]) -> None:
    layer = Layers(hetero(sage), 1).double()

    def model(x: Nodes, edges: Edges) -> Tensor:
        out = layer(x, edges)
        return out["a"] if asks(dict(out)) else -out["a"]

    compiled = graphweave.compile(model)
    for chosen in ((1,), (0, 1), (2,)):
        torch.testing.assert_close(compiled(nodes(), edges(chosen)), model(nodes(), edges(chosen)))


class LooksUp(nn.Module):
    """Results of an item that is looked up by its key: a relation (`edges`) or a type of nodes that receives."""

    def __init__(self, *, edges: bool) -> None:
        super().__init__()
        self.all, self.one, self.edges = Layers(hetero(sage), 1), sage(), edges

    def forward(self, x: Nodes, edges: Edges) -> Nodes:
        out = self.all(x, edges)
        src, _, dst = CYCLE[0]
        if self.edges:
            return {**out, "c": self.one((x[src], x[dst]), edges[CYCLE[0]])}
        return {kind: rows.tanh() for kind, rows in out.items()} | {"c": out[dst].exp()}


@pytest.mark.parametrize("by_edges", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_an_item_that_is_looked_up_must_be_there(by_edges: bool) -> None:
    """A result made of it is not left out in calls that lack the key, but the error is eager mode's."""
    torch.manual_seed(0)
    model = LooksUp(edges=by_edges).double()
    compiled = graphweave.compile(model)
    for chosen in ((0, 1), (0, 2)):
        assert_same(model, compiled, nodes(), edges(chosen))
    others = tuple(r for r in range(len(CYCLE)) if r != 0 and (by_edges or CYCLE[r][2] != CYCLE[0][2]))
    for f in (model, compiled):
        with pytest.raises(KeyError):
            f(nodes(), edges(others[:2]))
    assert_same(model, compiled, nodes(), edges((0, 1), 1))


@pytest.mark.slow
def test_a_model_of_to_hetero_refuses_calls_that_lack_relations() -> None:
    """Eager mode refuses such calls, too: the model has no meaning without one of its relations."""
    made = pyg.GraphSAGE(W, W, num_layers=1)
    model = pyg.to_hetero(made, (list(SIZES), CYCLE)).double()
    compiled = graphweave.compile(model)
    every = tuple(range(len(CYCLE)))
    assert_same(model, compiled, nodes(), edges(every))
    for f in (model, compiled):
        with pytest.raises(ValueError, match="only supports integer tensors"):
            f(nodes(), edges((0, 1)))
    assert_same(model, compiled, nodes(), edges(every, 1))


@pytest.mark.slow
def test_running_statistics_of_missing_relations_stay() -> None:
    """What a relation writes to its module's buffers cannot be left out, so each set of relations is compiled."""

    class Normed(pyg.SAGEConv):
        def __init__(self) -> None:
            super().__init__((W, W), W)
            self.norm = nn.BatchNorm1d(W)

        def forward(self, x: tuple[Tensor, Tensor], index: Tensor) -> Tensor:
            out: Tensor = self.norm(super().forward(x, index))
            return out

    models = [Layers(hetero(Normed), 1).double() for _ in range(2)]
    compiled = graphweave.compile(models[0])
    for chosen in ((0, 1), (1, 2), (0,)):
        out, wanted = compiled(nodes(), edges(chosen)), models[1](nodes(), edges(chosen))
        torch.testing.assert_close(out, {kind: wanted[kind] for kind in out})
    torch.testing.assert_close(dict(models[0].named_buffers()), dict(models[1].named_buffers()))


@pytest.mark.slow
def test_an_index_out_of_range_raises() -> None:
    compiled = graphweave.compile(Layers(hetero(sage), 1).double())
    compiled(nodes(), edges((0, 1)))
    wrong = {CYCLE[1]: torch.tensor([[SIZES["b"]], [0]])}
    with pytest.raises(IndexRangeError):
        compiled(nodes(), wrong)
    assert once() == (1, 0, 0)


@pytest.mark.slow
def test_no_gradients_other_indices_and_modes() -> None:
    model = Layers(hetero(sage)).double()
    compiled = graphweave.compile(model)
    for chosen in CALLS:
        # eager mode's gradients with indices of 32 bits are others
        small = edges(chosen, dtype=torch.int32)
        assert_same(model, compiled, nodes(), small, eager=(nodes(), edges(chosen)))
        with torch.no_grad():
            given = nodes(), edges(chosen)
            torch.testing.assert_close(compiled(*given), {k: model(*given)[k] for k in compiled(*given)})
    assert once() == (2, 0, 0)  # for int32, and without gradients for int64


@pytest.mark.slow
def test_features_of_edges_are_completed_once_they_were_seen() -> None:
    def conv() -> nn.Module:
        return pyg.GATConv((W, W), W, edge_dim=2, add_self_loops=False)

    class WithFeatures(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = hetero(conv)()

        def forward(self, x: Nodes, edges: Edges, numbers: Edges) -> Nodes:
            out: Nodes = self.layer(x, edges, edge_attr_dict=numbers)
            return out

    model = WithFeatures().double()
    compiled = graphweave.compile(model)
    for chosen in ((0, 1, 2, 3, 4), (0, 1), (2, 3), (4,)):
        index = edges(chosen)
        numbers = {k: features(e.shape[1], 2, torch.float64, seed=5) for k, e in index.items()}
        assert_same(model, compiled, nodes(), index, numbers)
    assert once() == (2, 0, 0)  # the first call lacked nothing


def test_relations_without_edges_in_the_first_call_are_no_sizes_of_their_own() -> None:
    """PyTorch takes the strides of an index without edges for numbers."""

    def total(x: Tensor, edges: Edges) -> Tensor:
        return torch.stack([torch.zeros_like(x).index_add(0, e[1], x[e[0]]) for e in edges.values()]).sum(0)

    compiled, x = graphweave.compile(total), nodes()["a"]
    for counts in ((0, 0, 3), (4, 0, 0), (0, 1, 7), (0, 0, 0)):
        given = {("a", str(i), "a"): random_graph(5, 5, n, seed=i) for i, n in enumerate(counts)}
        torch.testing.assert_close(compiled(x, given), total(x, given))
    assert once() == (1, 0, 0)


def test_a_thread_compiles_once_for_all_sets_of_relations() -> None:
    model = Layers(MODELS[QUICK]).double()
    compiled = graphweave.compile(model, background=True)
    for seed, chosen in enumerate(CALLS):
        assert_same(model, compiled, nodes(), edges(chosen, seed))
        assert graphweave.ready(compiled, patience.seconds())
    assert once() == (1, 0, 0)
    assert graphweave.counters()["kernel_launches"] > 0


def test_a_thread_compiles_each_set_of_keys_where_one_compilation_cannot_serve_all() -> None:
    def total(x: Tensor, edges: Edges) -> Tensor:
        return torch.stack([torch.zeros_like(x).index_add(0, e[1], x[e[0]]) for e in edges.values()]).sum(0)

    compiled, x = graphweave.compile(total, background=True), nodes()["a"]
    for counts in ((5, 2), (5,), (3,), (4, 2), (1,)):
        given = {("a", str(i), "a"): random_graph(5, 5, n, seed=i) for i, n in enumerate(counts)}
        torch.testing.assert_close(compiled(x, given), total(x, given))
        graphweave.ready(compiled, patience.seconds())
    assert once() == (2, 0, 0)
