"""DGL's own layers and user-defined functions on the arrays of a case, by the Python of DGL's environment."""

from __future__ import annotations

from typing import Any

import dgl
from torch import Tensor

from bench.dgl_models import graph_of, model_of
from bench.papers import tasks
from bench.papers.dgl_bytes import moved_by
from bench.specs import ON_POINTS, SPECS, USER_DEFINED, Spec, spec_of
from bench.steps import ModelStep, Step, gradients

Arrays = dict[str, Tensor]


class DglAlong:
    """`Along` by DGL's g-SpMM and g-SDDMM. An index is a block from sources to destinations."""

    def total(self, x: Tensor, index: dgl.DGLGraph, weight: Tensor, rows: int) -> Tensor:
        out: Tensor = dgl.ops.u_mul_e_sum(index, x, weight[:, None])
        return out

    def dot(self, left: Tensor, right: Tensor, index: dgl.DGLGraph) -> Tensor:
        out: Tensor = dgl.ops.u_dot_v(index, left, right).squeeze(-1)
        return out


def _task(spec: Spec, mode: str, case: Arrays, weights: Arrays) -> Step:
    """A model of bench/papers/tasks.py, which is its own loss."""
    model = tasks.module_of(spec, DglAlong())
    model.load_state_dict(weights)
    count = sum(name.startswith("input.") for name in case)
    inputs: list[Any] = [case[f"input.{i}"] for i in range(count)]
    for i in range(count):
        if (sides := case.get(f"sides.{i}")) is not None:
            inputs[i] = _block(inputs[i], *sides.tolist())
    return ModelStep(model, mode, lambda: model(*inputs), lambda: model(*inputs), lambda: gradients(model))


def _block(index: Tensor, sources: int, destinations: int) -> dgl.DGLGraph:
    made = dgl.create_block((index[0], index[1]), num_src_nodes=sources, num_dst_nodes=destinations)
    made.create_formats_()
    return made


def _on_points(spec: Spec, mode: str, case: Arrays, weights: Arrays) -> Step:
    """Layers over the graph that each call makes of the nearest points; a point is its own nearest."""
    assert spec.on_points is not None
    clouds, points, k = spec.on_points
    x, y = case["x"], case["y"]
    net: Any = model_of(spec, spec.layer.removesuffix(ON_POINTS), x.size(1))
    net.take(weights)

    def graph() -> dgl.DGLGraph:
        return dgl.knn_graph(x.view(clouds, points, -1), k, algorithm="kd-tree")

    return ModelStep(net, mode, lambda: net(graph(), x, y), lambda: net.loss(graph(), x, y), net.pyg_grads)


def step_of(peer: str, arrays: Arrays, mode: str = "train", spec: str = "", model: str = "", **_: Any) -> Step:
    """The step of a Spec, or of a model of SPECS. "dgl-udf" runs user-defined layers, "dgl" DGL's own."""
    chosen = spec_of(spec) if spec else SPECS[model]
    case = {name: value for name, value in arrays.items() if not name.startswith("weight.")}
    weights = {name.removeprefix("weight."): v for name, v in arrays.items() if name.startswith("weight.")}
    if chosen.layer in tasks.INPUTS:
        return _task(chosen, mode, case, weights)
    layer = chosen.layer if peer == "dgl-udf" else chosen.layer.removeprefix(USER_DEFINED)
    if chosen.on_points is not None:
        return _on_points(chosen, mode, case, weights)
    x, y = case["x"], case["y"]
    net: Any = model_of(chosen, layer, x.size(1))
    net.take(weights)
    graph = graph_of(layer, case)
    return ModelStep(net, mode, lambda: net(graph, x, y), lambda: net.loss(graph, x, y), net.pyg_grads)


def moved(step: Step) -> dict[str, int]:
    """Bytes that a step moves, counted as bench/papers/dgl_bytes.py says."""
    return {"moved": moved_by(step)}
