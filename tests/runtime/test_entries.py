"""Entries of bytes on disk under damage, concurrency, death and a byte bound. Kernels are entries of another kind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from graphweave.core.counters import counters, reset_counters
from graphweave.core.settings import override
from graphweave.runtime.entries import ByteStore
from tests import patience
from tests.runtime.test_kernel_cache import environment

KEY, OTHER = "ab" * 32, "cd" * 32
SIZE = 1 << 20


@pytest.fixture
def entries(tmp_path: Path) -> ByteStore:
    reset_counters()
    return ByteStore(str(tmp_path / "entries"))


def test_what_is_written_is_read(entries: ByteStore) -> None:
    assert entries.read(KEY) is None
    assert entries.write(KEY, b"one")
    assert entries.write(OTHER, b"")
    assert (entries.read(KEY), entries.read(OTHER)) == (b"one", b"")
    assert entries.write(KEY, b"two")
    assert entries.read(KEY) == b"two"
    assert entries.contents().entries == 2
    entries.drop(KEY)
    assert entries.read(KEY) is None


@pytest.mark.parametrize(
    "damage", ["truncated", "altered", "no digest", "another's digest", "open to others", "a link"]
)
def test_damage_is_found(entries: ByteStore, damage: str, tmp_path: Path) -> None:
    entries.write(KEY, b"content" * 99)
    path = entries.folder / f"{KEY}.bin"
    match damage:
        case "truncated":
            path.write_bytes(path.read_bytes()[:50])
        case "altered":
            path.write_bytes(path.read_bytes().replace(b"t", b"T", 1))
        case "no digest":
            path.with_suffix(".sha256").unlink()
        case "another's digest":
            entries.write(OTHER, b"other")
            os.replace(path.with_name(f"{OTHER}.sha256"), path.with_suffix(".sha256"))
        case "open to others":
            path.chmod(0o666)
        case "a link":
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
    assert entries.read(KEY) is None
    assert counters()["kernel_damaged"] == 1
    assert entries.write(KEY, b"again")
    assert entries.read(KEY) == b"again"


def test_a_folder_of_others_is_not_used(entries: ByteStore) -> None:
    entries.write(KEY, b"planted")
    entries.folder.chmod(0o777)
    assert entries.read(KEY) is None
    assert not entries.write(OTHER, b"mine")
    assert not list(entries.folder.glob(f"{OTHER}.bin"))


def test_a_folder_to_read_only(entries: ByteStore) -> None:
    entries.write(KEY, b"one")
    (entries.folder / f"{KEY}.lock").unlink()
    entries.folder.chmod(0o500)
    try:
        assert entries.read(KEY) == b"one"
        if os.geteuid():  # root may write everywhere
            assert not entries.write(OTHER, b"two")
    finally:
        entries.folder.chmod(0o700)


def test_the_oldest_entries_make_room(entries: ByteStore) -> None:
    keys = [f"{n:064x}" for n in range(8)]
    with override(cache_bytes=3 * SIZE):
        for n, key in enumerate(keys):
            assert entries.write(key, bytes(SIZE))
            os.utime(entries.folder / f"{key}.bin", (n, n))
    assert entries.contents().bytes <= 4 * SIZE
    assert entries.read(keys[-1]) == bytes(SIZE)
    assert entries.read(keys[0]) is None


WRITER = (
    "import sys\n"
    "from graphweave.runtime.entries import ByteStore\n"
    "store, key, fill, times = ByteStore(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])\n"
    "print('ready', flush=True)\n"
    f"for _ in range(times): store.write(key, bytes([fill]) * {SIZE})\n"
)


def writer(entries: ByteStore, fill: int, times: int) -> subprocess.Popen[str]:
    started = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(entries.folder), KEY, str(fill), str(times)],
        env=environment(entries.folder), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return started


def test_processes_that_write_and_die_leave_whole_entries(entries: ByteStore) -> None:
    """Two processes write one entry at the same time, and are killed in the middle of it."""
    both = [writer(entries, fill, 10_000) for fill in (1, 2)]
    for one in both:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    seen: set[bytes] = set()
    reads, until = 0, time.monotonic() + patience.seconds()  # the first writes may come late
    while reads < 200 or (not seen & {b"\1", b"\2"} and time.monotonic() < until):
        reads += 1
        content = entries.read(KEY)
        assert content is None or (len(content) == SIZE and len(set(content)) == 1)
        seen.add(content[:1] if content else b"")
    for one in both:
        one.send_signal(signal.SIGKILL)
        one.communicate()
    content = entries.read(KEY)  # killed between its two files, an entry is damaged and is made again
    assert content is None or len(set(content)) == 1
    assert entries.write(KEY, b"after")
    assert entries.read(KEY) == b"after"
    assert seen & {b"\1", b"\2"}
