"""Relational layers: RGCN, RGAT and HGT by graphweave, PyTorch Geometric, DGL 2.1 and per-edge copies of weights.

    python -m bench.relational [--graphs aifb mutag bgs biokg rdf_aifb fb15k_237 wn18rr] [--models rgcn rgat hgt]
                               [--systems graphweave gw-U gw-C gw-R gw-C+R pyg-rgcn pyg-fast-rgcn pyg-rgat pyg-hgt
                                pyg-hetero bmm dgl dgl-hetero dgl-udf] [--modes infer train] [--repeat 5]
                               [--slow-repeat 1] [--memory-graphs aifb fb15k_237] [--no-launches] [--threads 2]
                               [--timeout 60] [--memory-gb 12] [--dgl-python PYTHON] [--data-dir DIR] [--out FILE]

Each model is one layer, 64 -> 64, one head, on full graphs. `infer` is a forward pass without gradients; `train` is the
forward, the negative log-likelihood of random labels and the backward for all weights (features are data and get no
gradient). Graphs are seeded synthetic ones with the counts of Hector's Table 3, and real knowledge graphs with the
inverse of every relation (bench/relational_graphs.py). Systems:

    graphweave  the text of bench/relational_models.py compiled with its loss; compaction and reordering by cost
    gw-*        the same with both forced: U neither, C compaction, R reordering, C+R both. Only if they are named:
                gw-reorder without fusion, gw-compile without rewriting as well
    bmm         the same text in eager PyTorch: a weight matrix is copied for every edge
    pyg-*       RGCNConv, FastRGCNConv, RGATConv, HGTConv, and HeteroConv of one convolution a relation
    dgl*        RelGraphConv or HGTConv, HeteroGraphConv, and message functions of a user (bench/relational_dgl.py)

Each system has a process of its own; they take turns (bench/turns.py), with equal inputs, weights and thread counts.
Edges are sorted by relation and nodes by type for all. Before timing, outputs, loss and gradients are compared with
a float64 reference (bench/relational_reference.py); a wrong system is not timed. If a system would need more than
--memory-gb by an estimate, runs into that limit, or takes more than --timeout seconds for an answer, this is recorded
as its result. A system that takes more than a second a step has --slow-repeat rounds; for a peer that takes more than
four seconds, the time of its first call is taken.

Ratios are to the fastest peer of a kind that computes the same function, and geometric means are over the graphs that
have such a peer. HeteroConv of GATConv has another softmax (over the edges of one relation); it counts if no other peer
fits, and the table says so. Memory is measured in separate processes (peak resident bytes of one step beyond those
before it), and kernel launches of HeteroConv over 5 and over 140 relations are counted.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import relational_graphs as graphs
from bench import relational_tables as tables
from bench.check import Result, worst_error
from bench.common import in_fresh_process, save
from bench.graphs import data_dir
from bench.judge import TOLERANCE
from bench.options import COMMON, parser_of
from bench.relational_launches import count
from bench.relational_models import MODELS, weights
from bench.relational_systems import (
    GIB,
    MALLOC,
    OTHER_SOFTMAX,
    SYSTEMS,
    Hosts,
    compiles,
    host_of,
    node_bytes,
    refusal,
)
from bench.relational_worker import ON_DEMAND
from bench.turns import ROOT, Player, PlayerLost, take_turns
from bench.worker import read_result

MODES = ("infer", "train")

SLOW_SECONDS, LONG_SECONDS = 1.0, 4.0
"""A system whose step takes longer than the first has few rounds; longer than the second, only its first call."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One system in one mode, as a player of `take_turns`, in a process that may hold several systems."""

    player: Player
    system: str
    mode: str

    def ask(self, do: str, **given: Any) -> Any:
        return self.player.ask(do, system=self.system, mode=self.mode, **given)


