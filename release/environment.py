"""Bare virtual environments, in which a built package is installed and run as a stranger would."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
_OWN = ("GRAPHWEAVE_", "PYTHON", "VIRTUAL_ENV", "CXX", "MAKE")
"""Variables that begin so are not handed to a bare environment."""


class Failed(Exception):
    """A step of a release failed; the message says which and how it ended."""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run(
    command: Sequence[str], cwd: Path, environ: dict[str, str] | None = None, status: int = 0
) -> subprocess.CompletedProcess[str]:
    """What a command printed. Failed if its status is another one."""
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    if done.returncode != status:
        shown = " ".join(command)
        raise Failed(f"{shown}: expected status {status} (got {done.returncode})\n{done.stdout}{done.stderr}")
    return done


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment in `folder`, with its own home for caches. Nothing of this process is seen in it."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "venv/bin/python"

    def install(self, *requirements: str) -> None:
        """Install packages by pip, from the index that pip is configured for. Modules are compiled when imported."""
        command = [str(self.python), "-m", "pip", "install", "--quiet", "--no-compile", *requirements]
        run(command, self.folder, self.environ())

    def run(self, *arguments: str, tools: bool = True, status: int = 0) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments in the environment's folder. Without `tools`, no other program is found."""
        environ = self.environ()
        if not tools:
            environ["PATH"] = str(self.folder / "nothing")
        return run([str(self.python), *arguments], self.folder, environ, status)

    def forget(self) -> None:
        """Remove what graphweave has kept on disk."""
        shutil.rmtree(self.folder / "cache", ignore_errors=True)

    def environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OWN)}
        return kept | {"XDG_CACHE_HOME": str(self.folder / "cache"), "PIP_NO_WARN_SCRIPT_LOCATION": "1"}


@contextmanager
def bare_environment(python: str = sys.executable) -> Iterator[Environment]:
    """A new virtual environment of this Python, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="graphweave-") as name:
        made = Environment(Path(name))
        run([python, "-m", "venv", str(made.folder / "venv")], made.folder, made.environ())
        yield made
