"""User-defined message passing: graphweave and DGL 2.1 running the same functions, in turn.

    python -m bench.udf [--layers gcn gat cgat sage gin] [--graphs rmat-ppi rmat ppi arxiv] [--modes infer train]
                        [--systems udf udf-eager builtin pyg dgl-udf dgl] [--repeats 20] [--dgl-repeats 3]
                        [--threads 2] [--timeout 600] [--dgl-thp] [--no-build] [--out FILE]

Two layers, 64 wide, of each kind, and R-MAT graphs of PPI's and ogbn-arxiv's sizes unless others are named. `infer` is
a forward pass without gradients, `train` forward, loss and backward. Systems:

    udf        the layers of bench/udf_layers.py (user-defined functions), model and loss compiled by graphweave
    udf-eager  the same lines outside graphweave.compile, where each update_all runs its own compiled kernels
    builtin    the layers with built-in functions, compiled by graphweave (bench/udf_variants.py)
    pyg        the layers as PyG has them, compiled by graphweave
    dgl-udf    DGL running the very lines of udf (gcn, gat, cgat), which it does in buckets of equal degree
    dgl        DGL's own layers (all but cgat)

Every system has a process of its own with equal thread counts; they take turns (bench/turns.py) and never run at once.
All get the same inputs and weights, and outputs, loss and gradients are compared with eager PyG first, as in
bench/peers.py: a wrong system is not timed. Formats and work on the graph alone are warm on both sides. dgl-udf takes
seconds a step, so it has few rounds of its own (--dgl-repeats, or one if its first step took more than a minute), in
which the others take part; the ratios to it are of those rounds, all other ratios of --repeats rounds without it. A
system that runs out of memory or --timeout has this as its result.

Building a graph (5M edges by default, bench/udf_build.py) is compared with torch.sort at the end.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import udf_build, udf_worker
from bench.common import available_memory, in_fresh_process, ratio_table, save
from bench.graphs import GRAPHS, data_dir, missing
from bench.judge import Judge, result_of
from bench.options import Among, options_from
from bench.turns import ROOT, Player, PlayerLost, take_turns
from bench.udf_layers import LAYERS
from bench.workloads import THP

MODES = {"infer": ("first_infer", "result_infer", "infer"), "train": ("first", "result", "turn")}
"""Mode -> the questions for the first call, for its results, and for a turn."""

OWN = ("udf", "udf-eager", "builtin", "pyg")
SYSTEMS = (*OWN, "dgl-udf", "dgl")
DGL_UDF_LAYERS = ("gcn", "gat", "cgat")
"""Layers that DGL runs as user-defined functions."""

LONG_SECONDS = 60.0
"""If DGL's first step takes longer than this, it gets only one more round."""

DGL_LAYERS = ("gcn", "gat", "sage", "gin")
"""Layers that DGL has itself."""

TARGETS: dict[str, dict[str, float]] = {
    "infer": {"dgl-udf / udf": 100.0, "dgl-udf / udf-eager": 100.0, "udf / builtin": 1.1, "udf / pyg": 1.1},
    "train": {"dgl-udf / udf": 50.0, "dgl-udf / udf-eager": 50.0, "udf / builtin": 1.1, "udf / pyg": 1.1}
    | {"dgl / udf": 3.0},
}
"""Mode -> ratio -> its target, a lower limit if DGL is the numerator, else an upper limit."""


