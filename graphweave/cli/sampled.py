"""Trains a PyG model to classify nodes by sampled neighbours of a few of them at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from graphweave.cli.batched import BatchTraining
from graphweave.cli.models import LAYERS, build
from graphweave.cli.training import ACCURACY, TrainingJob, accuracy, commonest, wrap
from graphweave.core.errors import DataError, GraphweaveError
from graphweave.data import NodeData
from graphweave.sampling.prefetch import Prefetcher

FANOUT = (10, 10)
"""Neighbours that each hop draws, unless the user says otherwise."""


class SampledTraining(BatchTraining[Any]):
    """Each step draws neighbours of `batch` training nodes and trains on these nodes (Hamilton, Ying and Leskovec,
    "Inductive Representation Learning on Large Graphs", 2017, algorithm 2). A thread samples one batch ahead. Results
    are measured on the whole graph. The baseline is the commonest class of the training nodes."""

    measure = ACCURACY

    def __init__(self, way: str, job: TrainingJob, data: NodeData) -> None:
        super().__init__(way, job)
        assert job.batch is not None
        fanout = job.fanout or FANOUT
        if len(fanout) != LAYERS:
            raise DataError(
                f"--fanout must have one number for each of {LAYERS} layers (got {','.join(map(str, fanout))})."
                " Write it as 10,10."
            )
        try:
            # Imported here, since PyG is an optional dependency and takes seconds to load.
            from torch_geometric.data import Data
            from torch_geometric.loader import NodeLoader

            from graphweave.sampling import NeighborSampler
        except ImportError as error:
            raise GraphweaveError("torch_geometric is missing. Run: pip install 'graphweave[pyg]'") from error
        self.data = data
        self.train_rows = data.train_mask.nonzero().flatten()
        whole = Data(x=data.x, edge_index=data.edge_index, y=data.y)
        self.sampler = NeighborSampler(whole, list(fanout), seed=job.seed)
        self.loader = NodeLoader(
            whole, self.sampler, input_nodes=self.train_rows, batch_size=job.batch, shuffle=True,
            generator=self.generator,
        )  # fmt: skip
        model = build(job.model, data.x.size(1), job.hidden, data.num_classes, job.heads, job.dropout)
        self.model = wrap(way, job)(model)
        self.optimise(model)

    @property
    def steps(self) -> int:
        return len(self.loader)

    def batches(self) -> Iterator[Any]:
        self.sampler.set_epoch(len(self.history.loss))
        return iter(Prefetcher(self.loader, depth=1))

    def loss(self, batch: Any) -> Tensor:
        logits = self.model(batch.x, batch.edge_index)[: batch.batch_size]
        return F.cross_entropy(logits, batch.y[: batch.batch_size])

    def scores(self, part: str) -> dict[str, float]:
        predicted = self.model(self.data.x, self.data.edge_index).argmax(dim=1)
        return {ACCURACY: accuracy(predicted, self.data.y, getattr(self.data, f"{part}_mask"))}

    def baseline(self) -> dict[str, float]:
        return commonest(self.data.y, self.data.train_mask, self.data.test_mask)
