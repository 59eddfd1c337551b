"""The files of a release: a wheel and a source archive, built from what git knows, and what is in them."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from release.environment import ROOT, Environment, Failed


@dataclass(frozen=True, slots=True)
class Built:
    wheel: Path
    sdist: Path


def tracked_files(folder: str = ".") -> list[str]:
    """The files below `folder` that git tracks, and new ones that it does not ignore, if they exist."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", folder]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted(name for name in listed if (ROOT / name).is_file())


def build(tools: Environment, out: Path) -> Built:
    """Build the source archive and, from the tree, the wheel, into `out`. The tree is copied first, because setuptools
    takes along what an earlier build has left behind.

    Raises Failed if twine finds fault with them, if the source archive builds another wheel, or if a file of the
    package is missing."""
    tree = tools.folder / "tree"
    for name in tracked_files():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name)
    shutil.rmtree(out, ignore_errors=True)
    tools.run("-m", "build", "--sdist", "--wheel", "--outdir", str(out), str(tree))
    built = Built(_only(out, "*.whl"), _only(out, "*.tar.gz"))
    tools.run("-m", "twine", "check", "--strict", str(built.wheel), str(built.sdist))
    unpacked = tools.folder / "unpacked"
    with tarfile.open(built.sdist) as archive:
        archive.extractall(unpacked, filter="data")
    tools.run("-m", "build", "--wheel", "--outdir", str(tools.folder / "again"), str(_only(unpacked, "*")))
    again = contents(_only(tools.folder / "again", "*.whl"))
    if again != contents(built.wheel):
        differing = sorted(name for name, _ in again.items() ^ contents(built.wheel).items())
        raise Failed(f"expected the source archive to build the wheel of the tree (they differ in {differing})")
    check_contents(built)
    return built


def contents(wheel: Path) -> dict[str, str]:
    """File of a wheel -> the hash of its bytes."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


def check_contents(built: Built) -> None:
    """Failed unless the wheel holds the package's files, its licence and nothing else, and the source archive these."""
    package = set(tracked_files("graphweave"))
    inside = set(contents(built.wheel))
    told = {name for name in inside if name.split("/")[0].endswith(".dist-info")}
    if inside - told != package:
        raise Failed(
            f"{built.wheel.name}: expected the package's files (differing: {sorted((inside - told) ^ package)})"
        )
    if not any(name.endswith("licenses/LICENSE") for name in told):
        raise Failed(f"{built.wheel.name}: expected the licence (got {sorted(told)})")
    with tarfile.open(built.sdist) as archive:
        source = {name.partition("/")[2] for name in archive.getnames()}
    absent = (package | {"LICENSE", "README.md", "pyproject.toml"}) - source
    others = {name.split("/")[0] for name in source} & {"tests", "docs", "bench", "examples", "release"}
    if absent or others:
        raise Failed(f"{built.sdist.name}: expected the package alone (missing: {sorted(absent)}, besides: {others})")


def _only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise Failed(f"expected one {pattern} in {folder} (got {[path.name for path in found]})")
    return found[0]
