"""The papers' tables: cells, printing, drawing, the page made from the files, and a run of a few small cells."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from torch import Tensor, nn
from torch_geometric.nn import GATConv

import graphweave
from bench import spec_peers
from bench.batches import LinkLoss
from bench.case import EXACT
from bench.common import machine
from bench.exact_layers import ExactAlong
from bench.papers import hector, tasks
from bench.papers.__main__ import PAPERS, main, parse, plan
from bench.papers.cells import OURS, Cell, Kind, Panel, panel_of
from bench.papers.draw import draw, figure_of, file_of
from bench.papers.page import FIGURES, file, pages, panels_of
from bench.papers.session import Session
from bench.papers.show import lines, number
from bench.spec_peers import CHECK, WITHIN, PygAlong, build, built
from bench.specs import Spec, spec_of
from bench.steps import result_of
from bench.workloads import ConcatenatedGat, Layers, OnPoints
from graphweave.points import knn_graph


def a_panel() -> Panel:
    panel = Panel("Table 9", "a title", "s", "about.", "bars", "graph", "length")
    panel.printed("Theirs", "g", {"32": 4.0, "64": "OOM"})
    panel.measured("MKL", "g", "32", {"median": 3.0, "q1": 2.5, "q3": 3.5}, scale=2.0)
    panel.measured(OURS, "g", "32", {"median": 1.5, "q1": 1.0, "q3": 2.0}, scale=2.0)
    panel.measured(OURS, "g", "64", {"status": "no answer to 'turn' within 60 s"})
    return panel


def test_a_panel_shows_the_paper_then_graphweave_then_peers() -> None:
    head, table = lines(a_panel())
    assert head == ["graph", "length", "paper: Theirs", "here: graphweave", "here: MKL", "MKL / graphweave"]
    assert table == [["g", "32", "4.00", "3.00", "6.00", "2.00x"], ["g", "64", "OOM", "timeout", "-", "-"]]


def test_only_times_and_memory_are_compared() -> None:
    panel = a_panel()
    panel.unit = "GFLOPS"
    assert lines(panel)[0][-1] == "here: MKL"


def test_a_panel_survives_json() -> None:
    panel = a_panel()
    assert panel_of(json.loads(json.dumps(panel.as_json()))) == panel


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.01234, "0.0123"), (1.0, "1.00"), (99.5, "99.5"), (1234.0, "1234")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_specs_survive_json() -> None:
    spec = Spec("gat", "rmat:10:20", 8, (16, 4), heads=4)
    assert spec_of(spec.text()) == spec


@pytest.mark.parametrize("kind", ["bars", "lines", "heat map"])
def test_figures_are_png(kind: str, tmp_path: Path) -> None:
    panel = a_panel()
    panel.kind = kind  # type: ignore[assignment]
    path = draw("some", panel, tmp_path)
    assert path is not None and path.read_bytes()[:4] == b"\x89PNG"
    panel.kind = "table"
    assert draw("some", panel, tmp_path) is None


def drawn_panels() -> dict[str, Panel]:
    """File name -> panel, for each figure of the page."""
    records = {paper: json.loads(file(paper).read_text()) for paper in PAPERS}
    panels = {file_of(paper, panel_of(p)): panel_of(p) for paper, r in records.items() for p in r["panels"].values()}
    return {name: panel for name, panel in panels.items() if (FIGURES / name).is_file()}


@pytest.mark.parametrize("name", drawn_panels())
def test_a_figure_of_the_page_is_honest_and_legible(name: str) -> None:
    """Bars begin at 0, lines have three points, every number is within the axes, and no two names overlap."""
    figure = figure_of(drawn_panels()[name])
    assert figure is not None
    figure.canvas.draw()
    axis, *scales = figure.axes
    assert len(scales) == len(axis.images)  # that of a heat map
    bars = [bar for group in axis.containers for bar in group]
    if bars:
        assert axis.get_xscale() == "linear" and axis.get_xlim()[0] == 0
    for line in axis.lines:
        assert line.get_linestyle() == "None" or len(line.get_xdata()) > 2 or list(line.get_xdata()) == [1, 1]
    assert axis.images or _points(axis, bars)
    for point in _points(axis, bars):
        low, high = axis.transAxes.inverted().transform(axis.transData.transform(point))
        assert 0 <= low <= 1 and 0 <= high <= 1
    for own in (axis.xaxis, axis.yaxis):
        begin, end = sorted(own.get_view_interval())
        shown = [tick for tick in own.get_major_ticks() if begin <= tick.get_loc() <= end]  # others are not drawn
        boxes = [tick.label1.get_window_extent() for tick in shown if tick.label1.get_text()]
        assert not [1 for i, one in enumerate(boxes) for other in boxes[:i] if one.overlaps(other)]
        assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)
    plt.close(figure)


def _points(axis: Axes, bars: list[Any]) -> list[tuple[float, float]]:
    """Ends of bars, and points that are marked. A line has no mark where nothing has been measured yet."""
    ends = [(bar.get_width(), bar.get_y() + bar.get_height()) for bar in bars]
    marked = [line for line in axis.lines if line.get_marker() != "None"]
    points = [(float(x), float(y)) for line in marked for x, y in zip(*line.get_data(), strict=True)]
    return ends + [(x, y) for x, y in points if isfinite(y)]


def test_every_figure_is_drawn_from_the_files() -> None:
    assert {path.name for path in FIGURES.iterdir()} == set(drawn_panels()) and len(drawn_panels()) >= 17


def test_two_columns_are_no_line() -> None:
    panel = Panel("Figure 9", "a title", "s", "about.", "lines", "graph", "length")
    for column, seconds in (("32", 1.0), ("64", 2.0)):
        panel.value(OURS, "g", column, seconds)
        panel.value("MKL", "g", column, 2 * seconds)
    figure = figure_of(panel)
    assert figure is not None and not figure.axes[0].lines and len(figure.axes[0].patches) >= 4
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["32", "64"]
    assert figure.axes[0].get_xlabel() == "s (graph g)"
    panel.value(OURS, "g", "128", 400.0)
    wide = figure_of(panel)
    assert wide is not None and len(wide.axes[0].lines) == 2 and wide.axes[0].get_yscale() == "log"
    plt.close("all")


def test_the_pages_are_made_from_the_files() -> None:
    """`python -m bench.papers page` writes them."""
    for path, text in pages(list(PAPERS.values())).items():
        assert path.read_text() == text, path.name


def test_every_cell_is_measured_or_noted_as_missing() -> None:
    """The files have all panels that the code makes, and name all cells that they lack."""
    for paper in PAPERS.values():
        planned = plan(paper, parse([paper.name]))
        noted = {name for panel in panels_of(paper.name).values() for name in panel.missing}
        assert {f"{cell.row} {cell.column}" for cell in planned} <= noted, paper.name


def options(*given: str) -> argparse.Namespace:
    return parse(["featgraph", "--seconds", "60", *given])


def test_a_session_measures_only_what_is_missing() -> None:
    held = a_panel()
    held.machines = [machine()]
    session = Session(options(), {held.name: held}, lambda panels: None)
    panel = session.panel(held.name, "a title", "s", "about.")
    assert not any(cell.paper for cell in panel.cells)
    assert not session.wants("g", "32", panel, seconds=1.0)
    assert session.wants("g", "128", panel, seconds=1.0)
    assert panel.missing == []
    other = Session(options("--columns", "64", "--again"), {held.name: held}, lambda panels: None)
    panel = other.panel(held.name, "a title", "s", "about.")
    assert other.wants("g", "64", panel, seconds=1.0)
    assert panel.find("g", "64", OURS, paper=False) is None
    assert not other.wants("g", "128", panel, seconds=1.0)
    assert panel.missing == ["g 128"]


def test_a_session_sorts() -> None:
    saved = []
    session = Session(options(), {}, lambda panels: saved.append(list(panels)))
    panel = session.panel("Table 9", "a title", "s", "about.")
    for row, column in (("a", "1"), ("a", "2"), ("b", "1")):
        assert session.wants(row, column, panel, seconds=1.0)
    panel.value(OURS, "b", "1", 3.0)
    panel.value(OURS, "a", "2", 2.0)
    session.measured(panel)
    session.sort(panel)
    assert [cell.row for cell in panel.cells] == ["a", "b"]
    assert saved == [["Table 9"]]


def test_tables_may_have_several_machines_and_a_line_and_a_heat_map_have_one() -> None:
    session = Session(options(), {}, lambda panels: None)
    panel = session.panel("Table 9", "a title", "s", "about.")
    for row, cpu in (("a", "one"), ("b", "another"), ("c", "one")):
        panel.value(OURS, row, "1", 3.0)
        session.measured(panel, machine={"cpu": cpu})
    head, table = lines(panel)
    assert head[-1] == "machine" and [line[-1] for line in table] == ["A", "B", "A"]
    kinds: tuple[Kind, ...] = ("lines", "heat map")
    for kind in kinds:
        figure = session.panel(kind, "a title", "s", "about.", kind)
        figure.value(OURS, "a", "1", 3.0)
        session.measured(figure, machine={"cpu": "one"})
        assert "machine" not in lines(figure)[0]
        figure.value(OURS, "a", "2", 4.0)
        with pytest.raises(RuntimeError, match="must be of one machine"):
            session.measured(figure, machine={"cpu": "another"})
    figure = session.panels["lines"]
    figure.cells.pop()
    figure.value(OURS, "b", "1", 5.0)
    session.measured(figure, machine={"cpu": "another"})
    head, table = lines(figure)
    assert head[-1] == "machine" and [line[-1] for line in table] == ["A", "B"]
    assert [name.split()[-1] for name in legend_of(figure)] == ["(A)", "(B)"]


def legend_of(panel: Panel) -> list[str]:
    for column in ("2", "3"):  # a line is drawn of at least three numbers
        panel.cells += [replace(cell, column=column) for cell in panel.cells if cell.column == "1"]
    figure = figure_of(panel)
    assert figure is not None
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_what_other_machines_measured_of_a_line_is_dropped_where_that_is_asked_for() -> None:
    held = Panel("Figure 9", "a title", "s", "about.", "lines", machines=[{"cpu": "another"}])
    held.cells = [Cell(row, "1", OURS, 3.0, machine=0) for row in ("a", "b")]
    kept, moved = (Session(options(*given), {held.name: held}, lambda panels: None) for given in ((), ("--move",)))
    for session, rows in ((kept, ["a", "b"]), (moved, ["b"])):
        panel = session.panel("Figure 9", "a title", "s", "about.", "lines")
        assert session.wants("a", "2", panel, seconds=1.0)
        assert [cell.row for cell in panel.cells] == rows
    panel.value(OURS, "a", "2", 4.0)
    moved.measured(panel)
    assert [one["cpu"] for one in panel.machines] == ["another", machine()["cpu"]]
    assert [(cell.row, cell.machine) for cell in panel.cells] == [("b", 0), ("a", 1)]


def test_time_and_memory_are_chosen_apart() -> None:
    session = Session(options("--measure", "memory"), {}, lambda panels: None)
    panel = session.panel("Table 9", "a title", "s", "about.")
    assert not session.wants("a", "1", panel, seconds=1.0)
    assert session.wants("a", "1", panel, seconds=1.0, what="memory")


def ring(nodes: int, edges: int) -> Tensor:
    return torch.stack([torch.arange(edges) % nodes, (3 * torch.arange(edges) + 1) % nodes])


TASKS = [
    Spec("rgcn", "weighted:7:30:3", 1, (4, 5)),
    Spec("gcmc", "ratings:5:6:40:3", widths=(8, 4), kernels=2),
    Spec("link", "pairs:7:20:2", 3, (4, 4)),
]


def loss_and_gradients(run: Any, module: nn.Module, spec: Spec) -> list[Tensor]:
    inputs = [
        one.index if isinstance(one, tasks.Edges) else one.double() if one.is_floating_point() else one
        for one in tasks.inputs_of(spec, ring)
    ]
    loss = run(*inputs)
    return [loss.detach(), *torch.autograd.grad(loss, list(module.parameters()))]


def double_of(spec: Spec, along: tasks.Along) -> nn.Module:
    torch.manual_seed(0)
    return tasks.module_of(spec, along).double()


@pytest.mark.slow
@pytest.mark.parametrize("spec", TASKS, ids=lambda spec: spec.layer)
def test_models_of_dgls_paper_compile_to_the_same_loss_and_gradients(spec: Spec) -> None:
    module = double_of(spec, PygAlong())
    want, got = (loss_and_gradients(run, module, spec) for run in (module, graphweave.compile(module)))
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("spec", TASKS, ids=lambda spec: spec.layer)
def test_what_judges_models_of_dgls_paper_takes_some_edges_at_a_time(
    spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.exact_sums.PIECE", 7)
    whole, pieces = (double_of(spec, along) for along in (PygAlong(), ExactAlong()))
    want, got = (loss_and_gradients(module, module, spec) for module in (whole, pieces))
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("layer", ["gcn", "sage", "gin", "monet", "gat", "edgeconv", "edgeconv-mlp"])
def test_what_judges_layers_stores_no_messages_and_computes_the_same(
    layer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.exact_layers.PIECE", 7)
    spec = Spec(layer, "tiny", 5, (8, 4), heads=2 if layer == "gat" else 1)
    own, judge = built(spec, Path()), built(spec, Path(), wide=True)
    layers: Any = judge.model.layers
    assert all("propagate" in vars(one) for one in layers)
    edges = own.loss_inputs[2]
    assert edges.unique(dim=1).size(1) < edges.size(1), "no edge occurs twice"
    want = own.loss.double()(*(v.double() if v.is_floating_point() else v for v in own.loss_inputs))
    got = judge.loss(*judge.loss_inputs)
    grads = [torch.autograd.grad(loss, list(one.model.parameters())) for loss, one in ((want, own), (got, judge))]
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-10, atol=1e-13)


def test_the_loss_of_weighted_relations_is_that_of_its_formula() -> None:
    spec = TASKS[0]
    y, x, edges, shares = tasks.inputs_of(spec, ring)
    assert isinstance(edges, tasks.Edges) and all(isinstance(one, Tensor) for one in (y, x, shares))
    module: Any = tasks.module_of(spec, PygAlong())
    h = x
    for layer in range(2):
        out = h @ module.own[layer]
        for r in range(3):
            adjacency = torch.zeros(7, 7).index_put((edges.index[1], edges.index[0]), shares[:, r], accumulate=True)
            torch.testing.assert_close(adjacency.sum(1)[edges.index[1].unique()].min(), torch.tensor(1.0))
            out = out + adjacency @ h @ module.related[layer][r]
        h = out.relu() if layer == 0 else out
    torch.testing.assert_close(module(y, x, edges.index, shares), torch.nn.functional.cross_entropy(h, y))


def test_an_unknown_table_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["featgraph", "--only", "XX"])
    assert "featgraph has no XX; expected III(a), III(b)" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize(
    ("paper", "table"),
    [
        ("featgraph", "III(c)"), ("dgl", "3"), ("dgl", "table-4"), ("graphiler", "9"), ("zhang", "10"), ("zhang", "11"),
        ("hector", "10"), ("hector", "lines"), ("today", "isplib"),
    ],
)  # fmt: skip
def test_a_quick_run_measures(paper: str, table: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    given = [paper, "--quick", "--only", table, "--repeats", "1", "--threads", "1"]
    assert main([*given, "--out", str(out), "--figures", str(tmp_path)]) == 0
    panels = [panel_of(one) for one in json.loads(out.read_text())["panels"].values()]
    values = [cell.value for panel in panels for cell in panel.cells if not cell.paper and cell.value is not None]
    assert values and all(value >= 0 for value in values)


def test_links_are_told_from_drawn_ones() -> None:
    """The loss of links equals binary entropy over both kinds of pairs; without an edge it is 0."""
    x, drawn = torch.randn(7, 3), torch.randint(7, (30,))
    loss = LinkLoss(Given())
    src, dst = edge_index = ring(7, 30)
    scores = torch.cat([(x[src] * x[dst]).sum(1), (x[src] * x[drawn]).sum(1)])
    labels = torch.cat([torch.ones(30), torch.zeros(30)])
    want = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels)
    torch.testing.assert_close(loss(drawn, x, edge_index), want)
    assert loss(drawn[:0], x, edge_index[:, :0]) == 0


class Given(torch.nn.Module):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return x


def test_points_are_searched_in_each_call() -> None:
    """The peers with a search compute what they compute on the graph of the points, each its own neighbour."""
    spec = Spec("edgeconv-knn", "points:2:30:4", 3, (5, 6))
    step = build(spec.text(), "infer", Path())["eager"]()
    one = built(spec, Path())
    x, batch = one.inputs
    edges = knn_graph(x, 4, batch, loop=True)
    assert (edges[0] == edges[1]).sum() == 60 and edges.size(1) == 240
    assert isinstance(one.model, OnPoints)
    torch.testing.assert_close(result_of(step()).outputs[0], Layers.forward(one.model, x, edges).detach())


def test_gat_with_the_product_on_edges_is_pygs() -> None:
    """GATConv with the halves of the attention's vector, and the same without self-loops."""
    written, theirs = ConcatenatedGat(3, 4, 2), GATConv(3, 4, 2, bias=False, add_self_loops=False)
    with torch.no_grad():
        theirs.lin.weight.copy_(written.lin.weight)
        theirs.att_src.copy_(written.att[:, :4].unsqueeze(0))
        theirs.att_dst.copy_(written.att[:, 4:].unsqueeze(0))
    x, edges = torch.randn(7, 3), ring(7, 30)
    torch.testing.assert_close(written(x, edges), theirs(x, edges))