class Pair:
    """One model on one graph."""

    def __init__(self, options: argparse.Namespace, hosts: Hosts, model: str, case: graphs.Case, folder: Path) -> None:
        self.options, self.hosts, self.model, self.case, self.folder = options, hosts, model, case, folder
        self.graph, self.weights = str(folder / "graph.npz"), str(folder / "weights.npz")
        self.values = weights(model, case.num_relations, case.num_node_types)
        arrays: dict[str, Any] = {name: value.numpy() for name, value in self.values.items()}
        np.savez(self.weights, **arrays)
        self.names = [name for name in options.systems if model in SYSTEMS[name]]
        self.ready: set[str] = set()
        self.versions: dict[str, str] = {}
        self.limit = int(options.memory_gb * GIB)

    def measure(self) -> dict[str, Any]:
        """Mode -> the results of all systems."""
        try:
            want = {other: self._reference(other) for other in self._softmaxes()}
        except PlayerLost as problem:
            self.hosts.lose("reference")
            return {mode: {"systems": {}, "status": f"no reference: {problem}"} for mode in self.options.modes}
        return {mode: {"systems": self._mode(mode, want)} for mode in self.options.modes}

    def _softmaxes(self) -> set[bool]:
        return {(name, self.model) in OTHER_SOFTMAX for name in self.names}

    def _reference(self, within: bool) -> Result:
        path = self.folder / "reference.npz"
        asked = {"graph": self.graph, "weights": self.weights, "model": self.model}
        self.hosts.get("reference").ask("reference", **asked, within=within, path=str(path))
        return read_result(path)

    def seat(self, system: str, mode: str) -> Seat:
        """The system in its process, which has loaded the case."""
        host = host_of(system)
        player = self.hosts.get(host)
        if host not in self.ready:
            found = player.ask("case", graph=self.graph, weights=self.weights, model=self.model)
            self.ready.add(host)
            self.versions.update({f"{name} beside {host}": number for name, number in found.items()})
        return Seat(player, system, mode)

    def lost(self, system: str) -> None:
        self.hosts.lose(host_of(system))
        self.ready.discard(host_of(system))

    def _mode(self, mode: str, want: Mapping[bool, Result]) -> dict[str, Any]:
        systems: dict[str, dict[str, Any]] = {}
        seats: dict[str, Seat] = {}
        for name in self.names:
            reason = refusal(name, self.model, mode, self.case, self.limit)
            if reason is not None:
                systems[name] = {"status": reason}
                continue
            try:
                seat = self.seat(name, mode)
                systems[name] = {**seat.ask("first"), **self._verdict(seat, want)}
                if systems[name]["status"] == "ok":
                    seats[name] = seat
                    self._probe(seat, systems[name])
            except PlayerLost as problem:
                seats.pop(name, None)
                systems[name] = {"status": str(problem)}
                self.lost(name)
        for name in [name for name, seat in seats.items() if self.hosts.get(host_of(name)) is not seat.player]:
            seats.pop(name)  # the process was lost by another variant
            systems[name] = {"status": "its process ended in another variant"}
        self._turns(seats, systems)
        return systems

    def _verdict(self, seat: Seat, want: Mapping[bool, Result]) -> dict[str, Any]:
        path = self.folder / "result.npz"
        seat.ask("result", path=str(path))
        got = read_result(path)
        exact = want[(seat.system, self.model) in OTHER_SOFTMAX]
        error, where = worst_error(_wide(got), _expected(exact, seat.mode, got))
        status = "ok" if error <= TOLERANCE else f"wrong: {where} is off by {error:.1e}"
        return {"status": status, "error": error}

    def _probe(self, seat: Seat, answer: dict[str, Any]) -> None:
        """Estimates the seconds of a step: by a second call, unless the first was too long to be mostly compilation."""
        answer["probe"] = answer["first"]
        if answer["first"] < LONG_SECONDS or compiles(seat.system):
            answer["probe"] = seat.ask("turn", steps=1)

    def _turns(self, seats: Mapping[str, Seat], systems: dict[str, dict[str, Any]]) -> None:
        quick: dict[str, Any] = {}
        slow: dict[str, Any] = {}
        for name, seat in seats.items():
            probe = systems[name]["probe"]
            if probe < SLOW_SECONDS:
                quick[name] = seat
            elif probe < LONG_SECONDS:
                slow[name] = seat
            else:
                once = {"median": probe, "q1": probe, "q3": probe, "min": probe, "repeats": 1, "steps": 1}
                systems[name].update(once)
        timed = take_turns(quick, repeats=self.options.repeat, warmup=1)
        timed.update(take_turns(slow, repeats=self.options.slow_repeat, warmup=0))
        for name, answer in timed.items():
            systems[name].update(answer)
            if answer["status"] != "ok":
                self.lost(name)

    def memory(self, mode: str, timed: Mapping[str, Any]) -> dict[str, Any]:
        """Peaks of the systems that were timed and are not slow, and Hector's formula for graphweave's variants."""
        peaks: dict[str, int | str] = {}
        for name in self.names:
            if "median" not in timed.get(name, {}) or timed[name]["median"] > LONG_SECONDS / 2:
                continue
            try:
                peaks[name] = self.seat(name, mode).ask("peak")
            except PlayerLost as problem:
                peaks[name] = str(problem)
                self.lost(name)
        answer: dict[str, Any] = {"compaction": self.case.compaction, "peaks": peaks}
        compact, plain = peaks.get("gw-C"), peaks.get("gw-U")
        if isinstance(compact, int) and isinstance(plain, int):
            there = self.case.x.numel() * 4 + sum(value.numel() * 4 for value in self.values.values())
            nodes = node_bytes(self.model, mode == "train", self.case, self.values)
            edges = max(plain + there - nodes, 0)
            answer.update(node_bytes=nodes, edge_bytes=edges)
            answer["of_ideal"] = (compact + there) / (self.case.compaction * edges + nodes)
        return answer


