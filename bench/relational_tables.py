"""Tables of `bench.relational`: ablation, geometric means against targets, memory, launches."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from bench.common import ratio_table
from bench.relational_graphs import FEATURES
from bench.relational_models import MODELS, weights

BASE = "graphweave"
FIXED = ("gw-U", "gw-C", "gw-R", "gw-C+R")
"""Variants of graphweave with both choices (compaction and reordering) forced."""

OTHER_SOFTMAX = {("pyg-hetero", "rgat"), ("gw-pyg-hetero", "rgat"), ("dgl-hetero", "rgat")}
"""The systems and models whose softmax is over the edges of one relation instead of all."""

PEERS: dict[str, tuple[str, ...]] = {
    "best PyG": ("pyg-rgcn", "pyg-fast-rgcn", "pyg-rgat", "pyg-hgt", "pyg-hetero"),
    "best DGL": ("dgl", "dgl-hetero"),
    "bmm": ("bmm",),
    "DGL UDF": ("dgl-udf",),
}
"""Peer -> its systems, of which the fastest counts."""

_EVERY = {(model, mode): 40.0 for model in MODELS for mode in ("infer", "train")}
TARGETS: dict[str, dict[tuple[str, str], float]] = {
    "best PyG": {
        ("rgcn", "infer"): 4, ("rgat", "infer"): 8, ("hgt", "infer"): 6,
        ("rgcn", "train"): 4, ("rgat", "train"): 11, ("hgt", "train"): 8,
    },
    "best DGL": {(model, mode): times for model, times in (("rgcn", 3), ("hgt", 4)) for mode in ("infer", "train")},
    "bmm": _EVERY,
    "DGL UDF": _EVERY,
}  # fmt: skip
"""Peer -> (model, mode) -> how many times as fast graphweave should be, as a geometric mean over graphs."""

Results = Mapping[str, Mapping[str, Any]]
""""model graph mode" -> system -> its answer."""


def seconds(systems: Mapping[str, Any], names: Iterable[str]) -> tuple[float, str] | None:
    """The median and the name of the fastest of `names` that was timed; wrong systems are not."""
    taken = [(systems[name]["median"], name) for name in names if "median" in systems.get(name, {})]
    return min(taken) if taken else None


def best_peer(peer: str, model: str, systems: Mapping[str, Any]) -> tuple[float, str] | None:
    """The fastest system of a peer. One that computes another function counts only if no other was timed."""
    same = [name for name in PEERS[peer] if (name, model) not in OTHER_SOFTMAX]
    return seconds(systems, same) or seconds(systems, PEERS[peer])


Layers = Mapping[tuple[str, str, str], Mapping[str, Any]]
"""(model, graph, mode) -> system -> its answer."""


def _layers(results: Results) -> Layers:
    named = {tuple(name.split()): found for name, found in results.items() if name.split()[0] in MODELS}
    return {(name[0], name[1], name[2]): found for name, found in named.items() if "status" not in found}


def summarise(results: Results) -> list[dict[str, Any]]:
    """The geometric mean over the graphs on which a peer ran, and the verdict, for each model, mode and peer."""
    layers = _layers(results)
    kinds = dict.fromkeys((model, mode) for model, _, mode in layers)
    entries = [_entry(model, mode, peer, layers) for model, mode in kinds for peer in PEERS]
    return [entry for entry in entries if entry["ratios"] or entry["failed"]]


def _entry(model: str, mode: str, peer: str, layers: Layers) -> dict[str, Any]:
    ratios, failed, others = {}, [], []
    for (of, graph, in_mode), systems in layers.items():
        if (of, in_mode) != (model, mode) or not any(name in systems for name in PEERS[peer]):
            continue
        own, best = seconds(systems, (BASE,)), best_peer(peer, model, systems)
        if best is None or own is None:
            failed.append(graph)
            continue
        ratios[graph] = best[0] / own[0]
        if (best[1], model) in OTHER_SOFTMAX:
            others.append(graph)
    mean, target = geometric_mean(ratios.values()) if ratios else None, TARGETS[peer].get((model, mode))
    verdict = "-" if mean is None or target is None else "MET" if mean >= target else "MISSED"
    return {
        "model": model, "mode": mode, "peer": peer, "ratios": ratios, "mean": mean, "target": target,
        "verdict": verdict, "failed": failed, "other_softmax": others,
        "peer_wins": [graph for graph, ratio in ratios.items() if ratio < 1],
    }  # fmt: skip


def ideal_bytes(model: str, mode: str, graph: Mapping[str, Any]) -> tuple[float, float]:
    """Bytes of the inputs and weights, and of rows of nodes and weights that a step must hold, which compaction of
    edges cannot reduce.

    Rows of nodes are features and output, in HGT also keys, queries, values and the sum; in training also their
    gradients, except that of the features. Weights have gradients in training.
    """
    rows = 6 if model == "hgt" else 2
    own = sum(value.numel() * 4 for value in weights(model, graph["relations"], graph["node_types"]).values())
    count = 2 * rows - 1 if mode == "train" else rows
    row = graph["nodes"] * FEATURES * 4
    return row + own, row * count + own * (2 if mode == "train" else 1)


def of_ideal(model: str, mode: str, graph: Mapping[str, Any], plain: Any, compact: Any) -> float | None:
    """Hector's formula, which is 1 if compaction saves all that it can; from the peaks of gw-U and gw-C."""
    if not isinstance(plain, int) or not isinstance(compact, int):
        return None
    there, nodes = ideal_bytes(model, mode, graph)
    edges = max(plain + there - nodes, 0)
    return float((compact + there) / (graph["compaction"] * edges + nodes))


