"""The cache folder as one file, to carry it to another machine of the same kind.

The file is a tar archive. Its first member, manifest.json, says for which kind of machine and which versions the rest
is, and has the size and the SHA-256 of each other member. Loading writes files inside the cache folder only, gives them
the user's permissions, and never changes an entry that is there, so other processes may use the folder meanwhile.

What is loaded is run: kernels are machine code. The digests find damage, not malice, so a file of unknown origin must
not be loaded.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from filelock import FileLock
from platformdirs import user_cache_path

from graphweave.core.errors import CacheError
from graphweave.core.own_folders import check_own, make_own, read_own
from graphweave.core.settings import settings
from graphweave.core.whole_file import written_whole
from graphweave.runtime import sources
from graphweave.runtime.kernel_cache import own_version
from graphweave.runtime.toolchain import toolchain

_FORMAT = 1
"""Version of the layout of the file."""
_MANIFEST = "manifest.json"
_MAX_MANIFEST_BYTES = 1 << 26
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]*")
"""A name of a file or folder in the cache."""
_DATA = ("planetoid",)
"""Folders of the cache folder that hold data sets, which are not carried."""
_NOT_CARRIED = (".lock", ".part", ".tmp")
"""Endings of files that mean something for running processes alone."""


@dataclass(frozen=True, slots=True)
class Carried:
    """The numbers of files and bytes that were saved or loaded, and of files that were left out: damaged, or writable
    by others, or, when loading, there already."""

    files: int
    bytes: int
    left: int


def folder() -> Path:
    """The folder of everything that graphweave keeps on disk."""
    return settings().cache_dir or user_cache_path("graphweave")


def kind_of_machine() -> dict[str, str]:
    """Everything that must be equal where the cache is used."""
    return {
        "graphweave": own_version(),
        "sources of the runtime": sources.digest(),
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()} {' '.join(platform.libc_ver())}".strip(),
        "compiler and processor": toolchain().identity,
    }


def save(path: Path) -> Carried:
    """Write the cache folder to the file `path`. CacheError if the folder is missing or not the user's alone."""
    root = folder()
    try:
        check_own(root)
    except OSError as error:
        raise CacheError(
            f"{root}: expected a cache folder of your own (got {error.strerror or error}). Compile something first, or "
            "set GRAPHWEAVE_CACHE_DIR."
        ) from error
    kept, left = _readable(root)
    members = {name: {"bytes": size, "sha256": digest} for name, (size, digest) in kept.items()}
    manifest = {"format": _FORMAT, "kind": kind_of_machine(), "members": members}
    with written_whole(path) as draft, tarfile.open(draft, "w:gz", compresslevel=1) as archive:
        _add(archive, _MANIFEST, json.dumps(manifest, indent=1).encode())
        for name, (_, digest) in kept.items():
            try:
                content = read_own(root / name)
            except OSError:  # another process has evicted it
                content = b""
            if hashlib.sha256(content).hexdigest() != digest:
                raise CacheError(f"{root / name} changed while it was saved. Save again.")
            _add(archive, name, content)
    return Carried(len(kept), sum(size for size, _ in kept.values()), left)


def load(path: Path) -> Carried:
    """Add to the cache folder what the file `path` has and the folder has not. CacheError if the file is for machines
    of another kind, damaged, or not such a file."""
    root = folder()
    try:
        make_own(root)
    except OSError as error:
        raise CacheError(
            f"{root}: expected a cache folder of your own (got {error.strerror or error}). Set GRAPHWEAVE_CACHE_DIR."
        ) from error
    try:
        with tarfile.open(path, "r:gz") as archive:
            manifest = _manifest(archive, path)
            return _unpack(archive, path, root, manifest["members"])
    except (tarfile.TarError, EOFError, ValueError, OSError) as error:
        if isinstance(error, OSError) and not isinstance(error, tarfile.TarError) and error.filename is not None:
            raise
        raise _not_an_archive(path, str(error)) from error


def _readable(root: Path) -> tuple[dict[str, tuple[int, str]], int]:
    """The files to carry by their names within `root`, each with its size and digest, and the number of those that are
    damaged or that others could have written."""
    found: dict[str, tuple[int, str]] = {}
    left = 0
    for at, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if _carries(name) and not (Path(at) / name).is_symlink())
        if Path(at) == root:
            folders[:] = [name for name in folders if name not in _DATA]
        contents: dict[str, bytes] = {}
        for name in sorted(filter(_carries, files)):
            try:
                contents[name] = read_own(Path(at) / name)
            except FileNotFoundError:  # another process evicts it
                continue
            except OSError:
                left += 1
        for name, content in contents.items():
            claimed = contents.get(f"{name.rpartition('.')[0]}.sha256") if name.endswith(".so") else None
            digest = hashlib.sha256(content).hexdigest()
            if name.endswith(".so") and claimed != digest.encode():
                left += 1
            else:
                found[(Path(at) / name).relative_to(root).as_posix()] = len(content), digest
    return found, left


