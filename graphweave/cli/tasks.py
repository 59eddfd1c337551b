"""Loads the data that the command line names, and chooses the training for them."""

from __future__ import annotations

from typing import TypeAlias

from graphweave.cli.entities import EntityRunner
from graphweave.cli.links import LinkRunner
from graphweave.cli.runner import Runner
from graphweave.cli.training import TrainingJob, TrainingWay
from graphweave.core.errors import DataError
from graphweave.data import (
    KnowledgeGraph,
    NodeData,
    TypedNodeData,
    digits,
    families,
    karate,
    npz,
    planetoid,
    relational,
)

Data: TypeAlias = NodeData | TypedNodeData | KnowledgeGraph


def load(name: str, *, symmetric: bool, seed: int) -> NodeData:
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
    raise DataError(f"--data must be digits, karate, FILE.npz or planetoid:NAME (got {name!r}). Name one of these.")


def load_relational(name: str, *, seed: int) -> KnowledgeGraph | TypedNodeData:
    """The relational graph that `--data` names. DataError if there is none of that name."""
    if name == "families":
        return families(seed=seed)
    if name.endswith(".npz"):
        return relational(name, seed=seed)
    raise DataError(f"--data must be families or FILE.npz for models over relations (got {name!r}). Name one of these.")


def check_trainable(data: Data) -> None:
    """DataError if there is nothing to train on."""
    if isinstance(data, KnowledgeGraph):
        if len(data.train) == 0:
            raise DataError(f"{data.name}: no triple is in the train split. Add triples to it.")
        return
    if data.num_classes == 0:
        raise DataError(
            f"{data.name}: the file has no labels 'y', so there is nothing to train on. Add them to the file."
        )
    if not bool(data.train_mask.any()):
        raise DataError(f"{data.name}: no node is in the train split. Add nodes to it.")


def start(way: str, job: TrainingJob, data: Data) -> TrainingWay:
    """The training for `data`: links are predicted in a knowledge graph, nodes classified in other graphs."""
    match data:
        case KnowledgeGraph():
            return LinkRunner(way, job, data)
        case TypedNodeData():
            return EntityRunner(way, job, data)
        case _:
            return Runner(way, job, data)


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
        case _:
            sizes = (
                f"{data.num_nodes} nodes, {data.num_edges} edges, {data.x.size(1)} features, {data.num_classes} classes"
            )
    return f"{model} on {data.name}: {sizes}"
