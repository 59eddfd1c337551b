"""One case for every model of `torch_geometric.nn.models` that runs without a compiled extension package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn.models import (
    GPSE,
    GPSENodeEncoder,
    HeteroJumpingKnowledge,
    LPFormer,
    MetaPath2Vec,
    NeuralFingerprint,
    Polynormer,
    SGFormer,
)  # fmt: skip
from torch_geometric.nn.models.attract_repel import ARLinkPredictor
from torch_geometric.nn.models.graph_mixer import LinkEncoder, NodeEncoder
from torch_geometric.nn.models.tgn import IdentityMessage, LastAggregator, MeanAggregator, TGNMemory

from tests.pyg.zoo_convs import attr, histogram, mlp, on, weight
from tests.pyg.zoo_graphs import EDGE_DIM, EDGES, IN, METADATA, NODES, OUT, Built, Make, batch, edges, randn, undirected


class Through(nn.Module):
    """A module whose forward is another method of `inner`, or several calls of it."""

    def __init__(self, inner: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.inner = inner
        self.call = call

    def forward(self, *args: Any) -> Any:
        return self.call(self.inner, *args)


class Variational(nn.Module):
    """Encoder with two heads, mean and log standard deviation."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = pyg.GCNConv(IN, OUT)
        self.spread = pyg.GCNConv(IN, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        return self.mean(x, edge_index), self.spread(x, edge_index)


def basic(kind: type[nn.Module], *extra: Any, **options: Any) -> Built:
    """Two layers of one of PyG's ready models."""
    return on(kind(IN, 16, num_layers=2, out_channels=OUT, **options), *extra)


def pna() -> Built:
    options = {"aggregators": ["mean", "max", "std"], "scalers": ["identity", "amplification"], "deg": histogram()}
    return basic(pyg.PNA, **options)


def reconstruct(model: nn.Module, x: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    return model.recon_loss(model.encode(x, positive), positive, negative)  # type: ignore[operator]


def variational(model: nn.Module, x: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    loss = model.recon_loss(model.encode(x, positive), positive, negative)  # type: ignore[operator]
    return loss + model.kl_loss() / NODES  # type: ignore[operator]


def adversarial(model: nn.Module, x: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    z = model.encode(x, positive)  # type: ignore[operator]
    return model.recon_loss(z, positive, negative) + model.reg_loss(z)  # type: ignore[operator]


def auto_encoder(model: nn.Module, call: Callable[..., Any]) -> Built:
    """An auto-encoder whose negative edges are an argument. Drawing them inside would need a sampler on the host."""
    return Built(Through(model, call), (randn(NODES, IN), edges(), edges(num_edges=40)))


def infomax() -> Built:
    def summary(z: Tensor, *args: Any) -> Tensor:
        return torch.sigmoid(z.mean(dim=0))

    def corruption(x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        return x.flip(0), edge_index

    def loss(model: nn.Module, x: Tensor, edge_index: Tensor) -> Tensor:
        return model.loss(*model(x, edge_index))  # type: ignore[operator]

    encoder = pyg.GCNConv(IN, OUT)
    return on(Through(pyg.DeepGraphInfomax(OUT, encoder, summary, corruption), loss))


class EdgeModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = mlp(2 * IN + EDGE_DIM + 4, EDGE_DIM)

    def forward(self, src: Tensor, dst: Tensor, edge_attr: Tensor, u: Tensor, batch: Tensor) -> Tensor:
        return self.mlp(torch.cat([src, dst, edge_attr, u[batch]], 1))


class NodeModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = mlp(IN + EDGE_DIM + 4, IN)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, u: Tensor, batch: Tensor) -> Tensor:
        received = x.new_zeros(x.size(0), EDGE_DIM).index_add(0, edge_index[1], edge_attr)
        return self.mlp(torch.cat([x, received, u[batch]], 1))


class GlobalModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = mlp(IN + 4, 4)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, u: Tensor, batch: Tensor) -> Tensor:
        return self.mlp(torch.cat([u, pyg.global_mean_pool(x, batch, size=3)], 1))


def meta_layer() -> Built:
    return on(pyg.MetaLayer(EdgeModel(), NodeModel(), GlobalModel()), attr(), randn(3, 4), batch())


def jumping(mode: str) -> Built:
    return Built(pyg.JumpingKnowledge(mode, channels=IN, num_layers=3), ([randn(NODES, IN) for _ in range(3)],))


def hetero_jumping() -> Built:
    xs = {name: [randn(5, IN) for _ in range(3)] for name in METADATA[0]}
    return Built(HeteroJumpingKnowledge(METADATA[0], "lstm", channels=IN, num_layers=3), (xs,))


def meta_path() -> Built:
    index = {kind: edges(8, 8, 15) for kind in METADATA[1]}
    path = [METADATA[1][1], METADATA[1][2]]
    model = MetaPath2Vec(index, OUT, path, walk_length=4, context_size=3)
    walks = torch.randint(12, (6, 3)), torch.randint(12, (6, 3))
    return Built(Through(model, lambda inner, *walk: inner.loss(*walk)), walks)


def re_net() -> Built:
    model = pyg.RENet(NODES, 4, IN, seq_len=3)
    fields = {"sub": (6, NODES), "rel": (6, 4), "obj": (6, NODES)}
    history = {"h_sub": (15, NODES), "h_sub_t": (15, 3), "h_obj": (15, NODES), "h_obj_t": (15, 3)}
    values = {name: torch.randint(high, (rows,)) for name, (rows, high) in {**fields, **history}.items()}
    batches = {name: torch.sort(torch.randint(6, (15,)))[0] for name in ("h_sub_batch", "h_obj_batch")}
    names = tuple({**values, **batches})

    def call(inner: nn.Module, *tensors: Tensor) -> Any:
        return inner(Data(**dict(zip(names, tensors, strict=True))))

    return Built(Through(model, call), tuple({**values, **batches}.values()))


def tgn(aggregator: nn.Module) -> Built:
    model = TGNMemory(NODES, 4, IN, 6, IdentityMessage(4, IN, 6), aggregator)
    model.update_state(torch.arange(6), torch.arange(6, 12), torch.arange(6), randn(6, 4))
    model.update_state(torch.arange(3), torch.arange(8, 11), torch.arange(7, 10), randn(3, 4))
    return Built(model, (torch.arange(10),))


def gpse() -> Built:
    model = GPSE(
        dim_in=IN, dim_out=5, dim_inner=16, layers_mp=2, num_node_targets=5, num_graph_targets=3, dropout=0.0,
        multi_head_dim_inner=8,
    )  # fmt: skip

    def call(inner: nn.Module, x: Tensor, edge_index: Tensor, batch: Tensor) -> Any:
        return inner(Batch(x=x, edge_index=edge_index, batch=batch, y=torch.zeros(NODES, 5), y_graph=torch.zeros(3, 3)))

    return Built(Through(model, call), (randn(NODES, IN), edges(NODES), batch()))


def distances(pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
    """Every pair of distinct points of one molecule, and its distance."""
    rows = torch.arange(pos.size(0))
    src, dst = rows.repeat(pos.size(0)), rows.repeat_interleave(pos.size(0))
    keep = (src != dst) & (batch[src] == batch[dst])
    index = torch.stack([src[keep], dst[keep]])
    return index, (pos[index[0]] - pos[index[1]]).norm(dim=-1)


def schnet() -> Built:
    model = pyg.SchNet(16, 16, num_interactions=2, num_gaussians=8, interaction_graph=distances)
    return Built(model, (torch.randint(1, 9, (NODES,)), randn(NODES, 3), batch()))


def label_propagation() -> Built:
    return Built(pyg.LabelPropagation(3, 0.7), (torch.randint(4, (NODES,)), undirected()))


def correct_and_smooth() -> Built:
    def call(inner: nn.Module, y_soft: Tensor, y: Tensor, mask: Tensor, edge_index: Tensor) -> Tensor:
        corrected = inner.correct(y_soft, y, mask, edge_index)  # type: ignore[operator]
        return inner.smooth(corrected, y, mask, edge_index)  # type: ignore[operator]

    model = Through(pyg.CorrectAndSmooth(2, 0.8, 2, 0.6), call)
    mask = torch.arange(0, NODES, 2)
    return Built(model, (torch.rand(NODES, 4), torch.randint(4, (mask.numel(),)), mask, undirected()))


def light_gcn() -> Built:
    return Built(pyg.LightGCN(NODES, OUT, 2), (undirected(), edges(num_edges=10)))


def linkx() -> Built:
    return on(pyg.LINKX(NODES, IN, 16, OUT, num_layers=2), weight(), index=edges()[:, edges()[1].argsort()])


def lpformer() -> Built:
    ppr = torch.rand(NODES, NODES).softmax(-1).to_sparse()
    return Built(LPFormer(IN, 16), (edges(num_edges=10), randn(NODES, IN), undirected(), ppr))


def signed_gcn() -> Built:
    return on(pyg.SignedGCN(IN, 16, num_layers=2), edges())


def reversible() -> Built:
    """The block frees the storage of its own input and output, so neither may be the caller's."""
    block = pyg.GroupAddRev(pyg.SAGEConv(IN // 2, IN // 2), num_groups=2)
    return on(Through(block, lambda inner, x, edge_index: inner(x + 0.0, edge_index) + 0.0))


def deep_gcn(block: str) -> Built:
    layer = pyg.DeepGCNLayer(pyg.GCNConv(IN, IN), nn.LayerNorm(IN), nn.ReLU(), block=block)
    return on(layer)


def mask_label() -> Built:
    return Built(pyg.MaskLabel(4, IN), (randn(NODES, IN), torch.randint(4, (NODES,)), torch.arange(NODES) % 3 == 0))


def graph_mixer_link() -> Built:
    model = LinkEncoder(5, EDGE_DIM, 16, OUT, time_channels=6)
    return Built(model, (edges(), attr(), torch.rand(EDGES), torch.rand(NODES) + 0.5))


MODELS: dict[str, Make] = {
    "MLP": lambda: Built(pyg.MLP([IN, 16, OUT]), (randn(NODES, IN),)),
    "MLP-graph-norm": lambda: Built(pyg.MLP([IN, 16, OUT], norm="graph_norm"), (randn(NODES, IN), batch())),
    "GCN": lambda: basic(pyg.GCN),
    "GCN-jk-norm": lambda: basic(pyg.GCN, weight(), jk="cat", norm="batch_norm"),
    "GraphSAGE": lambda: basic(pyg.GraphSAGE),
    "GraphSAGE-max": lambda: basic(pyg.GraphSAGE, aggr="max", jk="lstm"),
    "GIN": lambda: basic(pyg.GIN),
    "GIN-layer-norm": lambda: basic(pyg.GIN, norm="layer_norm", train_eps=True),
    "GAT": lambda: basic(pyg.GAT, heads=4),
    "GAT-v2-dropout": lambda: basic(pyg.GAT, heads=4, v2=True, dropout=0.3),
    "PNA": pna,
    "EdgeCNN": lambda: basic(pyg.EdgeCNN),
    "JumpingKnowledge-cat": lambda: jumping("cat"),
    "JumpingKnowledge-lstm": lambda: jumping("lstm"),
    "HeteroJumpingKnowledge": hetero_jumping,
    "MetaLayer": meta_layer,
    "MetaPath2Vec": meta_path,
    "DeepGraphInfomax": infomax,
    "InnerProductDecoder": lambda: Built(pyg.InnerProductDecoder(), (randn(NODES, IN), edges())),
    "GAE": lambda: auto_encoder(pyg.GAE(pyg.GCNConv(IN, OUT)), reconstruct),
    "VGAE": lambda: auto_encoder(pyg.VGAE(Variational()), variational),
    "ARGA": lambda: auto_encoder(pyg.ARGA(pyg.GCNConv(IN, OUT), mlp(OUT, 1)), adversarial),
    "ARGVA": lambda: auto_encoder(pyg.ARGVA(Variational(), mlp(OUT, 1)), adversarial),
    "SignedGCN": signed_gcn,
    "RENet": re_net,
    "GraphUNet": lambda: on(pyg.GraphUNet(IN, 16, OUT, depth=2), batch()),
    "SchNet": schnet,
    "GPSE": gpse,
    "GPSENodeEncoder": lambda: Built(
        GPSENodeEncoder(16, EDGE_DIM, 6, IN, expand_x=True, dropout_be=0.0, dropout_ae=0.0),
        (randn(NODES, IN), randn(NODES, EDGE_DIM)),
    ),
    "DeepGCNLayer-res+": lambda: deep_gcn("res+"),
    "DeepGCNLayer-dense": lambda: deep_gcn("dense"),
    "TGNMemory-last": lambda: tgn(LastAggregator()),
    "TGNMemory-mean": lambda: tgn(MeanAggregator()),
    "LabelPropagation": label_propagation,
    "CorrectAndSmooth": correct_and_smooth,
    "AttentiveFP": lambda: on(pyg.AttentiveFP(IN, 16, OUT, EDGE_DIM, num_layers=2, num_timesteps=2), attr(), batch()),
    "RECT_L": lambda: on(pyg.RECT_L(IN, 16), weight()),
    "LINKX": linkx,
    "LightGCN": light_gcn,
    "MaskLabel": mask_label,
    "GroupAddRev": reversible,
    "PMLP": lambda: on(pyg.PMLP(IN, 16, OUT, num_layers=2)),
    "NeuralFingerprint": lambda: on(NeuralFingerprint(IN, 16, OUT, num_layers=2), batch()),
    "LPFormer": lpformer,
    "SGFormer": lambda: on(SGFormer(IN, 16, OUT, trans_dropout=0.0, gnn_dropout=0.0), batch()),
    "Polynormer": lambda: on(
        Polynormer(IN, 16, OUT, local_layers=2, in_dropout=0.0, dropout=0.0, global_dropout=0.0), batch()
    ),
    "Polynormer-local": lambda: on(
        Polynormer(IN, 16, OUT, local_layers=2, in_dropout=0.0, dropout=0.0, global_dropout=0.0, local_attn=True),
        batch(),
    ),
    "ARLinkPredictor": lambda: on(ARLinkPredictor(IN, 16, OUT)),
    "GraphMixer-node": lambda: Built(
        NodeEncoder(3), (randn(NODES, IN), edges(), torch.randint(5, (EDGES,)), torch.randint(5, (NODES,)))
    ),
    "GraphMixer-link": graph_mixer_link,
}
"""Case name -> function that builds the model and its inputs from torch's seeded generator."""

NOT_HERE = {
    "GravNetConv": "k-nearest neighbours come from a compiled extension package",
    "DynamicEdgeConv": "k-nearest neighbours come from a compiled extension package",
    "XConv": "k-nearest neighbours come from a compiled extension package",
    "SplineConv": "B-spline kernels come from a compiled extension package",
    "PANConv": "sparse matrix powers come from a compiled extension package",
    "FusedGATConv": "CUDA extension package only",
    "CuGraphSAGEConv": "CUDA extension package only",
    "CuGraphGATConv": "CUDA extension package only",
    "CuGraphRGCNConv": "CUDA extension package only",
    "Node2Vec": "random walks come from a compiled extension package",
    "DimeNet": "radius graph and triplets come from compiled extension packages",
    "DimeNetPlusPlus": "radius graph and triplets come from compiled extension packages",
    "GNNFF": "radius graph and triplets come from compiled extension packages",
    "ViSNet": "the radius graph comes from a compiled extension package",
}
"""Operators and models whose eager form does not run with PyTorch and PyG alone, and why."""
