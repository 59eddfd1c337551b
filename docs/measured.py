"""Tables of docs/measurements.md that are made from records in `bench/results`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.product_models import CASES

RESULTS = Path(__file__).parent.parent / "bench/results"


def product_models() -> Iterator[str]:
    """Training steps of models over product spaces and of graph transformers, next to eager mode."""
    record = json.loads((RESULTS / "product_models.json").read_text())
    yield from ("| model | eager, ms | graphweave, ms | speed | first call, s |", "|---|---|---|---|---|")
    ratios = []
    for name, found in record["results"].items():
        eager, ours = found["eager"], found["graphweave"]
        ratios.append(eager["median"] / ours["median"])
        times = f"{1e3 * eager['median']:.1f} | {1e3 * ours['median']:.1f}"
        yield f"| {CASES[name].about} | {times} | {ratios[-1]:.1f}x | {ours['first']:.0f} |"
    yield f"| geometric mean | | | {math.prod(ratios) ** (1 / len(ratios)):.1f}x | |"
    yield from ("", measured(record))


def measured(record: Mapping[str, Any]) -> str:
    """Where and when a record was measured."""
    machine = record["machine"]
    day, torch = machine["date"].partition(" ")[0], machine["versions"]["torch"].partition("+")[0]
    return f"Measured on {day} with {record['threads']} threads of {machine['cpu'].partition(',')[0]}, PyTorch {torch}."
