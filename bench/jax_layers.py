"""Layers in JAX, forward and backward: `graphweave.jax.Layer` against `jax.ops.segment_sum`, both under jit.

    python -m bench.jax_layers [--nodes 100000] [--edges 1000000] [--width 32] [--threads 2] [--repeats 10] [--out FILE]

GCN, GraphSAGE (mean), GIN and GAT run on R-MAT. For graphweave they are the layers of `graphweave.nn`; the other code
is what a user of jraph writes: rows gathered by index, messages, `segment_sum` and its relatives. The step is the
gradient of the sum of squares with respect to the input and all weights, in float32. XLA uses as many threads as the
process may (taskset).

Cases of "new edges" have edges as arguments. These come in another order in each step, which makes formats anew.
"""

from __future__ import annotations

import itertools
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import graphweave.jax as gj
from bench.case import Bench, Case, Check, Peers
from bench.runner import run
from bench.steps import Step
from graphweave import nn
from graphweave.data import rmat

TOLERANCE = 1e-3
"""Error relative to the largest number of each gradient: float32 sums of a million terms are added in another order."""

HEADS = 4

Edges = tuple[Any, Any, int]
"""Sources, destinations, number of nodes."""


def gcn(p: Any, edges: Edges, x: Any) -> Any:
    src, dst, nodes = edges
    ones = jnp.ones(src.shape, x.dtype)
    out, into = (jax.lax.rsqrt(jnp.maximum(jax.ops.segment_sum(ones, i, nodes), 1))[:, None] for i in (src, dst))
    h = (x @ p["weight"]) * out
    return jax.ops.segment_sum(h[src], dst, nodes) * into + p["bias"]


def sage(p: Any, edges: Edges, x: Any) -> Any:
    src, dst, nodes = edges
    count = jnp.maximum(jax.ops.segment_sum(jnp.ones(src.shape, x.dtype), dst, nodes), 1)[:, None]
    mean = jax.ops.segment_sum(x[src], dst, nodes) / count
    return x @ p["fc_self.weight"].T + p["fc_self.bias"] + mean @ p["fc_neigh.weight"].T


def gin(p: Any, edges: Edges, x: Any) -> Any:
    src, dst, nodes = edges
    return (x + jax.ops.segment_sum(x[src], dst, nodes)) @ p["apply_func.weight"].T + p["apply_func.bias"]


def gat(p: Any, edges: Edges, x: Any) -> Any:
    src, dst, nodes = edges
    z = (x @ p["fc.weight"].T).reshape(nodes, HEADS, -1)
    left, right = (z * p["attn_l"]).sum(-1), (z * p["attn_r"]).sum(-1)
    score = jax.nn.leaky_relu(left[src] + right[dst], 0.2)
    e = jnp.exp(score - jax.lax.stop_gradient(jax.ops.segment_max(score, dst, nodes))[dst])
    weight = e / jax.ops.segment_sum(e, dst, nodes)[dst]
    return jax.ops.segment_sum(weight[..., None] * z[src], dst, nodes) + p["bias"].reshape(HEADS, -1)


LAYERS: dict[str, tuple[Callable[[int], torch.nn.Module], Callable[..., Any]]] = {
    "GCN": (lambda width: nn.GraphConv(width, width), gcn),
    "GraphSAGE": (lambda width: nn.SAGEConv(width, width, "mean"), sage),
    "GIN": (lambda width: nn.GINConv(torch.nn.Linear(width, width)), gin),
    "GAT": (lambda width: nn.GATConv(width, width // HEADS, HEADS), gat),
}


def build(name: str, renewed: bool, nodes: int, edges: int, width: int) -> Peers:
    src, dst = (end.numpy() for end in rmat(nodes, edges, 0))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(nodes, width)), jnp.float32)
    make, written = LAYERS[name]
    layer, graph = gj.Layer(make(width)), gj.graph((src, dst), nodes)
    parameters = layer.init(jax.random.key(0))
    ends = jnp.asarray(src), jnp.asarray(dst)

    def ours(p: Any, x: Any, shift: Any) -> Any:
        g = gj.graph([jnp.roll(end, shift) for end in ends], nodes) if renewed else graph
        return (layer.apply(p, g, x) ** 2).sum()

    def segments(p: Any, x: Any, shift: Any) -> Any:
        src, dst = (jnp.roll(end, shift) for end in ends) if renewed else ends
        return (written(p, (src, dst, nodes), x) ** 2).sum()

    def prepare(function: Callable[..., Any]) -> Step:
        compiled, shifts = jax.jit(jax.grad(function, (0, 1))), itertools.count()
        return lambda: jax.tree.map(np.asarray, jax.block_until_ready(compiled(parameters, x, next(shifts))))

    return {"graphweave": partial(prepare, ours), "segment_sum": partial(prepare, segments)}


def cases(options: Namespace) -> Iterator[Case]:
    sizes = {name: getattr(options, name) for name in SIZES}
    check = Check(TOLERANCE, "segment_sum")
    small = {"nodes": 100, "edges": 500}
    for name, renewed in itertools.product(LAYERS, (False, True)):
        title = f"{name}, {options.edges} {'new ' if renewed else ''}edges"
        yield Case(title, partial(build, name, renewed), ("graphweave", "segment_sum"), check, sizes, small)


SIZES = {"nodes": 100_000, "edges": 1_000_000, "width": 32}
BENCH = Bench("bench.jax_layers", __doc__, cases, SIZES)


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
