"""Measures the cases that a benchmark declares: first call, check, then turns; one record and one table for all."""

from __future__ import annotations

import gc
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from bench.case import EXACT, Bench, Case, options_of, sizes_of
from bench.check import Result
from bench.common import available_memory, ratio_table
from bench.record import Record
from bench.turns import SETTLE_SECONDS, Answering, Player, PlayerLost, take_turns
from bench.worker import Asked, read_result, write_arrays


class Here:
    """A peer in this process. What it raises is an answer, as that of a process is."""

    def __init__(self, handlers: Mapping[str, Callable[..., Any]]) -> None:
        self._handlers = dict(handlers)

    def ask(self, do: str, **given: Any) -> Any:
        try:
            return self._handlers[do](**given)
        except Exception as problem:  # a peer that fails is a result of a benchmark
            raise PlayerLost(f"{type(problem).__name__}: {problem}"[:300]) from problem

    def close(self) -> None:
        self._handlers.clear()
        gc.collect()


class Measuring:
    """One case: its peers while they run, and the results that they are compared with."""

    def __init__(self, bench: Bench, case: Case, options: Namespace, argv: Sequence[str], folder: Path) -> None:
        self._bench, self._case, self._options, self._argv, self._folder = bench, case, options, argv, folder
        self._sizes = sizes_of(case, options)
        self._here = None if bench.apart else case.build(**self._sizes)
        self._references: dict[str, Result] = {}

    def run(self) -> dict[str, dict[str, Any]]:
        """Peer -> its answer: `status`, the seconds of the first call, errors, and times if its result is right."""
        peers = [peer for peer in self._case.peers if not self._options.systems or peer in self._options.systems]
        asked: dict[str, Answering] = {}
        found: dict[str, dict[str, Any]] = {}
        try:
            for peer in peers:
                try:
                    asked[peer] = self._start(peer)
                    found[peer] = self._first(peer, asked[peer])
                except (PlayerLost, OSError) as problem:
                    found[peer] = {"status": str(problem)}
            right = {peer: one for peer, one in asked.items() if found[peer]["status"] == "ok"}
            settle = SETTLE_SECONDS if self._bench.apart else 0.0
            for peer, timing in take_turns(right, repeats=self._options.repeats, settle=settle).items():
                found[peer].update(timing)
            if self._case.notes is not None:
                for peer, one in right.items():
                    found[peer].update(one.ask("notes"))
        finally:
            for one in asked.values():
                one.close()
        return found

    def _first(self, peer: str, asked: Answering) -> dict[str, Any]:
        first = asked.ask("first")
        told = first if isinstance(first, dict) else {"first": first}
        got = self._result(asked)
        check = self._case.check
        if peer == check.reference:
            self._references[peer] = got
        want = self._reference(check.reference)
        return {**told, **check.verdict(got, want, (lambda: self._reference(EXACT)) if check.exact else None)}

    def _reference(self, peer: str) -> Result:
        """The result of a peer that others are compared with, by a process that ends if it is not measured itself."""
        if peer not in self._references:
            asked = self._start(peer)
            try:
                asked.ask("first")
                self._references[peer] = self._result(asked)
            finally:
                asked.close()
        return self._references[peer]

    def _result(self, asked: Answering) -> Result:
        path = self._folder / "result.npz"
        asked.ask("result", path=str(path))
        return read_result(path)

    def _start(self, peer: str) -> Answering:
        if self._here is not None:
            return Here(Asked(self._case, peer, self._here).handlers)
        bench, options = self._bench, self._options
        command: Sequence[str] | None = None
        if bench.elsewhere is not None:
            command = bench.elsewhere(peer, self._case, self._inputs(), options)
        if command is None:
            command = [sys.executable, "-m", "bench.worker", "case", bench.module, self._case.name, peer, *self._argv]
        environment = {"OMP_NUM_THREADS": str(options.threads), **bench.environment.get(peer, {})}
        return Player(command, environment, timeout=options.timeout, memory=available_memory())

    def _inputs(self) -> Path:
        path = self._folder / "inputs.npz"
        if self._case.inputs is not None and not path.exists():
            write_arrays(path, self._case.inputs(**self._sizes))
        return path


def show(bench: Bench, results: Mapping[str, Any], threads: int) -> None:
    """The table of all cases: a line for each peer, or why there is none."""
    rows = []
    for name, found in results.items():
        if "status" in found:
            rows.append([name, "", found["status"]])
            continue
        base = found.get(bench.base, {}).get("median")
        for peer, one in found.items():
            if "median" not in one:
                rows.append([name, peer, one["status"]])
                continue
            spread = f"{1e3 * one['median']:.3f} ±{500 * (one['q3'] - one['q1']):.3f}"
            ratio = f"{one['median'] / base:.2f}x" if base else "-"
            more = (text(found, one) for text in bench.columns.values())
            rows.append([name, peer, spread, ratio, f"{one['first']:.2f}", f"{one['error']:.0e}", *more])
    headings = ["case", "peer", "ms, median ± half the IQR", f"/ {bench.base}", "first, s", "error", *bench.columns]
    ratio_table(f"{bench.name}, {threads} threads", headings, rows)


def chosen_of(cases: Sequence[Case], wanted: Sequence[str]) -> list[Case]:
    """The cases with these names; a name that none has stands for all that begin with it."""
    names = {case.name for case in cases}
    if unknown := [one for one in wanted if not any(name.startswith(one) for name in names)]:
        raise SystemExit(f"no case is named {', '.join(unknown)}. There are: {', '.join(sorted(names))}.")
    whole, begun = names.intersection(wanted), tuple(one for one in wanted if one not in names)
    return [case for case in cases if not wanted or case.name in whole or case.name.startswith(begun)]


def run(bench: Bench, argv: Sequence[str] | None = None) -> int:
    """The command of a benchmark. The exit code is 1 if a result is wrong."""
    argv = sys.argv[1:] if argv is None else argv
    options = options_of(bench, argv)
    torch.set_num_threads(options.threads)
    chosen = chosen_of(list(bench.cases(options)), options.cases)
    asked = {name: getattr(options, name) for name in bench.options if name != "data_dir"}
    about = {"benchmark": bench.name, "threads": options.threads, "quick": options.quick, "options": asked}
    record = Record(options.out, about, resume=options.resume)
    for case in track([case for case in chosen if case.name not in record], "cases"):
        if case.missing is not None:
            record[case.name] = {"status": f"skipped: {case.missing}"}
            continue
        with tempfile.TemporaryDirectory() as folder:
            record[case.name] = Measuring(bench, case, options, argv, Path(folder)).run()
    show(bench, record.results, options.threads)
    answers = [one for found in record.results.values() for one in found.values() if isinstance(one, dict)]
    return int(any(one["status"].startswith("wrong") for one in answers))
