"""The versions of other packages with which this one is tested: the one table, of which docs/versions.md is made."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from graphweave.core.log import logger


@dataclass(frozen=True, slots=True)
class Releases:
    """Releases of a package, as "2.13" for every 2.13.x.

    `oldest` is what pyproject.toml asks for ("" for any), `checked` the releases in which every check of `.ci/run`
    passes, `tried` the newest in which the test suite was run by hand, if it is newer.
    """

    oldest: str
    checked: str
    tried: str = ""

    @property
    def newest(self) -> str:
        return self.tried or self.checked


TESTED: dict[str, Releases] = {
    "torch": Releases("2.11", "2.13"),
    "torch_geometric": Releases("2.6", "2.8"),
    "triton": Releases("", "3.9"),
    "jax": Releases("0.6", "0.10"),
    "numpy": Releases("", "2.4"),
    "scipy": Releases("", "1.17"),
    "scikit-learn": Releases("", "1.9"),
    "networkx": Releases("", "3.6"),
    "matplotlib": Releases("", "3.11"),
    "pandas": Releases("2.2", "3.1"),
    "pyarrow": Releases("", "26"),
    "sqlalchemy": Releases("2", "2.1"),
    "pymetis": Releases("2025.2", "2025.2"),
    "ase": Releases("3.23", "3.29"),
    "pytest": Releases("", "9"),
    "hypothesis": Releases("", "6"),
}
"""Distribution -> its releases. Packages whose behaviour or warnings the tests meet."""


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (2, 13, 0) for "2.13.0+cpu"."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def is_release(version: str, series: str) -> bool:
    """Whether `version` is one of the releases that `series` stands for."""
    wanted = numbers(series)
    return numbers(version)[: len(wanted)] == wanted


def newer_than_tested(package: str, version: str) -> str | None:
    """One line for a release of `package` that is newer than every tested one; None for others."""
    newest = TESTED[package].newest
    if numbers(version)[: len(numbers(newest))] <= numbers(newest):
        return None
    return (
        f"graphweave was tested with {package} up to {newest} (found {version}). If something fails, install"
        f" {package} {newest}. docs/versions.md lists what was tested; GRAPHWEAVE_LOGS=-core leaves this line out."
    )


def tell_newer_torch() -> None:
    """Log one line if PyTorch is newer than every tested release. PyTorch itself is not loaded."""
    version = _torch_version()
    line = None if version is None else newer_than_tested("torch", version)
    if line is not None:
        logger(__name__).warning("%s", line)


def _torch_version() -> str | None:
    """PyTorch's version, read from its file `version.py`, since its distribution's metadata take 0.1 s to find; None if
    there is no such file."""
    if "torch" in sys.modules:
        return str(getattr(sys.modules["torch"], "__version__", "")) or None
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / "version.py"
    try:
        found = re.search(r"^__version__ = '([^']*)'", file.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return found[1] if found else None
