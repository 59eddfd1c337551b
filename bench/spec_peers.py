"""The peers of a `Spec`: PyG's layers and those of this package's graphs, eager and compiled in several ways."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.utils import add_self_loops, remove_self_loops

import graphweave
from bench.case import IN_FLOAT64, NEARBY, Case, Check, Peers
from bench.exact_layers import ExactAlong, exact
from bench.exact_sums import dot
from bench.named_graphs import edges_of, workload
from bench.papers import tasks
from bench.specs import USER_DEFINED, Spec, spec_of
from bench.steps import ModelStep, Step, gradients
from bench.turns import ROOT
from bench.udf_layers import LAYERS, SELF_LOOPS
from bench.udf_layers import WithLoss as UdfWithLoss
from bench.udf_variants import BUILTIN, PYG, plain_names
from bench.workloads import COMPILERS, THP, WithLoss, layers_of

CHECK = Check(1e-4, exact=True, nearby=True, otherwise="dgl")
"""Looser than the tests' 1e-5: a hub adds 13,000 float32 terms, and a weight gradient 169,343."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a model is written (`udf`, `builtin`, `pyg`; only user-defined layers have the first two), and what compiles
    it: graphweave with `options`, or a `compiler` of `bench.workloads`; neither leaves it as it is. `native`: PyG has
    its native libraries, and layers that can take a SparseTensor get one, as PyG's documentation advises."""

    writing: str = "udf"
    options: Mapping[str, Any] | None = None
    compiler: str = "eager"
    native: bool = False

    def compile(self, part: nn.Module) -> Any:
        if self.options is not None:
            return graphweave.compile(part, options=dict(self.options))
        return COMPILERS[self.compiler](part)


WAYS = {
    "eager": Way("pyg"),
    "eager-thp": Way("pyg"),
    **dict.fromkeys(IN_FLOAT64, Way("pyg")),
    "pyg-native": Way("pyg", native=True),
    "inductor": Way("pyg", compiler="inductor"),
    "inductor-autotune": Way("pyg", compiler="inductor-autotune"),
    "plain": Way("pyg", compiler="plain"),
    "graphweave": Way(options={}),
    "udf-eager": Way(),
    "builtin": Way("builtin", {}),
    "pyg": Way("pyg", {}),
    "least memory": Way(options={"recompute": "always"}),
    "stashing": Way(options={"recompute": "never"}),
    "no fusion": Way(options={"fuse": False}),
    "no fusion, stashing": Way(options={"fuse": False, "recompute": "never"}),
    "no rewriting": Way(options={"rewrite": False}),
    "neither": Way(options={"rewrite": False, "fuse": False}),
}
"""Peer -> its way. `plain` is graphweave as a backend of torch.compile."""

WITHIN = "within"
"""Peer: graphweave with the budget that is the case's `memory`, as options={"memory": ...} has it."""

NATIVE = ROOT / ".pyg-native"
"""Folder with PyG's native libraries, which `make pyg-native` builds. Only the peer pyg-native sees it."""

ENVIRONMENT = {
    "eager-thp": {THP: "1"},
    "dgl-thp": {THP: "1"},
    "pyg-native": {"PYTHONPATH": os.pathsep.join([str(NATIVE), os.environ.get("PYTHONPATH", "")])},
}
"""Variables that are added for a peer's process."""

TAKES_SPARSE = ("gcn", "sage", "gin")
"""Layers that PyG computes as a product with a sparse matrix, if they get a SparseTensor."""


class PygAlong(pyg.MessagePassing):
    """`Along` by PyG's message passing. An index is an edge index [2, E]."""

    def __init__(self) -> None:
        super().__init__(aggr="sum")

    def total(self, x: Tensor, index: Tensor, weight: Tensor, rows: int) -> Tensor:
        out: Tensor = self.propagate(index, x=x, weight=weight, size=(x.size(0), rows))
        return out

    def message(self, x_j: Tensor, weight: Tensor) -> Tensor:
        return x_j * weight[:, None]

    def dot(self, left: Tensor, right: Tensor, index: Tensor) -> Tensor:
        return dot(left, right, *index)


