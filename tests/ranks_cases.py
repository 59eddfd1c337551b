"""What each rank does in tests of training over parts: graphs, models, and steps beside those of one process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv, HANConv, HeteroConv, RGATConv, RGCNConv, SAGEConv, to_hetero
from torch_geometric.nn import HGTConv as PygHGTConv

import graphweave as gw
from graphweave.distributed.full_graph import shard
from graphweave.distributed.part import GraphPart
from graphweave.distributed.parts import EDGES, NODES, parts_of
from graphweave.nn import HGTConv

WIDTH, CLASSES, RELATIONS = 5, 3, 4


@dataclass(frozen=True)
class Whole:
    """A graph with features, labels and the nodes that are trained on, and the rank that owns each node."""

    edge_index: Tensor
    assignment: Tensor
    x: Tensor
    y: Tensor
    mask: Tensor
    edge_type: Tensor

    def part(self, rank: int, size: int) -> GraphPart:
        kinds = {"kind": self.edge_type}
        return parts_of(self.edge_index, len(self.assignment), self.assignment, size, edge_data=kinds)[rank]


def whole(edge_index: Tensor, assignment: Tensor, seed: int = 0) -> Whole:
    """A graph with random data in float64. About two thirds of the nodes are trained on."""
    draw = torch.Generator().manual_seed(seed)
    nodes, edges = len(assignment), edge_index.shape[1]
    x = torch.randn(nodes, WIDTH, generator=draw, dtype=torch.float64)
    y = torch.randint(0, CLASSES, (nodes,), generator=draw)
    mask = torch.rand(nodes, generator=draw) < 0.66
    return Whole(edge_index, assignment, x, y, mask, torch.randint(0, RELATIONS, (edges,), generator=draw))


def graph_of(kind: str, size: int) -> Whole:
    """The graphs of the tests: how edges run, and how nodes lie on `size` ranks."""
    draw = torch.Generator().manual_seed(3)
    nodes = 23
    random = torch.randint(0, nodes, (2, 70), generator=draw)
    by_turns = torch.arange(nodes) % size
    match kind:
        case "undirected":
            return whole(torch.cat([random, random.flip(0)], 1), by_turns)
        case "nearest":  # each node's 3 nearest: directed, so halo rows are not those that are sent
            points = torch.rand(nodes, 2, generator=draw)
            near = torch.cdist(points, points).topk(4, largest=False).indices[:, 1:]
            index = torch.stack([near.reshape(-1), torch.arange(nodes).repeat_interleave(3)])
            return whole(index, (points[:, 0] * size).long().clamp(max=size - 1))
        case "empty part":
            return whole(random, torch.zeros(nodes, dtype=torch.int64))
        case "one node":
            return whole(random, (torch.arange(nodes) == 7).long() * (size - 1))
        case "no halo":  # two components
            return whole(torch.cat([random % 11, random % 11 + 11], 1), (torch.arange(nodes) >= 11).long() * (size - 1))
        case "all halo":  # bipartite between the ranks
            index = torch.stack([random[0] // 2 * 2, (random[1] // 2 * 2 + 1).clamp(max=21)])
            return whole(torch.cat([index, index.flip(0)], 1), torch.arange(nodes) % 2)
        case "hub":  # node 0 has so many edges, in and out, that its rows are divided
            others = torch.arange(1, 36_000)
            zero = torch.zeros_like(others)
            index = torch.cat([torch.stack([others, zero]), torch.stack([zero, others]), random], 1)
            return whole(index, torch.arange(36_000) % size)
        case "no edges":
            return whole(random[:, :0], by_turns)
    raise ValueError(kind)


class TwoLayers(nn.Module):
    """Two convolutions with the loss inside. Gives the loss and the second one's rows."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor, edge_index: Tensor, y: Tensor, mask: Tensor, *more: Tensor) -> tuple[Tensor, Tensor]:
        h = F.elu(self.first(x, edge_index, *more))
        h = self.second(h, edge_index, *more)
        return F.cross_entropy(h[mask], y[mask]), h


