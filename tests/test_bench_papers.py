"""The papers' tables: cells, printing, drawing, the page made from the files, and a run of a few small cells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.papers.__main__ import PAPERS, main, parse
from bench.papers.cells import OURS, Panel, panel_of
from bench.papers.draw import draw
from bench.papers.page import PAGE, page
from bench.papers.show import lines, number
from bench.papers.spec import Spec, spec_of


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


def test_the_page_is_made_from_the_files() -> None:
    """`python -m bench.papers page` writes it."""
    assert PAGE.read_text() == page(list(PAPERS))


def test_an_unknown_table_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["featgraph", "--only", "XX"])
    assert "featgraph has no XX; expected III(a), III(b)" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize(
    ("paper", "table"), [("featgraph", "III(c)"), ("dgl", "3"), ("graphiler", "9"), ("zhang", "10"), ("hector", "10")]
)
def test_a_quick_run_measures(paper: str, table: str, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    given = [paper, "--quick", "--only", table, "--repeats", "1", "--threads", "1"]
    assert main([*given, "--out", str(out), "--figures", str(tmp_path)]) == 0
    panels = [panel_of(one) for one in json.loads(out.read_text())["panels"].values()]
    assert panels
    for panel in panels:
        here = [cell for cell in panel.cells if not cell.paper]
        assert any(cell.value is not None and cell.value >= 0 for cell in here), (panel.name, here)