@dataclass(frozen=True, slots=True)
class Built:
    """A model and its loss, each with its arguments, and the arrays of DGL's process, but for the weights."""

    model: nn.Module
    inputs: tuple[Any, ...]
    loss: nn.Module
    loss_inputs: tuple[Any, ...]
    arrays: dict[str, Tensor]

    def nearby(self, seed: int) -> Built:
        """The same at inputs and weights that differ by at most half a unit in the last place of float32."""
        random = torch.Generator().manual_seed(seed)
        moved: dict[int, Tensor] = {}  # the model and its loss have the same inputs

        def move(value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.is_floating_point():
                return value
            if id(value) not in moved:
                by = torch.rand(value.shape, generator=random, dtype=torch.float64) * 2 - 1
                moved[id(value)] = value.detach() * (1 + by * torch.finfo(torch.float32).eps / 2)
            return moved[id(value)]

        with torch.no_grad():
            for parameter in self.loss.parameters():
                parameter.copy_(move(parameter))
        inputs, loss_inputs = (tuple(map(move, values)) for values in (self.inputs, self.loss_inputs))
        return replace(self, inputs=inputs, loss_inputs=loss_inputs)


def _task(spec: Spec, folder: Path, wide: bool, seed: int) -> Built:
    """A model of bench/papers/tasks.py, which is its own loss."""
    given = tasks.inputs_of(spec, lambda nodes, edges: edges_of(f"rmat:{nodes}:{edges}", folder)[0])
    inputs = [one.index if isinstance(one, tasks.Edges) else one for one in given]
    arrays = {f"input.{i}": value for i, value in enumerate(inputs)}
    for i, one in enumerate(given):
        if isinstance(one, tasks.Edges):
            arrays[f"sides.{i}"] = torch.tensor([one.sources, one.destinations])
    torch.manual_seed(seed)
    module = tasks.module_of(spec, ExactAlong() if wide else PygAlong())
    if wide:
        module = module.double()
        inputs = [value.double() if value.is_floating_point() else value for value in inputs]
    return Built(module, tuple(inputs), module, tuple(inputs), arrays)


def _on_points(spec: Spec, folder: Path, wide: bool, seed: int) -> Built:
    """Layers that make the graph of nearest points in each call, and the cross entropy of the last."""
    assert spec.on_points is not None
    clouds, points, _ = spec.on_points
    work = workload(spec.graph, spec.inputs, 0, spec.widths[-1], folder)
    torch.manual_seed(seed)
    model: nn.Module = layers_of(spec, work.x.size(1))
    if wide:
        work, model = work.double(), exact(model.double())
    inputs = (work.x, torch.arange(clouds).repeat_interleave(points))
    return Built(model, inputs, WithLoss(model), (work.y, *inputs), {"x": work.x, "y": work.y})


def _layers(spec: Spec, folder: Path, writing: str, wide: bool, seed: int) -> Built:
    """PyG's layers and the cross entropy of the last, or two layers of functions with the same weights."""
    name = spec.layer.removeprefix(USER_DEFINED)
    udf = name != spec.layer
    work = workload(spec.graph, spec.inputs, spec.pseudo if name == "monet" else 0, spec.widths[-1], folder)
    arrays = {"x": work.x, "edge_index": work.edge_index, "y": work.y}
    if work.edge_attr is not None:
        arrays["edge_attr"] = work.edge_attr
    torch.manual_seed(seed)
    model: Any = PYG[name](spec.inputs) if udf else layers_of(spec, work.x.size(1))
    if udf and writing != "pyg":
        weights = plain_names({key: value.detach().clone() for key, value in model.named_parameters()})
        model = {"udf": LAYERS, "builtin": BUILTIN}[writing][name](spec.inputs)
        model.load_state_dict(weights)
    if wide:
        work, model = work.double(), exact(model.double())
    if not udf:
        return Built(model, work.inputs, WithLoss(model), (work.y, *work.inputs), arrays)
    over: Any = work.edge_index if writing == "pyg" else graph_of(name, work.edge_index, work.x)
    if writing == "pyg" and name == "cgat":  # PyG's own layers insert self-loops themselves
        over = with_self_loops(work.edge_index, work.x.size(0))
    inputs = (over, work.x, work.y)
    return Built(model, inputs, UdfWithLoss(model), inputs, arrays)


def with_self_loops(edge_index: Tensor, num_nodes: int) -> Tensor:
    """The edges with exactly one self-loop at every node, after all other edges."""
    return add_self_loops(remove_self_loops(edge_index)[0], num_nodes=num_nodes)[0]


def graph_of(layer: str, edge_index: Tensor, x: Tensor) -> Any:
    """graphweave's graph with the fields that the layers read."""
    if layer in SELF_LOOPS:
        edge_index = with_self_loops(edge_index, x.size(0))
    graph = graphweave.graph((edge_index[0], edge_index[1]), num_nodes=x.size(0))
    if layer == "gcn":
        graph.ndata["norm"] = graph.in_degrees().to(x.dtype).rsqrt().unsqueeze(1)
    return graph


def built(spec: Spec, folder: Path, writing: str = "pyg", *, wide: bool = False, seed: int = 0) -> Built:
    if spec.layer in tasks.INPUTS:
        return _task(spec, folder, wide, seed)
    if spec.on_points is not None:
        return _on_points(spec, folder, wide, seed)
    return _layers(spec, folder, writing, wide, seed)


def with_sparse(one: Built) -> Built:
    """The same with the edges as a SparseTensor, transposed, with its formats of both directions made."""
    from torch_sparse import SparseTensor  # only the process of this peer has it

    def sparse(value: Any) -> Any:
        if value is not edges:
            return value
        adjacency = SparseTensor.from_edge_index(edges, sparse_sizes=(nodes, nodes)).t()
        return adjacency.fill_cache_()

    (edges,), nodes = (value for value in one.inputs if value.dtype == torch.int64), one.inputs[0].size(0)
    inputs, loss_inputs = (tuple(map(sparse, values)) for values in (one.inputs, one.loss_inputs))
    return replace(one, inputs=inputs, loss_inputs=loss_inputs)


def build(spec: str, mode: str, folder: Path, seed: int = 0, compile_loss: bool = True, memory: str = "") -> Peers:
    """Without `compile_loss`, which only PyG's layers can do without, eager PyTorch computes the loss for all peers.
    `memory` is the budget of the peer WITHIN."""

    def prepared(peer: str, way: Way) -> Step:
        one = built(spec_of(spec), folder, way.writing, wide=peer in IN_FLOAT64, seed=seed)
        if peer in NEARBY:
            one = one.nearby(NEARBY.index(peer))
        if way.native and spec_of(spec).layer in TAKES_SPARSE:
            one = with_sparse(one)
        model = way.compile(one.model)
        infer = partial(model, *one.inputs)
        y = one.loss_inputs[0]
        train: Any = lambda: F.cross_entropy(infer(), y)  # noqa: E731
        if compile_loss:
            train = partial(way.compile(one.loss), *one.loss_inputs)
        return ModelStep(one.model, mode, infer, train, lambda: plain_names(gradients(one.model)))

    ways = {**WAYS, **({WITHIN: Way(options={"memory": memory})} if memory else {})}
    return {peer: partial(prepared, peer, way) for peer, way in ways.items()}


def inputs(
    spec: str, mode: str, folder: Path, seed: int = 0, compile_loss: bool = True, memory: str = ""
) -> Mapping[str, Tensor]:
    """Inputs and initial weights, for DGL."""
    one = built(spec_of(spec), folder, seed=seed)
    weights = plain_names({name: value.detach() for name, value in one.model.named_parameters()})
    return {**one.arrays, **{f"weight.{name}": value for name, value in weights.items()}}


def moved(peer: str, step: Step) -> dict[str, Any]:
    """Bytes of a step: by the cost model, and of eager's calls. None where the compiler does not count them."""
    if WAYS[peer].options is None:
        return {}
    assert isinstance(step, ModelStep)
    part: Any = step.loss if step.mode == "train" else step.infer
    captures = graphweave.explain(part.func, *part.args).captures
    return {name: _sum([getattr(c, name) for c in captures]) for name in ("moved", "eager_moved")}


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def refusal(peer: str, **_: Any) -> str | None:
    if peer == "pyg-native" and not NATIVE.is_dir():
        return f"needs PyG's native libraries: {NATIVE.name} is absent (`make pyg-native` builds it)"
    return None


def counted(peer: str, step: Step) -> dict[str, Any]:
    """graphweave's counters, which show a fallback to eager mode."""
    return {"counters": {name: n for name, n in graphweave.counters().items() if n}}


def case_of(
    name: str, spec: Spec, mode: str, folder: Path, peers: tuple[str, ...], sizes: Mapping[str, Any] | None = None,
    **more: Any,
) -> Case:  # fmt: skip
    """The case of a spec. With `--quick` it is on a small graph."""
    given = {"spec": spec.text(), "mode": mode, "folder": folder, **(sizes or {})}
    points = "points:2:100:5" if spec.on_points is not None else "tiny-points"
    tiny = replace(spec, graph=points if spec.layer.startswith("edgeconv") else "tiny").text()
    own = {"notes": counted, "refusal": refusal}
    return Case(name, build, peers, CHECK, given, {"spec": tiny}, inputs, **{**own, **more})
