"""Loads the data that the command line names, checks that they can be trained on, and says how large they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

from graphweave.core.errors import DataError
from graphweave.data import (
    NO_LABEL,
    AtomSet,
    GraphSet,
    Interactions,
    KnowledgeGraph,
    LinkData,
    NodeData,
    PointSet,
    TableGraph,
    TypedNodeData,
    dgl,
    digits,
    families,
    from_tables,
    graphml,
    karate,
    npz,
    ogb,
    planetoid,
    pyg,
    relational,
)
from graphweave.data.dgl import is_dgl
from graphweave.data.ogb_files import is_ogb
from graphweave.examples.tables import check_target, described_parts
from graphweave.examples.tasks import TASKS, Data

OfOthers: TypeAlias = NodeData | TypedNodeData | KnowledgeGraph | GraphSet | LinkData
"""The kinds of data that are read from the data sets of other libraries."""


def load_for(task: str, name: str, *, seed: int) -> Data:
    """The data of a task that has files of its own. DataError if there is none of that name."""
    read = TASKS[task].file
    assert read is not None
    if task == "graph" and _is_of_others(name):
        data = _of_others(name, seed=seed)
        if not isinstance(data, GraphSet):
            raise DataError(f"--data must be a set of graphs for --task graph (got one graph, {name}). Name another.")
        return data
    if not TASKS[task].made and not name.endswith(".npz"):
        raise DataError(f"--data must be FILE.npz for --task {task} (got {name!r}). Name such a file.")
    return read(name, seed=seed)


def load(name: str, *, symmetric: bool, seed: int) -> NodeData | LinkData:
    """The graph that `--data` names. DataError if there is none of that name."""
    kind, _, rest = name.partition(":")
    if kind == "planetoid":
        return planetoid(rest)
    if name == "digits":
        return digits(seed=seed)
    if name == "karate":
        return karate(seed=seed)
    if name.endswith(".npz"):
        return npz(name, symmetric=symmetric, seed=seed)
    if _is_of_others(name):
        data = _of_others(name, seed=seed, symmetric=symmetric)
        if not isinstance(data, (NodeData, LinkData)):
            raise DataError(f"--data must be one graph without types for this model (got {name}). Name another model.")
        return data
    raise DataError(
        f"--data must be digits, karate, FILE.npz, FILE.graphml, FILE.pt, FILE.bin, a folder of PyG, DGL or OGB, or"
        f" planetoid:NAME (got {name!r}). Name one of these."
    )


def load_relational(name: str, *, seed: int) -> KnowledgeGraph | TypedNodeData:
    """The relational graph that `--data` names. DataError if there is none of that name."""
    if name == "families":
        return families(seed=seed)
    if name.endswith(".npz"):
        return relational(name, seed=seed)
    if _is_of_others(name):
        data = _of_others(name, seed=seed)
        if not isinstance(data, (TypedNodeData, KnowledgeGraph)):
            raise DataError(f"--data must be a graph with types for models over relations (got {name}). Name another.")
        return data
    raise DataError(f"--data must be families or FILE.npz for models over relations (got {name!r}). Name one of these.")


def _is_of_others(name: str) -> bool:
    """Whether `name` is a file or a folder that another library wrote."""
    return name.endswith((".graphml", ".pt", ".bin")) or Path(name).is_dir()


def _of_others(name: str, *, seed: int, symmetric: bool = False) -> OfOthers:
    if is_ogb(Path(name)):
        return ogb(name, symmetric=symmetric, seed=seed)
    if symmetric:
        raise DataError(f"--symmetric is for FILE.npz and OGB's folders (got {name}). Leave it out.")
    if name.endswith(".graphml"):
        return graphml(name, seed=seed)
    return dgl(name, seed=seed) if is_dgl(Path(name)) else pyg(name, seed=seed)


def load_tables(source: str, target: str, **options: Any) -> TableGraph:
    """The tables at `source`, a folder or the URL of a database, as `graphweave.data.from_tables` reads them."""
    return from_tables(source, target, **options)


def check_trainable(data: Data, task: str) -> None:
    """DataError if there is nothing to train on, or if data are not of the kind that `task` needs."""
    match data:
        case KnowledgeGraph():
            if task == "node":
                raise DataError(f"{data.name}: a knowledge graph has no labels of nodes. Pass --task link.")
            if len(data.train) == 0:
                raise DataError(f"{data.name}: no triple is in the train split. Add triples to it.")
        case LinkData() if task != "link":
            raise DataError(f"{data.name}: these data are pairs of nodes. Pass --task link.")
        case NodeData() if task == "link":
            return
        case NodeData() | TypedNodeData():
            if task == "link":
                raise DataError(f"{data.name}: links over relations need a knowledge graph. Pass one.")
            if not bool((data.y != NO_LABEL).any()):
                counted = f" for its {data.num_classes} classes" if data.num_classes else ""
                raise DataError(
                    f"{data.name}: the file has no labels 'y'{counted}, so there is nothing to train on."
                    " Add them to the file."
                )
            if not bool(data.train_mask.any()):
                raise DataError(f"{data.name}: no node is in the train split. Add nodes to it.")
        case TableGraph():
            check_target(data)
        case GraphSet() | PointSet() | AtomSet():
            if not bool(data.train_mask.any()):
                raise DataError(f"{data.name}: nothing is in the train split. Add to it.")


def described(model: str, data: Data) -> str:
    """One line that says which model is trained, on what, and how large the graph is."""
    match data:
        case KnowledgeGraph():
            sizes = (
                f"{data.num_nodes} entities, {data.num_rels} relations, "
                f"{len(data.train)}/{len(data.valid)}/{len(data.test)} triples"
            )
        case TypedNodeData():
            sizes = (
                f"{data.num_nodes} nodes of {len(data.node_counts)} types, {data.num_edges} edges of {data.num_rels} "
                f"relations, {data.num_classes} classes"
            )
        case GraphSet():
            sizes = (
                f"{data.num_graphs} graphs, {data.x.size(0)} nodes, {data.edge_index.size(1)} edges, "
                f"{data.x.size(1)} features, {data.num_targets} {'classes' if data.num_classes else 'targets'}"
            )
        case TableGraph():
            target = check_target(data)
            what = f"{len(target.classes)} classes" if target.classes else "numbers"
            sizes = f"{data.described()}; {target.table}.{target.column}: {what} of {described_parts(target)} rows"
        case PointSet():
            sizes = f"{data.points.size(0)} clouds of {data.points.size(1)} points, {data.num_classes} classes"
        case AtomSet():
            sizes = f"{len(data.energy)} systems, {len(data.pos)} atoms, {data.edge_index.size(1)} edges"
        case Interactions():
            sizes = (
                f"{data.num_users} users, {data.num_items} items, "
                f"{data.train.size(1)}/{data.val.size(1)}/{data.test.size(1)} pairs"
            )
        case LinkData():
            sizes = (
                f"{data.num_nodes} nodes, {data.x.size(1)} features, "
                f"{'/'.join(str(data.joined[part].size(1)) for part in ('train', 'val', 'test'))} pairs"
            )
        case _:
            sizes = (
                f"{data.num_nodes} nodes, {data.num_edges} edges, {data.x.size(1)} features, {data.num_classes} classes"
            )
    return f"{model} on {data.name}: {sizes}"
