"""Files from which an interrupted training goes on."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from graphweave.cli.training import TrainingJob, TrainingWay
from graphweave.core.errors import DataError
from graphweave.core.whole_file import written_whole

_FORMAT = 1


def save(path: Path, job: TrainingJob, data_name: str, ways: Sequence[TrainingWay]) -> None:
    """Write what continues `ways` after the epochs that they have done. The file is whole at any time."""
    content = {
        "format": _FORMAT,
        "job": _fixed(job),
        "data": data_name,
        "random": torch.get_rng_state(),
        "ways": {one.way: {"state": one.state(), "history": asdict(one.history)} for one in ways},
    }
    try:
        with written_whole(path) as partial:
            torch.save(content, partial)
    except OSError as error:
        raise DataError(f"{path} cannot be written ({error}). Name another file.") from error


def resume(path: Path, job: TrainingJob, data_name: str, ways: Sequence[TrainingWay]) -> int:
    """Bring `ways` to the state of the file, and return the number of epochs that are done.

    DataError if the file cannot be read, or is of another training: other options (but for the number of epochs and of
    threads), other data, or other ways.
    """
    content = _read(path)
    for what, here, there in (
        ("options", _fixed(job), content["job"]),
        ("data", data_name, content["data"]),
        ("ways", [one.way for one in ways], list(content["ways"])),
    ):
        if here != there:
            raise DataError(
                f"{path} is of another training: its {what} are {_difference(there, here)}. Give those, or start anew."
            )
    for one in ways:
        kept = content["ways"][one.way]
        one.restore(kept["state"])
        for name, values in kept["history"].items():
            setattr(one.history, name, list(values))
    torch.set_rng_state(content["random"])
    return len(ways[0].history.loss)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise DataError(f"{path}: no such checkpoint. Check the path, or begin with --checkpoint.")
    try:
        content = torch.load(path, weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise DataError(f"{path} is no checkpoint, or is damaged ({error}). Delete it, or name another.") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise DataError(f"{path} is no checkpoint of this version. Delete it, or name another.")
    return content


def _fixed(job: TrainingJob) -> dict[str, Any]:
    """The options that a continued training has to share."""
    return asdict(replace(job, epochs=0, threads=None))


def _difference(there: Any, here: Any) -> str:
    """What is in the file, and what was given; of options those that differ."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        names = [name for name in here if there.get(name) != here[name]]
        there, here = ({name: of.get(name) for name in names} for of in (there, here))
    return f"{there} (given: {here})"
