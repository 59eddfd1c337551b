"""Pages and pictures of the command line: charts say what was measured, pages hold them and load nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from graphweave.cli import charts
from graphweave.cli.bench import _copied, _with_fewer_edges
from graphweave.cli.bench_page import BenchRun, bench_charts, bench_page
from graphweave.cli.charts import Chart, ScaledTimes
from graphweave.cli.main import main, parser
from graphweave.cli.plot import page_figures, save_picture
from graphweave.cli.report import measure
from graphweave.cli.training_page import FinishedTraining, all_charts, training_page
from graphweave.compiler.report import RacedCandidate, TuningNote
from graphweave.core.break_even import BreakEven
from graphweave.data import karate
from graphweave.examples.nodes import NodeTraining
from graphweave.examples.tasks import start
from graphweave.examples.training import Predictions, TrainingJob
from tests.cli.test_cli_tasks import case
from tests.pages.test_pages import read

pytest.importorskip("matplotlib", reason="charts need matplotlib")

JOB = TrainingJob("gcn", 8, 1, 0.0, 0.01, 0.0, 3, 0, 1)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def trained(*ways: str) -> FinishedTraining:
    """A training of eager PyTorch under the names of `ways`, with times that are known."""
    runners = []
    for number, way in enumerate(ways):
        runner = NodeTraining("eager", JOB, karate())
        for _ in range(JOB.epochs):
            runner.epoch()
        runner.way = way
        first = 0.1 if way == "eager" else 4.0
        runner.history.seconds = [first, *[0.1 if way == "eager" else 0.02 * (number + 1)] * (JOB.epochs - 1)]
        runners.append(runner)
    measured = measure(runners, "peak extra memory of a step", [2**20 * (i + 1) for i in range(len(ways))])
    return FinishedTraining("gcn", JOB, karate(), runners, measured, [runner.predictions() for runner in runners])


def drawn(chart: Chart) -> Any:
    """The axes of a chart."""
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    chart.draw(axes)
    return axes


# ---------------------------------------------------------------- predictions


@pytest.mark.parametrize("name", ["classes", "numbers", "points", "sampled"])
def test_predictions_give_the_measure_of_the_test_data(name: str, tmp_path: Path) -> None:
    job, data = case(name, tmp_path)
    way = start("eager", job, data)
    way.epoch()
    found, measured = way.predictions(), next(iter(way.test().values()))
    assert found is not None and found.true.numel() > 0
    if found.classes:
        assert float((found.predicted == found.true).double().mean()) == pytest.approx(measured)
        assert len(found.classes) == 2
    else:
        assert float((found.predicted - found.true).abs().mean()) == pytest.approx(measured, rel=1e-4)
        assert not found.true.isnan().any()


@pytest.mark.parametrize("name", ["flags", "lightgcn", "link dot"])
def test_rankings_and_scores_are_no_predictions(name: str, tmp_path: Path) -> None:
    job, data = case(name, tmp_path)
    assert start("eager", job, data).predictions() is None


def test_what_is_not_known_is_no_prediction() -> None:
    found = Predictions.of_classes(torch.tensor([0, 1, 2]), torch.tensor([0, -1, 1]), 3)
    assert found.predicted.tolist() == [0, 2] and found.true.tolist() == [0, 1] and found.classes == ("0", "1", "2")
    numbers = Predictions.of_numbers(torch.tensor([1.0, 2.0]), torch.tensor([float("nan"), 3.0]))
    assert numbers.predicted.tolist() == [2.0] and numbers.true.tolist() == [3.0]


# ---------------------------------------------------------------- charts


def test_a_confusion_matrix_counts_true_and_predicted() -> None:
    found = Predictions.of_classes(torch.tensor([0, 0, 1, 2, 2]), torch.tensor([0, 1, 1, 2, 1]), ("cat", "dog", "owl"))
    chart = charts.predictions("eager", found)
    assert chart is not None
    assert "60.0% lie on the diagonal" in chart.alt and "dog is taken for cat" in chart.alt
    axes = drawn(chart)
    cells = {tuple(map(round, text.get_position())): text.get_text() for text in axes.texts}
    assert cells == {(0, 0): "1", (0, 1): "1", (1, 1): "1", (2, 1): "1", (2, 2): "1"}, "column, row"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "dog", "owl"]


def test_many_classes_are_shades_without_numbers() -> None:
    y = torch.arange(40)
    chart = charts.predictions("eager", Predictions.of_classes(y, y, 40))
    assert chart is not None and "100.0%" in chart.alt and "taken for" not in chart.alt
    axes = drawn(chart)
    assert len(axes.patches) == 40 and not axes.texts


def test_a_parity_chart_has_a_point_for_each_number_up_to_a_limit() -> None:
    true = torch.linspace(-1, 1, 12_000)
    chart = charts.predictions("graphweave", Predictions(true + 0.5, true))
    assert chart is not None and "error is 0.5" in chart.alt
    line, points = drawn(chart).lines
    assert list(line.get_xdata()) == list(line.get_ydata()) == [-1, 1.5]
    assert 3000 < len(points.get_xdata()) <= 5000


def test_without_test_data_nothing_is_drawn_of_predictions() -> None:
    assert charts.predictions("eager", Predictions(torch.empty(0), torch.empty(0))) is None
    assert charts.degrees(torch.empty(0, dtype=torch.int64), 3) is None


@pytest.mark.parametrize("hub", [3, 900])
def test_degrees_are_counted(hub: int) -> None:
    chart = charts.degrees(torch.tensor([0] * hub + [1, 2]), 5)
    assert chart is not None and f"{hub:,} at most, none for 2 nodes" in chart.alt
    axes = drawn(chart)
    assert axes.get_xscale() == ("log" if hub > 50 else "linear")
    xs, ys = axes.lines[0].get_data()
    assert dict(zip(xs, ys, strict=True)) == {0.5 if hub > 50 else 0.0: 2, 1: 2, hub: 1}


def test_the_break_even_point_is_where_the_lines_meet() -> None:
    chart = charts.breaks_even(trained("graphweave", "eager").runners)
    paid = BreakEven(4.0, 0.1, 0.02).steps
    assert chart is not None and paid == 50 and f"after {paid} epochs" in chart.alt
    ours, eager, point = drawn(chart).lines

    def at(line: Any, epoch: int) -> float:
        (x0, x1), (y0, y1) = line.get_data()
        return y0 + (y1 - y0) * (epoch - x0) / (x1 - x0)

    assert point.get_xdata()[0] == paid
    assert at(ours, paid) <= at(eager, paid) + 1e-9 and at(ours, paid - 1) > at(eager, paid - 1)


def test_a_point_that_is_far_away_or_never_is_told_in_words() -> None:
    done = trained("graphweave", "eager")
    done.runners[0].history.seconds = [4.0, 0.2, 0.2]
    chart = charts.breaks_even(done.runners)
    assert chart is not None and "does not pay" in chart.alt and len(drawn(chart).lines) == 2
    done.runners[0].history.seconds = [400.0, 0.02, 0.02]
    far = charts.breaks_even(done.runners)
    assert far is not None and "paid after 5,000 epochs" in far.alt and len(drawn(far).lines) == 2
    assert charts.breaks_even(trained("graphweave").runners) is None


# ---------------------------------------------------------------- pages


def assert_page(text: str, figures: int) -> None:
    """A page is well formed, has `figures` with words for each, in colours of the page, and names no other place."""
    reader = read(text)
    images = [given for tag, given in reader.found if given.get("role") == "img"]
    assert len(images) == figures and all(len((given["aria-label"] or "").split()) > 3 for given in images)
    ids = [given["id"] for _, given in reader.found if "id" in given]
    assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(ids)
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    for drawing in drawings:
        assert "var(--ink)" in drawing
        assert not set(re.findall(r"#[0-9a-f]{6}\b", drawing)) - {"#000000", "#ffffff"}, "a colour that is no variable"
    assert not re.findall(r'(?:src|href)="http', re.sub(r'xmlns(:\w+)?="[^"]*"', "", text))


def test_a_training_is_a_page() -> None:
    done = trained("graphweave", "eager", "inductor")
    text = training_page(done)
    assert_page(text, sum(map(len, all_charts(done).values())))
    words = read(text).text
    for expected in ("graphweave, eager PyTorch, torch.compile: gcn on karate", "34 nodes, 156 edges", "test accuracy",
                     "5.00 times as fast", "compiling has paid after 50 epochs", "Confusion on the test data",
                     "When compiling has paid", "Edges of a node", "torch"):  # fmt: skip
        assert expected in words, expected


def test_charts_of_one_way_are_a_picture(tmp_path: Path) -> None:
    done = trained("eager")
    found = [chart for drawn in all_charts(done).values() for chart in drawn]
    assert [chart.title for chart in found] == [
        "Loss", "Validation: accuracy", "Time of each epoch", "Confusion on the test data (eager PyTorch)",
        "Edges of a node",
    ]  # fmt: skip
    for name, begins in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")):
        save_picture(tmp_path / name, found)
        assert (tmp_path / name).read_bytes().startswith(begins)


def test_drawings_of_one_page_share_no_names() -> None:
    figures = page_figures(charts.learning(trained("eager").runners))
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', figures))
    assert set(re.findall(r' id="([^"]*)"', figures)) == used


def test_a_benchmark_is_a_page() -> None:
    raced = (
        RacedCandidate("forward", "untuned", 2e-3, 4e-3), RacedCandidate("forward", "Schedule(unroll=2)", 2e-3, 3e-3),
        RacedCandidate("forward", "Schedule(unroll=2)", 2e-3, 2e-3), RacedCandidate("forms", "untuned", 1e-3, 1e-3),
    )  # fmt: skip
    note = TuningNote("forward=Schedule(unroll=2)", 2e-3, 2e-3, 2e-3, 4e-3, 3, 5.0, False, True, "", raced)
    points = [(10.0, 1e-3), (20.0, 2e-3)]
    scaled = [ScaledTimes("edges", {"graphweave": points, "eager": points})]
    steps = {"graphweave": [1e-3, 2e-3, 3e-3], "tuned": [1e-3] * 3, "eager": [8e-3] * 3}
    done = BenchRun("gcn", karate(), dict.fromkeys(steps, 1.0), steps, scaled, [note])
    found = bench_charts(done)
    (race,) = found["What the tuner raced"]
    assert "fastest is unroll=2, at 0.50 times" in race.alt, "of a candidate that was raced twice its best time counts"
    assert [label.get_text() for label in drawn(race).get_yticklabels()] == ["unroll=2", "the compiler's own"]
    text = bench_page(done)
    assert_page(text, sum(map(len, found.values())))
    assert "4.00 times as fast" in read(text).text and "forward=Schedule(unroll=2)" in read(text).text


# ---------------------------------------------------------------- commands


def test_a_command_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, plot = tmp_path / "out.html", tmp_path / "out.svg"
    words = ["train", "--no-compile", "--model", "gcn", "--data", "karate", "--epochs", "3"]
    assert main([*words, "--report", str(page), "--plot", str(plot)]) == 0
    out = capsys.readouterr().out
    assert f"report: {page}" in out.replace("\n", "") and f"plot: {plot}" in out.replace("\n", "")
    assert_page(page.read_text(encoding="utf-8"), 5)


def test_compare_trains_three_ways_and_names_a_page() -> None:
    args = parser("compare").parse_args(["compare", "--data", "karate"])
    assert args.compare and not args.no_compile and args.report == Path("comparison.html")


@pytest.mark.slow  # torch.compile takes long
def test_compare_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fresh_compiler: None
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "--data", "karate", "--model", "gcn", "--epochs", "3"]) == 0
    assert "report: comparison.html" in capsys.readouterr().out
    text = (tmp_path / "comparison.html").read_text(encoding="utf-8")
    assert_page(text, 11)
    assert "torch.compile" in text and "not measured" not in text


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        ("train", ["--report", "out.pdf"], "--report must end in .html (got 'out.pdf')"),
        ("compare", ["--report", "no/such/out.html"], "--report cannot be written: no/such/out.html"),
        ("bench", ["--report", "out.png"], "--report must end in .html"),
        ("bench", ["--plot", "out.html"], "--plot must end in .png, .pdf, .svg"),
        ("bench", ["--scaling", "--batch", "8", "--data", "karate"], "--scaling is for one graph whose nodes are"),
    ],
)
def test_bad_outputs_get_one_line(
    command: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, *words]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1


def test_other_sizes_are_fewer_edges_and_copies() -> None:
    data = karate()
    fewer, copies = _with_fewer_edges(data, 0.25), _copied(data, 2)
    whole = set(map(tuple, data.edge_index.T.tolist()))
    assert fewer.num_edges == 39 and set(map(tuple, fewer.edge_index.T.tolist())) <= whole
    assert copies.num_nodes == 68 and copies.train_mask.sum() == 2 * data.train_mask.sum()
    assert copies.edge_index[:, 156:].equal(data.edge_index + 34) and copies.x[34:].equal(data.x)


@pytest.mark.slow  # by default, the sizes and the page are tested apart
def test_bench_times_other_sizes_of_the_graph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fresh_compiler: None
) -> None:
    page = tmp_path / "out.html"
    words = ["bench", "--data", "karate", "--model", "gcn", "--steps", "2", "--scaling", "--report", str(page)]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "edges of a node: median step" in out and "624" in out, "four copies of 156 edges"
    assert_page(page.read_text(encoding="utf-8"), 4)
