"""`explain` answers what a user asks first, in few lines and in the user's own words."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import FastRGCNConv, GATConv

import graphweave
from graphweave.core.errors import SettingsError
from graphweave.frontends.dynamo.explain import Explanation
from graphweave.frontends.dynamo.explain_summary import Row, as_text
from tests.support import features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

HERE = os.path.relpath(__file__)


class GAT(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = GATConv(8, 4, heads=2)
        self.second = GATConv(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.elu(self.first(x, edge_index))
        return self.second(x, edge_index)


@pytest.fixture(scope="module")
def attention() -> Explanation:
    """The summary of a training step with two layers."""
    torch._dynamo.reset()
    return graphweave.explain(GAT(), features(20, 8), random_graph(20, 20, 90), detail="kernels")


def neighbours(x: Tensor, edge_index: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])


def line_of(text: str) -> int:
    """The line of this file that has `text`."""
    return 1 + next(i for i, line in enumerate(Path(__file__).read_text().splitlines()) if text in line)


def test_two_layers_of_attention_in_the_users_words(attention: Explanation) -> None:
    text = attention.text()
    lines = text.splitlines()
    assert len(lines) < 40
    assert lines[0].startswith("captured") and "GAT, as 1 graph, forward and backward" in lines[0]
    assert "rows of x: 20" in text and "edges of edge_index: " in text
    assert re.search(r"launches +a step: 6 kernels \(3 forward, 3 backward\); eager makes \d+ calls", text)
    assert re.search(r"max, 4 sums over edges of edge_index, 1 matrix product", text)
    assert re.search(r"bytes moved +a step: [\d.]+ kB .*eager's calls read and write [\d.]+ kB, [\d.]+ times", text)
    assert "over edges of edge_index" in text and "saved for backward" in text
    assert f"{HERE}:{line_of('self.second(x, edge_index)')} (torch_geometric/nn/" in text


def test_the_short_form_has_no_names_of_the_ir_and_no_paths_of_the_machine(attention: Explanation) -> None:
    text = attention.text()
    assert not re.search(r"\b[VE]\d+\b|%\d|tounit|primals|tangents|\bs\d+\b", text)
    assert "site-packages" not in text and os.getcwd() not in text
    assert not re.search(r"(?<![\w.-])/\w+/", text), "an absolute path"
    assert not any(line.split()[0] in ("graph", "runs", "compiled", "left") for line in text.splitlines()), (
        "empty groups"
    )


def test_golden_of_one_sum() -> None:
    x, edge_index = features(6, 4), random_graph(6, 6, 12)
    where = f"{HERE}:{line_of('.index_add(0, edge_index[1]')}"
    assert graphweave.explain(neighbours, x, edge_index).text().splitlines() == [
        f"captured           neighbours, as 1 graph, forward          {HERE}:{line_of('def neighbours')}",
        "                   rows of x: 6",
        "                   edges of edge_index: 12",
        "launches           a call: 1 kernel; eager makes 3 calls",
        "bytes moved        a call: 336 B by the cost model; eager's calls read and write 1.06 kB, 3.1 times that",
        "once a graph       2 values from index tensors alone, kept until they change",
        f"inference kernels  rows of x: sum over edges of edge_index  {where}",
    ]


def test_kernels_of_shared_data_are_counted_in_values() -> None:
    def normalised(x: Tensor) -> tuple[Tensor, Tensor]:
        mean = x.sum(0) / 7
        return mean, (x - mean).exp().sum(0)

    text = str(graphweave.explain(normalised, torch.randn(50, 32)))
    assert "shared data: 1 value " in text, text


def test_bytes_of_eager_are_those_of_its_calls() -> None:
    """A gather of [12, 4], a sum of it into [6, 4]: counted by hand."""
    x, edge_index = features(6, 4).float(), random_graph(6, 6, 12)
    (capture,) = graphweave.explain(neighbours, x, edge_index).captures
    zeros, rows, messages, index = 6 * 4 * 4, 6 * 4 * 4, 12 * 4 * 4, 12 * 8
    gather = messages + index + messages  # the rows that it reads and those that it writes
    added = rows + messages + index + rows  # the rows that it adds to, those that it adds, and the result
    assert capture.eager_moved == zeros + gather + added
    assert capture.eager_calls == 3


def test_compound_calls_are_one_call_of_eager_mode() -> None:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(x, y)

    (capture,) = graphweave.explain(loss, features(6, 4).requires_grad_(), torch.tensor([0, 1, 2, 3, 1, 0])).captures
    assert capture.eager_calls <= 5  # log_softmax and nll_loss, forward and backward, and a gradient of ones


def test_sizes_that_data_decides_are_counted_too() -> None:
    def positive(x: Tensor, edge_index: Tensor) -> Tensor:
        kept = edge_index[:, edge_index[0] != edge_index[1]]
        return neighbours(x, kept)

    (capture,) = graphweave.explain(positive, features(6, 4), random_graph(6, 6, 12)).captures
    assert capture.eager_moved is not None


def test_graph_breaks_stand_with_reason_and_line() -> None:
    def broken(x: Tensor, edge_index: Tensor) -> Tensor:
        out = neighbours(x, edge_index)
        if out.sum() > 0:
            out = out * 2
        return neighbours(out, edge_index)

    told = graphweave.explain(broken, features(6, 4), random_graph(6, 6, 12))
    (row,) = [r for r in told.rows() if r.about == "graph break"]
    assert row.where == f"{HERE}:{line_of('if out.sum() > 0')}"
    assert row.text.startswith("Data-dependent branching") and "\n" not in row.text
    assert row.text.endswith("does not support tracing dynamic control flow")
    assert "torch.cond" in told.breaks[0].reason, "the whole reason, hints and all"


def test_what_is_left_to_pytorch_stands_with_its_line() -> None:
    def ordered(x: Tensor, edge_index: Tensor) -> Tensor:
        return neighbours(torch.sort(x, dim=0).values, edge_index)

    told = graphweave.explain(ordered, features(6, 4), random_graph(6, 6, 12))
    (row,) = [r for r in told.rows() if r.about == "left to PyTorch"]
    assert row.text == "aten.sort.default: no kernel computes it"
    assert row.where == f"{HERE}:{line_of('torch.sort(x, dim=0)')}"


def test_recompilations_name_the_argument() -> None:
    compiled = graphweave.compile(neighbours)
    edge_index = random_graph(6, 6, 12)
    compiled(features(6, 4), edge_index)
    compiled(features(6, 5), edge_index)
    told = graphweave.explain(compiled, features(6, 5), edge_index)
    (row,) = [r for r in told.rows() if r.about == "compiled again"]
    assert row.text == "neighbours: tensor 'x' size mismatch at index 1. expected 4, actual 5"
    assert row.where == f"{HERE}:{line_of('def neighbours')}"


def test_code_costs_and_ir_are_one_argument_away(attention: Explanation) -> None:
    told = attention
    assert str(told) == told.text("kernels") and "gw_parallel(num_chunks, num_threads" in str(told)
    assert "-- taken: " in told.text("costs") and "message IR" not in told.text("costs")
    assert "= pull" in told.text("ir") and "gw_parallel" not in told.text("ir")
    everything = told.text("all")
    assert "def run(args):" in everything and told.graphs[0].kernels[0].text in everything
    for detail in ("kernels", "costs", "ir", "all"):
        assert told.text(detail).startswith(told.text())  # type: ignore[arg-type]


def test_an_unknown_detail_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match=r"unknown detail 'code'; expected one of 'short', 'kernels'"):
        graphweave.explain(neighbours, features(6, 4), random_graph(6, 6, 12), detail="code")  # type: ignore[arg-type]


def test_arguments_inside_others_and_weights_have_their_names() -> None:
    def nested(data: dict[str, Tensor], graph: SimpleNamespace) -> Tensor:
        return neighbours(data["h"], graph.edges)

    text = graphweave.explain(nested, {"h": features(6, 4)}, SimpleNamespace(edges=random_graph(6, 6, 12))).text()
    assert "rows of data['h']: 6" in text and "edges of graph.edges: 12" in text


def test_fields_of_graphs_are_named_as_users_reach_them() -> None:
    src, dst = random_graph(6, 6, 12)
    g = graphweave.graph((src, dst), num_nodes=6)
    g.ndata["h"] = features(6, 4)

    def spread(g: graphweave.Graph) -> Tensor:
        s, d = g.edges()
        return neighbours(g.ndata["h"], torch.stack([s, d]))

    text = graphweave.explain(spread, g).text()
    assert "rows of g.ndata['h']: 6" in text and "edges of g: 12" in text


def test_pairs_of_a_node_and_a_relation_are_counted() -> None:
    """Passes after the search, and predictions of memory, took a program's pairs to be as many as its edges."""

    def typed(x: Tensor, w: Tensor, src: Tensor, dst: Tensor, kind: Tensor) -> Tensor:
        messages = torch.einsum("ni,nio->no", x[src], w[kind])
        return x.new_zeros(x.shape[0], w.shape[2]).index_add(0, dst, messages)

    nodes, relations, edges = 30, 5, 3000
    (src, dst), kind = random_graph(nodes, nodes, edges), torch.arange(edges) % relations
    pairs = torch.unique(torch.stack([src, kind]), dim=1).shape[1]
    own = features(nodes, 16), features(relations * 16, 16).view(relations, 16, 16), src, dst, kind
    told = graphweave.explain(graphweave.compile(typed, options={"compact": True}), *own)
    assert f"rows of src and kind: {pairs}\n" in told.text()
    assert all(pairs in {space.rows for space in graph.spaces} for graph in told.graphs)


