"""`TableGraph`: the graph of some tables, with features, times and a target, and as other libraries hold it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph.build import heterograph
from graphweave.graph.graph import Graph

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

EdgeType: TypeAlias = "tuple[str, str, str]"

Reference: TypeAlias = "str | tuple[str, ...]"
"""Columns of a table: "orders.customer_id", "lines.shop+sku", or ("lines", "shop", "sku")."""

SPLIT = (0.6, 0.2, 0.2)
"""Shares of the training, validation and test rows, unless the user says otherwise."""
NEVER = (1 << 63) - 1
"""Time of a row whose time is missing: no seed sees it."""
ALWAYS = -(1 << 63) + 1
"""Time of a row that has none and names no row with one: every seed sees it."""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """How tables are read: the options of `from_tables`, which has their meaning."""

    keys: Mapping[str, str | Sequence[str]]
    foreign_keys: Mapping[Reference, str]
    times: Mapping[str, str | None]
    exclude: Sequence[Reference]
    kinds: Mapping[Reference, str]
    target_kind: Literal["classes", "number"] | None
    split: Sequence[Any]
    dangling: Literal["report", "error"]
    max_categories: int
    text_features: int
    seed: int
    name: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """The values to predict of rows of `table`, and the split of these.

    `y`: int64 [rows], -1 where unknown, of the classes that `classes` names; or float32 [rows], NaN where unknown, and
    `classes` is (). The masks are [rows] bool.
    """

    table: str
    column: str
    y: Tensor
    classes: tuple[str, ...]
    train_mask: Tensor
    val_mask: Tensor
    test_mask: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class TableGraph:
    """A graph with a node for each row of a table, except of tables that are edges.

    `features`: table -> [rows, F] float32, a column of ones for a table without any; `feature_names` names its columns.
    `times`: table -> int64 [rows] of when a row became known, for those that have times: microseconds since 1970 in UTC
    if `times_are_dates`. `edges`: (source, relation, destination) -> int64 [2, E], each relation in both directions.
    `edge_features` and `edge_times` are those of tables that are edges. `notes` tell in a line each what was left out.
    """

    name: str
    features: Mapping[str, Tensor]
    feature_names: Mapping[str, tuple[str, ...]]
    times: Mapping[str, Tensor]
    edges: Mapping[EdgeType, Tensor]
    edge_features: Mapping[EdgeType, Tensor]
    edge_feature_names: Mapping[EdgeType, tuple[str, ...]]
    edge_times: Mapping[EdgeType, Tensor]
    times_are_dates: bool
    target: Target | None
    notes: tuple[str, ...]

    @property
    def num_nodes(self) -> int:
        return sum(x.size(0) for x in self.features.values())

    @property
    def num_edges(self) -> int:
        return sum(ends.size(1) for ends in self.edges.values())

    def to_pyg(self) -> HeteroData:
        """PyG's HeteroData: `x`, `time`, `edge_index`, `edge_attr`; at the target's table `y` and the masks. Give a
        `graphweave.sampling.NeighborSampler` of it `time_attr="time"`, and batches hold nothing of their future."""
        try:
            from torch_geometric.data import HeteroData
        except ImportError as error:
            raise DataError("to_pyg: torch_geometric is missing. Run: pip install 'graphweave[pyg]'") from error
        data = HeteroData()
        for table, x in self.features.items():
            data[table].x = x
            if table in self.times:
                data[table].time = self.times[table]
        for relation, ends in self.edges.items():
            data[relation].edge_index = ends
            if relation in self.edge_features:
                data[relation].edge_attr = self.edge_features[relation]
            if relation in self.edge_times:
                data[relation].time = self.edge_times[relation]
        if (target := self.target) is not None:
            node = data[target.table]
            node.y, node.train_mask = target.y, target.train_mask
            node.val_mask, node.test_mask = target.val_mask, target.test_mask
        return data

    def to_graph(self) -> Graph:
        """A `graphweave.Graph` with the same: fields `x`, `time`, `y` and the masks of nodes, `x` and `time` of edges.
        Node types without edges are not in it, since a Graph has only types that a relation joins."""
        joined = {kind for source, _, destination in self.edges for kind in (source, destination)}
        counts = {table: x.size(0) for table, x in self.features.items() if table in joined}
        g = heterograph({relation: (ends[0], ends[1]) for relation, ends in self.edges.items()}, counts)
        for table in counts:
            g.nodes[table].data["x"] = self.features[table]
            if table in self.times:
                g.nodes[table].data["time"] = self.times[table]
        for relation in self.edges:
            if relation in self.edge_features:
                g.edges[relation].data["x"] = self.edge_features[relation]
            if relation in self.edge_times:
                g.edges[relation].data["time"] = self.edge_times[relation]
        if (target := self.target) is not None and target.table in counts:
            for field in ("y", "train_mask", "val_mask", "test_mask"):
                g.nodes[target.table].data[field] = getattr(target, field)
        return g

    def described(self) -> str:
        """One line that says how large the graph is."""
        relations = f"{len(self.edges)} relations" if self.edges else "no relation"
        return f"{self.num_nodes} rows of {len(self.features)} tables, {self.num_edges} edges of {relations}"
