"""Tables of `bench.relational`: times, ablation, geometric means against targets, memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.common import ratio_table
from bench.relational_systems import OTHER_SOFTMAX

BASE = "graphweave"
FIXED = ("gw-U", "gw-C", "gw-R", "gw-C+R")
"""Variants of graphweave with both choices (compaction and reordering) forced."""

PEERS: dict[str, tuple[str, ...]] = {
    "best PyG": ("pyg-rgcn", "pyg-fast-rgcn", "pyg-rgat", "pyg-hgt", "pyg-hetero"),
    "best DGL": ("dgl", "dgl-hetero"),
    "bmm": ("bmm",),
    "DGL UDF": ("dgl-udf",),
}
"""Peer -> its systems, of which the fastest counts."""

TARGETS: dict[str, dict[tuple[str, str], float]] = {
    "best PyG": {
        ("rgcn", "infer"): 4, ("rgat", "infer"): 8, ("hgt", "infer"): 6,
        ("rgcn", "train"): 4, ("rgat", "train"): 11, ("hgt", "train"): 8,
    },
    "best DGL": {(model, mode): times for model, times in (("rgcn", 3), ("hgt", 4)) for mode in ("infer", "train")},
    "bmm": {(model, mode): 40 for model in ("rgcn", "rgat", "hgt") for mode in ("infer", "train")},
    "DGL UDF": {(model, mode): 40 for model in ("rgcn", "rgat", "hgt") for mode in ("infer", "train")},
}  # fmt: skip
"""Peer -> (model, mode) -> how many times as fast graphweave should be, as a geometric mean over graphs."""

Results = Mapping[str, Mapping[str, Any]]
""""model graph" -> mode -> {"systems": {system: answer}}."""


def seconds(systems: Mapping[str, Any], names: Iterable[str]) -> tuple[float, str] | None:
    """The median and the name of the fastest of `names` that was timed; wrong systems are not."""
    taken = [(systems[name]["median"], name) for name in names if "median" in systems.get(name, {})]
    return min(taken) if taken else None


def best_peer(peer: str, model: str, systems: Mapping[str, Any]) -> tuple[float, str] | None:
    """The fastest system of a peer. One that computes another function counts only if no other was timed."""
    same = [name for name in PEERS[peer] if (name, model) not in OTHER_SOFTMAX]
    return seconds(systems, same) or seconds(systems, PEERS[peer])


def geometric(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def summarise(results: Results, modes: Sequence[str]) -> list[dict[str, Any]]:
    """The geometric mean over the graphs on which a peer ran, and the verdict, for each model, mode and peer."""
    entries = []
    for model in dict.fromkeys(pair.split()[0] for pair in results):
        pairs = {pair: one for pair, one in results.items() if pair.split()[0] == model}
        for mode in modes:
            for peer in PEERS:
                entries.append(_entry(model, mode, peer, pairs))
    return [entry for entry in entries if entry["ratios"] or entry["failed"]]


def _entry(model: str, mode: str, peer: str, pairs: Results) -> dict[str, Any]:
    ratios, failed, others = {}, [], []
    for pair, one in pairs.items():
        systems, graph = one.get(mode, {}).get("systems", {}), pair.split()[1]
        if not any(name in systems for name in PEERS[peer]):
            continue
        own, best = seconds(systems, (BASE,)), best_peer(peer, model, systems)
        if best is None or own is None:
            failed.append(graph)
            continue
        ratios[graph] = best[0] / own[0]
        if (best[1], model) in OTHER_SOFTMAX:
            others.append(graph)
    mean = geometric(list(ratios.values())) if ratios else None
    target = TARGETS[peer].get((model, mode))
    verdict = "-" if mean is None or target is None else "MET" if mean >= target else "MISSED"
    return {
        "model": model, "mode": mode, "peer": peer, "ratios": ratios, "mean": mean, "target": target,
        "verdict": verdict, "failed": failed, "other_softmax": others,
        "peer_wins": [graph for graph, ratio in ratios.items() if ratio < 1],
    }  # fmt: skip


def short(status: str) -> str:
    """The status of a system without a time, shortened for a table."""
    if any(
        words in status for words in ("allocate memory", "bad_alloc", "MemoryError", "signal 9", "not enough memory")
    ):
        return "out of memory"
    return "timeout" if status.startswith("no answer") else status[:40]


def _cell(answer: Mapping[str, Any] | None) -> str:
    if answer is None:
        return "-"
    if "median" not in answer:
        return short(answer["status"])
    spread = f" ±{500 * (answer['q3'] - answer['q1']):.2f}" if answer["repeats"] > 1 else " (1 call)"
    return f"{1e3 * answer['median']:.2f}{spread}"


def print_times(results: Results, mode: str, names: Sequence[str], threads: int) -> None:
    """Prints the times of graphweave and its peers. The forced variants are in the table of the ablation."""
    shown = [name for name in names if name not in FIXED]
    rows = []
    for pair, one in results.items():
        systems = one.get(mode, {}).get("systems", {})
        rows.append([pair, *(_cell(systems.get(name)) for name in shown)])
    title = f"{mode}: one layer 64 -> 64, ms, median ± half the IQR, {threads} threads; hetero RGAT: other softmax"
    ratio_table(title, ["model graph", *shown], rows)


def print_ablation(results: Results, mode: str) -> None:
    headings = ["model graph", "U ms", "C", "R", "C+R", "choice ms", "best / choice"]
    rows = []
    for pair, one in results.items():
        systems = one.get(mode, {}).get("systems", {})
        if not any(name in systems for name in (BASE, *FIXED)):
            continue
        base, best, choice = (seconds(systems, names) for names in (FIXED[:1], FIXED, (BASE,)))

        def gain(name: str, base: Any = base, systems: Mapping[str, Any] = systems) -> str:
            one = seconds(systems, (name,))
            return f"{base[0] / one[0]:.2f}x" if base and one else "-"

        last = f"{best[0] / choice[0]:.2f} ({best[1][3:]})" if best and choice else "-"
        rows.append([pair, _cell(systems.get("gw-U")), *map(gain, FIXED[1:]), _cell(systems.get(BASE)), last])
    ratio_table(
        f"{mode}: compaction (C) and reordering (R) over neither (U), and the cost model's choice", headings, rows
    )


def print_summary(entries: Sequence[Mapping[str, Any]]) -> None:
    rows = []
    for entry in entries:
        mean, target = (f"{v:.1f}x" if v else "-" for v in (entry["mean"], entry["target"]))
        notes = [f"no peer fits: {', '.join(entry['failed'])}"] if entry["failed"] else []
        notes += [f"peer wins: {', '.join(entry['peer_wins'])}"] if entry["peer_wins"] else []
        notes += [f"other softmax: {', '.join(entry['other_softmax'])}"] if entry["other_softmax"] else []
        worst = f"{min(entry['ratios'].values()):.2f}x" if entry["ratios"] else "-"
        cells = [mean, worst, str(len(entry["ratios"])), target, entry["verdict"], "; ".join(notes)]
        rows.append([f"{entry['model']} {entry['mode']}", entry["peer"], *cells])
    headings = ["model mode", "against", "geometric mean", "worst", "graphs", "target", "", "notes"]
    ratio_table("how many times faster graphweave is (cost model's choice)", headings, rows)


def print_memory(memory: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints peaks, and Hector's formula, which is 1 if compaction saves all that it can."""
    rows = []
    for pair, one in memory.items():
        for mode, answer in one.items():
            peaks = answer["peaks"]
            cells = [f"{v / 2**20:.1f}" if isinstance(v, int) else short(v) for v in peaks.values()]
            listed = ", ".join(f"{name} {cell}" for name, cell in zip(peaks, cells, strict=True))
            formula = f"{answer['of_ideal']:.2f}" if answer.get("of_ideal") else "-"
            rows.append([f"{pair} {mode}", f"{answer['compaction']:.2f}", formula, listed])
    headings = ["model graph mode", "pairs / edges", "C / (ratio x edges of U + nodes)", "peak MiB of a step"]
    ratio_table("peak memory beyond inputs and weights", headings, rows)


def print_launches(launches: Mapping[str, Any]) -> None:
    rows = [[name, *(str(one.get(mode, one.get("status", "-"))) for mode in ("infer", "train"))]
            for name, one in launches.items()]  # fmt: skip
    ratio_table("kernel launches of a warm step, PyG's HeteroConv compiled by graphweave", ["", "infer", "train"], rows)
