"""Measures the cases that a benchmark declares: first call, check, then turns; one record and one table for all."""

from __future__ import annotations

import gc
import json
import math
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from bench.case import EXACT, IN_FLOAT64, Bench, Case, Numbers, options_of, sizes_of
from bench.common import available_memory, in_fresh_process, ratio_table
from bench.record import Record
from bench.steps import Result, read_result, write_arrays
from bench.turns import MALLOC, SETTLE_SECONDS, Answering, Player, PlayerLost, summary, take_turns
from bench.worker import asked

SLOW_SECONDS = 20.0
"""Steps of a slow peer end once they took about this time: a step that takes as long is known well enough by one."""


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
        self._failed: dict[str, str] = {}  # peer that could not be measured -> why
        self._peers = [peer for peer in case.peers if not options.systems or peer in options.systems]

    def run(self) -> dict[str, dict[str, Any]]:
        """Peer -> its answer: `status`, the seconds of the first call, errors, and times if its result is right."""
        started: dict[str, Answering] = {}
        found: dict[str, dict[str, Any]] = {}
        self._judges_alone()
        try:
            # the systems that others are compared with stand first, and are not slow: the last need the memory most
            for peer in sorted(reversed(self._peers), key=lambda peer: peer != self._case.check.reference):
                try:
                    started[peer] = self._start(peer)
                    found[peer] = self._first(peer, started[peer])
                    if self._is_slow(peer, found[peer]):
                        found[peer].update(self._steps_of_slow(started[peer], found[peer]["warm"]))
                except (PlayerLost, OSError) as problem:
                    found[peer] = {"status": str(problem)}
                    self._failed[peer] = str(problem)
                if peer in started and (found[peer]["status"] != "ok" or "median" in found[peer]):
                    started.pop(peer).close()  # others may need its memory
            self._time(started, found, self._options.repeats)
        finally:
            for one in started.values():
                one.close()
        found = {peer: found[peer] for peer in self._peers}
        if self._case.memory:
            for peer, peak in self.ask("peak", MALLOC).items():
                found[peer]["peak"] = peak
        return found

    def _noted(self, one: Answering) -> dict[str, Any]:
        try:
            return dict(one.ask("notes"))
        except PlayerLost as problem:
            return {"notes": str(problem)}

    def ask(self, question: str, environment: Mapping[str, str]) -> dict[str, Any]:
        """Peer -> its answer after a first call, by a process that ends then, or why there is none."""
        found: dict[str, Any] = {}
        for peer in self._peers:
            try:
                with self._alone(peer, environment) as one:
                    found[peer] = one.ask(question)
            except (PlayerLost, OSError) as problem:
                found[peer] = str(problem)
        return found

    @contextmanager
    def _alone(self, peer: str, environment: Mapping[str, str], before: str = "first") -> Any:
        one = self._start(peer, environment)
        try:
            one.ask(before)
            yield one
        finally:
            one.close()

    def _is_slow(self, peer: str, answer: Mapping[str, Any]) -> bool:
        right = answer["status"] == "ok" and peer != self._bench.base
        return right and bool(answer["warm"] > self._bench.slow)

    def _steps_of_slow(self, one: Answering, warm: float) -> dict[str, Any]:
        """The times of steps of which the first, the call that gave the result, took `warm` seconds; and its notes."""
        wanted = min(self._bench.slow_repeats, math.ceil(SLOW_SECONDS / warm))
        taken = [warm, *(one.ask("turn", steps=1) for _ in range(wanted - 1))]
        return {**summary(taken), "steps": 1, **(self._noted(one) if self._case.notes is not None else {})}

    def _time(self, peers: Mapping[str, Answering], found: dict[str, dict[str, Any]], repeats: int) -> None:
        settle = SETTLE_SECONDS if self._bench.apart or self._bench.dgl is not None else 0.0
        for peer, timing in take_turns(peers, repeats=repeats, settle=settle).items():
            found[peer].update(timing)
        if self._case.notes is not None:
            for peer, one in peers.items():
                found[peer].update(self._noted(one))

    def _first(self, peer: str, one: Answering) -> dict[str, Any]:
        told = one.ask("first")
        got, warm = self._result(one)
        check = self._case.check
        reference = check.others.get(peer, check.reference)
        if peer in (reference, check.otherwise):
            self._references[peer] = got
        want = self._reference(reference)
        return {**told, "warm": warm, **check.verdict(got, want, self._reference)}

    def _judges_alone(self) -> None:
        """Runs first, while it has all memory, what judges and is not measured itself."""
        check = self._case.check
        for judge in dict.fromkeys(check.others.get(peer, check.reference) for peer in self._peers):
            if judge not in self._peers:
                with suppress(PlayerLost, OSError):  # peers say it that it cannot judge
                    self._reference(judge)

    def _reference(self, peer: str) -> Result:
        """The result of a peer that others are compared with, by a process that ends if it is not measured itself, or
        the result of what takes its place."""
        if peer not in self._references:
            try:
                if peer in self._failed:
                    raise PlayerLost(self._failed[peer])
                with self._alone(peer, {}, "prepare") as one:
                    self._references[peer], _ = self._result(one)
            except PlayerLost as problem:
                self._failed.setdefault(peer, str(problem))
                if (other := self._in_place_of(peer)) is None:
                    raise PlayerLost(f"{peer} cannot judge: {problem}") from None
                self._references[peer] = self._reference(other).rounded()
        return self._references[peer]

    def _in_place_of(self, judge: str) -> str | None:
        """The peer that judges where `judge` cannot run. None: there is none with the same function."""
        check = self._case.check
        if judge == check.reference and check.otherwise in self._case.peers:
            return check.otherwise
        return EXACT if check.exact and judge in (check.reference, check.otherwise) else None

    def _result(self, one: Answering) -> tuple[Result, float]:
        path = self._folder / "result.npz"
        seconds = one.ask("result", path=str(path))
        return read_result(path), seconds

    def _start(self, peer: str, environment: Mapping[str, str] | None = None) -> Answering:
        case, bench, options = self._case, self._bench, self._options
        if case.refusal is not None and (reason := case.refusal(peer, **self._sizes)) is not None:
            raise PlayerLost(reason)
        if self._here is not None and not (bench.dgl is not None and peer.startswith("dgl")):
            return Here(asked(case, peer, self._here).handlers)
        command = self._of_dgl(peer) if bench.dgl is not None and peer.startswith("dgl") else [
            sys.executable, "-m", "bench.worker", "case", bench.module, case.name, peer, *self._argv
        ]  # fmt: skip
        added = {"OMP_NUM_THREADS": str(options.threads), **bench.environment.get(peer, {}), **(environment or {})}
        share = 1.0 if peer in IN_FLOAT64 else 0.85  # what judges runs while the systems that it judges hold theirs
        return Player(command, added, timeout=options.timeout, memory=available_memory(share))

    def _of_dgl(self, peer: str) -> Sequence[str]:
        """The command of a peer in DGL's environment."""
        python, inputs = self._options.dgl_python, self._case.inputs
        assert self._bench.dgl is not None and inputs is not None, f"{self._case.name} has no inputs for DGL"
        if not python.exists():
            raise PlayerLost(f"needs DGL: {python.name} of --dgl-python is absent (`make bench-peers` makes it)")
        path = self._folder / "inputs.npz"
        if not path.exists():
            write_arrays(path, inputs(**self._sizes))
        plain = {name: value for name, value in self._sizes.items() if isinstance(value, str | int | float)}
        notes = getattr(self._case.notes, "__name__", "")
        given = [self._bench.dgl, peer, str(path), json.dumps(plain), str(self._options.threads), notes]
        return [str(python), "-m", "bench.dgl_worker", *given]


