"""Loads one part of a partition on disk, mapped into memory."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.data.archive import UNREADABLE
from graphweave.data.mapped import mapped_array
from graphweave.distributed.manifest import NODE_ARRAYS, StoredArray, digest_of, part_folder, read_manifest
from graphweave.distributed.part import GraphPart, PartEdges, PartNodes
from graphweave.distributed.part_check import inconsistency
from graphweave.runtime.halo_room import with_room


def load_part(folder: str | Path, rank: int, num_parts: int | None = None, *, verify: bool = True) -> GraphPart:
    """Part `rank` of the partition that `graphweave partition` or `write_partition` wrote into a folder.

    It opens the files of this part only. Its tensors lie over the files: they take memory as they are read, and
    processes of a machine share it. What is written to them is not written to the files. Floating data of nodes has
    memory for halo rows behind its own, so that features stand in memory once. `num_parts`: the number of
    ranks that the caller has, which must be that of the partition. `verify` reads the part once, and compares the
    digest of each array, and whether the numbers in the arrays fit together; without it, only sizes and types are
    compared.

    DataError, which names the file, if the manifest or an array is absent, damaged, truncated or of another partition,
    and for a rank or a number of ranks that the partition does not have.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    if num_parts is not None and num_parts != manifest.num_parts:
        raise DataError(
            f"{folder} is a partition for {manifest.num_parts} ranks (got {num_parts}). Run as many processes, or"
            f" graphweave partition --parts {num_parts}."
        )
    if not 0 <= rank < manifest.num_parts:
        raise DataError(
            f"rank must be from 0 to {manifest.num_parts - 1} for {folder} (got {rank}). Pass the number of a part."
        )
    stored = manifest.parts[rank].arrays
    arrays = {key: stored_tensor(part_folder(folder, rank) / f"{key}.npy", of, verify) for key, of in stored.items()}
    nodes = {
        kind: PartNodes(
            **{key: arrays[f"nodes{i}.{key}"] for key in NODE_ARRAYS},
            total=total,
            data={
                key: with_room(arrays[f"nodes{i}.data.{key}"], len(arrays[f"nodes{i}.own"]))
                for key in manifest.node_data[i]
            },
        )
        for i, (kind, total) in enumerate(manifest.node_types.items())
    }
    edges = {
        name: PartEdges(
            arrays[f"edges{i}.index"],
            arrays[f"edges{i}.ids"],
            manifest.num_edges[i],
            {key: arrays[f"edges{i}.data.{key}"] for key in manifest.edge_data[i]},
        )
        for i, name in enumerate(manifest.edge_types)
    }
    part = GraphPart(rank, manifest.num_parts, nodes, edges)
    wrong = inconsistency(part) if verify else None
    if wrong is not None:
        raise DataError(f"{part_folder(folder, rank)} is no part of a graph: {wrong}. Run graphweave partition again.")
    return part


def stored_tensor(file: Path, stored: StoredArray, verify: bool) -> Tensor:
    """The array of a file, which must be as the manifest says. DataError if it is not."""
    if not file.is_file():
        raise DataError(f"{file}: no such file, though the manifest names it. Run graphweave partition again.")
    try:
        array = mapped_array(file, "c")
    except UNREADABLE as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{file} is damaged or truncated ({why}). Run graphweave partition again.") from error
    if array.dtype.str != stored.dtype or list(array.shape) != stored.shape:
        raise DataError(
            f"{file} must be {stored.dtype} {stored.shape} by the manifest (got {array.dtype.str} {list(array.shape)}),"
            f" so it is of another partition. Run graphweave partition again."
        )
    if verify and digest_of(file) != stored.sha256:
        raise DataError(
            f"{file} is damaged or of another partition: its digest is not that of the manifest. Run graphweave"
            " partition again."
        )
    return torch.from_numpy(array)
