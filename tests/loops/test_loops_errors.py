"""A loop that cannot be computed for all edges or nodes at once raises an error that ends with the user's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave
from graphweave import loops
from graphweave.core.errors import DataError, LoopError
from graphweave.core.settings import override
from graphweave.loops import concat, exp, linear, maximum

pytestmark = pytest.mark.filterwarnings("ignore:graphweave.*could not trace")


def graph() -> loops.TypedEdges:
    """Three nodes, four edges; fields x [3, 4] of nodes, y [4] of edges."""
    return loops.TypedEdges(
        torch.tensor([[0, 1, 2, 2], [1, 1, 0, 2]]),
        ndata={"x": torch.randn(3, 4)},
        edata={"y": torch.randn(4)},
        etype=torch.tensor([0, 1, 1, 0]),
    )


def unset(g: Any) -> None:
    for e in g.edges():
        e["z"] = e["att"] + 1  # here


def unset_of_nodes(g: Any) -> None:
    for e in g.edges():
        e["z"] = e.src["h"] + 1  # here


def set_across(g: Any) -> None:
    for e in g.edges():
        e.dst["h"] = e["y"]  # here


def set_in_the_inner_loop(g: Any) -> None:
    for n in g.dst_nodes():
        for e in n.incoming_edges():
            n["h"] = e["y"]  # here


def sum_of_two_fields(g: Any) -> None:
    for n in g.dst_nodes():
        n["h"] = n["k"] = 0.0
        for e in n.incoming_edges():
            n["h"] = n["k"] + e["y"]  # here


def taken_from(g: Any) -> None:
    for n in g.dst_nodes():
        n["h"] = 0.0
        for e in n.incoming_edges():
            n["h"] = e["y"] - n["h"]  # here


def never_started(g: Any) -> None:
    for n in g.dst_nodes():
        for e in n.incoming_edges():
            n["h"] += e["y"]  # here


def read_while_summed(g: Any) -> None:
    for n in g.dst_nodes():
        n["h"] = 0.0
        for e in n.incoming_edges():
            n["h"] += e["y"]
            e["z"] = 2 * n["h"]  # here


def summed_after_read(g: Any) -> None:
    for e in g.edges():
        e["z"] = e.src["x"] * 2
        e.dst["x"] += e["y"].unsqueeze(-1)  # here


def two_operations(g: Any) -> None:
    for n in g.dst_nodes():
        n["h"] = 0.0
        for e in n.incoming_edges():
            n["h"] += e["y"]
            n["h"] = maximum(n["h"], e["y"])  # here


def neighbour_of_the_same_loop(g: Any) -> None:
    for n in g.nodes():
        n["h"] = 0.0
        for e in n.incoming_edges():
            n["h"] += e.src["x"].sum()
        n["x"] = n["x"] + n["h"].unsqueeze(-1)  # here


def set_then_read_across(g: Any) -> None:
    for n in g.nodes():
        n["h"] = n["x"] * 2
        n["s"] = 0.0
        for e in n.incoming_edges():
            n["s"] += e.src["h"]  # here


def sent_and_set(g: Any) -> None:
    for n in g.nodes():
        n["h"] = 0.0
        for e in n.outgoing_edges():
            e.dst["h"] += e["y"]  # here


def both_directions(g: Any) -> None:
    for n in g.nodes():
        for e in n.incoming_edges():
            e["z"] = n["x"]
        n["s"] = 0.0
        for e in n.outgoing_edges():
            n["s"] += e["z"]  # here


def branch(g: Any) -> None:
    for e in g.edges():
        if e["y"] > 0:  # here
            e["z"] = 1.0


def as_number(g: Any) -> None:
    for e in g.edges():
        e["z"] = float(e["y"])  # here


def kept_variable(g: Any) -> None:
    for e in g.edges():
        message = exp(e["y"])
    for e in g.edges():
        e["z"] = message + 1  # here


def kept_edge(g: Any) -> None:
    for e in g.edges():
        last = e
    last["z"] = 1.0  # here


def running_sum(g: Any) -> None:
    total = 0.0
    for e in g.edges():
        total += e["y"]  # here
        e["z"] = total


def running_sum_in_a_branch(g: Any) -> None:
    before = 1.0
    for n in g.nodes():
        for e in n.incoming_edges():
            if g is not None:
                e["z"] = before * e["y"]  # here
            before = e["z"]


def left_early(g: Any) -> None:
    for e in g.edges():
        e["z"] = 1.0
        break  # here


def returned_early(g: Any) -> Any:
    for e in g.edges():
        return e["y"]  # here


def helper(g: Any) -> None:
    count = 0
    for e in g.edges():
        e["z"] = count  # here
        count = count + 1


def in_a_helper(g: Any) -> None:
    helper(g)


def nested(g: Any) -> None:
    for _n in g.nodes():
        for e in g.edges():  # here
            e["z"] = 1.0


def two_steps(g: Any) -> None:
    for e in g.edges():
        for f in e.src.incoming_edges():  # here
            f["z"] = e["y"]


def wrong_features(g: Any) -> None:
    for e in g.edges():
        e["z"] = e.src["x"] + torch.ones(3)  # here


def wrong_product(g: Any) -> None:
    W = torch.randn(2, 3, 5)
    for e in g.edges():
        e["z"] = e.src.x * W[e.etype]  # here


def wrong_order(g: Any) -> None:
    W = torch.randn(2, 4, 4)
    for e in g.edges():
        e["z"] = W[e.etype] * e.src.x  # here


def matrix_first(g: Any) -> None:
    M = torch.randn(4, 4)
    for e in g.edges():
        e["z"] = M @ e.src.x  # here


def product_of_values(g: Any) -> None:
    W = torch.randn(2, 4, 4)
    for e in g.edges():
        e["z"] = e.src.x @ W[e.etype]  # here


def no_matrix(g: Any) -> None:
    for e in g.edges():
        e["z"] = linear(e.src.x, e["y"])  # here


def not_whole(g: Any) -> None:
    W = torch.randn(2, 4)
    for e in g.edges():
        e["z"] = W[e["y"]]  # here


def without_node_types(g: Any) -> None:
    W = torch.randn(2, 4)
    for n in g.nodes():
        n["z"] = W[n.ntype]  # here


def unknown_function(g: Any) -> None:
    for e in g.edges():
        e["z"] = torch.sort(e.src.x)  # here


def wrong_rows(g: Any) -> None:
    w = torch.randn(7)
    for e in g.edges():
        e["z"] = w[e.src]  # here


def whole_data_inside(g: Any) -> None:
    for e in g.edges():
        e["z"] = g.ndata["x"]  # here


def set_as_attribute(g: Any) -> None:
    for e in g.edges():
        e.z = 1.0  # here


def edited_in_place(g: Any) -> None:
    for e in g.edges():
        x = e.src["x"]
        x[0] = 1.0  # here


def relu_in_place(g: Any) -> None:
    for e in g.edges():
        e["z"] = torch.nn.functional.relu(e.src["x"], inplace=True)  # here


def text_in_a_field(g: Any) -> None:
    for e in g.edges():
        e["z"] = "red"  # here


def wrong_dim(g: Any) -> None:
    for e in g.edges():
        e["z"] = concat([e.src.x, e.dst.x], dim=1)  # here


def loop_over_features(g: Any) -> None:
    for e in g.edges():
        e["z"] = [x for x in e.src.x]  # here


def field_of_wrong_rows(g: Any) -> None:
    g.ndata["z"] = torch.ones(5)  # here


def inverted(g: Any) -> None:
    for e in g.edges():
        e["z"] = ~(e["y"] > 0)  # here


WRONG: dict[Callable[..., Any], str] = {
    unset: r"e\['att'\] is read before it is set. Fields that exist: 'y', '_TYPE'",
    unset_of_nodes: r"n\['h'\] is read before it is set. Fields that exist: 'x'",
    set_across: r"e.dst\['h'\] is set in a loop over edges.*\+= x",
    set_in_the_inner_loop: r"n\['h'\] is set in a loop over edges",
    sum_of_two_fields: r"n\['h'\] is set in a loop over edges",
    taken_from: r"n\['h'\] is set in a loop over edges",
    never_started: r"n\['h'\] is read before it is set",
    read_while_summed: "'h' of a node is read in the loop over edges that is still adding",
    summed_after_read: "'x' of a node is read in the loop over edges that is still adding",
    two_operations: "gathers values by two operations",
    neighbour_of_the_same_loop: "'x' of a node is set in the same loop over nodes in which it is read across an edge",
    set_then_read_across: "'h' of a node is set in the same loop over nodes in which it is read across an edge",
    sent_and_set: "'h' of the node across an edge is added to in the same loop over nodes",
    both_directions: r"e\['z'\] is set on the edges of one direction",
    branch: r"a branch on the value.*where\(condition, a, b\)",
    as_number: "is no number in Python",
    kept_variable: "of a loop that is over. Keep it in a field",
    kept_edge: "an edge is used outside its loop",
    running_sum: r"'total' goes from one edge or node to the next.*n\['total'\] \+=",
    running_sum_in_a_branch: "'before' goes from one edge",
    left_early: "break inside a loop over edges or nodes",
    returned_early: "return inside a loop over edges or nodes",
    in_a_helper: "'count' goes from one edge",
    nested: "a loop over all edges or nodes inside another loop",
    two_steps: "paths of two edges",
    wrong_features: r"broadcast a dimension of length 3|tensor a \(4\) must match the size of tensor b \(3\)",
    wrong_product: r"features \(4,\) with a matrix of shape \(3, 5\)",
    wrong_order: "features first",
    matrix_first: r"linear\(x, M.T\)",
    product_of_values: r"linear\(x, W\[e.etype\]\)",
    no_matrix: r"expected \[..., K\] and \[K, M\]",
    not_whole: "whole numbers of 32 or 64 bits .got torch.float32.",
    without_node_types: r"nodes have no types: set g.ndata\['_TYPE'\]",
    unknown_function: "PyTorch's sort is not known",
    wrong_rows: r"one row for each of ndata, 3 .got shape \(7,\).",
    whole_data_inside: r"inside a loop use n\['x'\]",
    set_as_attribute: r"e\['z'\] = ",
    edited_in_place: "not edited in place",
    relu_in_place: "not edited in place",
    text_in_a_field: "a tensor or a number .got str.",
    wrong_dim: "dim 1 of features of shape .4,.",
    loop_over_features: "a loop over the features",
    field_of_wrong_rows: "5 rows, but the graph has 3 nodes",
    inverted: "logical_not",
}
IN_SOURCE = (running_sum, running_sum_in_a_branch, left_early, returned_early)
"""Errors that are raised when the function is decorated."""


def refuse(function: Callable[..., Any], kernels: bool) -> Exception:
    with (
        override(eager_kernels=kernels),
        pytest.raises((LoopError, DataError), match=f"(?s){WRONG[function]}") as caught,
    ):
        loops.compile(function)(graph())
    return caught.value


@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "plain"])
@pytest.mark.parametrize("function", WRONG, ids=lambda f: f.__name__)
def test_the_message_ends_with_the_line(function: Callable[..., Any], kernels: bool) -> None:
    before = graphweave.counters()["compilations"]
    last = str(refuse(function, kernels)).splitlines()[-1]
    assert last.startswith(f"  at {__file__}:") and "# here" in last
    assert graphweave.counters()["compilations"] == before


@pytest.mark.parametrize("function", IN_SOURCE, ids=lambda f: f.__name__)
def test_what_the_source_shows_is_refused_at_once(function: Callable[..., Any]) -> None:
    with pytest.raises(LoopError):
        loops.compile(function)


@pytest.mark.parametrize("function", [read_while_summed, branch, matrix_first], ids=lambda f: f.__name__)
def test_inside_a_compiled_model(function: Callable[..., Any], fresh_compiler: None) -> None:
    looped = loops.compile(function)

    def model(x: Tensor) -> Tensor:
        g = graph()
        looped(g)
        return x + g.edata["z"]

    with pytest.raises(LoopError, match=f"(?s){WRONG[function]}.*# here"):
        graphweave.compile(model)(torch.randn(4, 1))


def test_right_calls_after_wrong_ones(fresh_compiler: None) -> None:
    @loops.compile
    def scaled(g: Any, w: Tensor) -> Tensor:
        for e in g.edges():
            e["z"] = e.src["x"] * w
        return g.edata["z"]

    with pytest.raises(LoopError, match="length 3"):
        scaled(graph(), torch.ones(3))
    g = graph()
    assert torch.equal(scaled(g, torch.full((4,), 2.0)), 2 * g.ndata["x"][torch.tensor([0, 1, 2, 2])])


def test_values_returned() -> None:
    @loops.compile
    def wrong(g: Any) -> Any:
        return [g]

    with pytest.raises(LoopError, match="returned something of its graph"):
        wrong(graph())


def test_arguments() -> None:
    @loops.compile
    def nothing(g: Any) -> None:
        pass

    with pytest.raises(DataError, match=r"takes a graphweave graph or .*TypedEdges first .got Tensor"):
        nothing(torch.ones(2, 3))
    with pytest.raises(TypeError, match="first argument, by position"):
        nothing(g=graph())
    with pytest.raises(TypeError, match="takes a function"):
        loops.compile(3)
    with pytest.raises(ValueError, match="speed"):
        loops.compile(nothing, options={"speed": True})
    with pytest.raises(DataError, match=r"edge_index must be \[2, edges\]"):
        loops.TypedEdges(torch.ones(3, 2))
    with pytest.raises(DataError, match="give num_nodes"):
        loops.TypedEdges(torch.zeros(2, 3, dtype=torch.int64))


def test_errors_of_the_function_itself_stay() -> None:
    @loops.compile
    def wrong(g: Any) -> None:
        for _e in g.edges():
            raise ZeroDivisionError("out of cheese")

    with pytest.raises(ZeroDivisionError, match="out of cheese"):
        wrong(graph())


def test_a_bipartite_graph_has_two_sets_of_nodes() -> None:
    g = loops.TypedEdges(torch.tensor([[0, 1], [2, 0]]), (2, 3), srcdata={"x": torch.ones(2)})

    @loops.compile
    def all_nodes(g: Any) -> None:
        for n in g.nodes():  # here
            n["z"] = 1.0

    @loops.compile
    def no_edges_there(g: Any) -> None:
        for n in g.src_nodes():
            for e in n.incoming_edges():  # here
                e["z"] = n["x"]

    with pytest.raises(LoopError, match=r"(?s)bipartite.*# here"):
        all_nodes(g)
    with pytest.raises(LoopError, match=r"(?s)no edge can end in these nodes.*# here"):
        no_edges_there(g)
