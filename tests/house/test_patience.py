"""The limits of waiting in tests grow with the slowness of the machine, and none is written anywhere else."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import patience

WAITING = {"communicate", "join", "wait", "acquire", "poll", "result"}
"""Methods whose first argument, if it is a number, is a limit of seconds."""

MEANT = {
    ("test_bench.py", "player", 1.0): "the player shall not answer",
    ("rank_pool.py", "join", 2): "the process is killed afterwards",
    ("test_interrupted.py", "FileLock", 0): "a free lock is taken at once",
}  # fmt: skip
"""(file, function, number) of limits that no busy machine can break, and why."""


def fixed_limits(source: str) -> list[tuple[str, float]]:
    """(function, number) of each call, and of each default of an argument, that is a limit written there."""
    found: list[tuple[str, ast.expr | None]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            found += [(name, word.value) for word in node.keywords if (word.arg or "").endswith("timeout")]
            if name in WAITING and isinstance(node.func, ast.Attribute):
                found += [(name, limit) for limit in node.args[:1]]
        elif isinstance(node, ast.FunctionDef):
            last = node.args.args[len(node.args.args) - len(node.args.defaults) :]
            defaults = zip([*last, *node.args.kwonlyargs], [*node.args.defaults, *node.args.kw_defaults], strict=True)
            found += [(node.name, value) for arg, value in defaults if arg.arg.endswith("timeout")]
    numbers = [(name, limit.value) for name, limit in found if isinstance(limit, ast.Constant)]
    return [(name, n) for name, n in numbers if isinstance(n, int | float) and not isinstance(n, bool)]


def test_no_limit_is_fixed() -> None:
    folder = Path(__file__).parents[1]
    found = {
        (path.name, *limit) for path in folder.rglob("*.py") for limit in fixed_limits(path.read_text(encoding="utf-8"))
    }
    assert found == set(MEANT), "take limits from tests/patience.py"


def test_fixed_limits_are_found() -> None:
    source = (
        "p.communicate(timeout=120)\nt.join(2.5)\n', '.join(x)\nsubprocess.run(a, timeout=f(1))\n"
        "def g(a, timeout=5.0, *, b=2): ...\n"
    )
    assert sorted(fixed_limits(source)) == [("communicate", 120), ("g", 5.0), ("join", 2.5)]


def test_limits_grow_with_slowness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    monkeypatch.setattr(patience, "_reference", lambda: None)
    assert patience.seconds(7) == 7
    monkeypatch.setattr(patience, "_reference", lambda: time.sleep(4 * patience.REFERENCE_SECONDS))
    assert patience.seconds(7) >= 28
    monkeypatch.setattr(patience, "_reference", lambda: None)
    monkeypatch.setattr(os, "getloadavg", lambda: (6.0 * (os.cpu_count() or 1), 0.0, 0.0))
    assert patience.seconds(7) == 42


def test_a_process_is_given_more_time_if_the_machine_becomes_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = iter([0.01, 600.0])
    monkeypatch.setattr(patience, "seconds", lambda quiet: next(limits))
    program = [sys.executable, "-c", "import time; time.sleep(0.3); print('done')"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert patience.outputs(process)[0] == "done\n"
    assert next(limits, None) is None


def test_what_hangs_is_ended_by_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "seconds", lambda quiet: 0.1)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], text=True) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            patience.outputs(process)
        process.kill()
