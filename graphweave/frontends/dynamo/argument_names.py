"""The inputs of a captured graph by the names that the user gave them: `x`, `edge_index`, `data.x`, `conv1.lin.weight`.

Dynamo knows where each placeholder came from ("L['args'][0]", "L['self']._modules['conv1']._parameters['bias']"), and
AOTAutograd knows which placeholder of Dynamo's each of its own stands for.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence

import torch
from torch import fx
from torch._functorch._aot_autograd.descriptors import PlainAOTInput

_MEMBERS = re.compile(r"\._(?:modules|parameters|buffers)\['([^']*)'\]")
"""A member of a module, as Dynamo writes it."""
_NUMBER = re.compile(r"\.(?:size|stride|storage_offset)\(\)")
"""A size or another number of a tensor, as Dynamo writes it."""
_FIELDS_OF_GRAPHS = (
    (re.compile(r"\.node_frames\['_N'\]\._fields"), ".ndata"),
    (re.compile(r"\.node_frames\[('[^']*')\]\._fields"), r".nodes[\1].data"),
    (re.compile(r"\.edge_frames\[\('_N', '_E', '_N'\)\]\._fields"), ".edata"),
    (re.compile(r"\.edge_frames\[(\([^)]*\))\]\._fields"), r".edges[\1].data"),
    (re.compile(r"\.relations\[\('_N', '_E', '_N'\)\]\.src"), ".edges()[0]"),
    (re.compile(r"\.relations\[\('_N', '_E', '_N'\)\]\.dst"), ".edges()[1]"),
    (re.compile(r"\.relations\[(\([^)]*\))\]\.src"), r".edges(\1)[0]"),
    (re.compile(r"\.relations\[(\([^)]*\))\]\.dst"), r".edges(\1)[1]"),
)
"""Fields of graphweave's graphs as Dynamo writes them, and as users write them."""


def parameters_of(target: Callable[..., object]) -> tuple[str, ...]:
    """The names of positional parameters of a module's `forward` or of a function, in order. "*args" stands for the
    rest."""
    called = target.forward if isinstance(target, torch.nn.Module) else target
    try:
        found = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):  # a callable written in C has no signature
        return ()
    names = [("*" if p.kind is p.VAR_POSITIONAL else "") + p.name for p in found if p.kind <= p.VAR_POSITIONAL]
    return tuple(names)


def sources(module: fx.GraphModule) -> list[str]:
    """The source of each placeholder of Dynamo's graph, as Dynamo writes it; "" if that is not known."""
    out = []
    for node in module.graph.find_nodes(op="placeholder"):
        source = getattr(node.meta.get("grapharg"), "source", None)
        out.append(str(getattr(source, "name", "") or "") if source is not None else "")
    return out


def argument_names(joint: fx.GraphModule, given: Sequence[str], parameters: Sequence[str]) -> dict[str, str]:
    """Placeholder of AOTAutograd's `joint` graph -> the user's name for it, for those that have one."""
    names: dict[str, str] = {}
    for node in joint.graph.find_nodes(op="placeholder"):
        desc = node.meta.get("desc")
        if isinstance(desc, PlainAOTInput) and desc.idx < len(given):
            name = user_name(given[desc.idx], parameters)
            if name:
                names[node.name] = name
    return names


def user_name(source: str, parameters: Sequence[str] = ()) -> str:
    """The user's name for a value that Dynamo calls `source`, in a function with these positional `parameters`.

    It is "" for a size and for a value without a name.
    """
    if not source or _NUMBER.search(source):
        return ""
    text = re.sub(r"^[LG]\['args'\]\[(\d+)\]", lambda m: _positional(int(m[1]), parameters), source)
    text = re.sub(r"^L\['kwargs'\]\['(\w+)'\]", r"\1", text)
    around = r"\.__self__|\.__closure__\[0\]\.cell_contents"  # a bound method; a model that is exported
    text = re.sub(rf"^L\['(?:self|target)'\](?:{around})?(?=[.\[])", "", text)
    text = re.sub(r"^G\['__import_[^']*'\]\.", "", text)
    text = re.sub(r"^[LG]\['([^']*)'\]", r"\1", text)
    for pattern, words in _FIELDS_OF_GRAPHS:
        text = pattern.sub(words, text)
    text = _MEMBERS.sub(r".\1", text).lstrip(".")
    return "" if text.startswith("___") else text  # values that Dynamo keeps across a graph break have no names


def in_user_names(text: str, parameters: Sequence[str]) -> str:
    """A sentence of Dynamo's ("tensor 'args[0]' size mismatch") with the arguments called by the user's names."""
    text = re.sub(r"(?<![\w.])(?:L\['args'\]|args)\[(\d+)\]", lambda m: _positional(int(m[1]), parameters), text)
    text = re.sub(r"(?:L\['kwargs'\]|\bkwargs)\['(\w+)'\]", r"\1", text)
    text = re.sub(r"\bL\['(\w+)'\]", r"\1", text)
    return re.sub(r"'?___stack\d+(?:\[\d+\])*'?", "of a value across a graph break", text)


def _positional(i: int, parameters: Sequence[str]) -> str:
    for at, name in enumerate(parameters):
        if name.startswith("*"):
            return f"{name[1:]}[{i - at}]"
        if at == i:
            return name
    return f"args[{i}]"
