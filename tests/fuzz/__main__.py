"""`python -m tests.fuzz --minutes N --seed S`: random programs for N minutes; status 1 if any of them went wrong."""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fuzz import device
from tests.fuzz.grow import DOORS, grow, grow_for_ranks
from tests.fuzz.judge import without_numbers
from tests.fuzz.worker import work, work_over_ranks
from tests.patience import seconds

PROGRAM = 150.0
"""Seconds without a sign of life after which a program counts as hanging, on a quiet machine; shrinking gives signs of
its own."""


def main() -> int:
    options = _options()
    out = options.out or Path(tempfile.mkdtemp(prefix="fuzz"))
    out.mkdir(parents=True, exist_ok=True)
    seed = random.randrange(10**9) if options.seed is None else options.seed
    doors = (options.door,) if options.door else DOORS
    device.choose(options.device)
    if options.work and options.ranks:
        work_over_ranks(seed, options.until, options.ranks, out, options.shrink_seconds)
        return 0
    if options.work:
        work(seed, options.until, doors, out, options.shrink_seconds, options.only)
        return 0
    if options.show:
        print(grow_for_ranks(seed).case if options.ranks else grow(seed, doors, options.only).case)
        return 0
    print(f"fuzzing for {options.minutes:g} minutes from seed {seed}; findings go to {out}", flush=True)
    return watch(seed, time.time() + 60 * options.minutes, options, out)


def watch(seed: int, end: float, options: argparse.Namespace, out: Path) -> int:
    """Runs workers, one after another, each from where the last one stopped or fell."""
    results: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    began = time.time()
    while time.time() < end:
        command = [sys.executable, "-m", "tests.fuzz", "--work", "--seed", str(seed), "--until", str(end)]
        command += ["--device", options.device, "--out", str(out), "--shrink-seconds", str(options.shrink_seconds)]
        command += ["--door", options.door] if options.door else []
        command += ["--ranks", str(options.ranks)] if options.ranks else []
        command += ["--only", options.only] if options.only else []
        log = (out / "worker.log").open("a")
        environment = {**os.environ, "GRAPHWEAVE_CACHE_DIR": str(out / "kernels"), "OMP_WAIT_POLICY": "PASSIVE"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        seed, running = _follow(process, seed, results, refusals, out)
        if running:
            why = "hangs" if process.returncode == -9 else f"ends the process with status {process.returncode}"
            results["found"] += 1
            case = grow_for_ranks(seed).case if options.ranks else grow(seed, doors=DOORS, only=options.only).case
            (out / f"process_{seed}.txt").write_text(f"{why}\n\n{case}\n")
            print(f"program {seed} {why}: {out}/process_{seed}.txt and worker.log", flush=True)
        seed += 1
    minutes = (time.time() - began) / 60
    programs = sum(results.values()) - results["lost a message"]
    print(f"{programs} programs in {minutes:.1f} minutes ({programs / minutes:.1f} a minute): {dict(results)}")
    for why, count in refusals.most_common():
        print(f"  refused {count}: {why}")
    return 1 if results["found"] else 0


def _follow(
    process: subprocess.Popen[str], seed: int, results: Counter[str], refusals: Counter[str], out: Path
) -> tuple[int, bool]:
    """Reads what a worker tells until it ends: the last program it began, and whether that one was still running."""
    assert process.stdout is not None
    running = False
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(seconds(PROGRAM)):
                process.kill()
                process.wait()
                return seed, running
            line = process.stdout.readline()
            if not line:
                process.wait()
                return seed, running
            event = json.loads(line)
            seed, running = event["seed"], event["event"] != "done"
            if not running:
                result = event["result"]
                results[result.split(":")[0].split(";")[0]] += 1
                results["lost a message"] += result.endswith("a message was lost once")
                if result.startswith("refused"):
                    refusals[_shortly(result)] += 1
                (out / "results.txt").open("a").write(f"{seed} {result}\n")
                if result.startswith("found"):
                    print(f"program {seed} {result}", flush=True)


def _shortly(refusal: str) -> str:
    """The message of a refusal without the place, so that it is the same for all programs."""
    return without_numbers(re.sub(r" \(/.*", "", refusal.split(": ", 2)[-1]))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long to look for faults")
    parser.add_argument("--seed", type=int, help="number of the first program (random, and printed, if left out)")
    parser.add_argument("--door", choices=sorted(set(DOORS)), help="compile through this door alone")
    parser.add_argument("--device", default="cpu", help="run compiled programs there: cpu, or cuda")
    parser.add_argument("--ranks", type=int, default=0, help="run programs over the parts of graphs on so many ranks")
    parser.add_argument("--only", choices=("products", "choices"), help="only programs of this kind")
    parser.add_argument("--out", type=Path, help="folder for scripts of findings (a temporary one if left out)")
    parser.add_argument("--shrink-seconds", type=float, default=60.0, help="how long to make a finding smaller")
    parser.add_argument("--show", action="store_true", help="print the program of that seed and stop")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, default=0.0, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
