"""Graph attention in JAX, forward and backward: `graphweave.jax.attend` against `jax.ops.segment_sum`, both under jit.

    python -m bench.jax_gat [--nodes 100000] [--edges 1000000] [--heads 4] [--features 16] [--threads 2] [--repeats 10]

The layer (Velickovic et al., 2018) runs on R-MAT: scores leaky_relu(a_src[u] + a_dst[v]) of each head, a softmax over
the edges of a node, and features [heads, features] weighted by it. For graphweave the score is a function of an edge;
the other code computes scores of nodes first, since on edges they would cost it far more. The step is the gradient of
the sum of squares with respect to the input and all weights, in float32. Both are compared first. XLA uses as many
threads as the process may (taskset). `first` is the first call, with tracing, formats of the graph and compilation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import graphweave.jax as gj
from bench.common import arguments, ratio_table, save
from bench.turns import steps_timer, take_turns
from graphweave.data import rmat

TOLERANCE = 1e-3
"""Error relative to the largest number of each gradient: float32 sums of a million terms are added in another order."""

Step = Callable[[], Any]


class Here:
    """A step of this process, which answers as a player of `bench.turns` does."""

    def __init__(self, step: Step) -> None:
        self._turn = steps_timer(lambda: jax.block_until_ready(step()))

    def ask(self, do: str, **given: Any) -> Any:
        return self._turn(**given)


def steps(src: Any, dst: Any, nodes: int, heads: int, features: int) -> dict[str, Step]:
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
    made: dict[str, Step] = {}
    for name, function in (("graphweave", ours), ("segment_sum", segments)):
        compiled = jax.jit(jax.grad(function, tuple(range(len(given)))))
        made[name] = lambda compiled=compiled: compiled(*given)  # type: ignore[misc]
    return made


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--features", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    src, dst = (end.numpy() for end in rmat(options.nodes, options.edges, 0))
    made = steps(src, dst, options.nodes, options.heads, options.features)
    first, found = {}, {}
    for name, step in made.items():
        start = time.perf_counter()
        found[name] = [np.asarray(g) for g in jax.block_until_ready(step())]
        first[name] = time.perf_counter() - start
    for ours, theirs in zip(found["graphweave"], found["segment_sum"], strict=True):
        error = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
        if error > TOLERANCE:
            print(f"wrong by {error:.1e}")
            return 1
    taken = take_turns({name: Here(step) for name, step in made.items()}, repeats=options.repeats)
    ratio = taken["segment_sum"]["median"] / taken["graphweave"]["median"]
    rows = [[n, f"{1e3 * t['median']:.1f}", f"{first[n]:.2f}"] for n, t in taken.items()]
    ratio_table(f"GAT, {options.edges} edges, {options.threads} threads", ["system", "ms", "first s"], rows)
    print(f"graphweave is {ratio:.2f} times as fast")
    save(options.out, {"benchmark": "jax_gat", "threads": options.threads, "first": first, "results": taken})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
