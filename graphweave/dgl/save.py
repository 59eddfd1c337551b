"""`save_graphs` and `load_graphs`: graphs in a file that any program can read. DGL's binary files are read too.

The file that is written is a NumPy archive (.npz, a zip of .npy files with checksums). `manifest` holds JSON in UTF-8:
the version, and for each graph its types, relations, numbers of nodes, idtype, batch, and the names and dtypes of its
fields. Arrays are named `graphs/I/edges/R/src`, `.../dst`, `.../data/F`, `graphs/I/nodes/T/data/F` and `labels/L`,
where I, R, T, F and L are positions in the manifest. Tensors of bfloat16, which NumPy lacks, are stored as int16 of the
same bits.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.core.json_values import JsonObject
from graphweave.core.whole_file import written_whole
from graphweave.data.dgl_file import StoredGraph, is_dgl_file, read_dgl_graphs, read_dgl_tensors
from graphweave.dgl.graph import DGLGraph
from graphweave.graph.assemble import assemble
from graphweave.graph.relation import Relation

VERSION = 1
"""Version of the form of the file, which its manifest names."""


def save_graphs(
    filename: str | Path,
    g_list: DGLGraph | list[DGLGraph] | tuple[DGLGraph, ...],
    labels: Mapping[str, Tensor] | None = None,
    formats: str | Sequence[str] | None = None,
) -> None:
    """Write a graph or a list of graphs, and tensors by name (`labels`), to a file. It is whole at any time.

    `formats`: the formats that the graphs have, and no others, when they are loaded. DataError for blocks, and if a
    graph was restricted to other formats.
    """
    graphs = list(g_list) if isinstance(g_list, (list, tuple)) else [g_list]
    chosen = [formats] if isinstance(formats, str) else None if formats is None else list(formats)
    arrays: dict[str, Any] = {}
    manifest: dict[str, Any] = {"format": "graphweave graphs", "version": VERSION, "formats": chosen}
    for g in graphs:
        if g.is_block:
            raise DataError("save_graphs: expected graphs (got a block). Convert it with block_to_graph.")
        if chosen is not None and not set(chosen) <= set(g._formats):
            raise DataError(
                f"save_graphs: expected formats among those of the graph, {list(g._formats)} (got {chosen})."
                " Call g.formats([...]) first."
            )
    manifest["graphs"] = [_described(g, f"graphs/{i}", arrays) for i, g in enumerate(graphs)]
    manifest["labels"] = _fields(dict(labels or {}), "labels", arrays)
    _write(Path(filename), manifest, arrays)


def load_graphs(
    filename: str | Path, idx_list: Sequence[int] | int | None = None
) -> tuple[list[DGLGraph], dict[str, Tensor]]:
    """The graphs of a file (those with the numbers `idx_list`, in this order) and its labels. DGL's own files are read
    too.

    DataError if the file is damaged or is another file, or if it has no graph with one of the numbers.
    """
    if _is_dgl_file(filename):
        numbers = [idx_list] if isinstance(idx_list, int) else idx_list
        stored, labels = read_dgl_graphs(Path(filename), numbers)
        return [_from_stored(graph) for graph in stored], labels
    with _opened(Path(filename)) as (manifest, archive):
        described = manifest["graphs"]
        wanted = range(len(described)) if idx_list is None else [idx_list] if isinstance(idx_list, int) else idx_list
        wrong = [i for i in wanted if not 0 <= i < len(described)]
        if wrong:
            raise DataError(f"{filename} holds graphs 0..{len(described)} (asked for {wrong[0]}). Ask for one of them.")
        graphs = [_graph(described[i], f"graphs/{i}", archive, manifest["formats"]) for i in wanted]
        return graphs, _tensors(manifest["labels"], "labels", archive)


def load_labels(filename: str | Path) -> dict[str, Tensor]:
    """The tensors that `save_graphs` got as `labels`."""
    if _is_dgl_file(filename):
        return read_dgl_tensors(Path(filename))
    with _opened(Path(filename)) as (manifest, archive):
        return _tensors(manifest["labels"], "labels", archive)


def save_tensors(filename: str | Path, tensor_dict: Mapping[str, Tensor]) -> None:
    """Write tensors by name to a file, in the form of `save_graphs` without graphs."""
    save_graphs(filename, [], tensor_dict)


def load_tensors(filename: str | Path) -> dict[str, Tensor]:
    """The tensors of a file that `save_tensors` wrote."""
    return load_labels(filename)


def _is_dgl_file(filename: str | Path) -> bool:
    return Path(filename).is_file() and is_dgl_file(Path(filename))


def _from_stored(graph: StoredGraph) -> DGLGraph:
    relations = {key: Relation(*key, *ends.contiguous().unbind(0)) for key, ends in graph.ends.items()}
    return assemble(DGLGraph, graph.num_nodes, relations, graph.node_fields, graph.edge_fields)


def _described(g: DGLGraph, at: str, arrays: dict[str, object]) -> JsonObject:
    nodes = [
        {"type": t, "rows": frame.num_rows, "data": _fields(frame, f"{at}/nodes/{i}/data", arrays)}
        for i, (t, frame) in enumerate(g.node_frames.items())
    ]
    edges = []
    for i, (key, r) in enumerate(g.relations.items()):
        arrays[f"{at}/edges/{i}/src"], arrays[f"{at}/edges/{i}/dst"] = r.src, r.dst
        data = _fields(g.edge_frames[key], f"{at}/edges/{i}/data", arrays)
        edges.append({"relation": list(key), "data": data})
    batch = None
    if g.batch_counts is not None:
        sizes, counts = g.batch_counts
        batch = {
            "nodes": [sizes[t].tolist() for t in g.node_frames],
            "edges": [counts[key].tolist() for key in g.relations],
        }
    return {"nodes": nodes, "edges": edges, "batch": batch}


def _fields(fields: Mapping[str, Tensor], at: str, arrays: dict[str, object]) -> list[list[str]]:
    """[[name, dtype], ...]; the values are added to `arrays`."""
    for i, x in enumerate(fields.values()):
        arrays[f"{at}/{i}"] = x
    return [[name, str(x.dtype).removeprefix("torch.")] for name, x in fields.items()]


def _write(path: Path, manifest: dict[str, object], arrays: Mapping[str, Tensor]) -> None:
    text = np.frombuffer(json.dumps(manifest).encode(), dtype=np.uint8)
    with written_whole(path) as partial, partial.open("wb") as file:
        np.savez(file, manifest=text, **{name: _array(x) for name, x in arrays.items()})


def _array(x: Tensor) -> Any:
    x = x.detach().cpu().contiguous()
    return x.view(torch.int16).numpy() if x.dtype == torch.bfloat16 else x.numpy()


@contextmanager
def _opened(path: Path) -> Iterator[tuple[JsonObject, NpzFile]]:
    """(manifest, arrays). DataError, inside the block too, for a file that is damaged or another."""
    if not path.exists():
        raise DataError(f"there is no file {path}. Write one with save_graphs.")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            manifest = json.loads(archive["manifest"].tobytes())
            if manifest["format"] != "graphweave graphs" or manifest["version"] != VERSION:
                raise DataError(
                    f"{path} is of version {manifest['version']} of {manifest['format']!r}, expected version {VERSION}"
                    " of 'graphweave graphs'. Write it again with save_graphs."
                )
            yield manifest, archive
    except DataError:
        raise
    except (zipfile.BadZipFile, ValueError, KeyError, EOFError, OSError, AttributeError, TypeError) as error:
        raise DataError(
            f"{path} is damaged, or not a file of save_graphs ({type(error).__name__}: {error}). Write it again."
        ) from error


def _graph(described: JsonObject, at: str, archive: NpzFile, formats: list[str] | None) -> DGLGraph:
    sizes = {node["type"]: node["rows"] for node in described["nodes"]}
    ndata = {n["type"]: _tensors(n["data"], f"{at}/nodes/{i}/data", archive) for i, n in enumerate(described["nodes"])}
    relations, edata = {}, {}
    for i, edge in enumerate(described["edges"]):
        key = (edge["relation"][0], edge["relation"][1], edge["relation"][2])
        ends = (torch.from_numpy(archive[f"{at}/edges/{i}/{name}"]) for name in ("src", "dst"))
        relations[key] = Relation(*key, *ends)
        edata[key] = _tensors(edge["data"], f"{at}/edges/{i}/data", archive)
    batch = None
    if described["batch"] is not None:
        batch = (
            {t: torch.tensor(n) for t, n in zip(sizes, described["batch"]["nodes"], strict=True)},
            {key: torch.tensor(n) for key, n in zip(relations, described["batch"]["edges"], strict=True)},
        )
    g = assemble(DGLGraph, sizes, relations, ndata, edata, batch)
    if formats is None:
        return g
    restricted: DGLGraph = g.formats(formats)
    restricted.create_formats_()
    return restricted


def _tensors(fields: Sequence[Sequence[str]], at: str, archive: NpzFile) -> dict[str, Tensor]:
    out = {}
    for i, (name, dtype) in enumerate(fields):
        x = torch.from_numpy(archive[f"{at}/{i}"])
        out[name] = x.view(torch.bfloat16) if dtype == "bfloat16" else x
    return out
