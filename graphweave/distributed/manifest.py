"""The manifest of a partition on disk: what its parts are, and the digest of every array (docs/distributed.md)."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from graphweave.core.errors import DataError
from graphweave.core.whole_file import written_whole
from graphweave.distributed.manifest_check import problem
from graphweave.distributed.parts import EdgeType

MANIFEST = "manifest.json"
FORMAT = "graphweave partition"
VERSION = 2
"""Version of the layout. It rises when a reader of the last one could not read the next."""

PARTITION, PART = "partition", "part of a partition"
"""The texts in the marks of the folder and of each part's folder (`marks.py`)."""
PART_FILES = re.compile(r"(nodes|edges)\d+\.[a-z_]+(\.[^/\\]+)?\.npy")
"""Names of the files of a part."""

NODE_ARRAYS = ("own", "halo", "halo_counts", "send", "send_counts")
"""Fields of `PartNodes` that each lie in a file of their own."""

_CHUNK = 1 << 20
"""Bytes of a file that are hashed at a time."""


@dataclass(frozen=True)
class StoredArray:
    """An array of a part, in the file NAME.npy of its folder."""

    dtype: str
    shape: list[int]
    sha256: str
    """The digest is that of the whole file."""


@dataclass(frozen=True)
class StoredPart:
    """A part's sizes, in the order of the manifest's types, and its arrays by name."""

    num_own: list[int]
    num_halo: list[int]
    num_edges: list[int]
    arrays: dict[str, StoredArray]


@dataclass(frozen=True)
class Manifest:
    """A partition. Types have the order in which arrays are numbered; `data` of a type are names of its fields."""

    graph: str
    """The name of the file."""
    method: str
    seed: int
    num_classes: int | None
    node_types: dict[str, int]
    """Type -> number of nodes on all ranks."""
    node_data: list[list[str]]
    edge_types: list[EdgeType]
    num_edges: list[int]
    edge_data: list[list[str]]
    cut_edges: list[int]
    """For each edge type, the edges whose ends have different owners."""
    parts: list[StoredPart]

    @property
    def num_parts(self) -> int:
        """The number of parts, and of ranks."""
        return len(self.parts)


def part_folder(folder: Path, rank: int) -> Path:
    """Where the arrays of a part lie."""
    return folder / f"part_{rank}"


def digest_of(file: Path) -> str:
    """SHA-256 of a file."""
    found = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes it whole: an interruption leaves no manifest."""
    content = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    with written_whole(folder / MANIFEST) as partial:
        partial.write_text(json.dumps({**content, "sha256": _digest(content)}, indent=1) + "\n", encoding="utf-8")


def read_manifest(folder: str | Path) -> Manifest:
    """The manifest of the partition in a folder. DataError, which names the file, if there is none, or it is damaged,
    or its content does not fit together."""
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise DataError(
            f"{path}: no such file, so the folder holds no partition, or not a whole one. Name another folder, or run"
            " graphweave partition again."
        )
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged ({error}). Run graphweave partition again.") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DataError(f"{path} is not the manifest of a partition. Name another folder.")
    if content.get("version") != VERSION:
        raise DataError(
            f"{path} has version {content.get('version')} (expected {VERSION}). Run graphweave partition again."
        )
    if content.pop("sha256", None) != _digest(content):
        raise DataError(f"{path} is damaged: its digest is not that of its content. Run graphweave partition again.")
    fields = {key: value for key, value in content.items() if key not in ("format", "version")}
    wrong = problem(fields)
    if wrong is not None:
        raise DataError(f"{path} is no manifest of a partition: {wrong}. Run graphweave partition again.")
    fields["edge_types"] = [tuple(name) for name in fields["edge_types"]]
    fields["parts"] = [
        StoredPart(**{**part, "arrays": {key: StoredArray(**of) for key, of in part["arrays"].items()}})
        for part in fields["parts"]
    ]
    return Manifest(**fields)


def _digest(content: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
