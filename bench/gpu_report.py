"""Evaluates the numbers of `bench.gpu`: fractions of bandwidth, targets that are met or missed, and tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.common import ratio_table
from bench.gpu_cases import LARGE, MODES, ORDER, SYSTEMS, kind_of

BASE = "graphweave"
Entry = Mapping[str, Any]

ABSENT = "not measured"


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of one case for a target: a value to compare, or a `verdict` and why there is no value."""

    value: float | None = None
    verdict: str = ABSENT
    why: str = ""


def bandwidth(found: Mapping[str, Any] | None, copy: float) -> dict[str, float] | None:
    """Bytes and seconds of all fused kernels of a step together, and their bandwidth as a fraction of a copy's.

    `gather` counts a row for every edge, `compulsory` every tensor once. None if no kernel was timed.
    """
    kernels = (found or {}).get("kernels") or []
    seconds = sum(one["seconds"] for one in kernels)
    if not seconds or not copy:
        return None
    answer = {"seconds": seconds, "kernels": float(len(kernels))}
    for key in ("gather", "compulsory"):
        moved = sum(one[f"{key}_bytes"] for one in kernels)
        answer.update({f"{key}_bytes": moved, f"{key}_fraction": moved / seconds / copy})
    return answer


def systems_in(case: Entry, mode: str) -> Mapping[str, Entry]:
    return case.get("modes", {}).get(mode, {})


def usable(entry: Entry | None) -> bool:
    return entry is not None and entry.get("status") == "ok" and "median" in entry


def best(case: Entry, mode: str, kind: str) -> tuple[str, Entry] | None:
    """The fastest correct system of a kind. One that computes another function counts only if no other ran."""
    fitting = {name: one for name, one in systems_in(case, mode).items() if kind_of(name) == kind and usable(one)}
    same = {name: one for name, one in fitting.items() if not one.get("other_function")} or fitting
    return min(same.items(), key=lambda item: item[1]["median"]) if same else None


def against(case: Entry, mode: str, kind: str, key: str = "median") -> Finding:
    """The ratio of `key` of the best system of a kind to graphweave's. If graphweave is wrong, it misses the target."""
    own = systems_in(case, mode).get(BASE)
    if own is None:
        return Finding(why=_without(case))
    if own.get("status") != "ok":
        return Finding(verdict="missed", why=f"graphweave: {own.get('status')}")
    peer = best(case, mode, kind)
    if peer is None:
        tried = [str(one.get("status")) for name, one in systems_in(case, mode).items() if kind_of(name) == kind]
        return Finding(why=f"no {kind} to compare with: {'; '.join(tried) or 'not run'}")
    if peer[1].get(key) is None or not own.get(key):
        return Finding(why=f"no {key.replace('_', ' ')}")
    return Finding(peer[1][key] / own[key], "", f"{mode}, {peer[0]}")


def _without(case: Entry) -> str:
    """Why a case has no result of graphweave."""
    return "graphweave was not asked for" if case["status"] == "ok" else str(case["status"])


def slower_mode(case: Entry) -> Finding:
    """The smaller of the ratios of eager mode to graphweave in training and in the forward pass."""
    found = [against(case, mode, "eager") for mode in MODES]
    without = [one for one in found if one.value is None]
    missed = [one for one in without if one.verdict == "missed"]
    return (missed or without or sorted(found, key=lambda one: one.value or 0.0))[0]


def share_of_eager(case: Entry) -> Finding:
    ratio = against(case, "train", "eager", "peak_bytes")
    return ratio if ratio.value is None else Finding(1.0 / ratio.value, "", ratio.why)


def of_copy(case: Entry, copy: float) -> Finding:
    own = systems_in(case, "train").get(BASE)
    if own is None:
        return Finding(why=_without(case))
    if own.get("status") != "ok":
        return Finding(verdict="missed", why=f"graphweave: {own.get('status')}")
    total = bandwidth(own.get("bandwidth"), copy)
    if total is None:
        return Finding(why=(own.get("bandwidth") or {}).get("status", "no kernel was timed"))
    note = f"{total['kernels']:.0f} kernels" + (", host bound" if own["bandwidth"].get("host_bound") else "")
    return Finding(total["gather_fraction"], "", note)


@dataclass(frozen=True, slots=True)
class Target:
    """A target: `measure` of every case of `models` on `graphs` should be at least (or at most) `wanted`."""

    name: str
    models: Sequence[str]
    graphs: Sequence[str]
    wanted: float
    measure: Callable[[Entry, float], Finding]
    at_least: bool = True

    def judge(self, case: Entry, copy: float) -> dict[str, Any]:
        found = self.measure(case, copy)
        verdict = found.verdict
        if found.value is not None:
            enough = found.value >= self.wanted if self.at_least else found.value <= self.wanted
            verdict = "met" if enough else "missed"
        return {"verdict": verdict, "value": found.value, "why": found.why}