def show(results: Results, options: Namespace) -> None:
    """The table of times is the runner's."""
    layers = _layers(results)
    _ablation(layers)
    _summary(summarise(results))
    rows = []
    for (model, graph, mode), systems in layers.items():
        peaks = {name: one["peak"] for name, one in systems.items() if "peak" in one}
        if peaks and (about := results.get(f"graph {graph}")) is not None:
            said = {name: f"{p / 2**20:.1f}" if isinstance(p, int) else p[:40] for name, p in peaks.items()}
            listed = ", ".join(f"{name} {text}" for name, text in said.items())
            formula = of_ideal(model, mode, about, peaks.get("gw-U"), peaks.get("gw-C"))
            share = f"{formula:.2f}" if formula else "-"
            rows.append([f"{model} {graph} {mode}", f"{about['compaction']:.2f}", share, listed])
    headings = ["model graph mode", "pairs / edges", "C / (ratio x edges of U + nodes)", "peak MiB of a step"]
    ratio_table("peak memory beyond inputs and weights", headings, rows)
    rows = [
        [name, *(str(one.get(mode, one.get("status", "-"))) for mode in ("infer", "train"))]
        for name, one in results.items() if name.startswith("launches")
    ]  # fmt: skip
    ratio_table("kernel launches of a warm step, PyG's HeteroConv compiled by graphweave", ["", "infer", "train"], rows)


def _ablation(layers: Layers) -> None:
    rows = []
    for name, systems in layers.items():
        base, best, choice = (seconds(systems, names) for names in (FIXED[:1], FIXED, (BASE,)))
        if base is None or best is None:
            continue
        gains = [f"{base[0] / one[0]:.2f}x" if (one := seconds(systems, (form,))) else "-" for form in FIXED[1:]]
        last = [f"{1e3 * choice[0]:.2f}", f"{best[0] / choice[0]:.2f} ({best[1][3:]})"] if choice else ["-", "-"]
        rows.append([" ".join(name), f"{1e3 * base[0]:.2f}", *gains, *last])
    title = "compaction (C) and reordering (R) over neither (U), and the cost model's choice"
    ratio_table(title, ["model graph mode", "U ms", "C", "R", "C+R", "choice ms", "best / choice"], rows)


def _summary(entries: Sequence[Mapping[str, Any]]) -> None:
    rows = []
    for entry in entries:
        mean, target = (f"{v:.1f}x" if v else "-" for v in (entry["mean"], entry["target"]))
        words = {"no peer fits": "failed", "peer wins": "peer_wins", "other softmax": "other_softmax"}
        notes = [f"{what}: {', '.join(entry[key])}" for what, key in words.items() if entry[key]]
        worst = f"{min(entry['ratios'].values()):.2f}x" if entry["ratios"] else "-"
        cells = [mean, worst, str(len(entry["ratios"])), target, entry["verdict"], "; ".join(notes)]
        rows.append([f"{entry['model']} {entry['mode']}", entry["peer"], *cells])
    headings = ["model mode", "against", "geometric mean", "worst", "graphs", "target", "", "notes"]
    ratio_table("how many times faster graphweave is (cost model's choice)", headings, rows)
