"""Runs a program like `python -c` does, in a process that has imported PyTorch and nothing of graphweave.

Importing PyTorch takes most of the time of a short program. One process for each worker of the tests imports it, and
forks for each program. A test of whether PyTorch is imported at all starts Python itself.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent


def run(program: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The status and the output of a program, whose environment is this process's own by default."""
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        request = [program, dict(os.environ if environment is None else environment), str(out), str(err)]
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        return subprocess.CompletedProcess(program, status, out.read_text(), err.read_text())


def checked(program: str, environment: Mapping[str, str] | None = None) -> str:
    """The output of a program. Fails if the program does."""
    done = run(program, environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def _server() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.fresh_process"]
    server = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(server.communicate)  # closes its input, and waits for it
    return server


def _serve() -> None:
    import torch  # noqa: F401

    for line in sys.stdin:
        program, environment, out, err = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(environment, out, err)
            main = sys.modules["__main__"] = ModuleType("__main__")
            exec(compile(program, "<string>", "exec"), vars(main))
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _become(environment: dict[str, str], out: str, err: str) -> None:
    """Let this process have an environment of its own, no input, and outputs in two files."""
    os.environ.clear()
    os.environ.update(environment)
    for descriptor, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, out, os.O_WRONLY | os.O_CREAT),
        (2, err, os.O_WRONLY | os.O_CREAT),
    ):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)


if __name__ == "__main__":
    _serve()