class TypedHGT(nn.Module):
    """`graphweave.nn.HGTConv` on an edge_index; the type of a node is that of its label."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.conv = HGTConv(width, CLASSES if heads == 1 else 4, heads, CLASSES, RELATIONS, dropout=0.0)

    def forward(self, x: Tensor, edge_index: Tensor, kinds: Tensor, types: Tensor) -> Tensor:
        graph = gw.graph((edge_index[0], edge_index[1]), num_nodes=x.shape[0])
        return self.conv(graph, x, types, kinds)


class Normed(nn.Module):
    """A convolution, a batch norm over all nodes, and how far rows are from the mean of all rows."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.conv, self.norm = GCNConv(width, out), nn.BatchNorm1d(out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.norm(self.conv(x, edge_index))
        return h - h.mean(0) + h.amax(0)


MODELS: Mapping[str, Callable[[], TwoLayers]] = {
    "GCN": lambda: TwoLayers(GCNConv(WIDTH, 8), GCNConv(8, CLASSES)),
    "SAGE": lambda: TwoLayers(SAGEConv(WIDTH, 8), SAGEConv(8, CLASSES)),
    "SAGE max": lambda: TwoLayers(SAGEConv(WIDTH, 8, aggr="max"), SAGEConv(8, CLASSES, aggr="max")),
    "GAT": lambda: TwoLayers(GATConv(WIDTH, 4, heads=2), GATConv(8, CLASSES)),
    "RGCN": lambda: TwoLayers(RGCNConv(WIDTH, 8, RELATIONS), RGCNConv(8, CLASSES, RELATIONS)),
    "RGAT": lambda: TwoLayers(RGATConv(WIDTH, 8, RELATIONS), RGATConv(8, CLASSES, RELATIONS)),
    "RGCN bases": lambda: TwoLayers(
        RGCNConv(WIDTH, 8, RELATIONS, num_bases=2), RGCNConv(8, CLASSES, RELATIONS, num_bases=2)
    ),
    "batch norm": lambda: TwoLayers(Normed(WIDTH, 8), Normed(8, CLASSES)),
    "HGT": lambda: TwoLayers(TypedHGT(WIDTH, 2), TypedHGT(8, 1)),
}
RELATIONAL = ("RGCN", "RGCN bases", "RGAT", "HGT")


def model_of(name: str) -> TwoLayers:
    torch.manual_seed(11)
    model = MODELS[name]().double()
    for layer in model.modules():
        if isinstance(layer, RGATConv):  # PyG leaves it uninitialised, and does not read it by default
            torch.nn.init.constant_(layer.l2, 0.5)
    return model


@dataclass(frozen=True)
class Trained:
    """What training gives: losses, the last rows, the last gradients, the final weights."""

    losses: Tensor
    rows: Tensor
    gradients: list[Tensor]
    weights: list[Tensor]


def train(model: nn.Module, *args: Any, steps: int = 3) -> Trained:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss, rows = model(*args)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    weights = list(model.parameters())
    return Trained(
        torch.stack(losses), rows.detach(), [p.grad.clone() for p in weights if p.grad is not None],
        [p.detach().clone() for p in weights],
    )  # fmt: skip


def arguments(name: str, graph: Whole, part: GraphPart | None = None) -> tuple[Tensor, ...]:
    """The arguments of a model, of a part's own rows or of the whole graph."""
    if part is None:
        kinds = (graph.edge_type,) if name in RELATIONAL else ()
        kinds += (graph.y,) if name == "HGT" else ()
        return graph.x, graph.edge_index, graph.y, graph.mask, *kinds
    own = part.nodes[NODES].own
    kinds = (part.edges[EDGES].data["kind"],) if name in RELATIONAL else ()
    kinds += (graph.y[own],) if name == "HGT" else ()
    return graph.x[own], part.edge_index, graph.y[own], graph.mask[own], *kinds


