"""FeatGraph's figures 11 to 15 (Hu et al., SC 2020): one kernel with many schedules.

Figures 12, 13 and 15 are of a GPU. What is drawn for them here is the question that a CPU has in its place: vectors for
threads of a block, an order of sources for shared memory, chunks of rows for blocks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

import graphweave
from bench.case import Case, Check, Peers, options_of
from bench.named_graphs import edges_of
from bench.ops import DEFINITION, TOLERANCE, error
from bench.ops_cases import data_of, expected, sample_of
from bench.papers import price
from bench.papers.cells import OURS, Panel
from bench.papers.session import Session
from bench.runner import Measuring
from bench.schedules import BENCH, Function, dots, gcn
from bench.steps import Step
from graphweave import Schedule

LENGTHS = (32, 64, 128, 256, 512)
TINY = "rmat:300:4000"

TENTH = "R-MAT with a tenth of reddit's nodes and edges"

PARTITIONS = {
    "1": (12.5, 10.0, 7.6, 16.1),
    "2": (7.9, 5.5, 4.5, 13.9),
    "4": (5.6, 4.6, 4.1, 12.4),
    "8": (6.0, 5.1, 4.5, 12.6),
}
"""Figure 14: feature partitions -> seconds at 1, 4, 16 and 64 graph partitions."""

FUNCTIONS: Mapping[str, Function] = {"gcn": gcn, "dot": dots}
"""Case of bench/ops_cases.py -> the same as a function of x, src, dst."""

Wanted = Mapping[tuple[str, str], Schedule]
"""Cell -> its schedule."""


def by_schedule(
    session: Session, panel: Panel, case: str, graph: str, length: int, wanted: Wanted, threads: int = 1
) -> None:
    """Measures the cells that the session wants, all in turns, and adds them. A schedule that a kernel cannot take is
    a cell with the reason."""
    together = f"{panel.name} {case} {graph} {length}"
    seconds = price.schedule(graph, length, session.options.data_dir)
    wanted = {
        cell: schedule for cell, schedule in wanted.items()
        if session.wants(*cell, panel, seconds=seconds, together=together)
    }  # fmt: skip
    if not wanted:
        return
    options = session.options
    data = data_of(*edges_of(graph, options.data_dir), length)
    sample = sample_of(data.index.size(1), length)
    args = (data.x, data.index[0].contiguous(), data.index[1].contiguous())

    def prepare(schedule: Schedule) -> Step:
        return partial(graphweave.compile(FUNCTIONS[case], options={"schedule": schedule}), *args)

    def build() -> Peers:
        made: Peers = {" ".join(cell): partial(prepare, schedule) for cell, schedule in wanted.items()}
        return {**made, DEFINITION: lambda: lambda: expected(case, data, sample)}

    one = Case(case, build, tuple(" ".join(cell) for cell in wanted), Check(TOLERANCE, DEFINITION, error=error))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        argv = ["--repeats", str(options.repeats), "--threads", str(threads)]
        with tempfile.TemporaryDirectory() as folder:
            answers = Measuring(BENCH, one, options_of(BENCH, argv), argv, Path(folder)).run()
    finally:
        torch.set_num_threads(before)
    for cell in wanted:
        panel.measured(OURS, *cell, answers[" ".join(cell)])
    session.measured(panel)


def over_lengths(session: Session, panel: Panel, case: str, graph: str, forms: Mapping[str, Schedule]) -> None:
    """Fills a panel of a row for each length and a column for each form, one length after the other."""
    quick = session.options.quick
    for length in (64,) if quick else LENGTHS:
        wanted = {(str(length), form): schedule for form, schedule in forms.items()}
        by_schedule(session, panel, case, TINY if quick else graph, length, wanted)


def figure_11(session: Session) -> list[Panel]:
    about = (
        f"GCN aggregation, one thread, on {TENTH}: 16 ranges of sources, tiles of 32 features, both, neither. In the "
        "paper, partitions are 1.7 times as fast as neither at length 512, tiles 1.2 times, both 2.2 times."
    )
    panel = session.panel("Figure 11", "partitions of the graph and tiles of features", "s", about, "bars",
                          rows="length", columns="form")  # fmt: skip
    forms = {
        "neither": Schedule(source_partitions=1),
        "tiles": Schedule(feature_tile=32),
        "partitions": Schedule(source_partitions=16),
        "both": Schedule(source_partitions=16, feature_tile=32),
    }
    over_lengths(session, panel, "gcn", "reddit", forms)
    return [panel]


def figure_12(session: Session) -> list[Panel]:
    about = (
        "Dot-product attention on rand-10k, one thread. The paper compares, on a GPU, one thread for each edge with a "
        "tree reduction by the threads of a block, which is up to 2 times as fast. Here vectors along the features "
        "have 16 or 64 bytes."
    )
    panel = session.panel("Figure 12", "width of vectors in a dot product", "s", about, "bars", rows="length",
                          columns="form")  # fmt: skip
    forms = {"16 bytes": Schedule(vector_bytes=16), "64 bytes": Schedule(vector_bytes=64)}
    over_lengths(session, panel, "dot", "rand-10k", forms)
    return [panel]


def figure_13(session: Session) -> list[Panel]:
    about = (
        "GCN aggregation on rand-10k, one thread. The paper keeps the sources of most edges in the shared memory of a "
        "GPU, which gains 10 to 20 %. Here the edges of a row begin with the sources of most edges, alone and within "
        "4 ranges of sources."
    )
    panel = session.panel("Figure 13", "sources of most edges first", "s", about, "bars", rows="length",
                          columns="form")  # fmt: skip
    forms = {
        "given": Schedule(edge_order="given", source_partitions=1),
        "by degree": Schedule(edge_order="degree", source_partitions=1),
        "partitions": Schedule(source_partitions=4),
        "partitions by degree": Schedule(edge_order="degree", source_partitions=4),
    }
    over_lengths(session, panel, "gcn", "rand-10k", forms)
    return [panel]


def figure_14(session: Session) -> list[Panel]:
    about = f"GCN aggregation at length 128, one thread, on {TENTH}; the paper used all of reddit."
    title = "time over graph and feature partitions"
    panel = session.panel("Figure 14", title, "s", about, "heat map", rows="feature partitions",
                          columns="graph partitions")  # fmt: skip
    parts = ("1", "4", "16", "64")
    for row, seconds in PARTITIONS.items():
        panel.printed("FeatGraph", row, dict(zip(parts, seconds, strict=True)))
    quick = session.options.quick
    rows, columns = (("1", "2"), ("1", "4")) if quick else (tuple(PARTITIONS), parts)
    wanted = {
        (row, column): Schedule(source_partitions=int(column), feature_tile=None if row == "1" else 128 // int(row))
        for row in rows for column in columns
    }  # fmt: skip
    by_schedule(session, panel, "gcn", TINY if quick else "reddit", 128, wanted)
    return [panel]


def figure_15(session: Session) -> list[Panel]:
    about = (
        f"GCN aggregation at length 128 on {TENTH}, all threads. The paper varies the number of CUDA blocks, and is "
        "fastest with one for each row. Here rows are cut into at most so many chunks, which threads take one by one."
    )
    panel = session.panel("Figure 15", "time over chunks of rows", "s", about, "lines", rows="kernel",
                          columns="chunks")  # fmt: skip
    quick = session.options.quick
    wanted = {
        ("gcn", str(chunks)): Schedule(chunks=chunks) for chunks in ((2, 8) if quick else (2, 8, 32, 128, 512, 2048))
    }
    by_schedule(session, panel, "gcn", TINY if quick else "reddit", 128, wanted, threads=session.options.threads)
    return [panel]
