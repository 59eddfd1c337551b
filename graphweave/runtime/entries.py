"""Entries on disk that this process may run: compiled kernels, and whole compilations.

An entry has a key of 64 hexadecimal digits, which stands for everything that made it, and owns the files KEY.SUFFIX,
KEY.sha256 (the digest of that file), and companions for people to read. An entry is used only if its digest matches,
so a truncated or altered file is made again and never run. Writers hold KEY.lock and move finished files into place, so
that any number of processes may share a folder, and one that is killed leaves no half of an entry behind; readers need
no lock. Entries that were made together may be links to one file. All of this holds in a folder of the user's own
(`core/own_folders.py`); another one is not used.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path

from graphweave.core.counters import bump
from graphweave.core.log import logger, warn_once
from graphweave.core.own_folders import check_own, make_own, read_own
from graphweave.core.settings import settings

_log = logger(__name__)

_KEY = re.compile("[0-9a-f]{64}")

_room: dict[tuple[Path, int], int] = {}
"""For each folder and bound, the bytes that this process may still add before it scans the folder again."""


def folder_of(name: str) -> Path:
    """The folder `name` of the cache. It exists once an entry has been made there."""
    return (settings().cache_dir or user_cache_path("graphweave")) / name


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a folder of entries: their number, the bytes of their files, and the damaged ones."""

    entries: int
    bytes: int
    damaged: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """Entries of one kind: the `suffix` of the file that has a digest, and those of its companions."""

    suffix: str
    companions: tuple[str, ...] = ()

    def path(self, folder: Path, key: str) -> Path:
        """The file of an entry that has a digest."""
        return folder / f"{key}{self.suffix}"

    def make_missing(
        self, folder: Path, keys: Iterable[str], make: Callable[[Sequence[Path], Path], None]
    ) -> tuple[Path, ...]:
        """Make the entries that are not there intact, all at once, and return their files. `make(targets, scratch)`
        writes these to a folder next to their places, from where they are moved; companions it moves itself."""
        targets = sorted({self.path(folder, key) for key in keys})
        missing = [target for target in targets if not _is_there(target)]
        if not missing:
            return ()
        make_own(folder)
        with ExitStack() as locks:
            for target in missing:  # in the same order in every process, so that no two wait for each other
                locks.enter_context(FileLock(target.with_suffix(".lock")))
            missing = [target for target in missing if not is_intact(target)]  # others were made while we waited
            for target in filter(Path.exists, missing):
                _log.warning("%s is damaged, or others could write to it: making it again", target)
                bump("kernel_damaged")
            if missing:
                with tempfile.TemporaryDirectory(dir=folder, prefix="build-") as scratch:
                    make(missing, Path(scratch))
                    for target in missing:
                        _move(Path(scratch) / target.name, target)
        if missing:
            self.keep_within(folder, settings().cache_bytes, targets)
        return tuple(missing)

    def contents(self, folder: Path) -> Contents:
        """The contents of `folder`. Every entry is read and compared with its digest. A missing folder is empty."""
        sizes: list[int] = []
        damaged: list[Path] = []
        for path in sorted(folder.glob(f"*{self.suffix}")):
            try:
                sizes.append(self._bytes_of(path))
            except FileNotFoundError:
                continue  # another process is evicting
            if not is_intact(path):
                damaged.append(path)
        return Contents(len(sizes), sum(sizes), tuple(damaged))

    def _bytes_of(self, path: Path) -> int:
        """The size of an entry and its companions, in bytes."""
        files = (path.with_suffix(s) for s in (self.suffix, *self.companions))
        return sum(_share(file.stat()) for file in files if file.exists())

    def keep_within(self, folder: Path, bound: int, used: Sequence[Path]) -> None:
        """Keep the folder within `bound` bytes after entries were made. Those that are `used` now stay. Each process
        may exceed the bound by a sixteenth: in a large cache, a scan of all entries after each one would take longer
        than making it."""
        room = _room.get((folder, bound), 0) - sum(map(self._bytes_of, used))
        if room <= 0:
            room = min(bound - self.evict(folder, bound, used), bound >> 4)
        _room[folder, bound] = room

    def evict(self, folder: Path, bound: int, keep: Collection[Path] = ()) -> int:
        """Delete the least recently used entries until the folder is within `bound` bytes. Those in `keep` always stay,
        and so do files that no key names.

        Returns the bytes that are left.
        """
        used: dict[str, float] = {}
        sizes: dict[str, int] = defaultdict(int)  # of each entry and its companions, by key
        with os.scandir(folder) as files:  # makes no Path of each file, of which a full cache has 200,000
            for file in files:
                key, dot, suffix = file.name.rpartition(".")
                if dot + suffix in (self.suffix, *self.companions) and _KEY.fullmatch(key):
                    with suppress(FileNotFoundError):  # another process is evicting too
                        found = file.stat()
                        sizes[key] += _share(found)
                        if dot + suffix == self.suffix:
                            used[key] = found.st_mtime
        kept = {path.stem for path in keep}
        total = sum(sizes[key] for key in used)
        for key in sorted(used, key=lambda key: (used[key], key)):
            if total <= bound:
                break
            if key in kept:
                continue
            for suffix in (self.suffix, ".sha256", *self.companions, ".lock"):
                (folder / (key + suffix)).unlink(missing_ok=True)
            total -= sizes[key]
        return total


