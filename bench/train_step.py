"""Training step of whole models: PyG eager (with and without huge pages), torch.compile's default backend, graphweave.

    python -m bench.train_step [--models gcn sage gin gat gatv2 transformer monet edgeconv edgeconv-mlp]
                               [--graphs arxiv pubmed cora cora-features rmat points] [--no-compile-loss]
                               [--systems eager eager-thp inductor graphweave] [--repeats 10] [--threads 2] [--out FILE]

A step is forward, cross entropy on random labels over every node, and backward; an optimiser would be equal for all.
2 layers, 64 random input features (cora-features: Cora's own 1433), 64 hidden, 64 logits, float32; the EdgeConv models
have 4 layers, 64-64-128-256, on k-NN graphs of 16 x 1,024 random points, k = 20. The EdgeConv models are measured on
points, the others on the other graphs.

The loss is compiled with the model: users of torch.compile compile `F.cross_entropy(model(x, edge_index), y)`, so that
the compiler may fuse the loss with the last layer. inductor and graphweave get that whole function; eager runs the same
calls as they are. With --no-compile-loss both get the model alone, and eager PyTorch computes the loss for all three.
The JSON has the choice as "loss": "compiled" or "eager".

Every system has a process of its own on every model and graph, and the processes take turns (bench/turns.py), so that a
crash or a lack of memory ends one entry only. eager-thp is eager with PyTorch's own switch for huge pages
(THP_MEM_ALLOC_ENABLE=1), so that ratios to it do not come from page faults. torch.compile runs with dynamic=False, its
faster setting (sizes known at compile time), and the defaults of Dynamo's other settings.

Before timing, loss and gradients are compared with eager's: a wrong system is not timed. If they differ by more than
the tolerance, which eager's own float32 sums over hubs can cause, a float64 run decides: a system is wrong if its
error is above the tolerance and above 4 times eager's own. (A logit within rounding of leaky_relu's kink can cause such
an error in a correct system; another --seed of the weights shows it.)
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.common import arguments, available_memory, ratio_table, save
from bench.graphs import GRAPHS, POINT_SETS, data_dir, missing
from bench.judge import Judge, result_of
from bench.train_worker import SYSTEMS, start
from bench.turns import Player, PlayerLost, take_turns
from bench.workloads import MODELS

BASE = "graphweave"
DEFAULT_GRAPHS = ("arxiv", "rmat", "points", "pubmed", "cora", "cora-features")


class Pair:
    """One model on one graph: the processes of all systems, and their results."""

    def __init__(self, options: argparse.Namespace, model: str, graph: str) -> None:
        self.options, self.model, self.graph = options, model, graph
        self.systems: dict[str, dict[str, Any]] = {}

    def measure(self) -> dict[str, Any]:
        players: dict[str, Player] = {}
        judge: Judge | None = None
        try:
            for name in self.options.systems:
                player = players[name] = self._start(name)
                try:
                    first = player.ask("first")
                    got = result_of(player)
                except PlayerLost as problem:
                    self.systems[name] = {"status": str(problem)}
                else:
                    judge = judge or Judge(
                        lambda wide: self._start("eager", wide=wide), got if name == "eager" else None
                    )
                    self.systems[name] = {**first, **judge.verdict(got)}
                if self.systems[name]["status"] != "ok":
                    players.pop(name).close()
            for name, timing in take_turns(players, repeats=self.options.repeats).items():
                self.systems[name].update(timing)
        finally:
            for player in players.values():
                player.close()
        loss = "compiled" if self.options.compile_loss else "eager"
        return {"status": "ok", "loss": loss, "seed": self.options.seed, "systems": self.systems}

    def _start(self, system: str, *, wide: bool = False) -> Player:
        options = self.options
        return start(
            system, self.model, self.graph, threads=options.threads, seed=options.seed, wide=wide,
            compile_loss=options.compile_loss, folder=options.data_dir, timeout=options.timeout,
            memory=available_memory(),
        )  # fmt: skip


def table_row(pair: str, answer: dict[str, Any], names: Sequence[str]) -> list[str]:
    """The milliseconds of each system, then the ratios of the others to graphweave."""
    if answer["status"] != "ok":
        return [pair, answer["status"]]
    systems = answer["systems"]

    def cell(name: str) -> str:
        one = systems[name]
        if one["status"] != "ok":
            return one["status"]
        return f"{1e3 * one['median']:.2f} ±{500 * (one['q3'] - one['q1']):.2f} ({one['first']:.1f} s)"

    def ratio(name: str) -> str:
        both = [systems.get(one, {}).get("median") for one in (name, BASE)]
        return f"{both[0] / both[1]:.2f}x" if all(both) else "-"

    return [pair, *map(cell, names), *(ratio(name) for name in names if name != BASE)]


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--graphs", nargs="+", choices=(*GRAPHS, *POINT_SETS), default=list(DEFAULT_GRAPHS))
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument(
        "--compile-loss", action=argparse.BooleanOptionalAction, default=True,
        help="whether compiled systems get the loss with the model, as one function (default: they do)",
    )  # fmt: skip
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    parser.add_argument("--timeout", type=float, default=900, help="seconds that one answer of a system may take")
    parser.add_argument("--data-dir", type=Path, default=data_dir())
    options = parser.parse_args(argv)
    results: dict[str, Any] = {}
    rows = []
    for graph in options.graphs:
        for model in options.models:
            if graph not in MODELS[model].graphs:
                continue
            pair, reason = f"{model} {graph}", missing(graph, options.data_dir)
            results[pair] = {"status": f"skipped: {reason}"} if reason else Pair(options, model, graph).measure()
            rows.append(table_row(pair, results[pair], options.systems))
            save(options.out, {"benchmark": "train_step", "results": results})
    others = [f"{name} / {BASE}" for name in options.systems if name != BASE]
    headings = ["model graph", *(f"{name} ms (first)" for name in options.systems), *others]
    loss = "compiled loss" if options.compile_loss else "eager loss"
    ratio_table(f"training step, median ± half the IQR, {options.threads} threads, {loss}", headings, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
