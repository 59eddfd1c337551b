"""Finds values saved for the backward that a user may overwrite before it runs, as eager mode allows.

PyTorch refuses a backward if one of its saved tensors was edited in place. A compiled backward computes again what
eager mode keeps, so it reads other tensors: an input in place of a value computed from it, or a result in place of a
value from which it was computed. Eager mode allows edits of these tensors (a memory that is updated, `conv(x).relu_()`,
`h += conv(h)`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import PlainAOTInput, TangentAOTInput
from torch.utils._pytree import tree_leaves

from graphweave.frontends.calls.captured_graph import ancestors
from graphweave.frontends.calls.captured_sizes import is_tensor
from graphweave.passes.exposed_memory import Exposed


def exposed(joint: fx.GraphModule, num_forward: int, examples: Sequence[object]) -> Exposed:
    """The tensors that a user may overwrite of a joint graph whose inputs are `examples`.

    An input to which the graph itself writes always counts. A leaf that requires a gradient does not, since PyTorch
    refuses to edit it while gradients are enabled.
    """
    output = joint.graph.output_node()
    results = tree_leaves(output.args[0])[:num_forward]
    about = tree_leaves(output.meta.get("desc"))[:num_forward] or [None] * num_forward
    written = [getattr(d, "mutated_input", None) for d in about]
    kept = _kept_by_eager(joint, results)
    inputs, rewritten = set(), set()
    for i, node in enumerate(joint.graph.find_nodes(op="placeholder")):
        said = node.meta.get("desc")
        example = examples[said.idx] if isinstance(said, PlainAOTInput) and said.idx < len(examples) else None
        leaf = isinstance(example, torch.Tensor) and example.requires_grad and example.is_leaf
        if isinstance(said, TangentAOTInput) or not is_tensor(node):
            continue
        if said in written:
            rewritten.add(i)
        elif not leaf and node not in kept:
            inputs.add(i)
    given = [i for i, n in enumerate(results) if is_tensor(n) and written[i] is None]
    outputs = {i for i in given if _memory_of(results[i]) not in kept}
    return Exposed(frozenset(inputs), frozenset(rewritten), frozenset(outputs))


def _kept_by_eager(joint: fx.GraphModule, results: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes that allocated the memory of forward values that eager mode's backward reads."""
    forward = ancestors(n for n in results if isinstance(n, fx.Node))
    forward |= {n for n in joint.graph.nodes if n.meta.get("partitioner_tag") == "is_forward"}
    forward |= set(joint.graph.find_nodes(op="placeholder"))
    kept = set()
    for node in joint.graph.nodes:
        reads_numbers = isinstance(node.meta.get("val"), torch.Tensor | list | tuple)
        if node not in forward and node.op == "call_function" and reads_numbers:
            kept |= {_memory_of(n) for n in node.all_input_nodes if n in forward}
    return kept


def _memory_of(node: fx.Node) -> fx.Node:
    """The node that allocated the memory of a value, which may be a view or an item of a list of views."""
    while True:
        source: Any = node.args[0] if getattr(node.target, "__name__", "") == "getitem" else node
        if not isinstance(source, fx.Node) or not _is_view(source.target):
            return node
        viewed: Any = source.args[0]
        node = viewed


def _is_view(target: object) -> bool:
    if not isinstance(target, torch._ops.OpOverload):
        return False
    returns = target._schema.returns
    return bool(returns) and returns[0].alias_info is not None and not returns[0].alias_info.is_write
