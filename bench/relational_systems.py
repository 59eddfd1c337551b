"""The systems that `bench.relational` compares: the models that they have, their processes, the memory they need."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import torch

from bench.relational_graphs import FEATURES, Case
from bench.relational_models import MODELS
from bench.relational_pyg import FORMS
from bench.relational_worker import VARIANTS, missing_options
from bench.turns import Player

COMPILED = {f"gw-{name}": models for name, models in FORMS.items()}
"""PyG's own classes compiled by graphweave -> the models that they have."""

SYSTEMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(VARIANTS, MODELS),
    **COMPILED,
    **FORMS,
    "bmm": MODELS,
    "dgl": ("rgcn", "hgt"),
    "dgl-hetero": ("rgcn", "rgat"),
    "dgl-udf": MODELS,
}
"""System -> the models that it has."""

OTHER_SOFTMAX = {("pyg-hetero", "rgat"), ("gw-pyg-hetero", "rgat"), ("dgl-hetero", "rgat")}
"""The systems and models whose softmax is over the edges of one relation instead of all."""

GIB = 2**30

MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Environment of processes whose memory is measured: malloc returns larger blocks to the system at once, so that the
high-water mark is the memory in use."""


def host_of(system: str) -> str:
    """The process that runs a system: variants of graphweave share one, every peer has its own."""
    return "graphweave" if system in VARIANTS else system


def compiles(system: str) -> bool:
    """Whether a system is graphweave, whose first call compiles."""
    return system in VARIANTS or system in COMPILED


class Hosts:
    """Processes by name. They start when they are first needed, and again after they were lost."""

    def __init__(
        self, *, threads: int, dgl_python: Path, timeout: float, limit: int, environment: Mapping[str, str]
    ) -> None:
        self._threads, self._dgl_python, self._timeout, self._limit = threads, dgl_python, timeout, limit
        self._environment = {"OMP_NUM_THREADS": str(threads), "DGLBACKEND": "pytorch", **environment}
        self._players: dict[str, Player] = {}

    def get(self, host: str) -> Player:
        if host not in self._players:
            if host.startswith("dgl"):
                command = [str(self._dgl_python), "-m", "bench.relational_dgl"]
            else:
                kind = next((kind for kind in ("gw-pyg", "pyg") if host.startswith(kind)), host)
                command = [sys.executable, "-m", "bench.relational_worker", kind]
            limited = host not in ("graphweave", "reference", *COMPILED)
            self._players[host] = Player(
                [*command, "--threads", str(self._threads)], self._environment,
                timeout=self._timeout * (1 if limited else 5), memory=self._limit if limited else None,
            )  # fmt: skip
        return self._players[host]

    def lose(self, host: str) -> None:
        """Ends a process, because its state is unknown after a failure."""
        if host in self._players:
            self._players.pop(host).close()

    def close(self) -> None:
        for host in list(self._players):
            self.lose(host)


def refusal(system: str, model: str, mode: str, case: Case, limit: int) -> str | None:
    """Why a system is not run: it lacks options, or needs more than `limit` bytes. None if it is run."""
    lacking = missing_options(system) if system in VARIANTS else []
    if lacking:
        return f"no option {', '.join(lacking)} in this version"
    bytes_needed = needed(system, model, mode == "train", case)
    return f"needs {bytes_needed / GIB:.0f} GB" if bytes_needed > limit else None


def needed(system: str, model: str, train: bool, case: Case) -> int:
    """Bytes of the largest tensors that are alive at once, estimated from how the layers are written.

    bmm, UDF, FastRGCNConv, RGATConv: for each edge a 64 x 64 weight, and in training its gradient (RGAT: two, which are
    added; HGT: two weights, which are kept, and a gradient). Loops over relations keep rows of nodes for each relation.
    Factors of rows come from peaks measured on rdf_aifb.
    """
    row = 4 * FEATURES
    edges, nodes, relations = case.src.numel(), case.x.size(0), case.num_relations
    sources, ends = (int(case.counts[case.ends[:, end]].sum()) for end in (0, 1))
    copies = edges * FEATURES * row
    match system:
        case "bmm" | "dgl-udf":
            typed_nodes = nodes * FEATURES * row * 3 if model == "hgt" else 0
            return copies * {"rgcn": 1, "rgat": 2, "hgt": 3}[model] + typed_nodes if train else copies
        case "pyg-fast-rgcn":
            return copies + 16 * edges * relations
        case "pyg-rgat":
            return copies * (2 if train else 1)
        case "pyg-rgcn":
            return row * (2 * (relations * nodes + edges) if train else 4 * nodes + edges)
        case "pyg-hgt":
            return row * sources * (7 if train else 4)
        case "pyg-hetero" | "dgl-hetero":
            return row * ends * (4 if train else 2)
        case "dgl":
            return row * edges * ({False: 7, True: 9}[train] if model == "hgt" else 4)
    return 0


def node_bytes(model: str, train: bool, case: Case, weights: Mapping[str, torch.Tensor]) -> int:
    """Bytes of rows of nodes and of weights that a step must hold, which compaction of edges cannot reduce.

    Rows of nodes are features and output, in HGT also keys, queries, values and the sum; in training also their
    gradients, except that of the features. Weights have gradients in training.
    """
    rows = 6 if model == "hgt" else 2
    own = sum(value.numel() * 4 for value in weights.values())
    count = 2 * rows - 1 if train else rows
    return case.x.size(0) * FEATURES * 4 * count + own * (2 if train else 1)
