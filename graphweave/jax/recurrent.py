"""PyTorch's LSTM and GRU over dense sequences in JAX: a scan over steps, for each layer and direction.

PyTorch takes them apart into operators that write into tensors, which arrays of JAX do not allow. So these functions
have a meaning as a whole (`array_functions.WHOLE`). A reduce function in buckets calls them (`SAGEConv`'s LSTM).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import Array

from graphweave.core.errors import DataError

State: TypeAlias = tuple[Array, ...]
"""[rows, features] each: h and c of an LSTM, h of a GRU. The first is the output of a step."""

Step: TypeAlias = Callable[[State, Array], State]
"""A step from a state and what the input adds to the gates, [rows, gates]."""


def lstm(
    x: Array,
    state: Sequence[Array],
    weights: Sequence[Array],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Array, ...]:
    """`torch._VF.lstm` of [rows, steps, features] with `batch_first`, or [steps, rows, features]: the outputs, and the
    last h and c of each layer and direction."""
    layers = _Layers(weights, has_biases, num_layers, dropout if train else 0, bidirectional)
    return layers.run(x, state, _lstm_step, batch_first)


def gru(
    x: Array,
    state: Array,
    weights: Sequence[Array],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Array, ...]:
    """`torch._VF.gru`, with arguments like those of `lstm`: the outputs and the last h of each layer and direction."""
    layers = _Layers(weights, has_biases, num_layers, dropout if train else 0, bidirectional)
    return layers.run(x, (state,), _gru_step, batch_first)


def lstm_cell(x: Array, state: Sequence[Array], *weights: Array) -> tuple[Array, ...]:
    """`torch._VF.lstm_cell`: h and c after a step of [rows, features]."""
    of_input, of_state, *biases = weights
    return _lstm_step(of_state, biases[1] if biases else None)(tuple(state), _product(x, of_input, *biases[:1]))


def gru_cell(x: Array, h: Array, *weights: Array) -> Array:
    """`torch._VF.gru_cell`: h after a step of [rows, features]."""
    of_input, of_state, *biases = weights
    return _gru_step(of_state, biases[1] if biases else None)((h,), _product(x, of_input, *biases[:1]))[0]


class _Layers:
    """Weights of layers and directions: of the input, of the state, the biases of both, and of the projection."""

    def __init__(
        self, weights: Sequence[Array], has_biases: bool, num_layers: int, dropout: float, bidirectional: bool
    ) -> None:
        if dropout:
            raise DataError(f"expected no dropout between layers in JAX (got {dropout}). Call .eval() on the module.")
        self._directions = 2 if bidirectional else 1
        self._has_biases = has_biases
        each = len(weights) // (num_layers * self._directions)
        self._own = [tuple(weights[i : i + each]) for i in range(0, len(weights), each)]

    def run(self, x: Array, state: Sequence[Array], step: Callable[..., Step], batch_first: bool) -> tuple[Array, ...]:
        steps = jnp.swapaxes(x, 0, 1) if batch_first else x
        last: list[State] = []
        for layer in range(len(self._own) // self._directions):
            outputs = []
            for direction in range(self._directions):
                own = self._own[layer * self._directions + direction]
                first = tuple(s[layer * self._directions + direction] for s in state)
                ended, made = self._scan(steps, first, own, step, reverse=direction == 1)
                last.append(ended)
                outputs.append(made)
            steps = jnp.concatenate(outputs, -1)
        made = jnp.swapaxes(steps, 0, 1) if batch_first else steps
        return made, *(jnp.stack(each) for each in zip(*last, strict=True))

    def _scan(
        self, steps: Array, first: State, weights: Sequence[Array], step: Callable[..., Step], reverse: bool
    ) -> tuple[State, Array]:
        of_input, of_state, *more = weights
        biases = more[:2] if self._has_biases else (None, None)
        projection = more[2 if self._has_biases else 0 :]
        gates = _product(steps, of_input, biases[0])  # of all steps at once
        one = step(of_state, biases[1], *projection)

        def body(state: State, added: Array) -> tuple[State, Array]:
            found = one(state, added)
            return found, found[0]

        return jax.lax.scan(body, first, gates, reverse=reverse)


def _lstm_step(weight: Array, bias: Array | None, projection: Array | None = None) -> Step:
    def step(state: State, added: Array) -> State:
        h, c = state
        keep, forget, new, out = _gates(added + _product(h, weight, bias), 4)
        c = jax.nn.sigmoid(forget) * c + jax.nn.sigmoid(keep) * jnp.tanh(new)
        h = jax.nn.sigmoid(out) * jnp.tanh(c)
        return (h if projection is None else h @ projection.T), c

    return step


def _gru_step(weight: Array, bias: Array | None) -> Step:
    def step(state: State, added: Array) -> State:
        (h,) = state
        (reset, update, new), (of_reset, of_update, of_new) = _gates(added, 3), _gates(_product(h, weight, bias), 3)
        keep = jax.nn.sigmoid(update + of_update)
        new = jnp.tanh(new + jax.nn.sigmoid(reset + of_reset) * of_new)
        return (keep * h + (1 - keep) * new,)

    return step


def _product(x: Array, weight: Array, bias: Array | None = None) -> Array:
    return x @ weight.T if bias is None else x @ weight.T + bias


def _gates(x: Array, count: int) -> Iterator[Array]:
    return iter(jnp.split(x, count, axis=-1))