class Case:
    """One layer on one graph, by all systems."""

    def __init__(self, options: argparse.Namespace, layer: str, graph: str) -> None:
        self.options, self.layer, self.graph = options, layer, graph
        left_out = {"dgl-udf": layer not in DGL_UDF_LAYERS, "dgl": layer not in DGL_LAYERS}
        self.names = [name for name in options.systems if not left_out.get(name)]

    def measure(self) -> dict[str, Any]:
        """Mode -> results of all systems, and ratios."""
        players: dict[str, Player] = {}
        answer: dict[str, Any] = {}
        try:
            with tempfile.TemporaryDirectory() as folder:
                case = Path(folder) / "case.npz"
                writer = self._own("eager")
                try:
                    writer.ask("save_case", path=str(case))
                finally:
                    writer.close()
                players = {name: self._own(name) if name in OWN else self._dgl(name, case) for name in self.names}
                for mode in self.options.modes:
                    answer[mode] = self._mode(mode, players)
        finally:
            for player in players.values():
                player.close()
        return answer

    def _mode(self, mode: str, players: Mapping[str, Player]) -> dict[str, Any]:
        first, result, turn = MODES[mode]
        judge = Judge(lambda wide: self._own("eager", wide=wide), question=result)
        systems: dict[str, dict[str, Any]] = {}
        for name, player in players.items():
            try:
                systems[name] = {**player.ask(first), **judge.verdict(result_of(player, result))}
            except PlayerLost as problem:
                systems[name] = {"status": str(problem)}
        right = {name: player for name, player in players.items() if systems[name]["status"] == "ok"}
        quick = {name: player for name, player in right.items() if name != "dgl-udf"}
        timed = take_turns(quick, repeats=self.options.repeats, question=turn)
        slow: dict[str, dict[str, Any]] = {}
        if "dgl-udf" in right:
            steps = {name: answer["steps"] for name, answer in timed.items() if answer["status"] == "ok"}
            rounds = self.options.dgl_repeats if systems["dgl-udf"]["first"] < LONG_SECONDS else 1
            slow = take_turns(right, repeats=rounds, warmup=0, question=turn, known_steps=steps)
        for name in right:
            systems[name].update(timed.get(name, slow.get(name, {})))
            if name in timed and name in slow:
                systems[name]["beside_dgl_udf"] = slow[name]
        return {"systems": systems, "ratios": _ratios(mode, timed, slow)}

    def _own(self, system: str, *, wide: bool = False) -> Player:
        options = self.options
        return udf_worker.start(
            system, self.layer, self.graph, threads=options.threads, folder=options.data_dir, wide=wide,
            timeout=options.timeout, memory=available_memory(),
        )  # fmt: skip

    def _dgl(self, system: str, case: Path) -> Player:
        options = self.options
        name = f"udf-{self.layer}" if system == "dgl-udf" else self.layer
        command = [str(options.dgl_python), "-m", "bench.dgl_worker", name, str(case)]
        command += ["--threads", str(options.threads), "--index-bits", "64"]
        environment = {"OMP_NUM_THREADS": str(options.threads), "DGLBACKEND": "pytorch"}
        if options.dgl_thp:
            environment[THP] = "1"
        return Player(command, environment, timeout=options.timeout, memory=available_memory())


def _ratios(mode: str, timed: Mapping[str, Any], slow: Mapping[str, Any]) -> dict[str, float]:
    ratios: dict[str, float] = {}
    for ratio in TARGETS[mode]:
        above, below = ratio.split(" / ")
        taken = slow if above == "dgl-udf" else timed
        both = [taken.get(name, {}).get("median") for name in (above, below)]
        if all(both):
            ratios[ratio] = both[0] / both[1]
    return ratios


def short(status: str) -> str:
    """The status of a system without a time, shortened for a table."""
    if any(words in status for words in ("allocate memory", "bad_alloc", "MemoryError", "signal 9")):
        return "out of memory"
    return "timeout" if status.startswith("no answer") else status[:60]


def table_row(case: str, one: Mapping[str, Any], mode: str, names: Sequence[str]) -> list[str]:
    def cell(name: str) -> str:
        answer = one["systems"].get(name)
        if answer is None:
            return "-"
        if answer["status"] != "ok":
            return short(answer["status"])
        return f"{1e3 * answer['median']:.2f} ±{500 * (answer['q3'] - answer['q1']):.2f}"

    ratios = [f"{one['ratios'][ratio]:.2f}x" if ratio in one["ratios"] else "-" for ratio in TARGETS[mode]]
    return [case, *map(cell, names), *ratios]


def print_tables(results: Mapping[str, Any], options: argparse.Namespace) -> None:
    for mode in options.modes:
        bounds = [f"{r} ({'>=' if t > 2 else '<='} {t:g}x)" for r, t in TARGETS[mode].items()]
        rows = [table_row(case, answer[mode], mode, options.systems) for case, answer in results.items()]
        title = f"{mode}: 2 layers, 64 wide, ms, median ± half the IQR, {options.threads} threads"
        ratio_table(title, ["layer graph", *options.systems, *bounds], rows)


def print_build(answer: Mapping[str, Any]) -> None:
    if "results" in answer:
        udf_build.print_table(answer)
    else:
        print(f"building a graph: {answer['status']}")


def main(argv: Sequence[str] | None = None) -> int:
    options = options_from(
        argv, __doc__, layers=Among(LAYERS), graphs=Among(GRAPHS, ("rmat-ppi", "rmat")), modes=Among(MODES),
        systems=Among(SYSTEMS), repeats=20, dgl_repeats=3, dgl_thp=False, timeout=600.0, build=True,
        dgl_python=ROOT / ".venv-dgl" / "bin" / "python", data_dir=data_dir(),
    )  # fmt: skip
    for graph in options.graphs:
        reason = missing(graph, options.data_dir)
        if reason:
            raise SystemExit(reason)
    results: dict[str, Any] = {}
    record = {"benchmark": "udf", "targets": TARGETS, "dgl_thp": options.dgl_thp, "results": results}
    for graph in options.graphs:
        for layer in options.layers:
            results[f"{layer} {graph}"] = Case(options, layer, graph).measure()
            save(options.out, record)
    print_tables(results, options)
    if options.build:
        record["build"] = in_fresh_process(udf_build.measure_all, threads=options.threads)
        save(options.out, record)
        print_build(record["build"])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
