"""Measures whole models: systems in processes of their own, checked against eager PyG, timed in turns."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.check import Result
from bench.common import available_memory
from bench.judge import Judge, result_of
from bench.papers import worker
from bench.papers.cells import OURS
from bench.papers.spec import USER_DEFINED, Spec
from bench.relational_systems import MALLOC
from bench.turns import Player, PlayerLost, take_turns

SLOW_SECONDS = 1
"""A peer whose first call takes longer has one call more, which is its time."""

PYG, DGL, DGL_UDF = "PyG", "DGL", "DGL-UDF"
"""Peers: PyG's layers in eager mode, DGL's own layers, and DGL running user-defined functions."""


@dataclass(frozen=True, slots=True)
class System:
    """A system by its name in tables. `options` are graphweave's. `how` is who runs it, `spec` another model for it."""

    name: str
    how: str = worker.OURS
    options: Mapping[str, Any] = field(default_factory=dict)
    layer: str | None = None

    def slow(self, first: float) -> bool:
        """Whether so many seconds of a first call mean slow steps. First calls of graphweave compile."""
        return self.how in (worker.EAGER, DGL) and first > SLOW_SECONDS

    def spec(self, spec: Spec) -> Spec:
        if self.layer is None:
            return spec
        return Spec(self.layer, spec.graph, spec.inputs, spec.widths, spec.heads, spec.pseudo, spec.kernels)


GRAPHWEAVE, EAGER = System(OURS), System(PYG, worker.EAGER)


class Measurement:
    """One model on one graph in one mode, by several systems. Their processes start together and run in turns."""

    def __init__(self, options: argparse.Namespace, spec: Spec, mode: str) -> None:
        self.options, self.spec, self.mode = options, spec, mode

    def times(self, systems: list[System]) -> dict[str, dict[str, Any]]:
        """Name -> what `take_turns` says, or {"status": reason}. A system with wrong results is not timed."""
        answers: dict[str, dict[str, Any]] = {}
        ready: dict[str, Player] = {}
        with tempfile.TemporaryDirectory() as folder:
            started = self._start(systems, Path(folder) / "case.npz", {})
            try:
                judge = self._judge(systems, started)
                for name, player in started.items():
                    answers[name] = {"status": player} if isinstance(player, str) else _checked(player, judge)
                    if isinstance(player, Player) and answers[name]["status"] == "ok":
                        ready[name] = player
                slow = {s.name: ready[s.name] for s in systems if s.name in ready and s.slow(answers[s.name]["first"])}
                quick = {name: player for name, player in ready.items() if name not in slow}
                timed = take_turns(quick, repeats=self.options.repeats)
                for name, timing in (timed | take_turns(slow, repeats=1, warmup=0)).items():
                    answers[name].update(timing)
            finally:
                _close(started)
        return answers

    def _judge(self, systems: list[System], started: Mapping[str, Player | str]) -> Judge:
        """Judges by eager PyG's result, which is that of its own process if it is one of the systems.

        Where that process fails, for lack of memory say, the result of DGL takes its place.
        """
        want: Result | None = None
        for how in (worker.EAGER, DGL):
            for system in systems:
                player = started[system.name]
                if want is None and system.how == how and isinstance(player, Player):
                    with contextlib.suppress(PlayerLost):
                        want = result_of(player)
            if all(system.how != worker.EAGER for system in systems):
                break
        return Judge(lambda wide: self._own(EAGER, wide=wide), want)

    def peaks(self, systems: list[System]) -> dict[str, int | str]:
        """Name -> the peak bytes of one step beyond those before it."""
        return self._asked(systems, "peak", MALLOC)

    def moved(self, systems: list[System]) -> dict[str, dict[str, Any] | str]:
        """Name -> the bytes that a step moves, of graphweave and DGL (or the reason why they are not known)."""
        return self._asked([system for system in systems if system.how != worker.EAGER], "moved", {})

    def _asked(self, systems: list[System], question: str, environment: Mapping[str, str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as folder:
            started = self._start(systems, Path(folder) / "case.npz", environment)
            try:
                for name, player in started.items():
                    try:
                        found[name] = player if isinstance(player, str) else player.ask(question)
                    except PlayerLost as problem:
                        found[name] = str(problem)
                    if isinstance(player, Player):
                        player.close()
            finally:
                _close(started)
        return found

    def _start(self, systems: list[System], case: Path, environment: Mapping[str, str]) -> dict[str, Player | str]:
        """The processes of the systems, or why one is left out. `case` is written for DGL."""
        started: dict[str, Player | str] = {}
        for system in systems:
            started[system.name] = "needs --dgl-python"
            if system.how != DGL:
                started[system.name] = self._own(system, environment=environment)
        if self.options.dgl_python is None or all(system.how != DGL for system in systems):
            return started
        try:
            self._save_case(systems, started, case)
        except PlayerLost as problem:
            return {name: f"no case: {problem}" if isinstance(player, str) else player
                    for name, player in started.items()}  # fmt: skip
        for system in systems:
            if system.how == DGL:
                started[system.name] = self._dgl(system, case, environment)
        return started

    def _save_case(self, systems: list[System], started: Mapping[str, Player | str], case: Path) -> None:
        """Has eager PyG write inputs and weights: the process that is there, or one for this."""
        for system in systems:
            player = started[system.name]
            if system.how == worker.EAGER and system.layer is None and isinstance(player, Player):
                player.ask("save_case", path=str(case))
                return
        writer = self._own(EAGER)
        try:
            writer.ask("save_case", path=str(case))
        finally:
            writer.close()

    def _dgl(self, system: System, case: Path, environment: Mapping[str, str]) -> Player:
        threads = str(self.options.threads)
        given = [system.spec(self.spec).text(), self.mode, str(case), "--threads", threads]
        command = [str(self.options.dgl_python), "-m", "bench.papers.dgl_worker", *given]
        return Player(
            command, {"OMP_NUM_THREADS": threads, "DGLBACKEND": "pytorch", **environment},
            timeout=self.options.timeout, memory=available_memory(),
        )  # fmt: skip

    def _own(self, system: System, *, wide: bool = False, environment: Mapping[str, str] | None = None) -> Player:
        return worker.start(
            system.how, system.spec(self.spec), self.mode, threads=self.options.threads, folder=self.options.data_dir,
            options=system.options, wide=wide, timeout=self.options.timeout, memory=available_memory(),
            environment=environment,
        )  # fmt: skip


def _checked(player: Player, judge: Judge) -> dict[str, Any]:
    """The first call and the verdict."""
    try:
        return {**player.ask("first"), **judge.verdict(result_of(player))}
    except PlayerLost as problem:
        return {"status": str(problem)}


def _close(started: Mapping[str, Player | str]) -> None:
    for player in started.values():
        if isinstance(player, Player):
            player.close()


def dgl_of(spec: Spec) -> System:
    """DGL's layers, or its way of running user-defined functions."""
    return System(DGL_UDF if spec.layer.startswith(USER_DEFINED) else DGL, DGL)