def _is_there(target: Path) -> bool:
    """Whether an entry's file is there and intact. If so, it is marked as used now. Raises OSError if others may write
    to its folder."""
    if not target.exists():
        return False
    check_own(target.parent)
    if not is_intact(target):
        return False
    _touch(target)
    return True


def _touch(target: Path) -> None:
    with suppress(OSError):  # a read-only cache may still be used
        os.utime(target)


def _share(status: os.stat_result) -> int:
    """The bytes of a file that fall to one of its names: entries that were made together may be links to one file."""
    return status.st_size // max(status.st_nlink, 1)


def link_or_copy(made: Path, other: Path) -> None:
    """Give a file that was `made` a second name; a copy where the file system has no such links."""
    try:
        os.link(made, other)
    except OSError:
        shutil.copyfile(made, other)


def is_intact(path: Path) -> bool:
    """Whether the content of a file is what its digest says."""
    return _verified(path) is not None


def _verified(path: Path) -> bytes | None:
    """The content of a file; None if it is not what its digest says, or if there is none."""
    try:
        expected = read_own(path.with_suffix(".sha256"))
        content = read_own(path)
    except OSError:
        return None
    return content if hashlib.sha256(content).hexdigest().encode() == expected else None


def _move(built: Path, target: Path) -> None:
    digest = built.with_suffix(".sha256")
    digest.write_text(hashlib.sha256(built.read_bytes()).hexdigest(), encoding="ascii")
    # not flushed to disk: after a power cut, a file that is half written fails its digest
    for path in (digest, built):
        path.chmod(0o700)  # the umask may let others write
        os.replace(path, target.with_suffix(path.suffix))


@dataclass(frozen=True, slots=True)
class ByteStore:
    """Entries that are bytes, in the folder `name` of the cache. Whoever reads them may unpickle them."""

    name: str
    _KIND = Kind(".bin")

    @property
    def folder(self) -> Path:
        return folder_of(self.name)

    def read(self, key: str) -> bytes | None:
        """The bytes that this user wrote under `key`; None if there is nothing, or nothing that can be trusted."""
        target = self._KIND.path(self.folder, key)
        try:
            if not target.exists():
                return None
            check_own(self.folder)
            content = _verified(target)
            if content is None and target.exists():
                with FileLock(target.with_suffix(".lock")):  # a writer may be between its two files
                    content = _verified(target)
        except OSError as error:
            _log.warning("%s is not read: %s", target, error)
            return None
        if content is None:
            _log.warning("%s is damaged, or others could write to it: it is not used", target)
            bump("kernel_damaged")
            return None
        _touch(target)
        return content

    def write(self, key: str, content: bytes) -> bool:
        """Keep `content` under `key`, in place of what is there; whether that was possible. A folder that cannot be
        written, or to which others could write, is told once."""
        target = self._KIND.path(self.folder, key)
        try:
            make_own(self.folder)
            with (
                FileLock(target.with_suffix(".lock")),
                tempfile.TemporaryDirectory(dir=self.folder, prefix="build-") as scratch,
            ):
                built = Path(scratch) / target.name
                built.write_bytes(content)
                _move(built, target)
            self._KIND.keep_within(self.folder, settings().cache_bytes, (target,))
        except OSError as error:
            warn_once(
                f"cannot keep compilations in {self.folder} ({error.strerror or error}), so functions are compiled "
                "again next time. Set GRAPHWEAVE_CACHE_DIR to a writable directory that is yours alone (chmod 700).",
                _log,
            )
            return False
        return True

    def drop(self, key: str) -> None:
        """Remove what is kept under `key`, if that is possible."""
        with suppress(OSError):
            self._KIND.path(self.folder, key).unlink(missing_ok=True)

    def contents(self) -> Contents:
        return self._KIND.contents(self.folder)


COMPILATIONS = ByteStore("compilations")
"""Whole compilations (`frontends/stored/`)."""
