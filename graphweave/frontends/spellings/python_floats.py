"""Numbers that Python computes at each call, such as those of `random`, with the dtype that compiled code gets them in.

Dynamo traces such a float as a tensor of the default dtype, but passes it as float64. So graphs are compiled for
float64. A Python float does not decide the dtype of a result, so results that Dynamo saw in another dtype are converted
to it, unless they are computed from such numbers alone and are Python floats themselves in eager mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx


def in_full_precision(module: fx.GraphModule, examples: Sequence[Any]) -> Sequence[object]:
    """The examples of Dynamo's graph, where those for Python floats are float64. Changes the graph accordingly."""
    inputs = module.graph.find_nodes(op="placeholder")
    wide = {i for i, n in enumerate(inputs) if _is_narrow_float(n)}
    if not wide:
        return examples
    floats = {inputs[i] for i in wide}
    integers = {n for n in inputs if _is_number(n)} - floats
    _convert_results(module.graph, floats, integers)
    module.recompile()
    return [e.to(torch.float64) if i in wide else e for i, e in enumerate(examples)]


def _is_number(node: fx.Node) -> bool:
    """Whether an input is a number of Python that Dynamo passes as a tensor."""
    given = node.meta.get("grapharg")
    return getattr(given, "pass_arg_as_tensor", False) and not getattr(given, "is_tensor", True)


def _is_narrow_float(node: fx.Node) -> bool:
    value = node.meta.get("example_value")
    return _is_number(node) and isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64


def _is_of_python(node: fx.Node) -> bool:
    """Whether eager mode computes the node in Python where its operands are Python's numbers."""
    return node.op == "call_function" and getattr(node.target, "__module__", "") in ("_operator", "builtins", "math")


def _convert_results(graph: fx.Graph, floats: set[fx.Node], integers: set[fx.Node]) -> None:
    """Convert results of no dims, of which float64 operands may decide the dtype, to the dtype that Dynamo saw."""
    reached = set(floats)
    for node in list(graph.nodes):
        operands = node.all_input_nodes
        if node.op == "output" or node in floats or reached.isdisjoint(operands):
            continue
        reached.add(node)
        if _is_of_python(node) and all(n in floats or n in integers for n in operands):
            floats.add(node)
            continue
        value = node.meta.get("example_value")
        if not isinstance(value, Tensor) or value.dim() or not value.is_floating_point():
            continue
        with graph.inserting_after(node):
            converted = graph.call_method("to", (node, value.dtype))
        converted.meta.update(node.meta)
        node.replace_all_uses_with(converted, lambda user, converted=converted: user is not converted)
        reached.add(converted)