def trained_alike(rank: int, name: str, kinds: list[str], size: int) -> list[tuple[str, str, float]]:
    """Trains a model on each graph, over parts and on the whole; gives the largest differences by what differs.

    One sharded model is made for each graph, since a part belongs to it.
    """
    out: list[tuple[str, str, float]] = []
    for kind in kinds:
        graph = graph_of(kind, size)
        part = graph.part(rank, size)
        reference = model_of(name)
        model = copy.deepcopy(reference)
        if rank:  # the parameters of rank 0 count
            with torch.no_grad():
                for p in model.parameters():
                    p.add_(1)
        found = train(shard(model, part), *arguments(name, graph, part))
        wanted = train(reference, *arguments(name, graph))
        out += _compared(kind, found, wanted, part.nodes[NODES].own)
    return out


def features_once(rank: int, size: int) -> tuple[list[tuple[str, str, float]], list[float], bool]:
    """Trains GAT on a part's features, edits them, and trains again. Gives the differences from the whole graph, those
    of the rows behind the features from the halo rows (where they lie in place), and whether a backward behind an edit
    is refused, as in eager mode."""
    graph = graph_of("nearest", size)
    nodes = len(graph.x)
    part = parts_of(graph.edge_index, nodes, graph.assignment, size, node_data={"x": graph.x, "y": graph.y})[rank]
    of, reference, whole = part.nodes[NODES], model_of("GAT"), arguments("GAT", graph)
    x, model = of.data["x"], copy.deepcopy(reference)
    own, every = of.own, torch.cat([of.own, of.halo])
    mine, apart = shard(model, part), shard(copy.deepcopy(reference), part, halo_dtype=torch.float32)
    args = x, part.edge_index, of.data["y"], graph.mask[own]
    behind, differences = [], []
    for step in range(2):
        found, wanted = train(mine, *args), train(reference, *whole)
        differences += _compared(f"step {step}", found, wanted, own)
        apart(*args)[0].backward()  # another one's halo rows, which are rounded, lie elsewhere
        behind.append(_difference(x.as_strided((len(every), *x.shape[1:]), x.stride()), whole[0][every]))
        x.mul_(-0.5)
        whole = whole[0] * -0.5, *whole[1:]
    loss, _ = mine(*args)
    x.add_(1)
    try:
        loss.backward()
    except RuntimeError as error:
        return differences, behind, "modified by an inplace operation" in str(error)
    return differences, behind, False


_TO_PAPERS = (("author", "writes", "paper"), ("paper", "cites", "paper"))


class TwoTypes(nn.Module):
    """PyG's HeteroConv on papers and authors, of sources to destinations of another type and of the same one."""

    def __init__(self) -> None:
        super().__init__()
        wide = (WIDTH, WIDTH)
        self.first = HeteroConv({
            ("author", "writes", "paper"): SAGEConv(wide, 6), ("paper", "cites", "paper"): GATConv(WIDTH, 6),
            ("paper", "by", "author"): SAGEConv(wide, 6),
        })  # fmt: skip
        self.second = HeteroConv({
            ("author", "writes", "paper"): GATConv((6, 6), CLASSES, add_self_loops=False),
            ("paper", "cites", "paper"): GCNConv(6, CLASSES),
        })  # fmt: skip

    def forward(self, x: dict[str, Tensor], edges: dict[Any, Tensor], y: Tensor) -> tuple[Tensor, Tensor]:
        h = {kind: rows.tanh() for kind, rows in self.first(x, edges).items()}
        out = self.second(h, {key: edges[key] for key in _TO_PAPERS})["paper"]
        return F.cross_entropy(out, y), out


