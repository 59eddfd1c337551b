"""Training steps over product spaces (batches of one graph, tables of neighbours) and of graph transformers.

    python -m bench.product_models [--quick] [--cases weather protein ...] [--systems eager graphweave inductor]
                                   [--threads 2] [--repeats 7] [--timeout 240] [--out FILE]

A step computes the model, a loss that is a weighted sum of its results, and the gradients of all parameters, in
float32. The sizes are those of the papers, or, with `--quick`, small ones. Each system has a process of its own for a
case, and they take turns. The results of each are compared with eager mode in float64 first. `first` is the first call,
with capture and compilation. A system that does not answer within `--timeout` seconds is ended, and the table says so.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.utils import to_torch_csr_tensor

import graphweave
from bench import graph_transformers as attention
from bench import product_layers as layers
from bench.common import arguments, ratio_table, save, seconds_of
from bench.turns import Player, PlayerLost, serve, steps_timer, take_turns

SYSTEMS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda f: f,
    "graphweave": graphweave.compile,
    "inductor": lambda f: torch.compile(f, dynamic=True),
}
TOLERANCE = 2e-3
"""Error of float32, relative to the largest number of the loss or of a gradient in float64. Twice the error of eager
mode is allowed, too: GRIT takes roots of scores near 0."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model and its arguments; both are made with the numbers `sizes`, or `small` ones."""

    about: str
    make: Callable[..., tuple[nn.Module, Sequence[Tensor | int]]]
    sizes: tuple[int, ...]
    small: tuple[int, ...]


def _weather(batch: int, side: int, mesh: int, width: int) -> tuple[nn.Module, Sequence[Tensor | int]]:
    return layers.MeshWeather(width), layers.of_a_grid(batch, side, mesh, width)


def _protein(batch: int, residues: int, near: int, width: int) -> tuple[nn.Module, Sequence[Tensor | int]]:
    return layers.ProteinEncoder(width), layers.of_a_protein(batch, residues, near, width)


def _traffic(batch: int, sensors: int, edges: int, times: int, width: int) -> tuple[nn.Module, Sequence[Tensor | int]]:
    return layers.TrafficConvolution(width), layers.of_sensors(batch, sensors, edges, times, width)


def _vectors(batch: int, atoms: int, edges: int, width: int, vectors: int) -> tuple[nn.Module, Sequence[Tensor | int]]:
    return layers.VectorPerceptrons(width, vectors), layers.of_atoms(batch, atoms, edges, width, vectors)


def _paths(batch: int, entities: int, edges: int, relations: int, width: int) -> tuple[nn.Module, Sequence[Any]]:
    return layers.BellmanFord(relations, width, 3), layers.of_queries(batch, entities, edges, relations)


def _gps(graphs: int, nodes: int, width: int, depth: int) -> tuple[nn.Module, Sequence[Tensor | int]]:
    return attention.Gps(width, depth), attention.of_molecules(graphs, nodes, width)


def _performer(graphs: int, nodes: int, width: int, depth: int) -> tuple[nn.Module, Sequence[Tensor | int]]:
    return attention.Gps(width, depth, attn_type="performer"), attention.of_molecules(graphs, nodes, width)


def _grit(graphs: int, nodes: int, width: int, depth: int) -> tuple[nn.Module, Sequence[Tensor | int]]:
    return attention.Grit(width, 4, depth), attention.of_molecules(graphs, nodes, width, pairs=True)[:3]


def _exphormer(graphs: int, nodes: int, width: int, depth: int) -> tuple[nn.Module, Sequence[Tensor | int]]:
    return attention.Exphormer(width, 4, depth), attention.of_molecules(graphs, nodes, width)[:3]


def _sgformer(nodes: int, edges: int, width_in: int, width: int) -> tuple[nn.Module, Sequence[Tensor | int]]:
    return attention.sgformer(width_in, width), attention.of_one_graph(nodes, edges, width_in)


def _recommender(users: int, items: int, interactions: int, width: int) -> tuple[nn.Module, Sequence[Tensor | int]]:
    model = attention.Recommender(users + items, width, 3)
    return model, attention.of_interactions(users, items, interactions, 2048)


CASES: dict[str, Case] = {
    "weather": Case("interaction nets, 4 x 6,561 points of a grid, 1,681 of a mesh", _weather, (4, 81, 41, 64),
                    (2, 9, 5, 16)),
    "protein": Case("a layer of ProteinMPNN's encoder, 8 x 200 residues x 30 neighbours", _protein, (8, 200, 30, 128),
                    (2, 20, 5, 16)),
    "vectors": Case("a layer of geometric vector perceptrons, 4 x 300 atoms", _vectors, (4, 300, 9000, 100, 16),
                    (2, 20, 60, 16, 4)),
    "traffic": Case("Graph WaveNet's spatial layer, 64 x 207 sensors x 12 times", _traffic, (64, 207, 1515, 12, 32),
                    (3, 20, 60, 3, 8)),
    "paths": Case("NBFNet, 4 queries to 40,943 entities along 173,670 edges", _paths, (4, 40943, 173670, 22, 32),
                  (2, 50, 300, 4, 8)),
    "gps": Case("GPS, 32 graphs of 23 nodes", _gps, (32, 23, 64, 5), (4, 6, 16, 2)),
    "performer": Case("GPS with Performer's attention, 16 graphs of 150 nodes", _performer, (16, 150, 64, 3),
                      (4, 6, 16, 2)),
    "grit": Case("GRIT, 32 graphs of 23 nodes", _grit, (32, 23, 64, 3), (4, 6, 16, 2)),
    "exphormer": Case("Exphormer, 64 graphs of 150 nodes", _exphormer, (64, 150, 64, 3), (4, 6, 16, 2)),
    "sgformer": Case("SGFormer, a graph of 20,000 nodes", _sgformer, (20000, 140000, 128, 64), (50, 300, 16, 8)),
    "recommender": Case("LightGCN, 10,000 users x 10,000 items", _recommender, (10000, 10000, 200000, 64),
                        (30, 40, 200, 8)),
}  # fmt: skip


