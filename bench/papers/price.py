"""Estimates of the seconds that a cell takes, which order the cells and decide whether one fits into the time left.

They are for two cores and within a factor of three or so. `bench.papers.fill` corrects them by what cells took before.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from bench.named_graphs import size_of
from bench.relational_graphs import SYNTHETIC
from bench.specs import USER_DEFINED, Spec

START = 15.0
"""Seconds until a system has started and made its first call: imports, captures, a compiler."""

MAKING = 4e-7
"""Seconds to make or load one edge in the process of one system."""

STEPS = 5
"""Steps of a system that takes over a second: first, checked, exact or repeated, and timed. Faster ones have more,
shorter ones."""

PER_FLOAT = {"infer": 6e-9, "train": 2e-8}
"""Seconds of an eager step for each number of a message: reading, computing, writing and adding it."""

PER_FLOP = 2e-11
"""Seconds of one multiplication and addition of a dense product."""

SHARE = 0.25
"""Share of an eager step's time that the other systems take; most are faster than that, a few are not."""

FITS = 16 * 2**30
"""Bytes of messages above which an eager step ends soon, as they do not fit."""

NARROWEST = 8
"""A message of fewer numbers costs as much as one of this width."""

TIMES_OF_KERNEL = {"gcn": 1e-9, "dot": 1e-9, "mlp": 1e-8}
"""Seconds of the slowest system for each edge and feature of a kernel of bench/ops_cases.py."""


def model(spec: Spec, mode: str, systems: int, folder: Path) -> float:
    """A model by `systems` systems, of which one is eager. MoNet has messages for each kernel."""
    nodes, edges = size_of(spec.graph, folder)
    widths = (64, 64) if spec.layer.startswith(USER_DEFINED) else spec.widths
    times = spec.kernels if spec.layer == "monet" else 1
    if spec.graph.startswith("weighted"):
        times = int(spec.graph.rpartition(":")[2])
    each = times * sum(max(width, NARROWEST) for width in widths)
    fits = 4 * edges * max(widths) * times < FITS
    dense = nodes * sum(a * b for a, b in pairwise((spec.inputs, *widths))) * (3 if mode == "train" else 1)
    step = PER_FLOAT[mode] * edges * each * (fits + SHARE * (systems - 1)) + PER_FLOP * dense * systems
    return systems * (START + MAKING * edges) + STEPS * step


def kernel(case: str, graph: str, length: int, folder: Path) -> float:
    _, edges = size_of(graph, folder)
    return 2 * START + MAKING * edges + 3 * STEPS * TIMES_OF_KERNEL[case] * edges * length


def schedule(graph: str, length: int, folder: Path) -> float:
    """One schedule of a kernel: its compilation and its turns."""
    _, edges = size_of(graph, folder)
    return START / 2 + 15 * TIMES_OF_KERNEL["gcn"] * edges * length


def relational(graph: str, width: int, own: int, peers: int, modes: tuple[str, ...]) -> float:
    """A relational layer by `own` forms of graphweave and by `peers`, which loop over relations, as the check does."""
    edges, relations = (620_000, 474) if graph == "fb15k_237" else (SYNTHETIC[graph].edges, SYNTHETIC[graph].relations)
    step = sum(PER_FLOAT[mode] * edges * 2 * width + 2e-4 * relations for mode in modes)
    start = len(modes) * (START + MAKING * edges)
    return (own + peers + 1) * start + STEPS * step * (SHARE / 3 * own + peers) + 3 * step
