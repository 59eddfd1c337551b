"""Arrays that are written into `.npy` files in pieces, so that none is ever whole in memory."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import numpy as np


class ArrayFile:
    """A new `.npy` file of a given type and shape. Its elements have flat positions, rows one after the other; they
    are zero until they are written. It is a context manager, which closes the file."""

    def __init__(self, path: Path, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self.dtype, self.shape = np.dtype(dtype), shape
        self._file = path.open("w+b")
        header = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)
        self._begin = self._file.tell()
        self._file.truncate(self._begin + int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize)

    def __enter__(self) -> ArrayFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def write(self, position: int, values: np.ndarray) -> None:
        """Writes elements from a flat position on."""
        self._file.seek(self._begin + position * self.dtype.itemsize)
        np.ascontiguousarray(values, dtype=self.dtype).tofile(self._file)

    def read(self, position: int, count: int) -> np.ndarray:
        """Elements from a flat position on, as a new array [count]."""
        self._file.seek(self._begin + position * self.dtype.itemsize)
        self._file.flush()
        return np.fromfile(self._file, self.dtype, count)


def write_array(path: Path, values: np.ndarray) -> None:
    """The array as an `.npy` file."""
    with ArrayFile(path, values.dtype, values.shape) as file:
        file.write(0, values.reshape(-1))