METADATA = (
    ["author", "paper"], [("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "by", "author")]
)  # fmt: skip
"""Node types and edge types of the graphs of two node types."""


class OfTypes(nn.Module):
    """Two layers on rows and edges by type, with the loss of papers inside."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: dict[str, Tensor], edges: dict[Any, Tensor], y: Tensor) -> tuple[Tensor, Tensor]:
        h = {kind: rows.tanh() for kind, rows in self.first(x, edges).items()}
        out = self.second(h, edges)["paper"]
        return F.cross_entropy(out, y), out


class Neighbours(nn.Module):
    """A network without types, for `to_hetero`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SAGEConv((WIDTH, WIDTH), 6), SAGEConv((6, 6), CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


class Translated(nn.Module):
    """What `to_hetero` makes of `Neighbours`, with the loss of papers inside."""

    def __init__(self) -> None:
        super().__init__()
        self.network = to_hetero(Neighbours(), METADATA)

    def forward(self, x: dict[str, Tensor], edges: dict[Any, Tensor], y: Tensor) -> tuple[Tensor, Tensor]:
        out = self.network(x, edges)["paper"]
        return F.cross_entropy(out, y), out


def _sage_by_type(width: int, out: int) -> HeteroConv:
    return HeteroConv({key: SAGEConv((width, width), out) for key in METADATA[1]})


MODELS_OF_TYPES: Mapping[str, Callable[[], nn.Module]] = {
    "HeteroConv": TwoTypes,
    "HeteroConv SAGE": lambda: OfTypes(_sage_by_type(WIDTH, 6), _sage_by_type(6, CLASSES)),
    "to_hetero": Translated,
    "HGT": lambda: OfTypes(PygHGTConv(WIDTH, 6, METADATA, heads=2), PygHGTConv(6, CLASSES, METADATA)),
    "HAN": lambda: OfTypes(HANConv(WIDTH, 6, METADATA, heads=2), HANConv(6, CLASSES, METADATA)),
}
"""Models on rows and edges by type: (x_dict, edge_index_dict, y) -> the loss, and rows of papers."""


def types_alike(rank: int, name: str, kind: str, size: int) -> list[tuple[str, str, float]]:
    """As `trained_alike`, on a graph of two node types. `kind` says which rank owns what."""
    draw = torch.Generator().manual_seed(5)
    nodes = {"author": 9, "paper": 14}
    edges = {
        (src, relation, dst): torch.stack([torch.randint(0, nodes[t], (40,), generator=draw) for t in (src, dst)])
        for src, relation, dst in METADATA[1]
    }
    owner = {t: torch.randint(0, size, (count,), generator=draw) for t, count in nodes.items()}
    match kind:
        case "empty part":
            owner = {t: torch.zeros_like(ranks) for t, ranks in owner.items()}
        case "a type each":  # all halo: papers read authors and papers of others
            owner = {t: torch.full_like(ranks, k % size) for k, (t, ranks) in enumerate(owner.items())}
    x = {kind: torch.randn(n, WIDTH, generator=draw, dtype=torch.float64) for kind, n in nodes.items()}
    y = torch.randint(0, CLASSES, (nodes["paper"],), generator=draw)
    part = parts_of(edges, nodes, owner, size)[rank]
    torch.manual_seed(2)
    reference = MODELS_OF_TYPES[name]().double()
    model = copy.deepcopy(reference)
    own = {kind: part.nodes[kind].own for kind in nodes}
    indices = {key: e.edge_index for key, e in part.edges.items()}
    mine = {kind: x[kind][own[kind]] for kind in nodes}, indices, y[own["paper"]]
    return _compared(kind, train(shard(model, part), *mine), train(reference, x, edges, y), own["paper"])


def _compared(kind: str, found: Trained, wanted: Trained, own: Tensor) -> list[tuple[str, str, float]]:
    pairs = {
        "losses": [(found.losses, wanted.losses)],
        "rows": [(found.rows, wanted.rows[own])],
        "gradients": list(zip(found.gradients, wanted.gradients, strict=True)),
        "weights": list(zip(found.weights, wanted.weights, strict=True)),
    }
    return [(kind, what, max((_difference(a, b) for a, b in both), default=0.0)) for what, both in pairs.items()]


def _difference(a: Tensor, b: Tensor) -> float:
    assert a.shape == b.shape
    return (a - b).abs().max().item() if a.numel() else 0.0


def _small(args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The arguments with features in float32."""
    return args[0].float(), *args[1:]


def counted(rank: int, name: str, kind: str, size: int, steps: int) -> tuple[dict[str, int], int, int]:
    """Counters over the last of `steps` training steps in float32, the part's halo rows, and the rows that it sends."""
    graph = graph_of(kind, size)
    part = graph.part(rank, size)
    model, args = shard(model_of(name).float(), part), _small(arguments(name, graph, part))
    train(model, *args, steps=steps - 1)
    gw.reset_counters()
    train(model, *args, steps=1)
    nodes = part.nodes[NODES]
    return gw.counters(), nodes.num_halo, len(nodes.send)


def with_options(rank: int, name: str, kind: str, size: int, options: dict[str, Any]) -> tuple[float, int]:
    """The largest difference of a loss from that of one process, and the bytes sent, over three steps."""
    graph = graph_of(kind, size)
    part, reference = graph.part(rank, size), model_of(name)
    gw.reset_counters()
    found = train(shard(copy.deepcopy(reference), part, **options), *arguments(name, graph, part))
    sent = gw.counters()["halo_bytes"]
    return _difference(found.losses, train(reference, *arguments(name, graph)).losses), sent


def stale_losses(rank: int, name: str, kind: str, size: int, steps: int) -> tuple[list[float], list[float]]:
    """The losses of training with halo rows of the same step, and with those of the last one."""
    graph = graph_of(kind, size)
    part = graph.part(rank, size)
    exact, stale = (
        train(shard(model_of(name), part, stale=stale), *arguments(name, graph, part), steps=steps).losses.tolist()
        for stale in (False, True)
    )
    return exact, stale


def loss_outside(rank: int, kind: str, size: int) -> list[tuple[str, str, float]]:
    """As `trained_alike`, of one step whose loss is computed from own rows outside of the model, and of inference."""
    graph = graph_of(kind, size)
    part = graph.part(rank, size)
    own = part.nodes[NODES].own
    torch.manual_seed(4)
    reference = GCNConv(WIDTH, CLASSES).double()
    model = copy.deepcopy(reference)
    sharded = shard(model, part)
    out = sharded(graph.x[own], part.edge_index)
    (F.cross_entropy(out, graph.y[own], reduction="sum") / len(graph.y)).backward()
    wanted = reference(graph.x, graph.edge_index)
    F.cross_entropy(wanted, graph.y).backward()
    with torch.no_grad():
        without = sharded(graph.x[own], part.edge_index)
    pairs = zip(model.parameters(), reference.parameters(), strict=True)
    return [
        (kind, "rows", _difference(out.detach(), wanted.detach()[own])),
        (kind, "rows of inference", _difference(without, wanted.detach()[own])),
        (kind, "gradients", max(_difference(a.grad, b.grad) for a, b in pairs if a.grad is not None)),
    ]


class Dropped(nn.Module):
    """Neighbours' sums after dropout, and what dropout keeps of ones."""

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        kept = F.dropout(torch.ones_like(x), 0.5)
        return torch.zeros_like(x).index_add(0, edge_index[1], (x * kept)[edge_index[0]]), kept


def dropped(rank: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """What the rank's dropout keeps, its sums, and the features of all nodes."""
    torch.manual_seed(9)
    graph = graph_of("undirected", size)
    part = graph.part(rank, size)
    sums, kept = shard(Dropped(), part)(graph.x[part.nodes[NODES].own], part.edge_index)
    return kept, sums, part.nodes[NODES].own
