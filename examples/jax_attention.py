"""Classify nodes in JAX: graph attention by `graphweave.jax`, under `jax.jit` and `jax.value_and_grad`.

    python examples/jax_attention.py

`attend` takes a score and a value of one edge, written in `jax.numpy`. It is one kernel forward, and nothing of
edges x features is stored for the backward.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import graphweave.jax as gj
from graphweave.data import digits

HEADS, WIDTH = 4, 8


def main() -> None:
    data = digits(k=8)
    x, y = jnp.asarray(data.x.numpy()), jnp.asarray(data.y.numpy())
    train, test = jnp.asarray(data.train_mask.numpy()), data.test_mask.numpy()
    graph = gj.FixedGraph(data.edge_index[0].numpy(), data.edge_index[1].numpy(), data.num_nodes)

    def layer(weights: dict[str, Any], h: Any) -> Any:
        q, k, v = ((h @ weights[name]).reshape(-1, HEADS, WIDTH) for name in ("query", "key", "value"))
        out = gj.attend(
            graph,
            lambda src, dst, edge: (src["k"] * dst).sum(-1) / WIDTH**0.5,  # a score of each head
            lambda src, dst, edge: src["v"],
            src={"k": k, "v": v},
            dst=q,
        )
        return jax.nn.relu(out.reshape(-1, HEADS * WIDTH) + h @ weights["own"])

    def logits(weights: list[dict[str, Any]]) -> Any:
        h = x
        for layer_weights in weights[:-1]:
            h = layer(layer_weights, h)
        return h @ weights[-1]["out"]

    def loss(weights: list[dict[str, Any]]) -> Any:
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits(weights)), y[:, None], 1)[:, 0]
        return -jnp.where(train, chosen, 0).sum() / train.sum()

    rng = np.random.default_rng(0)

    def matrix(inputs: int, outputs: int) -> Any:
        return jnp.asarray(rng.normal(size=(inputs, outputs)) / inputs**0.5, jnp.float32)

    names, hidden = ("query", "key", "value", "own"), HEADS * WIDTH
    weights: list[dict[str, Any]] = [{n: matrix(size, hidden) for n in names} for size in (x.shape[1], hidden)]
    weights.append({"out": matrix(hidden, data.num_classes)})

    step = jax.jit(jax.value_and_grad(loss))
    speed = jax.tree.map(jnp.zeros_like, weights)
    for epoch in range(1, 61):
        value, gradient = step(weights)
        speed = jax.tree.map(lambda s, g: 0.9 * s - 0.05 * g, speed, gradient)  # gradient descent with momentum
        weights = jax.tree.map(jnp.add, weights, speed)
        if epoch % 20 == 0:
            print(f"epoch {epoch}: loss {value:.3f}")

    predicted = np.asarray(logits(weights).argmax(1))
    right = (predicted == data.y.numpy())[test].mean()
    print(f"test accuracy: {right:.3f}, commonest class: {np.bincount(data.y.numpy()[test]).max() / test.sum():.3f}")


if __name__ == "__main__":
    main()
