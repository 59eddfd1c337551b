"""Tables of docs/measurements.md that are made from records in `bench/results`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.product_models import CASES

RESULTS = Path(__file__).parent.parent / "bench/results"


def record_of(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def product_models() -> Iterator[str]:
    """Training steps of models over product spaces and of graph transformers, next to eager mode."""
    record = record_of("product_models")
    yield from ("| model | eager, ms | graphweave, ms | speed | first call, s |", "|---|---|---|---|---|")
    ratios = []
    for name, found in record["results"].items():
        eager, ours = found["eager"], found["graphweave"]
        ratios.append(eager["median"] / ours["median"])
        times = f"{_milliseconds(eager['median'])} | {_milliseconds(ours['median'])}"
        yield f"| {CASES[name].about} | {times} | {ratios[-1]:.1f}x | {ours['first']:.0f} |"
    yield f"| geometric mean | | | {math.prod(ratios) ** (1 / len(ratios)):.1f}x | |"
    yield from ("", measured(record))


def _table(record: Mapping[str, Any], head: Sequence[str], row: Callable[[str, Any], Sequence[str]]) -> Iterator[str]:
    """A row for each result of a record, and below how it was measured."""
    yield from (f"| {' | '.join(head)} |", "|---" * len(head) + "|")
    yield from (f"| {' | '.join(row(name, found))} |" for name, found in record["results"].items())
    yield from ("", measured(record))


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.1f}"


def large_tables() -> Iterator[str]:
    """Training steps of tables of which a step reads few rows, next to eager mode."""

    def row(name: str, found: Any) -> list[str]:
        optimiser, entities = name.split()
        times = [_milliseconds(found[key]) for key in ("eager", "graphweave", "update")]
        return [f"{optimiser}, {int(entities):,}", *times, f"{found['eager'] / found['graphweave']:.1f}x"]

    head = ("optimiser, entities", "eager, ms", "graphweave, ms", "of which the optimiser, ms", "speed")
    return _table(record_of("large_tables"), head, row)


def varying_relations() -> Iterator[str]:
    """Training steps of which each has other relations, next to eager mode."""

    def row(name: str, found: Any) -> list[str]:
        times = [_milliseconds(found[key]) for key in ("eager", "graphweave")]
        steps = f"{found['compilations']} for {found['steps']} steps"
        return [name, *times, f"{found['eager'] / found['graphweave']:.2f}x", steps, f"{found['first']:.0f}"]

    head = ("model, relations of a step", "eager, ms", "graphweave, ms", "speed", "compilations", "first call, s")
    return _table(record_of("varying_relations"), head, row)


def choices() -> Iterator[str]:
    """The least times of steps in the form of the first graph, in that of the second one, and in the chosen form."""

    def row(name: str, found: Any) -> list[str]:
        times = [_milliseconds(found[form]["min"]) for form in ("first", "second", "chosen")]
        return [name.replace(" ", ", "), *times]

    head = ("function, graph", "the first's form, ms", "the second's, ms", "chosen, ms")
    return _table(record_of("choices"), head, row)


def measured(record: Mapping[str, Any]) -> str:
    """Where, when and at which commit a record was measured."""
    machine = record["machine"]
    day, torch = machine["date"].partition(" ")[0], machine["versions"]["torch"].partition("+")[0]
    cpu = machine["cpu"].removeprefix("model name ").partition(", stepping")[0].replace(", cpu family", ", family")
    commit = f"commit {machine['commit']}" if machine.get("commit") else "no commit noted"
    count = record.get("threads", machine["threads"])
    threads = "one thread" if count == 1 else f"{count} threads"
    return f"Measured on {day} with {threads} of {cpu}, PyTorch {torch}, {commit}."


def records(*names: str) -> Iterator[str]:
    """The records that a section's tables are from, and how each was measured; equal ones stand in one line."""
    told: dict[str, list[str]] = {}
    for name in names:
        text = measured(record_of(name))
        told.setdefault(text, []).append(f"`{name}.json`")
    yield from (f"- {', '.join(files)}: {text[0].lower()}{text[1:]}" for text, files in told.items())


SECTIONS: dict[str, tuple[str, ...]] = {
    "train_step": (
        "train_step_rmat", "train_step_rmat_monet", "train_step_arxiv", "train_step_arxiv_sage_gin",
        "train_step_arxiv_gat_seed1", "train_step_points", "train_step_pubmed_cora", "train_step_cora_features",
    ),
    "peers": ("peers",),
    "kernels": ("kernels",),
    "ops": ("ops_rmat", "ops_uniform-99.95", "ops_uniform-99.95_1_thread", "ops_gcn_uniform-99.5",
            "ops_coauthor_physics", "ops_coauthor_physics_1_thread", "ops_flickr_small"),
    "sampling": ("sampling",),
    "udf": ("udf_rmat_infer", "udf_rmat_train", "udf_rmat_train_gat", "udf_rmat_ppi", "udf_rmat_ppi_attention"),
    "memory_growth": ("memory_growth",),
    "memory": ("memory", "memory_4x16"),
    "bounds": ("bounds",),
    "locality": ("locality_price", "locality_forms_rmat"),
    "small_graphs": ("small_graphs", "small_graphs_30_1_thread", "new_graphs"),
    "first_call": ("first_call", "first_call_one_core", "first_call_equal_layers", "first_call_zoo"),
    "compilers": ("compilers",),
    "relational": ("relational",),
    "pyg_modules": ("pyg_modules", "relational_pyg_classes"),
    "recompiles": ("recompiles", "recompiles_before"),
}  # fmt: skip
"""Section of docs/measurements.md, by its benchmark -> its records."""
