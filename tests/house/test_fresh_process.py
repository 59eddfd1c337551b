"""Programs in fresh processes: outputs, status, environment, and what is imported (`fresh_process.py`)."""

from __future__ import annotations

import os

from tests import fresh_process


def test_a_program_has_its_environment_and_its_outputs() -> None:
    program = "import os, sys\nprint(os.environ['OWN'], __name__, file=sys.stderr)\nprint('out')\nsys.exit(3)"
    done = fresh_process.run(program, {**os.environ, "OWN": "mine"})
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "mine __main__\n")


def test_errors_are_told_and_do_no_harm_to_the_next_program() -> None:
    failed = fresh_process.run("import atexit\natexit.register(print, 'at the end')\nraise ValueError('wrong')")
    assert failed.returncode == 1 and failed.stdout == "at the end\n" and "ValueError: wrong" in failed.stderr
    assert fresh_process.checked("name = 'second'\nprint(name)") == "second\n"


def test_a_program_begins_with_pytorch_and_nothing_of_ours() -> None:
    loaded = set(fresh_process.checked("import sys\nprint(*sys.modules)").split())
    assert "torch" in loaded and not {m for m in loaded if m.partition(".")[0] == "graphweave"}
    assert loaded.isdisjoint({"torch._dynamo", "sympy", "torch_geometric"})
