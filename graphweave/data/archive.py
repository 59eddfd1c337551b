"""Named arrays of one `.npz` file, and checked access to them."""

from __future__ import annotations

import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.core.log import logger
from graphweave.data.machine_memory import check_fits
from graphweave.data.split import mask_of
from graphweave.data.usual_names import own_names, renamed

_log = logger(__name__)
_INT64_MAX = (1 << 63) - 1

_SHOWN = 12
"""Upper limit on the arrays that a message names."""

HEADERS: dict[tuple[int, int], Callable[[IO[bytes]], tuple[tuple[int, ...], bool, np.dtype]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
"""Readers of an array's header, by version of the `.npy` format."""

_ZIP_BEGINS = (b"PK\x03\x04", b"PK\x05\x06")
"""First bytes of a zip archive, with members and without (APPNOTE.TXT 6.3, sections 4.3.7 and 4.3.16)."""

UNREADABLE = (
    OSError, EOFError, ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, MemoryError, SyntaxError,
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, tokenize.TokenError,
)  # fmt: skip
"""Errors that NumPy and the archive modules raise for files that are damaged, encrypted, truncated or forged."""


@dataclass(frozen=True, slots=True, eq=False)
class Archive:
    """The arrays of a file by name. A method raises DataError if an array is missing or does not have the form that the
    method expects. The message is one line that begins with the file's `name`.

    `layout` says which arrays a file of this kind has. `called` has the file's name of arrays that it calls otherwise
    than docs/data.md, and `mask_lengths` the lengths of those that were masks (`data/usual_names.py`). `unread` names
    arrays that were left in the file.
    """

    arrays: dict[str, np.ndarray]
    name: str
    layout: str
    called: dict[str, str] = field(default_factory=dict)
    mask_lengths: dict[str, int] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    used: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, arrays: dict[str, np.ndarray], name: str, layout: str, unread: Sequence[str] = ()) -> Archive:
        """The arrays under the names of docs/data.md."""
        found = renamed(arrays, name)
        return cls(found.arrays, name, layout, found.called, found.mask_lengths, tuple(unread), found.inferred)

    def __contains__(self, key: str) -> bool:
        return key in self.arrays

    def named(self, key: str) -> str:
        """The name that the file has for an array, in quotes."""
        return f"'{self.called.get(key, key)}'"

    def need(self, key: str) -> np.ndarray:
        self.used.add(key)
        if key not in self.arrays:
            there = sorted({self.called.get(k, k) for k in self.arrays} | {*self.unread})
            raise DataError(
                f"{self.name}: array '{key}' is missing (expected {self.layout}; got {_listed(there)})."
                " Add it to the file."
            )
        return self.arrays[key]

    def tell_unused(self, passed_over: Iterable[str] = ()) -> None:
        """Log the names of arrays that were never asked for, apart from `passed_over`. Names of classes, relations and
        the like (`class_names`) describe the others, so nobody misses them."""
        read = {self.called.get(key, key) for key in (*self.used, *passed_over)}
        there = [*dict.fromkeys(self.called.get(key, key) for key in self.arrays), *self.unread]
        left = [key for key in there if key not in read and not key.endswith("_names")]
        if left:
            _log.warning(
                "%s: %s %s not used. docs/data.md has the names that are read.",
                self.name, _listed(left), "is" if len(left) == 1 else "are",
            )  # fmt: skip

    def scalar(self, key: str) -> int:
        """One integer that is not negative."""
        value = self.need(key)
        if value.size != 1 or value.dtype.kind not in "iu" or int(value.reshape(())) < 0:
            raise DataError(
                f"{self.name}: {self.named(key)} must be one non-negative integer (got {value.dtype}"
                f" {list(value.shape)}). Correct the file."
            )
        return int(value.reshape(()))

    def count(self, key: str, nbytes: int = 8) -> int:
        """A `scalar` that counts items of at least `nbytes` bytes each. DataError if these exceed the memory."""
        value = self.scalar(key)
        check_fits(value * nbytes, f"{self.name}: {self.named(key)} = {value}")
        return value

    def integers(self, key: str) -> Tensor:
        """A one-dimensional integer array as int64."""
        array = self.need(key)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise DataError(
                f"{self.name}: {self.named(key)} must be a one-dimensional integer array (got {array.dtype}"
                f" {list(array.shape)}). Correct the file."
            )
        if array.dtype == np.uint64 and array.size and int(array.max()) > _INT64_MAX:
            raise DataError(
                f"{self.name}: {self.named(key)} must have numbers up to {_INT64_MAX} (got {array.max()})."
                " Correct the file."
            )
        return torch.from_numpy(array.astype(np.int64))

    def numbers(self, key: str, count: int, word: str, whole: str) -> Tensor:
        """`integers` in 0..count-1. The error's message calls one of them a `word`, and says that `whole` has `count`
        of these."""
        index = self.integers(key)
        if self.mask_lengths.get(key, count) != count:
            raise DataError(
                f"{self.name}: {self.named(key)} must have {count} entries, one for each {word} (got"
                f" {self.mask_lengths[key]}). Correct the file."
            )
        bad = (index < 0) | (index >= count)
        if bool(bad.any()):
            raise DataError(
                f"{self.name}: {word} {int(index[bad][0])} in {self.named(key)} is out of range: {whole} has"
                f" {count} {word}s. Correct the file."
            )
        return index

    def texts(self, key: str) -> list[str]:
        """A string, or a one-dimensional array of strings, as a list."""
        array = self.need(key)
        if array.dtype.kind != "U" or array.ndim > 1:
            raise DataError(
                f"{self.name}: {self.named(key)} must be one string or several (got {array.dtype} {list(array.shape)})."
                " Correct the file."
            )
        return [str(text) for text in array.reshape(-1)]

    def real(self, key: str) -> Tensor:
        """A numeric array of any shape as float32."""
        array = self.need(key)
        if array.dtype.kind not in "fiub":
            raise DataError(f"{self.name}: {self.named(key)} must be numeric (got {array.dtype}). Correct the file.")
        return torch.from_numpy(array.astype(np.float32))

    def row_lengths(self, key: str, rows: int, entries: int) -> Tensor:
        """Lengths [rows] of the rows of a CSR array. '`key`' [rows + 1] must rise from 0 to `entries`."""
        indptr = self.integers(key)
        if indptr.numel() != rows + 1:
            raise DataError(
                f"{self.name}: {self.named(key)} must have length {rows + 1}, nodes + 1 (got {indptr.numel()})."
                " Correct the file."
            )
        lengths = indptr.diff()
        if int(indptr[0]) != 0 or int(indptr[-1]) != entries or bool((lengths < 0).any()):
            raise DataError(
                f"{self.name}: {self.named(key)} must rise from 0 to {entries} without a step back. Correct the file."
            )
        return lengths

    def features(self, prefix: str, rows: int) -> Tensor | None:
        """[rows, F] float32: dense in '`prefix`', or CSR in `prefix`_{indptr,indices,data,shape}; None if absent.

        If `prefix`_data has length 1, all entries have this value.
        """
        if prefix in self:
            x = self.real(prefix)
        elif f"{prefix}_indptr" in self:
            x = self._from_csr(prefix, rows)
        else:
            return None
        if x.dim() != 2 or x.size(0) != rows:
            raise DataError(
                f"{self.name}: features must have shape [{rows}, features] (got {list(x.shape)}). Correct the file."
            )
        return x

    def _from_csr(self, prefix: str, rows: int) -> Tensor:
        shape, shape_name = self.integers(f"{prefix}_shape").tolist(), self.named(f"{prefix}_shape")
        if len(shape) != 2 or shape[0] != rows or shape[1] < 0:
            raise DataError(f"{self.name}: {shape_name} must be [{rows}, features] (got {shape}). Correct the file.")
        columns = self.integers(f"{prefix}_indices")
        lengths = self.row_lengths(f"{prefix}_indptr", rows, columns.numel())
        values = self.real(f"{prefix}_data")
        if values.dim() != 1 or values.numel() not in (1, columns.numel()):
            raise DataError(
                f"{self.name}: {self.named(prefix + '_data')} must have length {columns.numel()} or 1 (got"
                f" {list(values.shape)}). Correct the file."
            )
        bad = (columns < 0) | (columns >= shape[1])
        if bool(bad.any()):
            raise DataError(
                f"{self.name}: feature column {int(columns[bad][0])} is out of range: there are {shape[1]} features."
                " Correct the file."
            )
        check_fits(4 * rows * shape[1], f"{self.name}: {shape_name} = {shape}")
        x = torch.zeros(shape)
        x[torch.repeat_interleave(torch.arange(rows), lengths), columns] = values
        return x

    def labels(self, rows: int) -> Tensor:
        """'y' [rows] as int64; a float array is accepted if every value is a whole number."""
        y = self.need("y")
        if y.shape != (rows,):
            raise DataError(
                f"{self.name}: labels {self.named('y')} must have shape [{rows}], one for each node (got"
                f" {list(y.shape)}). Correct the file."
            )
        if y.dtype.kind not in "fiub":
            raise DataError(
                f"{self.name}: labels {self.named('y')} must be integers (got {y.dtype}). Correct the file."
            )
        if y.dtype.kind == "f":
            whole = np.isfinite(y) & (np.floor(y) == y)
            if not whole.all():
                raise DataError(
                    f"{self.name}: labels {self.named('y')} must be whole numbers (got {y[~whole].flat[0]})."
                    " Correct the file."
                )
        return torch.from_numpy(y.astype(np.int64))

    def split(
        self, rows: int, word: str, whole: str, otherwise: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Masks [rows] of 'train_idx', 'val_idx', 'test_idx'; `otherwise` if the file has none of them. Words are those
        of `numbers`."""
        keys = ("train_idx", "val_idx", "test_idx")
        present = [key for key in keys if key in self]
        if not present:
            return otherwise
        if len(present) < len(keys):
            raise DataError(
                f"{self.name}: a split needs train_idx, val_idx and test_idx (got only {', '.join(present)})."
                " Add the others to the file."
            )
        train, val, test = (mask_of(self.numbers(key, rows, word, whole), rows) for key in keys)
        return train, val, test

    def num_classes(self, y: Tensor) -> int:
        """'num_classes', or one more than the largest label."""
        if "num_classes" in self:
            return self.count("num_classes")
        classes = int(y.max()) + 1 if y.numel() else 0
        check_fits(8 * classes, f"{self.name}: label {classes - 1} in {self.named('y')}")
        return classes


def read_archive(path: str | Path, layout: str, wanted: Callable[[str], bool] = lambda key: True) -> Archive:
    """The arrays of an `.npz` file whose names in docs/data.md are `wanted`, read without pickle. DataError if it
    cannot be read."""
    arrays, unread = read_arrays(path, lambda key: wanted(key) or any(map(wanted, own_names(key))))
    return Archive.of(arrays, Path(path).name, layout, unread)


def read_arrays(path: str | Path, wanted: Callable[[str], bool]) -> tuple[dict[str, np.ndarray], list[str]]:
    """The arrays of an `.npz` file whose names in the file are `wanted`, and the names of the others. DataError if it
    cannot be read."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file. Check the path.")
    try:
        # The file is opened here because np.load does not close a file that is not an archive.
        with path.open("rb") as stream:
            _check_kind(stream, path.name)
            with np.load(stream, allow_pickle=False) as file:
                keys = [key for key in file.files if wanted(key)]
                for key in keys:
                    _check_header(file.zip, key, path.name)
                return {key: file[key] for key in keys}, [key for key in file.files if key not in keys]
    except DataError:
        raise
    except UNREADABLE as error:
        raise DataError(
            f"{path.name}: not a readable .npz file ({why_unreadable(error)}). Write it with numpy.savez."
        ) from error


def why_unreadable(error: Exception) -> str:
    """The reason of one of `UNREADABLE` in one line, without NumPy's advice to run what a file's pickles say."""
    if "pickle" in str(error):
        return "it holds Python objects, which are not read, since reading them may run anything"
    return (str(error).splitlines() or [type(error).__name__])[0]


def _check_kind(stream: IO[bytes], name: str) -> None:
    """Raise DataError unless the file begins as zip archives do."""
    begins = stream.read(len(np.lib.format.MAGIC_PREFIX))
    stream.seek(0)
    if begins == np.lib.format.MAGIC_PREFIX:
        raise DataError(
            f"{name}: expected an .npz archive of named arrays (got a single array). Write it with numpy.savez."
        )
    if begins[:4] not in _ZIP_BEGINS:
        raise DataError(
            f"{name}: not a readable .npz file (it is no zip archive: it begins with {begins!r})."
            " Write it with numpy.savez."
        )


def _listed(names: Sequence[str]) -> str:
    """Array names for a message; of many, the first."""
    shown = ", ".join(f"'{name}'" for name in names[:_SHOWN]) or "no arrays"
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def _check_header(archive: zipfile.ZipFile | None, key: str, name: str) -> None:
    """Raise DataError if the array's header announces more bytes than the machine has, or a number of bytes that
    differs from the file's."""
    if archive is None or f"{key}.npy" not in archive.namelist():
        return
    with archive.open(f"{key}.npy") as stream:
        read = HEADERS.get(np.lib.format.read_magic(stream))
        if read is None:  # another version of the format, which np.load reads without this check
            return
        shape, _, dtype = read(stream)
        there = archive.getinfo(f"{key}.npy").file_size - stream.tell()
    nbytes = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or min(shape, default=0) < 0:
        return  # reading it raises an error
    check_fits(nbytes, f"{name}: array '{key}' of {dtype} {list(shape)}")
    if nbytes != there:
        raise DataError(
            f"{name}: array '{key}' must have {nbytes} bytes for {dtype} {list(shape)} (got {there}). Write it again."
        )