def numbers_of(case: Numbers, options: Namespace) -> Any:
    sizes = sizes_of(case, options)
    if case.here:
        return case.measure(**sizes)
    environment = {"OMP_NUM_THREADS": str(options.threads), **case.environment}
    return in_fresh_process(case.measure, environment, timeout=options.timeout, memory=available_memory(), **sizes)


def show(bench: Bench, results: Mapping[str, Any], threads: int) -> None:
    """The table of all cases: a line for each peer, or why there is none."""
    rows = []
    for name, found in results.items():
        if "status" in found:
            rows.append([name, "", found["status"]])
            continue
        if not all(isinstance(one, dict) and "status" in one for one in found.values()):
            continue  # numbers, which `Bench.show` prints
        base = found.get(bench.base, {}).get("median")
        for peer, one in found.items():
            if "median" not in one:
                rows.append([name, peer, short(one["status"])])
                continue
            spread = f"{1e3 * one['median']:.3f} ±{500 * (one['q3'] - one['q1']):.3f}"
            ratio = f"{one['median'] / base:.2f}x" if base else "-"
            more = (text(found, one) for text in bench.columns.values())
            shown = ("first", ".2f"), ("error", ".0e")
            known = (f"{one[key]:{digits}}" if key in one else "" for key, digits in shown)
            rows.append([name, peer, spread, ratio, *known, *more])
    headings = ["case", "peer", "ms, median ± half the IQR", f"/ {bench.base}", "first, s", "error", *bench.columns]
    ratio_table(f"{bench.name}, {threads} threads", headings, rows)