@pytest.mark.slow
def test_a_compiled_model_with_a_search_has_the_same_gradients() -> None:
    spec = Spec("edgeconv-knn", "points:2:30:4", 3, (5, 6))
    peers = build(spec.text(), "train", Path(), memory="1G")
    want, exact = (result_of(peers[peer]()()) for peer in ("eager", EXACT))
    for peer in ("graphweave", WITHIN):
        assert CHECK.verdict(result_of(peers[peer]()()), want, lambda _: exact)["status"] == "ok", peer


def test_inputs_nearby_are_the_same_in_float32() -> None:
    """Inputs and weights differ in float64, by at most half a unit in the last place; integers do not."""
    spec = Spec("edgeconv", "points:2:30:4", 3, (5, 6))
    one, other = (spec_peers.built(spec, Path(), wide=True) for _ in range(2))
    moved = other.nearby(0)
    pairs = [*zip(one.loss.parameters(), moved.loss.parameters(), strict=True), (one.inputs[0], moved.inputs[0])]
    for true, near in pairs:
        assert not torch.equal(true, near)
        torch.testing.assert_close(near, true, rtol=2**-24, atol=0.0)
    assert torch.equal(one.inputs[1], moved.inputs[1]) and torch.equal(one.loss_inputs[0], moved.loss_inputs[0])
    assert moved.inputs[0] is moved.loss_inputs[1]


def test_the_peer_with_native_libraries_says_that_they_are_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec_peers, "NATIVE", Path("nowhere"))
    assert "make pyg-native" in (spec_peers.refusal("pyg-native") or "")
    assert spec_peers.refusal("eager") is None


def test_lines_of_a_layer_are_those_of_its_functions() -> None:
    """R-GCN's forward has 3 lines, and calls `typed` and `summed`, which have 2 each."""
    assert hector._written("rgcn") == 7
