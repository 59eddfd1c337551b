"""A function of a graph and its gradients as one program, divided into a forward and a backward.

PyTorch's programs go through the same division (`passes/partition.py`): what the forward can sum together with its own
sums while it walks the edges, and values on nodes such as a softmax's maximum, are saved, and the backward does not
walk the edges for them again. What lies on edges is computed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from graphweave.jax.graph_function import GraphFunction, imported, shaped
from graphweave.jax.importer import Result


class GraphHalves:
    """`forward` and `backward` of a function on a graph, for gradients in the arguments numbered `wanted`."""

    def __init__(self, function: GraphFunction, wanted: Sequence[int], values: Sequence[Array]) -> None:
        """`values` are example arguments, of which only shapes and dtypes matter."""
        shapes = [shaped(x) for x in values]
        tangents = [shaped(x) for x in jax.eval_shape(lambda *xs: list(function.plain(*xs)), *shapes)]
        joint = function.joint(wanted)
        closed = jax.make_jaxpr(joint.plain)(*shapes, *tangents)
        trace = imported(joint, closed.jaxpr)
        self._count, self._num_results = len(shapes), len(tangents)
        self._places = trace.arguments
        self._closed = closed.consts
        self._constants = trace.constants
        self._results = trace.results
        late = frozenset(name for name, i in trace.arguments.items() if 0 <= i - self._count < self._num_results)
        self._forward, self._backward, self._saved = function.graph.halves(
            trace, self._num_results, late, function.schedule
        )

    @property
    def text(self) -> str:
        """The code of the kernels of both halves."""
        return "\n".join((self._forward.code.text, self._backward.code.text))

    def forward(self, *values: Array) -> list[Array]:
        """The results of the function, then what it saves."""
        made = self._forward(
            self._arrays(values, ()), [*self._forward.program.outputs[: self._num_results], *self._saved]
        )
        return [*_shaped_as(made, self._results[: self._num_results]), *made[self._num_results :]]

    def backward(self, values: Sequence[Array], tangents: Sequence[Array], saved: Sequence[Array]) -> list[Array]:
        """The gradients, computed from the arguments, a tangent for each result, and what the forward has saved."""
        arrays = {**self._arrays(values, tangents), **dict(zip(self._saved.values(), saved, strict=True))}
        return _shaped_as(self._backward(arrays), self._results[self._num_results :])

    def _arrays(self, values: Sequence[Array], tangents: Sequence[Array]) -> Mapping[str, Any]:
        """The arguments by the names of inputs, without tangents if there are none yet."""
        known = dict(enumerate([*values, *tangents]))
        known.update(enumerate(self._closed, self._count + self._num_results))
        found = {name: jnp.asarray(known[i]) for name, i in self._places.items() if i in known}
        return {**found, **{name: jnp.asarray(c) for name, c in self._constants.items()}}


def _shaped_as(made: Sequence[Array], results: Sequence[Result]) -> list[Array]:
    return [jnp.broadcast_to(x.reshape(r.made), r.shape) for x, r in zip(made, results, strict=False)]
