"""Stand-ins for what DGL's scripts import and do not need for their work: downloads, and packages that count matches.

The classes of `dgl.data` that download graphs answer with the graph of a file, whatever their name. They are put into
`dgl.data` of whichever `dgl` the process has, DGL itself or `graphweave.dgl`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

Arrays = Mapping[str, Tensor]

_NODES = ("CoraGraphDataset", "CiteseerGraphDataset", "PubmedGraphDataset")
_RELATIONS = ("AIFBDataset", "MUTAGDataset", "BGSDataset", "AMDataset")


class OneGraph:
    """A data set of one graph, made anew for each instance, because scripts take its fields away."""

    def __init__(self, graph: Any, num_classes: int, category: str = "") -> None:
        self.graph, self.num_classes, self.predict_category = graph, num_classes, category

    def __getitem__(self, item: int) -> Any:
        return self.graph

    def __len__(self) -> int:
        return 1


def nodes_data(arrays: Arrays, transform: Callable[[Any], Any] | None = None) -> OneGraph:
    """The graph of `edge_index`, with DGL's names of fields."""
    dgl = importlib.import_module("dgl")
    graph = dgl.graph((arrays["edge_index"][0], arrays["edge_index"][1]), num_nodes=arrays["x"].size(0))
    for name, field in (("x", "feat"), ("y", "label"), *((f"{part}_mask", f"{part}_mask") for part in _PARTS)):
        graph.ndata[field] = arrays[name]
    return OneGraph(graph if transform is None else transform(graph), int(arrays["y"].max()) + 1)


_PARTS = ("train", "val", "test")


def relations_data(arrays: Arrays) -> OneGraph:
    """The typed graph of a case of `bench.relational_graphs`. The nodes of the first type have labels."""
    dgl, relational = importlib.import_module("dgl"), importlib.import_module("bench.relational_graphs")
    case = relational.Case(**arrays)
    ends = case.ends.tolist()
    edges = {
        (f"type{s}", f"relation{r}", f"type{d}"): (pairs[0], pairs[1])
        for r, ((s, d), pairs) in enumerate(zip(ends, case.by_relation(), strict=True))
    }
    counts = case.counts.tolist()
    graph = dgl.heterograph(edges, num_nodes_dict={f"type{t}": count for t, count in enumerate(counts)})
    first = graph.nodes["type0"].data
    classes = 4
    first["labels"] = case.y[: counts[0]] % classes
    chosen = torch.arange(counts[0]) % 5 == 0
    first["train_mask"], first["test_mask"] = ~chosen, chosen
    return OneGraph(graph, classes, "type0")


def put_data(kind: str, arrays: Arrays) -> None:
    """Puts the stand-ins into `dgl.data`, `dgl.data.rdf` and, for packages that the process lacks, `sys.modules`."""
    data = importlib.import_module("dgl.data")
    names = {
        **{name: lambda **options: nodes_data(arrays, options.get("transform")) for name in _NODES},
        **{name: lambda **options: relations_data(arrays) for name in _RELATIONS},
        "load_data": lambda options: nodes_data(arrays),
        "register_data_args": _register,
    }
    rdf = _module("dgl.data.rdf")
    for name, value in names.items():
        setattr(data, name, value)
        setattr(rdf, name, value)
    for path, members in _PACKAGES.items():
        _module(path.split(".")[0])
        for name, value in members.items():
            setattr(_module(path), name, value)


def _module(path: str) -> ModuleType:
    """The module of this name, or an empty one in its place."""
    try:
        return importlib.import_module(path)
    except ImportError:
        return sys.modules.setdefault(path, module_from_spec(ModuleSpec(path, None)))


def _register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dataset", type=str)


def _share(want: Tensor, got: Tensor) -> float:
    return float((want == got).float().mean())


def _accuracy(got: Tensor, want: Tensor, **ignored: Any) -> Tensor:
    return (want == got).float().mean()


def _split(rows: Tensor, test_size: float) -> tuple[Tensor, Tensor]:
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(rows)))
    count = round(len(rows) * test_size)
    return rows[order[count:]], rows[order[:count]]


_PACKAGES: dict[str, dict[str, Any]] = {
    "sklearn.metrics": {"accuracy_score": _share},
    "sklearn.model_selection": {"train_test_split": _split},
    "torchmetrics.functional": {"accuracy": _accuracy},
}
"""Module -> what scripts take from it. The same stand-ins in both systems: DGL's environment has none of them."""
