"""The models, graphs and systems of `bench.gpu`, the order of its cases, and the form of a model in each system."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import relational_graphs, relational_models, relational_pyg, workloads
from bench.gpu_sparse import SPARSE, sparse_model
from bench.graphs import ARXIV_EDGES, ARXIV_NODES, FEATURES, HIDDEN, Workload
from bench.named_graphs import workload
from bench.relational_graphs import Case
from bench.relational_reference import reference as relational_reference
from bench.specs import Spec
from bench.steps import ModelStep, Result
from bench.workloads import COMPILERS, Model, WithLoss, layers_of

SIZES = {
    "arxiv": (ARXIV_NODES, ARXIV_EDGES),
    "reddit": (232_965, 10_000_000),
    "ppi": (56_944, 818_716),
    "cora": (2_708, 10_556),
}
"""R-MAT graphs: name -> published numbers of nodes and edges, but only 10 of Reddit's 115 million edges."""

SMALL_DIVISOR = 100
"""`--small` divides the numbers of nodes and edges of R-MAT graphs by this."""

POINTS = "points"
TYPED_GRAPHS = ("aifb", "bgs", "biokg")
GRAPHS = (*SIZES, POINTS, *TYPED_GRAPHS)

EDGES_OF_LARGE = {
    "arxiv": ARXIV_EDGES,
    "reddit": SIZES["reddit"][1],
    "biokg": relational_graphs.SYNTHETIC["biokg"].edges,
}
LARGE = tuple(EDGES_OF_LARGE)
"""Graphs of at least as many edges as arxiv."""

PLAIN: dict[str, Model] = {
    "gcn": workloads.MODELS["gcn"],
    "sage": workloads.MODELS["sage"],
    "gat1": Model(partial(layers_of, Spec("gat"))),
    "gat8": Model(partial(layers_of, Spec("gat", heads=8))),
    "gatv2": workloads.MODELS["gatv2"],
    "monet": workloads.MODELS["monet"],
    "edgeconv": workloads.MODELS["edgeconv"],
}
"""Two layers, 64 wide; gat1 and gat8 have 1 x 64 and 8 x 8 heads, gatv2 4 x 16; edgeconv has its four layers."""

TYPED = relational_models.MODELS
"""One layer, 64 -> 64, one head, as in bench.relational."""

MODELS = (*PLAIN, *TYPED)
MODES = ("train", "infer")
SYSTEMS = ("eager", "inductor", "sparse", "graphweave")


@dataclass(frozen=True, slots=True)
class Pair:
    model: str
    graph: str

    @property
    def name(self) -> str:
        return f"{self.model} {self.graph}"

    @property
    def systems(self) -> tuple[str, ...]:
        """The systems of a case. For typed models, each of PyG's layers is a system in place of "eager"."""
        if self.model in TYPED:
            forms = [name for name, models in relational_pyg.FORMS.items() if self.model in models]
            return (*forms, "inductor", "graphweave")
        return SYSTEMS if self.model in SPARSE else tuple(name for name in SYSTEMS if name != "sparse")


def kind_of(system: str) -> str:
    """The name of a system's kind in `SYSTEMS`."""
    return "eager" if system.startswith("pyg-") else system


def other_function(system: str, model: str) -> bool:
    """Whether a system computes another function than the model: HeteroConv of GATConv has a softmax by relation."""
    return (system, model) == relational_pyg.WITHIN


ORDER = tuple(
    Pair(model, graph)
    for graph, models in (
        ("arxiv", ("gat8", "gat1")),
        ("bgs", ("rgat", "hgt")),
        ("arxiv", ("gcn", "sage", "monet", "gatv2")),
        (POINTS, ("edgeconv",)),
        ("cora", ("gat8", "gcn")),
        ("reddit", ("gat8",)),
        ("aifb", ("rgat", "hgt", "rgcn")),
        ("bgs", ("rgcn",)),
        ("reddit", ("gcn", "gat1", "sage")),
        ("cora", ("sage", "gat1", "gatv2", "monet")),
        ("biokg", ("hgt", "rgat", "rgcn")),
        ("ppi", ("gat8", "gcn", "sage", "gat1", "monet", "gatv2")),
        ("reddit", ("monet", "gatv2")),
    )
    for model in models
)
"""The cases by importance: first those of the targets, then each model once, then the rest."""

SECONDS = {"eager": 4.0, "sparse": 4.0, "inductor": 35.0, "graphweave": 25.0}
GRAPH_SECONDS = {"reddit": 15.0, "biokg": 15.0}


def guess(pair: Pair, systems: tuple[str, ...]) -> float:
    """A guess of the seconds that a case takes, most of them for compilation, before anything was measured."""
    return 3.0 + GRAPH_SECONDS.get(pair.graph, 0.0) + sum(SECONDS[kind_of(system)] for system in systems)


# ---------------------------------------------------------------- graphs