def _carries(name: str) -> bool:
    return _PART.fullmatch(name) is not None and not name.endswith(_NOT_CARRIED) and not name.startswith("build-")


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def _manifest(archive: tarfile.TarFile, path: Path) -> dict[str, Any]:
    """The manifest, which is the first member, after its kind of machine was compared with this one."""
    first = archive.next()
    if first is None or first.name != _MANIFEST or not first.isreg() or first.size > _MAX_MANIFEST_BYTES:
        raise _not_an_archive(path, "no manifest in front")
    file = archive.extractfile(first)
    assert file is not None
    manifest = json.loads(file.read())
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        got = manifest.get("format") if isinstance(manifest, dict) else manifest
        raise CacheError(
            f"{path}: expected format {_FORMAT} of saved caches (got {got!r}). Save it with this version of graphweave."
        )
    here, there = kind_of_machine(), manifest.get("kind")
    if not isinstance(there, dict) or not isinstance(manifest.get("members"), dict):
        raise _not_an_archive(path, "an incomplete manifest")
    for what in here | there:
        if here.get(what) != there.get(what):
            raise CacheError(
                f"{path}: expected a cache of a machine of the same kind, with {what} {_short(here.get(what))} (got "
                f"{_short(there.get(what))}). Save one on such a machine, or let this one compile by itself."
            )
    return manifest


def _unpack(archive: tarfile.TarFile, path: Path, root: Path, members: dict[str, object]) -> Carried:
    """Check all members before the first is written, then write the entries that are missing."""
    contents: dict[str, bytes] = {}
    while (member := archive.next()) is not None:
        said = members.get(member.name)
        if not member.isreg() or not _is_inside(member.name) or not isinstance(said, dict) or member.name in contents:
            raise CacheError(
                f"{path}: expected the files of its manifest only (got {member.name!r}). It may be meant to harm. "
                "Delete it, and save a cache again."
            )
        file = archive.extractfile(member) if member.size == said.get("bytes") else None
        content = b"" if file is None else file.read()
        if file is None or hashlib.sha256(content).hexdigest() != said.get("sha256"):
            raise CacheError(
                f"{path}: {member.name} is damaged: its digest is not that of the manifest. Save it again."
            )
        contents[member.name] = content
    if missing := sorted(members.keys() - contents.keys()):
        raise CacheError(f"{path}: {len(missing)} files of the manifest are missing ({missing[0]}). Save it again.")
    entries: dict[tuple[str, str], list[str]] = {}
    for name in contents:
        at = PurePosixPath(name)
        entries.setdefault((str(at.parent), at.name.split(".")[0]), []).append(name)
    written = [name for names in entries.values() for name in _write_entry(root, names, contents)]
    return Carried(len(written), sum(len(contents[name]) for name in written), len(contents) - len(written))


def _write_entry(root: Path, names: Sequence[str], contents: dict[str, bytes]) -> Iterator[str]:
    """Write the files of one entry, digests first and libraries last, unless the folder has all of them."""
    parent = root / PurePosixPath(names[0]).parent
    make_own(parent)
    with FileLock(parent / f"{PurePosixPath(names[0]).name.split('.')[0]}.lock"):
        if all((root / name).exists() for name in names):
            return
        for name in sorted(names, key=lambda name: (name.endswith(".so"), not name.endswith(".sha256"), name)):
            with written_whole(root / name) as draft:
                draft.touch(mode=0o600)
                draft.write_bytes(contents[name])
                draft.chmod(0o700 if name.endswith((".so", ".sha256")) else 0o600)
            yield name


def _is_inside(name: str) -> bool:
    """Whether a name leads to a file within the folder: plain names between slashes."""
    parts = name.split("/")
    return all(map(_carries, parts)) and parts[0] not in _DATA


def _short(value: object) -> str:
    words = " ".join(str(value).split())
    return words if len(words) <= 200 else f"{words[:200]}..."


def _not_an_archive(path: Path, why: str) -> CacheError:
    return CacheError(
        f"{path}: expected a file that `graphweave cache save` has written (got one with {why}). Save it again."
    )
