"""One model of a paper by several systems: a benchmark of one case, whose times, peaks or bytes a panel asks for."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.case import Bench, Case, options_of
from bench.graphs import data_dir
from bench.papers.cells import OURS
from bench.runner import Measuring
from bench.spec_peers import ENVIRONMENT, case_of, moved
from bench.specs import USER_DEFINED, Spec, spec_of
from bench.turns import MALLOC

PYG, DGL, DGL_UDF = "PyG", "DGL", "DGL-UDF"
"""Systems: PyG's layers in eager mode, DGL's own layers, and DGL running user-defined functions."""


@dataclass(frozen=True, slots=True)
class System:
    """A system by its name in tables, and its peer of bench/spec_peers.py or bench/dgl_specs.py."""

    name: str
    peer: str


GRAPHWEAVE, EAGER = System(OURS, "graphweave"), System(PYG, "eager")


def dgl_of(spec: Spec) -> System:
    """DGL's layers, or its way of running user-defined functions."""
    return System(DGL_UDF, "dgl-udf") if spec.layer.startswith(USER_DEFINED) else System(DGL, "dgl")


def cases(options: argparse.Namespace) -> Iterator[Case]:
    notes = moved if options.counted else None
    yield case_of(
        "model", spec_of(options.spec), options.mode, options.data_dir, options.peers, {"memory": options.budget},
        notes=notes,
    )  # fmt: skip


BENCH = Bench(
    "bench.papers.models", __doc__, cases,
    {"spec": "", "mode": "train", "peers": ("",), "counted": False, "budget": "", "data_dir": data_dir()},
    apart=True, environment=ENVIRONMENT, dgl="bench.dgl_specs", slow=1.0, timeout=600.0,
)  # fmt: skip


class Measurement:
    """One model on one graph in one mode. Answers are by the names of systems."""

    def __init__(self, options: argparse.Namespace, spec: Spec, mode: str, budget: str = "") -> None:
        """`budget` is the memory of the peer `bench.spec_peers.WITHIN`."""
        self._given = ["--budget", budget] if budget else []
        self._given += ["--spec", spec.text(), "--mode", mode, "--data-dir", str(options.data_dir)]
        for name in ("threads", "repeats", "timeout", "dgl_python"):
            if (value := getattr(options, name)) is not None:
                self._given += [f"--{name.replace('_', '-')}", str(value)]

    def times(self, systems: list[System]) -> dict[str, dict[str, Any]]:
        """The runner's result for each system. One with wrong results is not timed."""
        return self._named(systems, lambda one: one.run())

    def peaks(self, systems: list[System]) -> dict[str, int | str]:
        """The peak bytes of one step beyond those before it, or why there are none."""
        return self._named(systems, lambda one: one.ask("peak", MALLOC))

    def moved(self, systems: list[System]) -> dict[str, dict[str, Any] | str]:
        """The bytes that a step moves, of graphweave and DGL, or why they are not known."""
        counted = [system for system in systems if system != EAGER]
        return self._named(counted, lambda one: one.ask("notes", {}), "--counted")

    def _named(self, systems: list[System], asked: Any, *more: str) -> dict[str, Any]:
        argv = [*self._given, "--peers", *(system.peer for system in systems), *more]
        options = options_of(BENCH, argv)
        (case,) = cases(options)
        with tempfile.TemporaryDirectory() as folder:
            found: Mapping[str, Any] = asked(Measuring(BENCH, case, options, argv, Path(folder)))
        return {system.name: found[system.peer] for system in systems}
