"""Named arrays that stay on disk: archives and folders of arrays, mapped into memory instead of read."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np

from graphweave.core.errors import DataError
from graphweave.data.archive import HEADERS, UNREADABLE, Archive, read_arrays, why_unreadable

_LOCAL_HEADER = 30
"""Bytes of a zip member's local header before its name. Bytes 26 to 30 hold the lengths of the name and of what
follows it (APPNOTE.TXT 6.3, section 4.3.7)."""


def mapped_archive(path: str | Path, layout: str, wanted: Callable[[str], bool] = lambda key: True) -> Archive:
    """The arrays of an `.npz` file, or of a folder of `.npy` files, whose names are `wanted`, without pickle.

    Arrays of a folder, and those that an archive stores without compression (`numpy.savez`), are mapped read-only, so
    that they take no memory until they are read. Compressed ones are read. DataError for what cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        return _mapped_folder(path, layout, wanted)
    mapped: dict[str, np.ndarray] = {}
    if path.is_file():
        try:
            mapped = _stored(path, wanted)
        except UNREADABLE:
            mapped = {}  # reading it names what is wrong
    rest, _ = read_arrays(path, lambda key: wanted(key) and key not in mapped)
    return Archive.of({**rest, **mapped}, path.name, layout)


def _mapped_folder(folder: Path, layout: str, wanted: Callable[[str], bool]) -> Archive:
    arrays = {}
    for file in sorted(folder.glob("*.npy")):
        if not wanted(file.stem):
            continue
        try:
            arrays[file.stem] = mapped_array(file)
        except UNREADABLE as error:
            raise DataError(
                f"{file}: not a readable .npy file ({why_unreadable(error)}). Write it with numpy.save."
            ) from error
    if not arrays:
        raise DataError(f"{folder}: no arrays .npy in this folder (expected {layout}). Write them with numpy.save.")
    return Archive.of(arrays, folder.name, layout)


def mapped_array(file: Path, mode: Literal["r", "c"] = "r") -> np.ndarray:
    """The array of an `.npy` file, mapped; an empty one, of which there is nothing to map, is read. `mode` "r" maps it
    read-only, "c" lets it be written to in memory, which the file never sees."""
    array = np.load(file, mmap_mode=mode if _holds_data(file) else None, allow_pickle=False)
    assert isinstance(array, np.ndarray)
    return array


def _holds_data(file: Path) -> bool:
    with file.open("rb") as stream:
        shape, _, _ = HEADERS[np.lib.format.read_magic(stream)](stream)
    return 0 not in shape


def _stored(path: Path, wanted: Callable[[str], bool]) -> dict[str, np.ndarray]:
    """The wanted arrays that the archive stores as they are, mapped. Those with no elements are left out."""
    found: dict[str, np.ndarray] = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as stream:
        for member in archive.infolist():
            key = member.filename.removesuffix(".npy")
            if member.compress_type != zipfile.ZIP_STORED or key == member.filename or not wanted(key):
                continue
            stream.seek(member.header_offset + 26)
            lengths = stream.read(4)
            name, extra = (int.from_bytes(lengths[i : i + 2], "little") for i in (0, 2))
            stream.seek(member.header_offset + _LOCAL_HEADER + name + extra)
            begin = stream.tell()
            shape, fortran, dtype = HEADERS[np.lib.format.read_magic(stream)](stream)
            size = stream.tell() - begin + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            if dtype.hasobject or 0 in shape or size != member.file_size:
                continue
            order = "F" if fortran else "C"
            found[key] = np.memmap(path, dtype, "r", stream.tell(), shape, order)  # type: ignore[call-overload]
    return found