def short(status: str) -> str:
    """The status of a peer without a number, shortened for a table."""
    if "cannot judge" in status:  # the peer may have run, but nothing says that it is right
        return "not judged"
    words = ("allocate memory", "bad_alloc", "MemoryError", "signal 9", "not enough memory")
    if any(word in status for word in words):
        return "out of memory"
    if status.startswith("ScheduleError: "):  # what was refused, then why, then an advice
        return status.rpartition(": ")[2].partition(".")[0]
    return "timeout" if status.startswith("no answer") else status[:60]


def chosen_of(cases: Sequence[Case | Numbers], wanted: Sequence[str]) -> list[Case | Numbers]:
    """The cases with these names; a name that none has stands for all that begin with it."""
    names = {case.name for case in cases}
    if unknown := [one for one in wanted if not any(name.startswith(one) for name in names)]:
        raise SystemExit(f"no case is named {', '.join(unknown)}. There are: {', '.join(sorted(names))}.")
    whole, begun = names.intersection(wanted), tuple(one for one in wanted if one not in names)
    return [case for case in cases if not wanted or case.name in whole or case.name.startswith(begun)]


def measured(bench: Bench, case: Case | Numbers, options: Namespace, argv: Sequence[str]) -> Any:
    if case.missing is not None:
        return {"status": f"skipped: {case.missing}"}
    if isinstance(case, Numbers):
        return numbers_of(case, options)
    with tempfile.TemporaryDirectory() as folder:
        return Measuring(bench, case, options, argv, Path(folder)).run()


def take_small_sizes(options: Namespace, cases: Iterable[Case | Numbers]) -> None:
    """Replace options by the small sizes with which `cases` are measured, so that records and tables tell these."""
    for case in cases:
        for name, size in case.small.items():
            if type(getattr(options, name, None)) is type(size):
                setattr(options, name, size)


def run(bench: Bench, argv: Sequence[str] | None = None) -> int:
    """The command of a benchmark. The exit code is 1 if a result is wrong."""
    argv = sys.argv[1:] if argv is None else argv
    options = options_of(bench, argv)
    torch.set_num_threads(options.threads)
    chosen = chosen_of(list(bench.cases(options)), options.cases)
    if options.quick:
        take_small_sizes(options, chosen)
    of_places = {name for name, default in bench.options.items() if default is Path or isinstance(default, Path)}
    own = {name: getattr(options, name) for name in bench.options if name not in {"data_dir", *of_places}}
    about = {"benchmark": bench.name, "threads": options.threads, "quick": options.quick, "options": own}
    record, end = Record(options.out, about, resume=options.resume), time.monotonic() + options.seconds
    for case in track([case for case in chosen if case.name not in record], "cases"):
        if time.monotonic() < end:
            record[case.name] = measured(bench, case, options, argv)
    if bench.show is None or any(isinstance(case, Case) for case in chosen):
        show(bench, record.results, options.threads)
    if bench.show is not None:
        bench.show(record.results, options)
    return int(any(map(is_wrong, record.results.values())))


def is_wrong(found: Mapping[str, Any]) -> bool:
    """Whether the status of a measurement, or of a peer of a case, begins with "wrong"."""
    answers = [found, *(one for one in found.values() if isinstance(one, dict))]
    return any(str(one.get("status")).startswith("wrong") for one in answers)
