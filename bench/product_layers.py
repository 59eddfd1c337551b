"""Layers over batches of one graph and over tables of neighbours, for `product_models.py`."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def network(width_in: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width_in, width), nn.SiLU(), nn.Linear(width, width), nn.LayerNorm(width))


class InteractionNet(nn.Module):
    """e' = f(e, send[src], rec[dst]), rec' = rec + g(rec, sum of e'), for a batch on one graph (Battaglia et al. 2016,
    as weather models on meshes use it: Oskarsson et al. 2023): [B, N, F], and [E, F] that all items share."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed, self.edges, self.nodes = network(3, width), network(3 * width, width), network(2 * width, width)

    def forward(self, send: Tensor, rec: Tensor, static: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        edges = self.embed(static).expand(send.shape[0], -1, -1)
        message = self.edges(torch.cat([edges, send.index_select(-2, src), rec.index_select(-2, dst)], -1))
        total = torch.zeros_like(rec).index_add(-2, dst, message)
        return rec + self.nodes(torch.cat([rec, total], -1))


class MeshWeather(nn.Module):
    """One step of a forecast: from a grid to a coarser mesh, on the mesh, and back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mesh = nn.Parameter(torch.randn(1, 1, width))
        self.up, self.on, self.down = (InteractionNet(width) for _ in range(3))

    def forward(
        self, grid: Tensor, up: Tensor, on: Tensor, up_src: Tensor, up_dst: Tensor, on_src: Tensor, on_dst: Tensor,
        num_mesh: int,
    ) -> Tensor:  # fmt: skip
        mesh = self.mesh.expand(grid.shape[0], num_mesh, -1)
        mesh = self.up(grid, mesh, up, up_src, up_dst)
        mesh = self.on(mesh, mesh, on, on_src, on_dst)
        return self.down(mesh, grid, up, up_dst, up_src)


def of_a_grid(batch: int, side: int, mesh: int, width: int) -> list[Tensor | int]:
    """Numbers of `side` x `side` points, of which each has edges to the nearest four of `mesh` x `mesh` nodes, and
    edges between neighbours of the mesh."""
    at = torch.stack(torch.meshgrid(*(torch.arange(side) * (mesh - 1) / side,) * 2, indexing="ij"), -1).view(-1, 1, 2)
    corner = at.long() + torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    src = torch.arange(side * side).repeat_interleave(4)
    dst = (corner[..., 0] * mesh + corner[..., 1]).reshape(-1)
    place = torch.stack(torch.meshgrid(*(torch.arange(mesh),) * 2, indexing="ij"), -1).view(-1, 2)
    near = torch.cdist(place.float(), place.float(), p=math.inf) <= 1
    near.fill_diagonal_(False)
    on_src, on_dst = near.nonzero().T.contiguous()
    grid = torch.randn(batch, side * side, width)
    return [grid, torch.randn(len(src), 3), torch.randn(len(on_src), 3), src, dst, on_src, on_dst, mesh * mesh]


class ProteinEncoder(nn.Module):
    """A layer of ProteinMPNN's encoder (Dauparas et al. 2022): residues [B, N, F], and k neighbours of each,
    [B, N, k, F]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.messages, self.edges = (
            nn.Sequential(
                nn.Linear(3 * width, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)
            )
            for _ in range(2)
        )  # fmt: skip
        self.forward_net = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3)])

    def with_neighbours(self, h: Tensor, edges: Tensor, near: Tensor) -> Tensor:
        flat = near.flatten(1)[..., None].expand(-1, -1, h.size(-1))
        gathered = torch.gather(h, 1, flat).unflatten(1, near.shape[1:])
        return torch.cat([h.unsqueeze(-2).expand_as(gathered), edges, gathered], -1)

    def forward(self, h: Tensor, edges: Tensor, near: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        present = torch.gather(mask[..., None].expand(-1, -1, near.size(2)), 1, near) * mask[..., None]
        message = self.messages(self.with_neighbours(h, edges, near)) * present[..., None]
        h = self.norms[0](h + message.sum(-2) / 30)
        h = self.norms[1](h + self.forward_net(h)) * mask[..., None]
        return h, self.norms[2](edges + self.edges(self.with_neighbours(h, edges, near)))


def of_a_protein(batch: int, residues: int, near: int, width: int) -> list[Tensor]:
    table = torch.randint(residues, (batch, residues, near))
    mask = (torch.rand(batch, residues) > 0.1).float()
    return [torch.randn(batch, residues, width), torch.randn(batch, residues, near, width), table, mask]


class TrafficConvolution(nn.Module):
    """Graph WaveNet's spatial layer (Wu et al. 2019) on edges: sensors stand between channels and times, [B, C, N, T].

    A gate over channels, two powers of the transition matrix, and a 1 x 1 convolution of all orders.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.filter, self.gate, self.mix = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(3 * width, width)

    def forward(self, x: Tensor, weight: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        last = x.movedim(1, -1)
        h = (torch.tanh(self.filter(last)) * torch.sigmoid(self.gate(last))).movedim(-1, 1)
        orders = [h]
        for _ in range(2):
            orders.append(torch.zeros_like(h).index_add(2, dst, orders[-1][:, :, src] * weight[:, None]))
        mixed = self.mix(torch.cat(orders, 1).movedim(1, -1)).movedim(-1, 1)
        return torch.relu(mixed) + x


def of_sensors(batch: int, sensors: int, edges: int, times: int, width: int) -> list[Tensor]:
    src, dst = torch.randint(sensors, (2, edges))
    return [torch.randn(batch, width, sensors, times), torch.rand(edges), src, dst]


class VectorPerceptrons(nn.Module):
    """A layer of geometric vector perceptrons (Jing et al. 2021): scalars [B, N, F] and vectors [B, N, V, 3].

    Messages along edges are gated by norms of vectors; then each node takes their mean.
    """

    def __init__(self, width: int, vectors: int) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(2 * vectors, vectors, bias=False), nn.Linear(vectors, vectors, bias=False)
        self.scalars, self.gate = nn.Linear(2 * width + vectors, width), nn.Linear(width, vectors)

    def forward(self, s: Tensor, v: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor]:
        scalars, vectors = torch.cat([s[:, src], s[:, dst]], -1), torch.cat([v[:, src], v[:, dst]], -2)
        hidden = self.hidden(vectors.transpose(-1, -2))
        lengths = (hidden.square().sum(-2) + 1e-8).sqrt()
        scalars = self.scalars(torch.cat([scalars, lengths], -1))
        vectors = self.out(hidden).transpose(-1, -2) * torch.sigmoid(self.gate(scalars))[..., None]
        count = torch.zeros(s.size(1), dtype=s.dtype).index_add(0, dst, s.new_ones(len(dst))).clamp(min=1)
        total = torch.zeros_like(s).index_add(1, dst, torch.relu(scalars)) / count[:, None]
        return s + total, v + torch.zeros_like(v).index_add(1, dst, vectors) / count[:, None, None]


def of_atoms(batch: int, atoms: int, edges: int, width: int, vectors: int) -> list[Tensor]:
    src, dst = torch.randint(atoms, (2, edges))
    return [torch.randn(batch, atoms, width), torch.randn(batch, atoms, vectors, 3), src, dst]


class BellmanFord(nn.Module):
    """NBFNet (Zhu et al. 2021): paths from the head of each query of a batch to all entities, [B, N, F]; messages are
    products with relations, whose vectors depend on the query's."""

    def __init__(self, relations: int, width: int, layers: int) -> None:
        super().__init__()
        self.query, self.relations = nn.Embedding(relations, width), relations
        self.of_relations = nn.ModuleList([nn.Linear(width, relations * width) for _ in range(layers)])
        self.combine = nn.ModuleList([nn.Linear(2 * width, width) for _ in range(layers)])
        self.norms, self.score = nn.ModuleList([nn.LayerNorm(width) for _ in range(layers)]), nn.Linear(width, 1)

    def forward(
        self, head: Tensor, relation: Tensor, src: Tensor, dst: Tensor, kind: Tensor, entities: int
    ) -> Tensor:  # fmt: skip
        query = self.query(relation)
        items = torch.arange(len(head))
        start = query.new_zeros(len(head), entities, query.size(1)).index_put((items, head), query)
        x = start
        for of_relations, combine, norm in zip(self.of_relations, self.combine, self.norms, strict=True):
            vectors = of_relations(query).view(len(head), self.relations, -1)
            total = torch.zeros_like(x).index_add(1, dst, x[:, src] * vectors[:, kind]) + start
            x = x + torch.relu(norm(combine(torch.cat([x, total], -1))))
        return self.score(x).squeeze(-1)


def of_queries(batch: int, entities: int, edges: int, relations: int) -> list[Tensor | int]:
    head, relation = torch.randint(entities, (batch,)), torch.randint(relations, (batch,))
    src, dst = torch.randint(entities, (2, edges))
    return [head, relation, src, dst, torch.randint(relations, (edges,)), entities]
