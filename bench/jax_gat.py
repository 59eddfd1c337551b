"""Graph attention in JAX, forward and backward: `graphweave.jax.attend` against `jax.ops.segment_sum`, both under jit.

    python -m bench.jax_gat [--nodes 100000] [--edges 1000000] [--heads 4] [--features 16] [--threads 2] [--repeats 10]
                            [--out FILE]

The layer (Velickovic et al., 2018) runs on R-MAT: scores leaky_relu(a_src[u] + a_dst[v]) of each head, a softmax over
the edges of a node, and features [heads, features] weighted by it. For graphweave the score is a function of an edge;
the other code computes scores of nodes first, since on edges they would cost it far more. The step is the gradient of
the sum of squares with respect to the input and all weights, in float32. XLA uses as many threads as the process may
(taskset).
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import graphweave.jax as gj
from bench.case import Bench, Case, Check, Peers
from bench.runner import run
from bench.steps import Step
from graphweave.data import rmat

TOLERANCE = 1e-3
"""Error relative to the largest number of each gradient: float32 sums of a million terms are added in another order."""


def build(nodes: int, edges: int, heads: int, features: int) -> Peers:
    src, dst = (end.numpy() for end in rmat(nodes, edges, 0))
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> Any:
        return jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[0]), jnp.float32)

    x, w = drawn(nodes, heads * features) * np.sqrt(nodes), drawn(heads * features, heads * features)
    a_src, a_dst = drawn(heads, features), drawn(heads, features)
    graph = gj.FixedGraph(src, dst, nodes)

    def ours(x: Any, w: Any, a_src: Any, a_dst: Any) -> Any:
        h = (x @ w).reshape(nodes, heads, features)

        def score(src: Any, dst: Any, edge: Any) -> Any:
            return jax.nn.leaky_relu((src * a_src).sum(-1) + (dst * a_dst).sum(-1), 0.2)

        return (gj.attend(graph, score, "copy_u", src=h, dst=h) ** 2).sum()

    def segments(x: Any, w: Any, a_src: Any, a_dst: Any) -> Any:
        h = (x @ w).reshape(nodes, heads, features)
        s, d = (h * a_src).sum(-1), (h * a_dst).sum(-1)
        score = jax.nn.leaky_relu(s[src] + d[dst], 0.2)
        top = jax.ops.segment_max(score, dst, nodes)
        e = jnp.exp(score - jax.lax.stop_gradient(top)[dst])
        weight = e / jax.ops.segment_sum(e, dst, nodes)[dst]
        return (jax.ops.segment_sum(weight[..., None] * h[src], dst, nodes) ** 2).sum()

    given = x, w, a_src, a_dst

    def prepare(function: Callable[..., Any]) -> Step:
        compiled = jax.jit(jax.grad(function, tuple(range(len(given)))))
        return lambda: [np.asarray(grad) for grad in jax.block_until_ready(compiled(*given))]

    return {"graphweave": partial(prepare, ours), "segment_sum": partial(prepare, segments)}


def cases(options: Namespace) -> Iterator[Case]:
    sizes = {name: getattr(options, name) for name in SIZES}
    check = Check(TOLERANCE, "segment_sum")
    small = {"nodes": 100, "edges": 500}
    yield Case(f"GAT, {options.edges} edges", build, ("graphweave", "segment_sum"), check, sizes, small)


SIZES = {"nodes": 100_000, "edges": 1_000_000, "heads": 4, "features": 16}
BENCH = Bench("bench.jax_gat", __doc__, cases, SIZES)


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
