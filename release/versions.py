"""Tries other versions of Python, PyTorch and PyG, each in a bare environment: `make versions`.

    python -m release.versions                    every combination, with the Pythons that are installed
    python -m release.versions --only torch=2.15  those with this release
    python -m release.versions --list             prints the combinations

The smoke test uses the built wheel, and some tests of the repository follow. Each result is written at once to
`release/versions.json`, of which `python -m docs.made` makes a table in docs/versions.md. Environments are made one
after the other and removed, since one with CUDA's libraries takes 8 GB.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from release.built import build
from release.environment import ROOT, Environment, Failed, bare_environment, say
from release.package import DIST, smoke

RECORD = Path(__file__).parent / "versions.json"
TESTS = (
    "frontends/spellings/test_losses",
    "frontends/dynamo/test_convolutions",
    "frontends/dynamo/test_dynamic",
    "frontends/halves/test_second_derivatives",
    "udf/test_udf_builtins",
)
"""Test files for every combination, in `tests/`: numbers and gradients, convolutions, sizes that change, gradients of
gradients, and messages by name."""
_TOOLS = ("pytest", "hypothesis")
_ENDED = re.compile(r"(\d+) (passed|failed|errors?|skipped)")


@dataclass(frozen=True, slots=True)
class Combination:
    """Releases that are tried together: "3.13" for its newest installed patch release, others as pip takes them."""

    python: str
    torch: str
    torch_geometric: str

    def has(self, only: str) -> bool:
        """Whether `only`, as "torch=2.15", is one of its releases."""
        name, _, release = only.partition("=")
        return f"{getattr(self, name)}.".startswith(f"{release}.")


@dataclass(frozen=True, slots=True)
class Result:
    """How a combination ended, on a date. `why` is the first thing that failed, or ""."""

    combination: Combination
    smoke: bool
    passed: int
    failed: int
    why: str
    date: str


COMBINATIONS = (
    Combination("3.11", "2.9.1", "2.6.1"),
    Combination("3.10", "2.10.0", "2.7.0"),
    Combination("3.11", "2.11.0", "2.7.0"),
    Combination("3.12", "2.12.1", "2.8.1"),
    Combination("3.10", "2.13.0", "2.7.0"),
    Combination("3.11", "2.13.0", "2.6.1"),
    Combination("3.11", "2.14.1", "2.8.1"),
    Combination("3.13", "2.15.0", "2.8.1"),
)
"""Every minor release of PyTorch since 2.9, and every Python and PyG with one of them. `.ci/run` has others."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    arguments.add_argument("--only", action="append", default=[], metavar="NAME=RELEASE", help="such as torch=2.15")
    arguments.add_argument("--list", action="store_true", help="print the combinations and try none")
    arguments.add_argument("--wheel", type=Path, help="a built wheel (default: build one)")
    given = arguments.parse_args()
    chosen = [c for c in COMBINATIONS if all(c.has(only) for only in given.only)]
    if given.list:
        say("\n".join(described(c) for c in chosen))
        return
    wheel = given.wheel or built_wheel()
    for combination in chosen:
        result = tried(combination, wheel)
        write(result)
        say(f"{described(combination)}: {result.why or f'{result.passed} tests passed'}")


def built_wheel() -> Path:
    with bare_environment() as tools:
        tools.install("build", "twine")
        return build(tools, DIST).wheel


def described(combination: Combination) -> str:
    return ", ".join(f"{name} {release}" for name, release in asdict(combination).items())


def tried(combination: Combination, wheel: Path) -> Result:
    """Install the combination, and use it. What fails is the result, whatever it is."""
    today = datetime.date.today().isoformat()
    python = interpreter(combination.python)
    if python is None:
        return Result(combination, False, 0, 0, f"python{combination.python} is not installed", today)
    try:
        with bare_environment(python) as bare:
            bare.install(f"torch=={combination.torch}")
            # named again, since pip would take another one where the wheel accepts none that old
            pinned = f"torch=={combination.torch}", f"torch_geometric=={combination.torch_geometric}"
            bare.install(f"{wheel}[pyg,train]", *pinned)
            smoke(bare, "cpp")
            passed, failed, first = tests(bare)
            return Result(combination, True, passed, failed, first, today)
    except Failed as error:
        return Result(combination, False, 0, 0, last_words(str(error)), today)


def last_words(output: str) -> str:
    """The last line of an output, where Python and pip say what was wrong, without the environment's paths."""
    lines = output.strip().splitlines() or ["nothing was printed"]
    return re.sub(r" \((?:/|\.\./)\S+\)", "", lines[-1])[:250]


def interpreter(release: str) -> str | None:
    """The command of an installed Python of this release, on the path or among pyenv's; None if there is none."""
    others = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{release}.*/bin/python")
    for command in (shutil.which(f"python{release}"), *map(str, sorted(others))):
        if (
            command is not None
            and subprocess.run([command, "--version"], capture_output=True, check=False).returncode == 0
        ):
            return command
    return None


def tests(bare: Environment) -> tuple[int, int, str]:
    """The numbers of tests of `TESTS` that pass and fail, and the first that fails."""
    bare.install(*_TOOLS)
    files = [f"tests/{name}.py" for name in TESTS]
    command = [str(bare.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=ROOT, env=bare.environ(), capture_output=True, text=True, check=False)
    counts = {what.rstrip("s"): int(n) for n, what in _ENDED.findall(done.stdout.strip().splitlines()[-1])}
    wrong = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if not counts.get("passed"):
        raise Failed(f"expected tests to pass (got {done.stdout[-2000:]}{done.stderr[-2000:]})")
    return counts["passed"], counts.get("failed", 0) + counts.get("error", 0), ", ".join(wrong[:1])


def write(result: Result) -> None:
    """Put a result into the record, in place of the last of the same combination."""
    kept = {described(r.combination): r for r in read()} | {described(result.combination): result}
    order = [described(c) for c in COMBINATIONS if described(c) in kept]
    RECORD.write_text(json.dumps([asdict(kept[name]) for name in order], indent=1) + "\n", encoding="utf-8")


def read() -> list[Result]:
    if not RECORD.exists():
        return []
    rows = json.loads(RECORD.read_text(encoding="utf-8"))
    return [Result(**{**row, "combination": Combination(**row["combination"])}) for row in rows]


if __name__ == "__main__":
    main()
