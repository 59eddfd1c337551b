"""The tasks by name: their models, the defaults of their options, and the training of each kind of data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from graphweave.core.errors import DataError
from graphweave.data import (
    AtomSet,
    GraphSet,
    Interactions,
    KnowledgeGraph,
    LinkData,
    NodeData,
    PointSet,
    TableGraph,
    TypedNodeData,
    atom_clusters,
    graph_set,
    interactions,
    point_set,
)
from graphweave.distributed.ranks import ALONE, Ranks
from graphweave.examples import clouds, forces, graphs, pairs, recommend, tables
from graphweave.examples.convolutions import MODELS
from graphweave.examples.nodes import NodeTraining
from graphweave.examples.relational_models import RELATIONAL_MODELS
from graphweave.examples.sampled_nodes import SampledTraining
from graphweave.examples.training import TrainingJob, TrainingWay
from graphweave.examples.triples import TripleTraining
from graphweave.examples.typed_nodes import TypedNodeTraining

Data: TypeAlias = (
    NodeData | TypedNodeData | KnowledgeGraph | GraphSet | LinkData | PointSet | Interactions | TableGraph | AtomSet
)
"""The kinds of data that can be trained on."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task has models, of which the first is the default, and defaults of some options."""

    models: tuple[str, ...]
    file: Callable[..., Data] | None = None
    """Reads its files, or makes its data by their name, for tasks on data of their own."""
    made: str = ""
    """The name of the default data, for a task whose data are made and not read."""
    decoders: tuple[str, ...] = ()
    dropout: float = 0.5
    weight_decay: float = 0.0
    epochs: int = 100
    lr: float = 0.01
    batch: int | None = None
    """How much a step takes; None for all nodes."""


TASKS: dict[str, Task] = {
    "node": Task(("gat", *(m for m in MODELS if m != "gat"), *RELATIONAL_MODELS), weight_decay=5e-4),
    "link": Task(
        ("sage", *(m for m in MODELS if m != "sage"), *RELATIONAL_MODELS),
        decoders=pairs.PAIR_DECODERS,
        dropout=0.2,
        batch=pairs.BATCH,
    ),
    "graph": Task(("gin", *(m for m in MODELS if m != "gin")), graph_set, batch=graphs.BATCH),
    "points": Task(("dgcnn",), point_set, batch=clouds.BATCH),
    "recommend": Task(recommend.RECOMMENDERS, interactions, dropout=0.0, batch=recommend.BATCH),
    "forces": Task(
        tuple(forces.POTENTIALS),
        atom_clusters,
        made="lennard-jones",
        dropout=0.0,
        epochs=50,
        lr=0.002,
        batch=forces.BATCH,
    ),
    "table": Task(RELATIONAL_MODELS, dropout=0.2, epochs=20, batch=tables.BATCH),
}
"""Tasks by name."""


def start(way: str, job: TrainingJob, data: Data, ranks: Ranks = ALONE) -> TrainingWay:
    """The training of `job.task` on `data`; if that is None, links are predicted in a knowledge graph, nodes classified
    in other graphs. DataError for several ranks and a training that takes all nodes at once."""
    match data:
        case KnowledgeGraph():
            return TripleTraining(way, job, data, ranks)
        case GraphSet():
            return graphs.GraphTraining(way, job, data, ranks)
        case PointSet():
            return clouds.CloudTraining(way, job, data, ranks)
        case AtomSet():
            return forces.ForceTraining(way, job, data, ranks)
        case Interactions():
            return recommend.RecommenderTraining(way, job, data, ranks)
        case TableGraph() if ranks.size == 1:
            return tables.TableTraining(way, job, data, tables.check_target(data))
        case LinkData():
            return pairs.PairTraining(way, job, data, ranks)
        case NodeData() if job.task == "link":
            return pairs.PairTraining(way, job, data, ranks)
        case NodeData() if job.batch is not None:
            return SampledTraining(way, job, data, ranks)
    if isinstance(data, TableGraph):
        raise DataError(f"{data.name}: tables are trained on by one process (got {ranks.size} ranks). Run one process.")
    if ranks.size > 1:
        raise DataError(
            f"{data.name}: this training takes all nodes in each step, which {ranks.size} ranks cannot share (got no"
            " batches). Pass a batch with one of PyG's models, or run one process."
        )
    return TypedNodeTraining(way, job, data) if isinstance(data, TypedNodeData) else NodeTraining(way, job, data)