def plain_graph(name: str, *, pseudo: bool, small: bool, folder: Path) -> Workload:
    """A graph on the CPU in float32."""
    if name == POINTS:
        graph = "tiny-points" if small else POINTS
    else:
        nodes, edges = (count // SMALL_DIVISOR if small else count for count in SIZES[name])
        graph = f"rmat:{nodes}:{edges}"
    return workload(graph, FEATURES, 2 if pseudo else 0, HIDDEN, folder)


def typed_graph(name: str, *, small: bool, folder: Path) -> Case:
    """A typed graph on the CPU in float32. With `small` it is always the graph `tiny` of bench.relational."""
    return relational_graphs.kept("tiny" if small else name, folder)


def plain_on(work: Workload, device: torch.device, dtype: torch.dtype) -> Workload:
    attr = None if work.edge_attr is None else work.edge_attr.to(device, dtype)
    return Workload(work.x.to(device, dtype), work.edge_index.to(device), work.y.to(device), attr)


def typed_on(case: Case, device: torch.device, dtype: torch.dtype) -> Case:
    """A case with the inputs of layers on `device`. Counts by type stay on the CPU."""
    moved = {name: getattr(case, name).to(device) for name in ("y", "src", "dst", "etype", "ntype")}
    return replace(case, x=case.x.to(device, dtype), norm=case.norm.to(device, dtype), **moved)


# ---------------------------------------------------------------- a model on a graph, as systems have it


class Subject:
    """The parts that the systems of a case share: the graph on the device, initial weights, and expected results.

    `form(system)` builds the model of one system; `want` computes the expected results of each mode in float64.
    """

    inputs: tuple[Tensor, ...]
    nodes: int
    edges: int

    def form(self, system: str) -> ModelStep:
        raise NotImplementedError

    def want(self, *, within: bool) -> dict[str, Result]:
        """The expected results; with `within`, those of the other function (see `other_function`)."""
        raise NotImplementedError


class Plain(Subject):
    def __init__(self, model: str, work: Workload, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self._model = PLAIN[model].make(work.x.size(1)).to(work.x.device, dtype)
        self._work = work
        self.inputs = (*work.inputs, work.y)
        self.nodes, self.edges = work.x.size(0), work.edge_index.size(1)

    def form(self, system: str) -> ModelStep:
        module = copy.deepcopy(self._model)
        if system == "sparse":
            return _compiled("eager", sparse_model(module, self._work), module, self._work)
        return _compiled(system, module, module, self._work)

    def want(self, *, within: bool) -> dict[str, Result]:
        """The expected results by PyG's layers in eager mode."""
        module = copy.deepcopy(self._model).double()
        form = _compiled("eager", module, module, self._work.double())
        return {mode: result_of(form, mode) for mode in MODES}


class Typed(Subject):
    def __init__(self, model: str, case: Case, dtype: torch.dtype) -> None:
        self._model, self._case, self._dtype = model, case, dtype
        drawn = relational_models.weights(model, case.num_relations, case.num_node_types)
        self._weights = {name: value.to(case.x.device, dtype) for name, value in drawn.items()}
        self.inputs = (*relational_models.inputs(model, case), case.y)
        self.nodes, self.edges = case.x.size(0), case.src.numel()

    def form(self, system: str) -> ModelStep:
        if system in relational_pyg.FORMS:
            made = relational_pyg.build(system, self._model, self._case, self._weights)
            made.model.to(self._case.x.device, self._dtype)
            return made
        layer = relational_models.LAYERS[self._model](self._weights)
        given = relational_models.inputs(self._model, self._case)
        loss, run = (COMPILERS[system](module) for module in (relational_models.WithLoss(layer), layer))
        return ModelStep(layer, "train", lambda: run(*given), lambda: loss(self._case.y, *given))

    def want(self, *, within: bool) -> dict[str, Result]:
        """The expected results of a reference that runs relation by relation, so that memory suffices."""
        found = relational_reference(self._model, self._case, self._weights, within=within)
        out, loss = found.pop("out"), found.pop("loss")
        return {"infer": Result((out,), {}), "train": Result((loss,), dict(found))}


def subject(pair: Pair, device: torch.device, dtype: torch.dtype, *, small: bool, folder: Path) -> Subject:
    if pair.model in TYPED:
        case = typed_graph(pair.graph, small=small, folder=folder)
        return Typed(pair.model, typed_on(case, device, dtype), dtype)
    work = plain_graph(pair.graph, pseudo=PLAIN[pair.model].pseudo, small=small, folder=folder)
    return Plain(pair.model, plain_on(work, device, dtype), dtype)


def _compiled(system: str, module: nn.Module, owner: nn.Module, work: Workload) -> ModelStep:
    """The form of a system that compiles model and loss as one function. Gradients are of `owner`'s parameters."""
    loss, run = (COMPILERS[system](one) for one in (WithLoss(module), module))
    return ModelStep(owner, "train", lambda: run(*work.inputs), lambda: loss(work.y, *work.inputs))


def result_of(form: ModelStep, mode: str) -> Result:
    """The output of one more forward pass, or the loss and gradients of one more training step."""
    found = form.run(mode)
    grads = {name: None if grad is None else grad.detach().clone() for name, grad in found.grads.items()}
    return Result(tuple(out.detach().clone() for out in found.outputs), grads)


GELU = F.gelu


def restore() -> None:
    """Restores GELU, which `relational_pyg` replaces by the identity in the whole process to build PyG's HGT."""
    F.gelu = GELU
