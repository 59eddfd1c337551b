"""Train one model by several processes, each on its share of every batch: PyTorch's DistributedDataParallel.

    torchrun --nproc-per-node 2 examples/data_parallel.py

Without torchrun it is one process. `torchrun -m graphweave train` does the same for models and data files of one's own
(docs/distributed.md), and goes on from checkpoints.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import graphweave as gw
from graphweave.data import digits
from graphweave.sampling import NeighborLoader

BATCH = 256
"""Nodes of a step, of all ranks together."""


class WithLoss(torch.nn.Module):
    """A model and its loss in one module, since DistributedDataParallel goes around a module."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.model = GraphSAGE(features, 32, num_layers=2, out_channels=classes)

    def forward(self, x: Tensor, edge_index: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.model(x, edge_index)[: len(y)], y)


def main() -> None:
    if "RANK" not in os.environ:  # started without torchrun
        os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # all ranks draw the same weights
    nodes = digits(k=8)
    data = Data(x=nodes.x, edge_index=nodes.edge_index, y=nodes.y)
    module = WithLoss(nodes.x.shape[1], nodes.num_classes)
    loss = DistributedDataParallel(gw.compile(module))
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)

    seeds = nodes.train_mask.nonzero().flatten()
    seeds = seeds[: len(seeds) // ranks * ranks].view(-1, ranks)[:, rank]  # ranks make the same number of steps
    loader = NeighborLoader(data, [8, 8], input_nodes=seeds, batch_size=BATCH // ranks, shuffle=True)
    for epoch in range(1, 9):
        for batch in loader:
            optimizer.zero_grad()
            step_loss = loss(batch.x, batch.edge_index, batch.y[: batch.batch_size])
            step_loss.backward()  # sums the gradients of all ranks
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {step_loss.item():.3f}")

    if rank == 0:
        with torch.no_grad():
            predicted = module.model(data.x, data.edge_index).argmax(1)
        test = nodes.test_mask
        chance = nodes.y[test].bincount().max() / test.sum()
        print(f"test accuracy: {(predicted == nodes.y)[test].float().mean():.3f}, commonest class: {chance:.3f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
