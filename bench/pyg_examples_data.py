"""Stand-ins for the data sets of PyG's examples: the classes of PyG run, and get generated data where they would
download and process some.

A stand-in has the attributes, types, widths, classes and masks of the real data set. Large ones have fewer graphs,
nodes and edges; `SMALLER` says which. The numbers come from a seed of the data
set's name alone, so both systems get the same, and PyTorch's generator is left as it was.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, Dataset, HeteroData, TemporalData
from torch_geometric.data.data import BaseData
from torch_geometric.io import fs
from torch_geometric.utils import coalesce, to_undirected

Draw = np.random.Generator

PLANETOID = {"cora": (2708, 5278, 1433, 7), "citeseer": (3327, 4552, 3703, 6), "pubmed": (19717, 44324, 500, 3)}
"""Name -> nodes, undirected edges, features, classes: the real sizes."""

TU: Mapping[str, tuple[int, int, int, int, int, int, int]] = {
    "MUTAG": (188, 18, 20, 7, 0, 4, 2),
    "PROTEINS": (1113, 39, 73, 3, 1, 0, 2),
    "PROTEINS_full": (1113, 39, 73, 3, 29, 0, 2),
    "ENZYMES": (600, 33, 62, 3, 18, 0, 6),
    "IMDB-BINARY": (1000, 20, 97, 0, 0, 0, 2),
    "COLORS-3": (4000, 61, 91, 0, 5, 0, 11),
    "TRIANGLES": (36000, 21, 33, 0, 1, 0, 10),
    "Mutagenicity": (1000, 30, 31, 14, 0, 3, 2),
}
"""Name -> graphs, nodes and undirected edges of a graph on average, node labels, node attributes, edge labels,
classes. COLORS-3, TRIANGLES and Mutagenicity have fewer graphs than in truth."""


def random_edges(draw: Draw, num_nodes: int, num_edges: int, *, skew: float = 1.0) -> Tensor:
    """Undirected edges without self-loops, both directions, sorted and each once. A larger `skew` makes hubs."""
    if num_nodes < 2:
        return torch.empty(2, 0, dtype=torch.int64)
    source = draw.integers(num_nodes, size=num_edges)
    target = (num_nodes * draw.random(num_edges) ** skew).astype(np.int64)
    target = np.where(source == target, (target + 1) % num_nodes, target)
    return to_undirected(torch.from_numpy(np.stack([source, target])), num_nodes=num_nodes)


def between(draw: Draw, num_src: int, num_dst: int, num_edges: int) -> Tensor:
    """Edges from one type of nodes to another, sorted and each once."""
    edges = np.stack([draw.integers(num_src, size=num_edges), (num_dst * draw.random(num_edges) ** 2).astype(np.int64)])
    return coalesce(torch.from_numpy(edges), num_nodes=max(num_src, num_dst))


def normal(draw: Draw, *shape: int) -> Tensor:
    return torch.from_numpy(draw.standard_normal(shape, dtype=np.float32))


def words(draw: Draw, num_rows: int, num_words: int, density: float = 0.0127) -> Tensor:
    """Bags of words: zeros and ones, at least one in each row."""
    bags = (draw.random((num_rows, num_words), dtype=np.float32) < density).astype(np.float32)
    bags[np.arange(num_rows), draw.integers(num_words, size=num_rows)] = 1
    return torch.from_numpy(bags)


def labels(draw: Draw, num_rows: int, num_classes: int) -> Tensor:
    """A class for each row; each class occurs where there are enough rows."""
    return torch.from_numpy(draw.permutation(np.arange(num_rows) % num_classes))


def one_hot(draw: Draw, num_rows: int, width: int) -> Tensor:
    return torch.eye(width)[torch.from_numpy(draw.integers(width, size=num_rows))]


def masks(draw: Draw, num_rows: int, train: int, val: int, test: int) -> dict[str, Tensor]:
    order = torch.from_numpy(draw.permutation(num_rows))
    found = {}
    for name, part in zip(
        ("train", "val", "test"), order.split([train, val, test, num_rows - train - val - test])[:3], strict=True
    ):
        found[f"{name}_mask"] = torch.zeros(num_rows, dtype=torch.bool).index_fill_(0, part, True)
    return found


def _planetoid(dataset: Any, draw: Draw, part: str) -> list[Data]:
    nodes, edges, width, classes = PLANETOID[dataset.name.lower()]
    y = labels(draw, nodes, classes)
    split = masks(draw, nodes, 20 * classes, 500, 1000)
    return [Data(x=words(draw, nodes, width), edge_index=random_edges(draw, nodes, edges, skew=1.6), y=y, **split)]


def _tu(dataset: Any, draw: Draw, part: str) -> list[Data]:
    graphs, mean_nodes, mean_edges, node_labels, node_attributes, edge_labels, classes = TU[dataset.name]
    found = []
    for y in labels(draw, graphs, classes).view(-1, 1):
        nodes = max(4, int(draw.poisson(mean_nodes)))
        one = Data(edge_index=random_edges(draw, nodes, int(mean_edges * nodes / mean_nodes)), y=y)
        # In COLORS-3 and TRIANGLES an attribute is small and positive: the graph's attention to the node.
        columns = [normal(draw, nodes, node_attributes).abs()] if node_attributes else []
        columns += [one_hot(draw, nodes, node_labels)] if node_labels else []
        one.x = torch.cat(columns, dim=1) if columns else None
        one.edge_attr = one_hot(draw, one.num_edges, edge_labels) if edge_labels else None
        one.num_nodes = nodes
        found.append(one)
    return found


def _tu_sizes(dataset: Any) -> dict[str, int]:
    _, _, _, node_labels, node_attributes, edge_labels, _ = TU[dataset.name]
    return {
        "num_node_labels": node_labels,
        "num_node_attributes": node_attributes,
        "num_edge_labels": edge_labels,
        "num_edge_attributes": 0,
    }


def _ppi(dataset: Any, draw: Draw, part: str) -> list[Data]:
    found = []
    for _ in range(10 if part == "train" else 2):
        nodes = int(draw.integers(800, 1200))
        y = torch.from_numpy((draw.random((nodes, 121)) < 0.3).astype(np.float32))
        found.append(Data(x=normal(draw, nodes, 50), edge_index=random_edges(draw, nodes, 13 * nodes, skew=1.6), y=y))
    return found


def _entities(dataset: Any, draw: Draw, part: str) -> list[Data]:
    nodes, triples, relations, classes, train, test = 8285, 29043, 45, 4, 140, 36
    edge_index = torch.from_numpy(draw.integers(nodes, size=(2, triples)))
    kind = torch.from_numpy((relations * draw.random(triples) ** 2).astype(np.int64))
    kind[:relations] = torch.arange(relations)
    both = torch.cat([edge_index, edge_index.flip(0)], dim=1)
    kinds = torch.cat([2 * kind, 2 * kind + 1])
    order = torch.argsort(both[1] * nodes + both[0], stable=True)
    rows = torch.from_numpy(draw.permutation(nodes))
    return [
        Data(
            edge_index=both[:, order], edge_type=kinds[order], num_nodes=nodes, train_idx=rows[:train],
            train_y=labels(draw, train, classes), test_idx=rows[train : train + test],
            test_y=labels(draw, test, classes),
        )
    ]  # fmt: skip


def _molecule(draw: Draw, nodes: int) -> tuple[Tensor, int]:
    """Bonds of a tree with some rings, both directions, sorted by atom; also their number."""
    parent = (np.arange(1, nodes) * draw.random(nodes - 1)).astype(np.int64)
    rings = draw.integers(nodes, size=(2, max(1, nodes // 6)))
    bonds = np.concatenate([np.stack([np.arange(1, nodes), parent]), rings[:, rings[0] != rings[1]]], axis=1)
    edge_index = to_undirected(torch.from_numpy(bonds), num_nodes=nodes)
    return edge_index, edge_index.size(1)


def _qm9(dataset: Any, draw: Draw, part: str) -> list[Data]:
    found = []
    for i in range(22000):  # the example takes 20,000 for validation and test
        nodes = int(draw.integers(12, 24))
        edge_index, bonds = _molecule(draw, nodes)
        kind = draw.integers(5, size=nodes)
        z = torch.tensor([1, 6, 7, 8, 9])[torch.from_numpy(kind)]
        x = torch.cat([torch.eye(5)[torch.from_numpy(kind)], z.view(-1, 1).float(), normal(draw, nodes, 5)], dim=1)
        found.append(
            Data(
                x=x, z=z, pos=2 * normal(draw, nodes, 3), edge_index=edge_index, edge_attr=one_hot(draw, bonds, 4),
                y=normal(draw, 1, 19), name=f"gdb {i}", idx=i,
            )
        )  # fmt: skip
    return found


def _zinc(dataset: Any, draw: Draw, part: str) -> list[Data]:
    found = []
    for y in normal(draw, 1500 if part == "train" else 300, 1):
        edge_index, bonds = _molecule(draw, nodes := int(draw.integers(15, 32)))
        x = torch.from_numpy(draw.integers(21, size=(nodes, 1)))
        found.append(Data(x=x, edge_index=edge_index, edge_attr=torch.from_numpy(draw.integers(1, 4, size=bonds)), y=y))
    return found


def _superpixels(dataset: Any, draw: Draw, part: str) -> list[Data]:
    found = []
    for y in labels(draw, 1500 if part == "training" else 300, 10).view(-1, 1):
        edge_index = random_edges(draw, 75, 700)
        pos = torch.from_numpy(28 * draw.random((75, 2), dtype=np.float32))
        found.append(Data(x=torch.rand(75, 1, generator=_torch(draw)), edge_index=edge_index, pos=pos, y=y))
    return found


def _shapes(dataset: Any, draw: Draw, part: str) -> list[Data]:
    """Points of ShapeNet, with normals, the part of each point, and the category."""
    found = []
    for _ in range(60 if part.endswith("trainval") else 20):
        category = int(draw.integers(len(dataset.categories)))
        parts = dataset.seg_classes[dataset.categories[category]]
        y = torch.tensor(parts)[torch.from_numpy(draw.integers(len(parts), size=1024))]
        found.append(Data(pos=normal(draw, 1024, 3), x=normal(draw, 1024, 3), y=y, category=category))
    return found


def _meshes(dataset: Any, draw: Draw, part: str) -> list[Data]:
    """Meshes of ModelNet and FAUST: positions and triangles."""
    classes = int(getattr(dataset, "name", "10"))
    found = []
    for y in labels(draw, 160 if part == "training" else 40, classes).view(-1, 1):
        found.append(Data(pos=normal(draw, 200, 3), face=torch.from_numpy(draw.integers(200, size=(3, 400))), y=y))
    return found


def _upfd(dataset: Any, draw: Draw, part: str) -> list[Data]:
    width = {"profile": 10, "spacy": 300, "bert": 768, "content": 310}[dataset.feature]
    found = []
    for y in labels(draw, {"train": 62, "val": 31, "test": 221}[part], 2).view(-1, 1):
        nodes = int(draw.integers(30, 230))
        parent = torch.from_numpy((np.arange(1, nodes) * draw.random(nodes - 1) ** 3).astype(np.int64))
        found.append(Data(x=normal(draw, nodes, width), edge_index=torch.stack([parent, torch.arange(1, nodes)]), y=y))
    return found


def _sampled(nodes: int, edges: int, width: int, classes: int) -> Callable[[Any, Draw, str], list[Data]]:
    """One graph with masks of about half of its nodes for training."""

    def make(dataset: Any, draw: Draw, part: str) -> list[Data]:
        split = masks(draw, nodes, nodes // 2, nodes // 4, nodes // 4)
        x, y = normal(draw, nodes, width), labels(draw, nodes, classes)
        return [Data(x=x, edge_index=random_edges(draw, nodes, edges, skew=1.6), y=y, **split)]

    return make


def _wikipedia(dataset: Any, draw: Draw, part: str) -> list[Data]:
    nodes = 2277
    splits = [masks(draw, nodes, 1092, 729, 456) for _ in range(10)]
    stacked = {name: torch.stack([one[name] for one in splits], dim=1) for name in splits[0]}
    edge_index = between(draw, nodes, nodes, 36101)
    return [Data(x=words(draw, nodes, 2325, 0.01), edge_index=edge_index, y=labels(draw, nodes, 5), **stacked)]


def _linkx(dataset: Any, draw: Draw, part: str) -> list[Data]:
    nodes = 8000
    splits = [masks(draw, nodes, 4000, 2000, 2000) for _ in range(5)]
    stacked = {name: torch.stack([one[name] for one in splits], dim=1) for name in splits[0]}
    edge_index = random_edges(draw, nodes, 130_000, skew=1.6)
    return [Data(x=words(draw, nodes, 4814, 0.001), edge_index=edge_index, y=labels(draw, nodes, 2), **stacked)]


def _freebase(dataset: Any, draw: Draw, part: str) -> list[Data]:
    nodes, edges = 14541, {"train_data": 60_000}.get(part, 2_000)
    kinds = torch.from_numpy(draw.integers(237, size=edges))
    kinds[:237] = torch.arange(237)
    return [Data(edge_index=torch.from_numpy(draw.integers(nodes, size=(2, edges))), edge_type=kinds, num_nodes=nodes)]


def _relations_to_predict(dataset: Any, draw: Draw, part: str) -> list[Data]:
    nodes, kinds = 4000, 237
    fields: dict[str, Tensor] = {}
    for split, edges in (("train", 40_000), ("valid", 2_000), ("test", 2_000)):
        fields[f"{split}_edge_index"] = torch.from_numpy(draw.integers(nodes, size=(2, edges)))
        kind = torch.from_numpy(draw.integers(kinds, size=edges))
        kind[:kinds] = torch.arange(kinds)
        fields[f"{split}_edge_type"] = kind
    there, kind = fields["train_edge_index"], fields["train_edge_type"]
    edge_index = torch.cat([there, there.flip(0)], dim=1)
    return [Data(num_nodes=nodes, edge_index=edge_index, edge_type=torch.cat([kind, kind + kinds]), **fields)]


def _bitcoin(dataset: Any, draw: Draw, part: str) -> list[Data]:
    found = []
    for _ in range(138):
        edges = 258
        rating = torch.from_numpy(np.where(draw.random(edges) < 0.9, 1, -1) * draw.integers(1, 11, size=edges))
        found.append(Data(edge_index=between(draw, 5881, 5881, edges), num_nodes=5881))
        found[-1].edge_attr = rating[: found[-1].num_edges]
    found[-1].edge_index[:, -1] = 5880  # the property `num_nodes` of the data set reads the largest index
    return found


def _events(dataset: Any, draw: Draw, part: str) -> list[TemporalData]:
    users, items, events = 8227, 1000, 20_000
    time = torch.from_numpy(np.sort(draw.integers(2_678_373, size=events)))
    src = torch.from_numpy((users * draw.random(events) ** 3).astype(np.int64))
    dst = torch.from_numpy((items * draw.random(events) ** 3).astype(np.int64)) + users
    src[0], dst[0] = users - 1, users + items - 1
    y = torch.from_numpy((draw.random(events) < 0.001).astype(np.int64))
    return [TemporalData(src=src, dst=dst, t=time, msg=normal(draw, events, 172), y=y)]


def _history(dataset: Any, draw: Draw, part: str) -> list[Data]:
    events = 4096 if part == "train" else 1024
    columns = (draw.integers(high, size=events) for high in (dataset.num_nodes, dataset.num_rels, dataset.num_nodes))
    times = np.sort(draw.integers(24, size=events))
    rows = zip(*(column.tolist() for column in columns), times.tolist(), strict=True)
    return [Data(sub=sub, rel=rel, obj=obj, t=t) for sub, rel, obj, t in rows]


def _dblp(dataset: Any, draw: Draw, part: str) -> list[HeteroData]:
    data = HeteroData()
    for kind, (rows, width) in {"author": (4057, 334), "paper": (14328, 4231), "term": (7723, 50)}.items():
        data[kind].x = words(draw, rows, width) if kind != "term" else normal(draw, rows, width)
    data["conference"].num_nodes = 20
    data["author"].y = labels(draw, 4057, 4)
    data["author"].update(masks(draw, 4057, 400, 400, 3257))
    for kind, other, edges in (("author", "paper", 19645), ("paper", "term", 85810), ("paper", "conference", 14328)):
        _both_ways(data, draw, kind, other, edges)
    return [data]


def _imdb(dataset: Any, draw: Draw, part: str) -> list[HeteroData]:
    data = HeteroData()
    for kind, rows in {"movie": 4278, "director": 2081, "actor": 5257}.items():
        data[kind].x = words(draw, rows, 3066)
    data["movie"].y = labels(draw, 4278, 3)
    data["movie"].update(masks(draw, 4278, 400, 400, 3478))
    for kind, other, edges in (("movie", "director", 4278), ("movie", "actor", 12828)):
        _both_ways(data, draw, kind, other, edges)
    return [data]


def _both_ways(data: HeteroData, draw: Draw, kind: str, other: str, edges: int) -> None:
    edge_index = between(draw, data[kind].num_nodes, data[other].num_nodes, edges)
    data[kind, other].edge_index = edge_index
    data[other, kind].edge_index = edge_index.flip(0)[:, torch.argsort(edge_index[1], stable=True)]


def _ogb_mag(dataset: Any, draw: Draw, part: str) -> list[HeteroData]:
    """The sizes are a hundredth of the real ones, except for institutions and fields."""
    sizes = {"paper": 7364, "author": 11346, "institution": 874, "field_of_study": 1200}
    data = HeteroData()
    data["paper"].x = normal(draw, 7364, 128)
    data["paper"].year = torch.from_numpy(draw.integers(2010, 2020, size=7364))
    data["paper"].y = labels(draw, 7364, 349)
    for kind, rows in sizes.items():
        if kind != "paper" and dataset.preprocess is not None:
            data[kind].x = normal(draw, rows, 128)
        elif kind != "paper":
            data[kind].num_nodes = rows
    for key, edges in {
        ("author", "affiliated_with", "institution"): 10440, ("author", "writes", "paper"): 71457,
        ("paper", "cites", "paper"): 54163, ("paper", "has_topic", "field_of_study"): 75051,
    }.items():  # fmt: skip
        data[key].edge_index = between(draw, sizes[key[0]], sizes[key[2]], edges)
    data["paper"].update(masks(draw, 7364, 6296, 649, 419))
    return [data]


def _movie_lens(dataset: Any, draw: Draw, part: str) -> list[HeteroData]:
    data = HeteroData()
    data["movie"].x = torch.cat([normal(draw, 9742, 384) / 20, words(draw, 9742, 20, 0.1)], dim=1)
    data["user"].num_nodes = 610
    edge_index = between(draw, 610, 9742, 100836)
    edges = edge_index.size(1)
    data["user", "rates", "movie"].edge_index = edge_index
    data["user", "rates", "movie"].edge_label = torch.from_numpy(draw.integers(6, size=edges))
    data["user", "rates", "movie"].time = torch.from_numpy(draw.integers(828_124_615, 1_537_799_250, size=edges))
    return [data]


def _amazon_book(dataset: Any, draw: Draw, part: str) -> list[HeteroData]:
    data = HeteroData()
    data["user"].num_nodes, data["book"].num_nodes = 5000, 9000
    edge_index = between(draw, 5000, 9000, 200_000)
    data["user", "rates", "book"].edge_index = edge_index
    data["user", "rates", "book"].edge_label_index = between(draw, 5000, 9000, 40_000)
    data["book", "rated_by", "user"].edge_index = edge_index.flip(0)
    return [data]


def _aminer(dataset: Any, draw: Draw, part: str) -> list[HeteroData]:
    data = HeteroData()
    sizes = {"author": 17000, "venue": 400, "paper": 32000}
    for kind, rows in sizes.items():
        data[kind].num_nodes = rows
    for kind, known in (("author", 2500), ("venue", 134)):
        data[kind].y = labels(draw, known, 8)
        data[kind].y_index = torch.from_numpy(draw.permutation(sizes[kind])[:known])
    for kind, there, back, edges in (
        ("author", "written_by", "writes", 94000), ("venue", "published_in", "publishes", 32000),
    ):  # fmt: skip
        edge_index = between(draw, sizes["paper"], sizes[kind], edges)
        data["paper", there, kind].edge_index = edge_index
        data[kind, back, "paper"].edge_index = edge_index.flip(0)
    return [data]


def _taobao(dataset: Any, draw: Draw, part: str) -> list[HeteroData]:
    data = HeteroData()
    sizes = {"user": 3000, "item": 8000, "category": 300}
    for kind, rows in sizes.items():
        data[kind].num_nodes = rows
    edges = between(draw, 3000, 8000, 60_000)
    data["user", "item"].edge_index = edges
    data["user", "item"].time = torch.from_numpy(draw.integers(1_511_539_200, 1_512_316_800, size=edges.size(1)))
    data["user", "item"].behavior = torch.from_numpy(draw.integers(4, size=edges.size(1)))
    data["item", "category"].edge_index = torch.stack([torch.arange(8000), labels(draw, 8000, 300)])
    return [data]


STAND_INS: dict[str, Callable[[Any, Draw, str], Sequence[Any]]] = {
    "Planetoid": _planetoid, "TUDataset": _tu, "PPI": _ppi, "Entities": _entities, "QM9": _qm9, "ZINC": _zinc,
    "MNISTSuperpixels": _superpixels, "ShapeNet": _shapes, "ModelNet": _meshes, "FAUST": _meshes, "UPFD": _upfd,
    "Flickr": _sampled(10_000, 50_000, 500, 7), "Reddit": _sampled(10_000, 250_000, 602, 41),
    "WikipediaNetwork": _wikipedia, "LINKXDataset": _linkx, "FB15k_237": _freebase,
    "RelLinkPredDataset": _relations_to_predict, "BitcoinOTC": _bitcoin, "JODIEDataset": _events,
    "ICEWS18": _history, "GDELT": _history, "DBLP": _dblp, "IMDB": _imdb, "OGB_MAG": _ogb_mag,
    "MovieLens": _movie_lens, "AmazonBook": _amazon_book, "AMiner": _aminer, "Taobao": _taobao,
}  # fmt: skip
"""Class of `torch_geometric.datasets` -> what makes the data of one processed file, named by the file's stem."""

