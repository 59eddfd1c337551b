"""Nests of dicts, lists, numbers and tensors in a folder, written by all ranks at once: whole, or not there.

`torch.distributed.checkpoint` writes the tensors. A snapshot is written to a folder of its own, flushed to disk, and
then renamed to `snapshot-NUMBER`. A process that is killed at any moment therefore leaves the snapshot before it, and
at most a folder `partial-...`, which nobody reads and the next snapshot removes. The number of ranks may change
between a snapshot and its reading. Only folders with our mark are removed (`marks.py`), whatever their names.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from graphweave.core.errors import DataError
from graphweave.distributed import marks
from graphweave.distributed.ranks import Ranks

_NAME, _PARTIAL = "snapshot-", "partial-"
_WHAT = "snapshot"
_TABLE = ".metadata"
"""PyTorch's table of the tensors."""
_FILES = re.compile(rf"__\d+_\d+\.distcp|{re.escape(_TABLE)}(\.tmp)?")
"""Names of the files that PyTorch writes."""
_KEPT = 2
"""Snapshots that are kept: the last, and the one before, in case the disk damages the last."""
_REST = "rest"
"""Name of the tensor of bytes that holds what is no tensor."""
_TENSOR = "tensor of a snapshot"
"""Mark of the place of a tensor: (mark, its name)."""


def numbers(folder: Path) -> list[int]:
    """The numbers of the snapshots in `folder`, rising; none if there is no such folder. Those of earlier versions,
    which have no mark, are among them."""
    return sorted(n for n, path in _numbered(folder) if marks.is_marked(path, _WHAT) or (path / _TABLE).is_file())


def next_number(folder: Path) -> int:
    """A number above those of all folders called `snapshot-NUMBER`, whoever made them."""
    return max((n for n, _ in _numbered(folder)), default=0) + 1


def _numbered(folder: Path) -> list[tuple[int, Path]]:
    named = ((path.name.removeprefix(_NAME), path) for path in folder.glob(f"{_NAME}*"))
    return [(int(number), path) for number, path in named if number.isascii() and number.isdecimal()]


def write(folder: Path, number: int, content: object, ranks: Ranks) -> None:
    """Write `content` as a snapshot, and remove old ones of ours. Collective: tensors that all ranks have under one
    name must be equal, and what is no tensor is that of rank 0. OSError on all ranks where it cannot be written, as
    where somebody else's folder has its name."""
    tensors: dict[str, Tensor] = {}
    rest = io.BytesIO()
    torch.save(_apart(content, "", tensors), rest)
    if ranks.first:
        tensors[_REST] = torch.frombuffer(bytearray(rest.getvalue()), dtype=torch.uint8)
    partial = folder
    with _agreed(ranks):
        if ranks.first:
            partial = _begun(folder, number)
    partial = Path(ranks.objects(str(partial))[0])
    try:
        with _quiet():
            writer = FileSystemWriter(partial, sync_files=True)
            state_dict_saver.save(tensors, storage_writer=writer, no_dist=not dist.is_initialized())
    except CheckpointException as error:  # raised on all ranks for an error of any
        raise OSError("; ".join(str(reason) for reason, _ in error.failures.values())) from error
    with _agreed(ranks):
        if ranks.first:
            target = folder / f"{_NAME}{number}"
            if target.exists() and not marks.remove(target, _WHAT, _FILES):
                raise FileExistsError(f"{target} is not a snapshot of graphweave. Move it to another place.")
            _flush(partial)
            partial.rename(target)
            _flush(folder)
            for old in numbers(folder)[:-_KEPT]:
                with suppress(OSError):
                    marks.remove(folder / f"{_NAME}{old}", _WHAT, _FILES)


def _begun(folder: Path, number: int) -> Path:
    """A new folder to write a snapshot to, with our mark. What an earlier process has left unfinished is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{_PARTIAL}*"):
        marks.remove(left, _WHAT, _FILES)
    for attempt in itertools.count():
        partial = folder / f"{_PARTIAL}{number}{f'-{attempt}' if attempt else ''}"
        with suppress(FileExistsError):  # somebody else's folder has this name
            partial.mkdir()
            break
    marks.mark(partial, _WHAT)
    return partial


def read(folder: Path, number: int) -> Any:
    """The content of a snapshot, on any number of ranks. Not collective. DataError if it cannot be read.

    PyTorch reads the table of tensors by pickle, so a snapshot of somebody else is to be trusted like a program.
    """
    path = folder / f"{_NAME}{number}"
    try:
        with _quiet():
            stored = FileSystemReader(path).read_metadata().state_dict_metadata
            tensors = {
                name: torch.empty(table.size, dtype=table.properties.dtype)
                for name, table in stored.items()
                if isinstance(table, TensorStorageMetadata)
            }
            state_dict_loader.load(tensors, storage_reader=FileSystemReader(path), no_dist=True)
        rest = torch.load(io.BytesIO(tensors[_REST].numpy().tobytes()), weights_only=True)
    except (Exception, CheckpointException) as error:  # whatever pickle and torch raise for damaged bytes
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise DataError(f"{path} is damaged ({reason}). Delete it, and the one before it is read.") from error
    return _together(rest, tensors)


def _apart(value: object, name: str, tensors: dict[str, Tensor]) -> Any:
    """`value` with marks in place of its tensors, which enter `tensors` under the names of their places."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach()
        return (_TENSOR, name)
    if isinstance(value, dict):
        return {key: _apart(part, f"{name}/{key}", tensors) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_apart(part, f"{name}/{i}", tensors) for i, part in enumerate(value)]
    return value


def _together(value: object, tensors: dict[str, Tensor]) -> Any:
    match value:
        case (str(mark), str(name)) if mark == _TENSOR:
            return tensors[name]
        case dict():
            return {key: _together(part, tensors) for key, part in value.items()}
        case list():
            return [_together(part, tensors) for part in value]
        case _:
            return value


@contextmanager
def _agreed(ranks: Ranks) -> Iterator[None]:
    """Wait until all ranks are here. An OSError of one of them is raised on all."""
    error: OSError | None = None
    try:
        yield
    except OSError as found:
        error = found
    told = next(filter(None, ranks.objects(None if error is None else str(error))), None)
    if told is not None:
        raise OSError(told)


@contextmanager
def _quiet() -> Iterator[None]:
    """PyTorch warns of what one process means to do."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\.distributed\.checkpoint.*")
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed\.checkpoint.*")
        yield


def _flush(folder: Path) -> None:
    """Flush the names in a folder to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