def _wide(result: Result) -> Result:
    grads = {name: None if grad is None else grad.double() for name, grad in result.grads.items()}
    return Result(tuple(value.double() for value in result.outputs), grads)


def _expected(exact: Result, mode: str, got: Result) -> Result:
    """The results that are expected of a system. `sum.<name>` is a parameter that all relations share."""
    if mode == "infer":
        return Result(exact.outputs, {})
    loss = exact.grads["loss"]
    assert loss is not None
    grads = {}
    for name in got.grads:
        grad = exact.grads[name.removeprefix("sum.")]
        grads[name] = grad.sum(0) if grad is not None and name.startswith("sum.") else grad
    return Result((loss,), grads)


def launches(options: argparse.Namespace) -> dict[str, Any]:
    """The number of kernels that a step of HeteroConv calls over 5 and over 140 relations."""
    limits = {"timeout": options.launch_timeout, "threads": options.threads}
    return {f"{n} relations": in_fresh_process(count, relations=n, **limits) for n in (5, 140)}


def run(options: argparse.Namespace, record: dict[str, Any]) -> None:
    start = time.monotonic()
    common: dict[str, Any] = {
        "threads": options.threads, "dgl_python": options.dgl_python, "timeout": options.timeout,
        "limit": int(options.memory_gb * GIB),
    }  # fmt: skip
    timing, measuring = Hosts(**common, environment={}), Hosts(**common, environment=MALLOC)
    try:
        for name in options.graphs:
            with tempfile.TemporaryDirectory() as folder:
                _graph(options, record, name, Path(folder), (timing, measuring))
    finally:
        timing.close()
        measuring.close()
    if options.launches:
        record["launches"] = launches(options)
    record["seconds"] = time.monotonic() - start
    record["summary"] = tables.summarise(record["results"], options.modes)
    save(options.out, record)


def _graph(
    options: argparse.Namespace, record: dict[str, Any], name: str, folder: Path, hosts: tuple[Hosts, Hosts]
) -> None:
    case = graphs.make(name, options.data_dir)
    graphs.save(case, str(folder / "graph.npz"))
    record["graphs"][name] = {
        "nodes": case.x.size(0), "node_types": case.num_node_types, "edges": case.src.numel(),
        "relations": case.num_relations, "compaction": case.compaction,
    }  # fmt: skip
    for model in options.models:
        start = time.monotonic()
        pair = Pair(options, hosts[0], model, case, folder)
        found = record["results"][f"{model} {name}"] = pair.measure()
        record["versions"].update(pair.versions)
        if name in options.memory_graphs:
            apart = Pair(options, hosts[1], model, case, folder)
            record["memory"][f"{model} {name}"] = {
                mode: apart.memory(mode, found[mode]["systems"]) for mode in options.modes
            }
        record["pair_seconds"][f"{model} {name}"] = time.monotonic() - start
        print(f"{model} {name}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
        save(options.out, record)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, COMMON)
    default = [name for name in graphs.GRAPHS if name not in graphs.ON_DEMAND]
    parser.add_argument("--graphs", nargs="+", choices=graphs.GRAPHS, default=default)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=[s for s in SYSTEMS if s not in ON_DEMAND])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--slow-repeat", type=int, default=1, help="rounds of systems that take more than a second")
    parser.add_argument("--memory-graphs", nargs="*", choices=graphs.GRAPHS, default=["aifb", "fb15k_237"])
    parser.add_argument("--launches", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--launch-timeout", type=float, default=240)
    parser.add_argument("--timeout", type=float, default=60, help="seconds that one answer of a peer may take")
    parser.add_argument("--memory-gb", type=float, default=12.0, help="private memory that a peer may take")
    parser.add_argument("--dgl-python", type=Path, default=ROOT / ".venv-dgl" / "bin" / "python")
    parser.add_argument("--data-dir", type=Path, default=data_dir())
    options = parser.parse_args(argv)
    for name in options.graphs:
        reason = graphs.missing(name, options.data_dir)
        if reason:
            parser.error(reason)
    if not options.dgl_python.exists() and any(name.startswith("dgl") for name in options.systems):
        parser.error(f"{options.dgl_python} is absent: `make bench-relational` makes it, or leave dgl out of --systems")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    record: dict[str, Any] = {
        "benchmark": "relational", "graphs": {}, "versions": {}, "results": {}, "memory": {}, "pair_seconds": {},
        "threads": options.threads, "repeat": options.repeat, "memory_gb": options.memory_gb,
    }  # fmt: skip
    run(options, record)
    for mode in options.modes:
        tables.print_times(record["results"], mode, options.systems, options.threads)
        tables.print_ablation(record["results"], mode)
    tables.print_summary(record["summary"])
    if record["memory"]:
        tables.print_memory(record["memory"])
    if "launches" in record:
        tables.print_launches(record["launches"])
    print(f"{record['seconds']:.0f} s in all")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