def test_the_text_for_a_terminal(attention: Explanation, monkeypatch: pytest.MonkeyPatch) -> None:
    told = replace(attention, detail="short")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "110")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(told))
    assert "\x1b[1mcaptured" in str(told) and not plain.startswith("\x1b")
    assert len(plain.splitlines()) < 40 and max(map(len, plain.splitlines())) <= 110
    assert "rows of x: 20" in plain


def test_through_the_plain_door() -> None:
    class Sums(torch.nn.Module):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return neighbours(x, edge_index)

    plain = torch.compile(Sums(), backend="graphweave")
    assert graphweave.explain(plain, features(6, 4), random_graph(6, 6, 12)).what == "Sums"


def test_long_texts_go_on_in_the_next_line_and_kernels_of_the_prelude_are_named() -> None:
    layer = FastRGCNConv(8, 16, 3)
    edges, types = random_graph(20, 20, 60), torch.arange(60) % 3
    report = graphweave.explain(layer, features(20, 8, dtype=torch.float32), edges, types)
    text = report.text()
    assert max(map(len, text.splitlines())) <= 160
    assert re.search(r"^once-a-graph kernels +rows of .*: sum over", text, re.MULTILINE)
    made = {k.name: k.does for g in report.graphs for k in (*g.once, *g.kernels)}
    words = " ".join(text.split())
    shown = [does for does in made.values() if does.split(":")[0] in words]
    assert len(shown) == len(made) >= 6


def test_lines_hold_160_characters_however_long_texts_and_places_are() -> None:
    rows = [Row("graph break", "a word " * 60, "file.py:3"), Row("kernels", "sum", "x" * 120 + ".py:1"), Row("", "")]
    text = as_text(rows)
    assert max(map(len, text.splitlines())) <= 160
    assert " ".join(text.split()).count("word") == 60
