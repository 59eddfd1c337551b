"""One process of the fuzzer: case after case, each finding shrunk, written down once, and the search goes on."""

from __future__ import annotations

import json
import re
import resource
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tests.fuzz.case import Case, Door, Kind
from tests.fuzz.grow import grow, grow_for_ranks
from tests.fuzz.judge import Finding, Unfair, is_of_pytorch, judge, through_door, without_numbers
from tests.fuzz.over_ranks import RankJudge
from tests.fuzz.script import rank_script, script
from tests.fuzz.shrink import shrink

MAX_RESIDENT = 6 << 30
"""Bytes of memory at which a fresh process takes over, because loaded kernels are never unloaded."""


Compiler = Callable[[Case], Callable[..., Any]]
Judge = Callable[[Case], Finding | None]
"""Gives the first fault of a case, None if it is right. Raises Unfair."""


Script = Callable[[Case, Finding, str], str]
"""The text of a script from the case, what is wrong, and how it was found."""


def tell(**event: Any) -> None:
    """Writes one line of JSON for the process that watches this one."""
    print(json.dumps(event), file=sys.__stdout__, flush=True)


def signature(finding: Finding, case: Case) -> str:
    """A text that findings of the same fault share: what was raised and where, or what is wrong with which calls."""
    if finding.kind in ("crash", "fallback", "untraced"):
        return f"{finding.kind} {finding.where} {without_numbers(finding.what.split(': ', 1)[-1])}"
    calls = sorted(set(re.findall(r"(?:\.|\b)([a-z_]+)\(", case.source.split("\n", 1)[1])))
    writes = "writes" if re.search(r"\] ?[-+*]?= |_\(", case.source) else ""
    return f"{finding.kind} {' '.join(calls)} {writes}"


def work(
    first: int, end: float, doors: tuple[Door, ...], out: Path, shrinking: float, only: Kind | None = None
) -> None:
    def one(seed: int, seconds: float) -> str:
        return search(seed, doors, out, seconds, only=only)

    _work(first, end, shrinking, one)


def work_over_ranks(first: int, end: float, size: int, out: Path, shrinking: float) -> None:
    """As `work`, over that many ranks."""
    with closing(RankJudge(size)) as judge_it:

        def one(seed: int, seconds: float) -> str:
            lost = judge_it.lost
            result = _searched(seed, grow_for_ranks(seed).case, out, seconds, judge_it, rank_script(size))
            return f"{result}; a message was lost once" if judge_it.lost > lost else result

        _work(first, end, shrinking, one)


def _work(first: int, end: float, shrinking: float, one: Callable[[int, float], str]) -> None:
    torch.set_num_threads(1)
    seed = first
    while time.time() < end:
        tell(event="start", seed=seed)
        try:
            tell(event="done", seed=seed, result=one(seed, min(shrinking, max(end - time.time(), 10))))
        except Unfair as why:
            tell(event="done", seed=seed, result=f"unfair: {str(why)[:80]}")
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > MAX_RESIDENT:
            return
        seed += 1


def search(
    seed: int,
    doors: tuple[Door, ...],
    out: Path,
    shrinking: float,
    compiled: Compiler = through_door,
    only: Kind | None = None,
) -> str:
    """Judges one program; a finding that is new to the folder `out` is shrunk and written there."""
    return _searched(seed, grow(seed, doors, only).case, out, shrinking, lambda case: judge(case, compiled), script)


def _searched(seed: int, case: Case, out: Path, shrinking: float, judged: Judge, written: Script) -> str:
    finding = judged(case)
    if finding is None:
        return "right"
    if finding.kind == "refused":
        return f"refused: {finding.what}"
    if is_of_pytorch(case, finding):
        return f"pytorch: {finding.kind}"
    seen = {line for file in out.glob("*.seen") for line in file.read_text().splitlines()}
    early = signature(finding, case)
    if finding.kind in ("crash", "fallback", "untraced") and early in seen:
        return f"again: {early}"

    def same(smaller: Case) -> bool:
        try:
            found = judged(smaller)
        except Unfair:
            return False
        return found is not None and _alike(found, finding, case)

    small = shrink(case, same, shrinking)
    final = judged(small) or finding
    if is_of_pytorch(small, final):
        return f"pytorch: {final.kind}"
    late = signature(final, small)
    if late in seen:
        return f"again: {late}"
    name = re.sub(r"\W+", "_", final.kind) + f"_{seed}"
    (out / f"{name}.py").write_text(written(small, final, f"Found by `python -m tests.fuzz`, program {seed}."))
    (out / f"{name}.seen").write_text(f"{early}\n{late}\n")
    (out / f"{name}.json").write_text(json.dumps(asdict(final)))
    return f"found: {name}: {final.what[:200]}"


def _alike(found: Finding, first: Finding, case: Case) -> bool:
    if found.kind != first.kind:
        return False
    return first.kind.startswith("wrong") or found.kind in ("unequal calls", "no error") or (
        signature(found, case) == signature(first, case)
    )  # fmt: skip
