"""The compiler's own choice against what tuning finds: FeatGraph's functions on several graphs, and RGAT training.

    python -m bench.tuning cells [--graphs uniform-99.95 ... rmat] [--lengths 32 128 512] [--cases gcn mlp dot attend]
    python -m bench.tuning forms [--graphs rdf_aifb wn18rr mutag bgs]
                           [--budget 20] [--seconds 50] [--threads 2] [--out bench/results/tuning.json]

`cells`: `ops.spmm`, `sddmm` and `attend` of bench/ops_cases.py on the graphs of bench/ops_graphs.py, forward, float32.
Each cell is tuned within --budget seconds, with an empty store; "auto of tuned" is the time of the untuned kernels over
that of the tuned ones, in turns at the end of the search. `forms`: training steps of RGAT (bench/relational_models.py)
in the four forms, with the cost model's choice and with the tuner's, in turns. Every result is compared with that of
the definition in float64, or with that of the cost model's form, before it is timed.

Cells that the file --out has are left as they are, and no cell begins after --seconds, so that a long run may be cut
into pieces.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import graphweave
from bench.check import relative_error
from bench.common import interleaved, ratio_table, save
from bench.forget import forget_graphs
from bench.graphs import data_dir
from bench.named_graphs import absent, edges_of
from bench.ops_cases import data_of, definition, graphweave_call
from bench.relational import VARIANTS
from bench.relational_graphs import make, missing
from bench.relational_models import LAYERS, WithLoss, inputs, weights
from graphweave.compiler.report import collect
from graphweave.tuning import store
from graphweave.tuning.deadline import Deadline, shared_deadline

CELL_GRAPHS = ("uniform-99.95", "uniform-99.5", "rand-10k", "coauthor_physics", "flickr_small", "rmat")
CELL_CASES = ("gcn", "mlp", "dot", "attend")
FORM_GRAPHS = ("rdf_aifb", "wn18rr", "mutag", "bgs")
TOLERANCE = 1e-4
WITHIN = 1.15
"""The compiler's choice counts as good if it takes at most this many times as long as what tuning finds."""


def cell(graph: str, case: str, length: int, budget: float) -> dict[str, Any]:
    """What tuning found for one function on one graph. AssertionError if its result is wrong."""
    edges, nodes = edges_of(graph, data_dir())
    data = data_of(edges, nodes, length)
    begun = time.perf_counter()
    token = shared_deadline.set(Deadline(budget))
    try:
        with collect() as report, torch.no_grad():
            got = graphweave_call(case, data, "tune")()
    finally:
        shared_deadline.reset(token)
    taken = time.perf_counter() - begun
    error = relative_error(got.double(), definition(case, data))
    assert error < TOLERANCE, f"{case} on {graph} is wrong by {error:.1e}"
    (note,) = report.tunings
    return {"edges": edges.shape[1], "nodes": nodes, "seconds": taken, **asdict(note)}


def forms(graph: str, budget: float, repeats: int) -> dict[str, Any]:
    """Times of a training step of RGAT in each form. AssertionError if losses or gradients differ."""
    case = make(graph, data_dir())
    values = weights("rgat", case.num_relations, case.counts.numel())
    given = inputs("rgat", case)
    calls: dict[str, Any] = {}
    first: dict[str, float] = {}
    wanted: Tensor | None = None
    note: dict[str, Any] = {}
    for name, options in {**VARIANTS, "tuned": {}}.items():
        model = WithLoss(LAYERS["rgat"](values))
        begun = time.perf_counter()
        if name == "tuned":
            made = graphweave.tune(model, case.y, *given, budget=budget)
            note = {"seconds": time.perf_counter() - begun}
            note |= asdict(graphweave.explain(made, case.y, *given).tunings[0])
        else:
            made = graphweave.compile(model, options=options)

        def step(made: Any = made, model: Any = model) -> Tensor:
            model.zero_grad()
            loss: Tensor = made(case.y, *given)
            loss.backward()
            return loss.detach()

        step()
        first[name] = time.perf_counter() - begun
        grads = torch.cat([p.grad.flatten() for p in model.parameters()])
        wanted = grads if wanted is None else wanted
        error = relative_error(grads.double(), wanted.double())
        assert error < TOLERANCE, f"{name} on {graph} is wrong by {error:.1e}"
        calls[name] = step
    times = interleaved(calls, repeats=repeats, first=first)
    return {"note": note, **{name: asdict(t) for name, t in times.items()}}


def show(results: dict[str, Any]) -> None:
    rows, ratios = [], []
    for name, r in results["cells"].items():
        ratio = r["untuned_measured"] / r["measured"] if r["measured"] else 0.0
        ratios.append(ratio)
        times = f"{1e3 * (r['untuned_measured'] or 0):.3f}", f"{1e3 * (r['measured'] or 0):.3f}"
        rows.append([name, *times, f"{ratio:.2f}", r["choice"], f"{r['tried']} in {r['seconds']:.0f} s"])
    if rows:
        ratio_table("cells", ["cell", "auto, ms", "tuned, ms", "auto of tuned", "choice", "candidates"], rows)
        good = sum(0 < ratio <= WITHIN for ratio in ratios)
        print(f"auto is within {WITHIN:.2f} of tuned on {good} of {len(ratios)} cells")
    rows = []
    for name, r in results["forms"].items():
        best = min(r[v]["median"] for v in VARIANTS if v != "graphweave")
        times = [f"{1e3 * r[v]['median']:.2f}" for v in (*VARIANTS, "tuned")]
        rows.append([name, *times, f"{r['tuned']['median'] / best:.2f}", r["note"]["choice"]])
    if rows:
        ratio_table("RGAT training, ms", ["graph", *VARIANTS, "tuned", "tuned of the best", "choice"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cells", "forms", "show"))
    parser.add_argument("--graphs", nargs="+")
    parser.add_argument("--lengths", nargs="+", type=int, default=[32, 128, 512])
    parser.add_argument("--cases", nargs="+", default=list(CELL_CASES))
    parser.add_argument("--budget", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=50.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("bench/results/tuning.json"))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    found = json.loads(given.out.read_text())["results"] if given.out.exists() else {"cells": {}, "forms": {}}
    todo: list[tuple[str, tuple[Any, ...]]] = []
    if given.what == "cells":
        graphs = [g for g in given.graphs or CELL_GRAPHS if absent(g, data_dir()) is None]
        todo = [(f"{g} {c} {n}", (g, c, n)) for g in graphs for c in given.cases for n in given.lengths]
    elif given.what == "forms":
        todo = [(g, (g,)) for g in given.graphs or FORM_GRAPHS if missing(g, data_dir()) is None]
    begun = time.perf_counter()
    for name, args in todo:
        if name in found[given.what] or time.perf_counter() - begun > given.seconds:
            continue
        with tempfile.TemporaryDirectory() as folder:
            store.directory = lambda folder=folder: Path(folder)  # type: ignore[assignment, misc]
            made = cell(*args, given.budget) if given.what == "cells" else forms(*args, given.budget, given.repeats)
        found[given.what][name] = made
        save(given.out, {"benchmark": "tuning", "threads": given.threads, "budget": given.budget, "results": found})
        forget_graphs()
        torch._dynamo.reset()
    show(found)


if __name__ == "__main__":
    main()