# ---------------------------------------------------------------- in the process of a system


class System:
    """One case, run by one system."""

    def __init__(self, case: str, system: str, quick: bool) -> None:
        torch.manual_seed(0)
        self.model, self.args = CASES[case].make(*(CASES[case].small if quick else CASES[case].sizes))
        if case == "recommender" and system == "eager":  # eager mode is 8 times as fast with a sparse matrix
            edges, *others = self.args
            count = len(self.model.get_parameter("model.embedding.weight"))
            self.args = [to_torch_csr_tensor(edges, size=(count, count)), *others]
        self.run = SYSTEMS[system](self._loss)

    def _loss(self, *args: Tensor | int) -> Tensor:
        out = self.model(*args)
        outs = out if isinstance(out, tuple) else (out,)
        return sum(((t * torch.linspace(-1, 2, t.size(-1)) if t.ndim else t).mean() for t in outs), torch.zeros(()))

    def step(self) -> list[Tensor]:
        """The loss and the gradients of all parameters that have some."""
        return self._step(self.run, self.args)

    def _step(self, run: Callable[..., Tensor], args: Sequence[Tensor | int]) -> list[Tensor]:
        leaves = [p for p in self.model.parameters() if p.requires_grad]
        loss = run(*args)
        grads = torch.autograd.grad(loss, leaves, allow_unused=True)
        return [loss.detach(), *(g for g in grads if g is not None)]

    def first(self) -> float:
        return seconds_of(self.step)

    def result(self, path: str) -> None:
        torch.save(self.step(), path)

    def reference(self, path: str) -> None:
        """The step in float64, by eager mode. The process computes in float64 from then on."""
        torch.set_default_dtype(torch.float64)  # SGFormer makes tensors of this type
        self.model.double()
        floats = (isinstance(a, Tensor) and a.is_floating_point() for a in self.args)
        args = [a.double() if f else a for a, f in zip(self.args, floats, strict=True)]  # type: ignore[union-attr]
        torch.save(self._step(self._loss, args), path)


def _answer(options: argparse.Namespace) -> None:
    case, system = options.answer
    asked = System(case, system, options.quick)
    handlers: dict[str, Callable[..., Any]] = {
        "first": asked.first,
        "result": asked.result,
        "reference": asked.reference,
    }
    serve({**handlers, "turn": steps_timer(asked.step)})


# ---------------------------------------------------------------- in the process that asks


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measures all systems on a case, and prints their table."""
    start = [sys.executable, "-m", "bench.product_models", "--threads", str(options.threads)]
    start += ["--quick"] if options.quick else []
    threads = {"OMP_NUM_THREADS": str(options.threads)}
    players = {s: Player([*start, "--answer", name, s], threads, timeout=options.timeout) for s in options.systems}
    reference = Player([*start, "--answer", name, "eager"], threads, timeout=options.timeout)
    want = _saved(reference, "reference")
    reference.close()
    found: dict[str, Any] = {}
    for system, player in players.items():
        allowed = max(TOLERANCE, 2 * found["eager"].get("error", 0.0)) if "eager" in found else math.inf
        found[system] = _first(player, want, allowed)
    running = {s: player for s, player in players.items() if found[s]["status"] == "ok"}
    for system, timing in take_turns(running, repeats=options.repeats).items():
        found[system] |= timing
    for player in players.values():
        player.close()
    base = found[options.systems[0]]
    rows = [_row(system, each, base) for system, each in found.items()]
    title = f"{CASES[name].about}{' (quick)' if options.quick else ''}, {options.threads} threads"
    ratio_table(title, ["system", "ms", f"of {options.systems[0]}", "first s", "error"], rows)
    return found


def _first(player: Player, want: Sequence[Tensor], allowed: float) -> dict[str, Any]:
    """The first step of a system, and how wrong its results are, which must not exceed the error that is `allowed`."""
    try:
        seconds, got = player.ask("first"), _saved(player, "result")
    except PlayerLost as problem:
        return {"status": str(problem)}
    least = 1e-3 * max(float(t.abs().max()) for t in want)  # a gradient that is 0 but for rounding
    pairs = zip(got, want, strict=True)
    error = max(float((a - b).abs().max()) / max(float(b.abs().max()), least) for a, b in pairs)
    return {"status": "ok" if error <= allowed else f"wrong by {error:.1e}", "first": seconds, "error": error}


def _saved(player: Player, question: str) -> list[Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result"
        player.ask(question, path=str(path))
        saved: list[Tensor] = torch.load(path)
    return saved


def _row(system: str, found: Mapping[str, Any], base: Mapping[str, Any]) -> list[str]:
    if found["status"] != "ok":
        return [system, found["status"], "", "", ""]
    of_base = f"{base['median'] / found['median']:.2f}x" if base["status"] == "ok" else ""
    return [system, f"{1e3 * found['median']:.1f}", of_base, f"{found['first']:.1f}", f"{found['error']:.0e}"]


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--systems", nargs="*", choices=list(SYSTEMS), default=["eager", "graphweave"])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--timeout", type=float, default=240, help="seconds that a system has for one answer")
    parser.add_argument("--answer", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    if options.answer is not None:
        _answer(options)
        return 0
    results = {name: measure(name, options) for name in options.cases}
    save(options.out, {"benchmark": "product_models", "threads": options.threads, "results": results})
    return int(any(found["status"] != "ok" for case in results.values() for found in case.values()))


if __name__ == "__main__":
    raise SystemExit(main())