SMALLER = {
    "PPI": "10, 2 and 2 graphs of about 1,000 nodes and 25,000 edges",
    "QM9": "22,000 molecules",
    "ZINC": "1,500, 300 and 300 molecules",
    "MNISTSuperpixels": "1,500 and 300 images",
    "Flickr": "10,000 nodes, 100,000 edges",
    "Reddit": "10,000 nodes, 500,000 edges",
    "LINKXDataset": "8,000 nodes, 260,000 edges",
    "FB15k_237": "60,000 triples for training",
    "RelLinkPredDataset": "4,000 nodes, 40,000 triples for training",
    "JODIEDataset": "20,000 events",
    "ICEWS18": "4,096 events for training",
    "OGB_MAG": "about a hundredth of the nodes and edges",
    "AmazonBook": "5,000 users, 9,000 books, 200,000 ratings",
    "AMiner": "about a hundredth of the nodes and edges",
    "Taobao": "3,000 users, 8,000 items, 60,000 events",
    "TUDataset": "COLORS-3 4,000, TRIANGLES 36,000, Mutagenicity 1,000 graphs",
}
"""Data set -> size of its stand-in, where that is smaller than the real one."""


def _torch(draw: Draw) -> torch.Generator:
    return torch.Generator().manual_seed(int(draw.integers(2**31)))


