"""The compiler's own choice against what tuning finds: FeatGraph's functions on several graphs, and RGAT training.

    python -m bench.tuning [--graphs uniform-99.95 ... rmat] [--lengths 32 128 512] [--operators gcn mlp dot attend]
                           [--relations rdf_aifb wn18rr mutag bgs] [--budget 20] [--threads 2] [--cases NAME ...]
                           [--seconds 50] [--out FILE] [--resume]

`cell`: `ops.spmm`, `sddmm` and `attend` of bench/ops_cases.py, forward, float32. Each cell is tuned within --budget
seconds, with an empty store; "auto of tuned" is the time of the untuned kernels over that of the tuned ones, in turns
at the end of the search. `forms`: training steps of RGAT (bench/relational_models.py) in the four forms, with the cost
model's choice and with the tuner's, in turns. Every result is compared with that of the definition in float64, or with
that of the cost model's form, before it is timed.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

import graphweave
from bench import relational
from bench.case import Bench, Case, Check, Numbers, Peers
from bench.check import relative_error
from bench.common import ratio_table
from bench.graphs import data_dir
from bench.named_graphs import absent, edges_of
from bench.ops_cases import data_of, definition, graphweave_call
from bench.options import Among
from bench.relational import VARIANTS
from bench.relational_graphs import kept, missing
from bench.relational_models import LAYERS, WithLoss, inputs, weights
from bench.runner import run
from bench.steps import ModelStep, Step
from graphweave.compiler.report import collect
from graphweave.tuning import store
from graphweave.tuning.deadline import Deadline, shared_deadline

GRAPHS = ("uniform-99.95", "uniform-99.5", "rand-10k", "coauthor_physics", "flickr_small", "rmat")
OPERATORS = ("gcn", "mlp", "dot", "attend")
RELATIONS = ("rdf_aifb", "wn18rr", "mutag", "bgs")
TOLERANCE = 1e-4
WITHIN = 1.15
"""The compiler's choice counts as good if it takes at most this many times as long as what tuning finds."""


def cell(graph: str, operator: str, length: int, budget: float, threads: int) -> dict[str, Any]:
    """The outcome of tuning one function on one graph."""
    torch.set_num_threads(threads)
    edges, nodes = edges_of(graph, data_dir())
    data = data_of(edges, nodes, length)
    begun = perf_counter()
    token = shared_deadline.set(Deadline(budget))
    with tempfile.TemporaryDirectory() as folder:
        store.directory = lambda: Path(folder)
        try:
            with collect() as report, torch.no_grad():
                got = graphweave_call(operator, data, "tune")()
        finally:
            shared_deadline.reset(token)
    taken = perf_counter() - begun
    error = relative_error(got.double(), definition(operator, data))
    if not error < TOLERANCE:
        return {"status": f"wrong by {error:.1e}"}
    (note,) = report.tunings
    return {"edges": edges.shape[1], "nodes": nodes, "seconds": taken, **asdict(note)}


def build(graph: str, budget: float) -> Peers:
    """RGAT's training step in each form, and in the one that the tuner chooses."""

    def tuned() -> Step:
        case = kept(graph, data_dir())
        model = WithLoss(LAYERS["rgat"](weights("rgat", case.num_relations, case.num_node_types)))
        given = (case.y, *inputs("rgat", case))
        with tempfile.TemporaryDirectory() as folder:
            store.directory = lambda: Path(folder)
            made = graphweave.tune(model, *given, budget=budget)
        loss = partial(made, *given)
        return ModelStep(model.layer, "train", loss, loss)

    forms = relational.build("rgat", graph, "train", data_dir())
    return {**{name: forms[name] for name in VARIANTS}, "tuned": tuned}


def choice(peer: str, step: Step) -> dict[str, Any]:
    """The tuner's choice, and the candidates that it tried."""
    if peer != "tuned":
        return {}
    assert isinstance(step, ModelStep)
    made: Any = step.loss
    return asdict(graphweave.explain(made.func, *made.args).tunings[0])


def show(results: Mapping[str, Any], options: Namespace) -> None:
    rows, ratios = [], []
    for name, r in results.items():
        if "measured" not in r:
            continue
        ratios.append(r["untuned_measured"] / r["measured"] if r["measured"] else 0.0)
        times = f"{1e3 * (r['untuned_measured'] or 0):.3f}", f"{1e3 * (r['measured'] or 0):.3f}"
        rows.append([name, *times, f"{ratios[-1]:.2f}", r["choice"], f"{r['tried']} in {r['seconds']:.0f} s"])
    if rows:
        ratio_table("cells", ["cell", "auto, ms", "tuned, ms", "auto of tuned", "choice", "candidates"], rows)
        good = sum(0 < ratio <= WITHIN for ratio in ratios)
        print(f"auto is within {WITHIN:.2f} of tuned on {good} of {len(ratios)} cells")


def cases(options: Namespace) -> Iterator[Case | Numbers]:
    for graph in options.graphs:
        for operator in options.operators:
            for length in options.lengths:
                sizes = {"graph": graph, "operator": operator, "length": length, "budget": options.budget}
                yield Numbers(
                    f"cell {graph} {operator} {length}", cell, {**sizes, "threads": options.threads},
                    {"graph": "rmat:300:2000", "budget": 2.0}, missing=absent(graph, data_dir()),
                )  # fmt: skip
    for graph in options.relations:
        yield Case(
            f"forms {graph}", build, (*VARIANTS, "tuned"), Check(TOLERANCE, "graphweave"),
            {"graph": graph, "budget": options.budget}, {"graph": "tiny", "budget": 2.0}, notes=choice,
            missing=None if options.quick else missing(graph, data_dir()),
        )  # fmt: skip


BENCH = Bench(
    "bench.tuning", __doc__, cases,
    {"graphs": GRAPHS, "operators": Among(OPERATORS), "lengths": (32, 128, 512), "relations": Among(RELATIONS),
     "budget": 20.0},
    apart=True, columns={"choice": lambda found, one: str(one.get("choice", ""))}, show=show,
)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
