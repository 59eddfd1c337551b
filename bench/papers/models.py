"""Measures whole models: systems in processes of their own, checked against eager PyG, timed in turns."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.common import available_memory
from bench.judge import Judge, result_of
from bench.papers import worker
from bench.papers.cells import OURS
from bench.papers.spec import USER_DEFINED, Spec
from bench.relational_systems import MALLOC
from bench.turns import Player, PlayerLost, take_turns

PYG, DGL, DGL_UDF = "PyG", "DGL", "DGL-UDF"
"""Peers: PyG's layers in eager mode, DGL's own layers, and DGL running user-defined functions."""


@dataclass(frozen=True, slots=True)
class System:
    """A system by its name in tables. `options` are graphweave's. `how` is who runs it, `spec` another model for it."""

    name: str
    how: str = worker.OURS
    options: Mapping[str, Any] = field(default_factory=dict)
    layer: str | None = None

    def spec(self, spec: Spec) -> Spec:
        if self.layer is None:
            return spec
        return Spec(self.layer, spec.graph, spec.inputs, spec.widths, spec.heads, spec.pseudo, spec.kernels)


GRAPHWEAVE, EAGER = System(OURS), System(PYG, worker.EAGER)


class Measurement:
    """One model on one graph in one mode, by several systems."""

    def __init__(self, options: argparse.Namespace, spec: Spec, mode: str) -> None:
        self.options, self.spec, self.mode = options, spec, mode

    def times(self, systems: list[System], *, moved: bool = False) -> dict[str, dict[str, Any]]:
        """Name -> what `take_turns` says, or {"status": reason}. A system with wrong results is not timed.

        With `moved`, systems other than eager PyG also say under "moved" which bytes a step moves.
        """
        answers: dict[str, dict[str, Any]] = {}
        players: dict[str, Player] = {}
        judge = Judge(lambda wide: self._own(EAGER, wide=wide))
        with tempfile.TemporaryDirectory() as folder:
            try:
                for system in systems:
                    answers[system.name] = self._ready(system, Path(folder) / "case.npz", judge, players)
                known = {name: answer["first"] for name, answer in answers.items() if name in players}
                slow = {name: players[name] for name, first in known.items() if first > 60}
                quick = {name: player for name, player in players.items() if name not in slow}
                for name, timing in take_turns(quick, repeats=self.options.repeats).items():
                    answers[name].update(timing)
                for name, timing in take_turns(slow, repeats=1, warmup=0).items():
                    answers[name].update(timing)
                for system in systems:
                    if moved and system.name in players and system.how != worker.EAGER:
                        answers[system.name]["moved"] = _asked(players[system.name], "moved")
            finally:
                for player in players.values():
                    player.close()
        return answers

    def _ready(self, system: System, case: Path, judge: Judge, players: dict[str, Player]) -> dict[str, Any]:
        """The first call and the verdict; the player is kept if its result is right."""
        try:
            player = self._start(system, case)
        except PlayerLost as problem:
            return {"status": str(problem)}
        if isinstance(player, str):
            return {"status": player}
        try:
            answer = {**player.ask("first"), **judge.verdict(result_of(player))}
        except PlayerLost as problem:
            answer = {"status": str(problem)}
        if answer["status"] == "ok":
            players[system.name] = player
        else:
            player.close()
        return answer

    def peaks(self, systems: list[System]) -> dict[str, int | str]:
        """Name -> the peak bytes of one step beyond those before it, each in a process of its own."""
        found: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as folder:
            for system in systems:
                try:
                    player = self._start(system, Path(folder) / "case.npz", MALLOC)
                    if isinstance(player, str):
                        found[system.name] = player
                        continue
                except PlayerLost as problem:
                    found[system.name] = str(problem)
                    continue
                try:
                    found[system.name] = player.ask("peak")
                except PlayerLost as problem:
                    found[system.name] = str(problem)
                finally:
                    player.close()
        return found

    def _start(self, system: System, case: Path, environment: Mapping[str, str] | None = None) -> Player | str:
        """The process of a system, or why it is left out."""
        if system.how != DGL:
            return self._own(system, environment=environment)
        if self.options.dgl_python is None:
            return "needs --dgl-python"
        if not case.exists():
            writer = self._own(EAGER)
            try:
                writer.ask("save_case", path=str(case))
            finally:
                writer.close()
        threads = str(self.options.threads)
        given = [system.spec(self.spec).text(), self.mode, str(case), "--threads", threads]
        command = [str(self.options.dgl_python), "-m", "bench.papers.dgl_worker", *given]
        return Player(
            command, {"OMP_NUM_THREADS": threads, "DGLBACKEND": "pytorch", **(environment or {})},
            timeout=self.options.timeout, memory=available_memory(),
        )  # fmt: skip

    def _own(self, system: System, *, wide: bool = False, environment: Mapping[str, str] | None = None) -> Player:
        return worker.start(
            system.how, system.spec(self.spec), self.mode, threads=self.options.threads, folder=self.options.data_dir,
            options=system.options, wide=wide, timeout=self.options.timeout, memory=available_memory(),
            environment=environment,
        )  # fmt: skip


def _asked(player: Player, question: str) -> dict[str, Any]:
    """The answer, or the reason why there is none."""
    try:
        found: dict[str, Any] = player.ask(question)
    except PlayerLost as problem:
        return {"status": str(problem)}
    return found


def dgl_of(spec: Spec) -> System:
    """DGL's layers, or its way of running user-defined functions."""
    return System(DGL_UDF if spec.layer.startswith(USER_DEFINED) else DGL, DGL)