EVERY = tuple(dict.fromkeys(pair.model for pair in ORDER))
GATS = ("gat1", "gat8")

TARGETS = (
    Target("GAT training, eager / graphweave", GATS, LARGE, 4.0, lambda case, _: against(case, "train", "eager")),
    Target("GAT training, inductor / graphweave", GATS, LARGE, 2.0, lambda case, _: against(case, "train", "inductor")),
    Target("RGAT and HGT training, best PyG / graphweave", ("rgat", "hgt"), ("aifb", "bgs", "biokg"), 6.0,
           lambda case, _: against(case, "train", "eager")),
    Target("fused kernels of a training step, of a copy's bandwidth", EVERY, LARGE, 0.6, of_copy),
    Target("peak memory of GAT training with 8 heads, graphweave / eager", ("gat8",), LARGE, 0.2,
           lambda case, _: share_of_eager(case), at_least=False),
    Target("Cora, eager / graphweave, training and forward", EVERY, ("cora",), 1.0, lambda case, _: slower_mode(case)),
)  # fmt: skip


def verdicts(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every target with its cases' verdicts. It is missed if one case misses, and met if one meets and none misses."""
    copy = record.get("device", {}).get("copy", {}).get("bytes_per_second", 0.0)
    answer = []
    for target in TARGETS:
        names = [pair.name for pair in ORDER if pair.model in target.models and pair.graph in target.graphs]
        cases = {name: target.judge(record["cases"][name], copy) for name in names if name in record["cases"]}
        found = [one["verdict"] for one in cases.values()]
        verdict = next((word for word in ("missed", "met") if word in found), ABSENT)
        wanted = f"{'at least' if target.at_least else 'at most'} {target.wanted:g}"
        answer.append({"target": target.name, "wanted": wanted, "verdict": verdict, "cases": cases})
    return answer


# ---------------------------------------------------------------- tables


def tables(record: Mapping[str, Any]) -> None:
    copy = record.get("device", {}).get("copy", {}).get("bytes_per_second", 0.0)
    where = record.get("device", {}).get("name", record["settings"]["device"])
    rehearsal = ", small graphs: a rehearsal" if record["settings"]["small"] else ""
    title = f"{where}, {record['settings']['dtype']}, copy {copy / 1e9:.0f} GB/s{rehearsal}"
    for mode in MODES:
        rows = [_row(name, case, mode, copy) for name, case in record["cases"].items() if systems_in(case, mode)]
        ratio_table(f"{'training step' if mode == 'train' else 'forward pass'}: {title}", HEADINGS, rows)
    rows = [
        [one["target"], one["wanted"], one["verdict"], name, _number(case["value"]), case["verdict"], case["why"]]
        for one in record["targets"]
        for name, case in one["cases"].items()
    ]
    ratio_table("targets", ["target", "wanted", "verdict", "case", "value", "case's verdict", "note"], rows)
    for name, case in record["cases"].items():
        if case["status"] != "ok":
            print(f"{name}: {case['status']}")


HEADINGS = [
    "case", *(f"{name} ms" for name in SYSTEMS), "eager / gw", "inductor / gw", "first s", "peak / eager's",
    "of copy (gathers)", "of copy (once)", "launches",
]  # fmt: skip


def _row(name: str, case: Entry, mode: str, copy: float) -> list[str]:
    own = systems_in(case, mode).get(BASE, {})
    cells = [_cell(case, mode, kind) for kind in SYSTEMS]
    ratios = [against(case, mode, kind).value for kind in ("eager", "inductor")]
    peak = against(case, mode, "eager", "peak_bytes").value
    total = bandwidth(own.get("bandwidth"), copy) or {}
    return [
        name, *cells, *(f"{ratio:.2f}x" if ratio else "-" for ratio in ratios), _number(own.get("first")),
        _number(1 / peak if peak else None), _number(total.get("gather_fraction")),
        _number(total.get("compulsory_fraction")), str(own.get("launches", "-")),
    ]  # fmt: skip


def _cell(case: Entry, mode: str, kind: str) -> str:
    """Milliseconds of the best system of a kind, or its status if it has no time."""
    found = best(case, mode, kind)
    if found is not None:
        return f"{1e3 * found[1]['median']:.3f}"
    others = [one for name, one in systems_in(case, mode).items() if kind_of(name) == kind]
    return "out of memory" if any(one.get("out_of_memory") for one in others) else _status(others)


def _status(entries: Sequence[Entry]) -> str:
    return str(entries[0].get("status", "-"))[:40].splitlines()[0] if entries else "-"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