def made(dataset: Any, part: str) -> list[Any]:
    """The data of one processed file, after the data set's own filter and transformation."""
    name = type(dataset).__name__
    draw = np.random.default_rng(zlib.crc32(f"{name} {getattr(dataset, 'name', '')} {part}".encode()))
    found = list(STAND_INS[name](dataset, draw, part))
    if dataset.pre_filter is not None:
        found = [one for one in found if dataset.pre_filter(one)]
    return found if dataset.pre_transform is None else [dataset.pre_transform(one) for one in found]


def in_float64(data: Any) -> Any:
    """A graph with its float tensors in float64."""
    return data.apply(lambda v: v.double() if v.is_floating_point() else v)


def install(*, wide: bool = False) -> None:
    """Lets PyG's data sets get their data from `STAND_INS`. In float64 if `wide`.

    The constructors of the classes run as they are: they ask for downloads and processing, for which nothing happens,
    and then read files, whose contents are made when they are read. Folders stand in the working directory, for what
    samplers keep there.
    """
    from torch_geometric.data import InMemoryDataset

    files: dict[str, Callable[[], Any]] = {}

    def process(dataset: Any) -> None:
        name = type(dataset).__name__
        if name not in STAND_INS:
            raise FileNotFoundError(f"no stand-in is made for the data set {name}")
        dataset.root = str(Path.cwd() / name)
        Path(dataset.processed_dir).mkdir(parents=True, exist_ok=True)
        for path in dataset.processed_paths:
            files[path] = functools.partial(contents, dataset, Path(path).stem)

    def contents(dataset: Any, part: str) -> tuple[Any, ...]:
        found = made(dataset, part)
        if wide:
            found = [in_float64(one) for one in found]
        data, slices = InMemoryDataset.collate(found)
        sizes = (_tu_sizes(dataset),) if type(dataset).__name__ == "TUDataset" else ()
        return data.to_dict(), slices, *sizes, type(data)

    item = Dataset.__getitem__

    def widened(dataset: Any, idx: Any) -> Any:
        found = item(dataset, idx)
        return in_float64(found) if isinstance(found, BaseData) else found

    if wide:  # transformations at each access, such as `ToDense`, ask for float32 by name
        Dataset.__getitem__ = widened
    read = fs.torch_load
    fs.torch_load = lambda path, *args, **options: files[path]() if path in files else read(path, *args, **options)
    Dataset._download = lambda dataset: None
    Dataset._process = process
