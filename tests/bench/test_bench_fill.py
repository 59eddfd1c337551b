"""Filling the papers' tables: the order of cells, the limits of time and memory, headlines, and what panels say."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from bench import within
from bench.common import MEMORY_LIMIT, available_memory
from bench.named_graphs import OF_FILES, edges_of, size_of
from bench.papers import fill as filling
from bench.papers.__main__ import PAPERS, parse, plan
from bench.papers.cells import OURS, Panel
from bench.papers.fill import fill, groups_of, missing_of
from bench.papers.headlines import Headline, highest, lowest, mean, over, verdict
from bench.papers.page import panels_of
from bench.papers.session import Planned
from bench.papers.verdicts import compared, unexplained
from bench.within import Ended, run_within

MIB = 2**20


def test_cells_that_are_measured_in_turns_are_one_group_and_the_cheapest_comes_first() -> None:
    cells = [
        Planned("11", "32", "tiles", "time", 5.0, "length 32"),
        Planned("11", "32", "neither", "time", 5.0, "length 32"),
        Planned("5", "GCN", "ppi", "time", 3.0, "GCN ppi"),
        Planned("5", "GCN", "ppi", "memory", 20.0, "GCN ppi"),
    ]
    groups = groups_of({"featgraph": cells})
    assert [(group.table, group.what, group.seconds) for group in groups] == [
        ("5", "time", 3.0), ("11", "time", 10.0), ("5", "memory", 20.0)
    ]  # fmt: skip
    assert groups[1].rows == ("32",) and groups[1].columns == ("tiles", "neither")


def test_a_group_is_measured_by_a_command_of_its_own() -> None:
    """Its options are those of `fill`, and it may drop lines of another machine."""
    (group,) = groups_of({"zhang": [Planned("7", "EdgeConv, k-NN", "k=20 batch=32", "memory", 5.0, "x")]})
    given = parse(["fill", "--threads", "1", "--dgl-python", "here/python"])
    asked = parse(group.command(given)[3:])
    assert (asked.paper, asked.only, asked.rows) == ("zhang", ["7"], ["EdgeConv, k-NN"])
    assert asked.columns == ["k=20 batch=32"] and asked.measure == ["memory"] and asked.move
    assert asked.threads == 1 and asked.dgl_python == Path("here/python") and asked.out is None


def filled(monkeypatch: pytest.MonkeyPatch, minutes: float, took: float) -> tuple[int, list[str]]:
    """The exit code, and the columns that were measured, of cells that are estimated to take 10, 20 and 30 s."""
    left = [Planned("1", "row", f"{s}", "time", float(s), f"{s}") for s in (30, 10, 20)]
    done: list[str] = []
    now = [0.0]

    def ran(command: list[str], limit: int) -> Ended:
        column = command[command.index("--columns") + 1]
        now[0] += took * float(column)
        done.append(column)
        if column != "20":  # this one fails, and is not tried again
            left[:] = [cell for cell in left if cell.column != column]
        return Ended(int(column == "20"), took * float(column), MIB, 0, "a reason")

    monkeypatch.setattr(filling, "run_within", ran)
    monkeypatch.setattr("bench.papers.fill.time.monotonic", lambda: now[0])
    options = parse(["fill", "--minutes", str(minutes)])
    return fill([next(iter(PAPERS.values()))], options, lambda paper, given: list(left)), done


def test_a_group_that_fails_is_said_and_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, done = filled(monkeypatch, 60.0, 1.0)
    assert code == 1 and done == ["10", "20", "30"]
    said = capsys.readouterr().out
    assert "exit 1: a reason" in said and "1 groups of cells are missing" in said and "1 failed" in said


def test_no_group_is_begun_that_would_end_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    assert filled(monkeypatch, 0.6, 1.0)[1] == ["10", "20"]
    assert filled(monkeypatch, 0.6, 2.0)[1] == ["10"], "the first group took twice its estimate"


def test_what_is_asked_for_alone_is_planned() -> None:
    cells = [Planned("1", "a", "b", "time", 1.0, "a b"), Planned("1", "a", "b", "memory", 1.0, "a b")]
    options = Namespace(measure=("memory",))
    groups = missing_of([next(iter(PAPERS.values()))], options, lambda paper, given: cells)
    assert [group.what for group in groups] == ["memory"]


def test_every_cell_of_a_paper_has_a_price(tmp_path: Path) -> None:
    """All cells, as of an empty record, with the names by which a run is asked for them. No graph is made for it."""
    options = parse(["fill", "--out", str(tmp_path / "none.json"), "--data-dir", str(tmp_path)])
    for paper in PAPERS.values():
        cells = plan(paper, options)
        assert cells and all(0 < cell.seconds < 10_000 and cell.table in paper.panels for cell in cells)


@pytest.mark.parametrize("graph", ["rmat:300:2000", "chain:50", "uniform-99.95"])
def test_the_size_of_a_graph_is_known_without_it(graph: str) -> None:
    index, nodes = edges_of(graph, Path())
    assert size_of(graph, Path())[0] == nodes and abs(size_of(graph, Path())[1] - index.size(1)) <= 2
    assert size_of("points:2:30:3", Path()) == (60, 180)


@pytest.mark.data
def test_the_sizes_of_real_graphs_are_those_of_their_files() -> None:
    folder = parse(["fill"]).data_dir
    for graph in OF_FILES:
        index, nodes = edges_of(graph, folder)
        assert size_of(graph, folder) == (nodes, index.size(1)), graph


def test_a_command_and_what_it_starts_stay_within_the_memory() -> None:
    eats = "held = [bytearray(1 << 20) for _ in range(200)]; import time; time.sleep(30)"
    program = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {eats!r}]).returncode != -9)"
    ended = run_within([sys.executable, "-c", program], 120 * MIB)
    assert ended.code == 0 and ended.killed == 1 and ended.peak > 120 * MIB


def test_a_command_alone_is_ended_when_it_takes_too_much() -> None:
    eats = "held = [bytearray(1 << 20) for _ in range(300)]; import time; time.sleep(30)"
    ended = run_within([sys.executable, "-c", eats], 100 * MIB)
    assert ended.code == -9 and ended.killed == 1


def test_benchmarks_of_a_limited_command_know_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_within([sys.executable, "-c", "raise SystemExit('the end')"], 100 * MIB).last == "the end"
    monkeypatch.setenv(MEMORY_LIMIT, str(5 * MIB))
    assert available_memory() == 5 * MIB
    monkeypatch.delenv(MEMORY_LIMIT)
    assert available_memory(1.0) > available_memory() > 5 * MIB


def test_a_family_is_a_process_and_all_that_it_started() -> None:
    assert os.getpid() in within.family(os.getpid())
    assert within.family(os.getpid())[os.getpid()] > MIB


def a_panel() -> Panel:
    panel = Panel("Figure 1", "a title", "ms", "about.", rows="model", columns="graph")
    for column, own, theirs in (("a", 1.0, 4.0), ("b", 2.0, 2.0), ("c", 3.0, 1.5), ("d", 1.0, None)):
        panel.value(OURS, "GCN", column, own)
        panel.value("DGL", "GCN", column, theirs, "ok" if theirs else "out of memory")
    return panel


def test_headlines_are_beaten_met_or_missed() -> None:
    panels = {"Figure 1": a_panel()}
    asked = over("Figure 1", "DGL")
    assert [verdict(value, 2.0) for value in (2.2, 2.05, 1.95, 1.8)] == ["beaten", "met", "met", "missed"]
    claim = Headline("faster", 3.0, highest(asked))
    assert claim.row(panels) == ("faster", "3x", "4x", "the highest of 3 cells: GCN a (Figure 1)", "beaten")
    assert Headline("faster", 3.0, lowest(asked)).row(panels)[2:] == ("0.5x", "the lowest of 3 cells", "missed")
    assert Headline("faster", 1.3, mean(asked)).row(panels)[2:] == ("1.26x", "the geometric mean of 3 cells", "met")
    assert Headline("faster", 3.0, mean(asked)).row({})[-1] == "not measured yet"


def test_a_panel_says_where_graphweave_is_better_equal_and_worse() -> None:
    panels = {"Figure 1": a_panel()}
    assert list(compared(panels)) == [["Figure 1", "DGL", "1", "1", "1", "1", "1.26x", "0.50x (GCN c)"]]
    assert unexplained(panels, {}) == ["Figure 1 against DGL (1 cells)"]
    assert unexplained(panels, {"Figure 1": "its graph is small"}) == []


def test_reasons_name_panels_that_exist() -> None:
    for paper in PAPERS.values():
        known = set(panels_of(paper.name))
        assert all(any(what == name or what.startswith(f"{name}, ") for name in known) for what in paper.reasons)
