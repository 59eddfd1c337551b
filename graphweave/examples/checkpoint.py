"""Folders from which an interrupted training goes on, on any number of ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from graphweave.core.errors import DataError
from graphweave.core.json_values import JsonObject
from graphweave.distributed import snapshots
from graphweave.distributed.ranks import ALONE, Ranks
from graphweave.examples.training import TrainingJob, TrainingWay

_FORMAT = 2


def save(folder: Path, job: TrainingJob, data_name: str, ways: Sequence[TrainingWay], ranks: Ranks = ALONE) -> None:
    """Write what continues `ways` after the epochs and steps that they have done. Collective. The folder has a whole
    checkpoint at any time, once it has one (`distributed/snapshots.py`)."""
    content: JsonObject = {
        "format": _FORMAT,
        "job": _fixed(job),
        "data": data_name,
        "random": {str(ranks.rank): torch.get_rng_state()},
        "ranks": ranks.size,
        "ways": {one.way: {"state": one.state(), "history": asdict(one.history)} for one in ways},
    }
    if ranks.size > 1:
        states = ranks.objects(content["random"])
        content["random"] = {rank: state for one in states for rank, state in one.items()}
    try:
        snapshots.write(folder, snapshots.next_number(folder), content, ranks)
    except OSError as error:
        ranks.refuse(f"{folder} cannot be written ({error}). Name another folder.")


def kept(folder: Path) -> bool:
    """Whether there is a checkpoint to go on from."""
    return bool(snapshots.numbers(folder))


def resume(folder: Path, job: TrainingJob, data_name: str, ways: Sequence[TrainingWay], ranks: Ranks = ALONE) -> int:
    """Bring `ways` to the state of the last checkpoint in the folder, and return the number of epochs that are done.

    The number of ranks may be another one. Ranks that the checkpoint does not know get random numbers of their own for
    dropout; everything else goes on as it was. Not collective.

    DataError if the checkpoint cannot be read, or is of another training: other options (but for the number of epochs
    and of threads), other data, or other ways.
    """
    content = _read(folder)
    for what, here, there in (
        ("options", _fixed(job), content["job"]),
        ("data", data_name, content["data"]),
        ("ways", [one.way for one in ways], list(content["ways"])),
    ):
        if here != there:
            raise DataError(
                f"{folder} is of another training: its {what} are {_difference(there, here)}. Give those, or start"
                " anew."
            )
    for one in ways:
        known = content["ways"][one.way]
        one.restore(known["state"])
        for name, values in known["history"].items():
            setattr(one.history, name, list(values))
    done = min(len(one.history.loss) for one in ways)
    state = content["random"].get(str(ranks.rank))
    if state is not None:
        torch.set_rng_state(state)
    else:
        torch.manual_seed(hash((job.seed, ranks.rank, done)))
    return done


def _read(folder: Path) -> JsonObject:
    if folder.is_file():
        raise DataError(f"{folder} is a file, but a checkpoint is a folder. Delete it, or name another.")
    known = snapshots.numbers(folder)
    if not known:
        raise DataError(f"{folder}: no such checkpoint. Check the path, or begin with --checkpoint.")
    content = snapshots.read(folder, known[-1])
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise DataError(f"{folder} is no checkpoint of this version. Delete it, or name another.")
    return content


def _fixed(job: TrainingJob) -> JsonObject:
    """The options that a continued training has to share. Sequences are lists, as they are read back."""
    options = asdict(replace(job, epochs=0, threads=None))
    return {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}


def _difference(there: object, here: object) -> str:
    """The values in the checkpoint and those that were given; of options those that differ."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        names = [name for name in here if there.get(name) != here[name]]
        there, here = ({name: of.get(name) for name in names} for of in (there, here))
    return f"{there} (given: {here})"
