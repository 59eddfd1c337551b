"""`graphweave.export`: a model as a folder with a shared library, its weights, its sources, and a manifest."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphweave.analysis.typed import call_operands
from graphweave.compiler.compile import compile
from graphweave.compiler.contract import Contract
from graphweave.compiler.plan import Plan
from graphweave.core.errors import ExportError
from graphweave.core.options import options_for
from graphweave.core.sizes import Symbol, show
from graphweave.execute.executable import Executable
from graphweave.export.calls import is_number
from graphweave.export.capture import Argument, WholeModel, capture_whole
from graphweave.export.library import LoadedModel, build
from graphweave.export.program import print_program
from graphweave.export.source import dtype_names, model_sources, output_sizes, own, symbols_of
from graphweave.export.weights import write_weights
from graphweave.ir.message.nodes import Input, Ref
from graphweave.runtime.toolchain import toolchain

INTERFACE = "1.0"
"""The version of the C interface: GW_MODEL_MAJOR and GW_MODEL_MINOR of model.h."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What was exported to `folder`, with its `manifest`. `load` opens it in this process."""

    folder: Path
    manifest: Mapping[str, Any]

    def load(self, threads: int = 1) -> LoadedModel:
        return LoadedModel(self.folder, threads)


def export(
    model: Callable[..., Any], example_inputs: Sequence[Any] | Mapping[str, Any], path: str | os.PathLike[str]
) -> Exported:
    """Write the inference of `model` as a shared library that needs neither Python nor PyTorch.

    `example_inputs` are the arguments of one call, in order or by name: tensors on the CPU, or lists and dicts of them.
    Their feature widths are compiled in; numbers of nodes, edges and graphs vary freely. `path` becomes a folder with

    - `model.so`, the library, and `model.h`, its interface in C (docs/export.md);
    - `weights.safetensors`, which may be replaced by other weights of the same shapes;
    - `manifest.json`: inputs, outputs, sizes, weights, instruction set, versions, and the numbers that the library gave
      for the example;
    - `sources/`, from which `make` builds the library with any C++17 compiler.

    Everything runs in kernels of the library. A call that only PyTorch has (random numbers, a sort) cannot leave: raises
    ExportError with the calls, their lines and what to do. Nothing is left out. In training mode a model computes what
    it does there; call `model.eval()` first. Results are those of the compiled model, by the rounding of products, whose
    order of sums is the library's own.
    """
    args, kwargs = ((), example_inputs) if isinstance(example_inputs, Mapping) else (tuple(example_inputs), {})
    whole = capture_whole(model, args, kwargs)
    weights = [*whole.weights, *_constants(whole)]
    executable = _executable(whole)
    text = _text(whole, executable, weights)
    folder = Path(path)
    sources = folder / "sources"
    for name, content in model_sources(whole, text, weights).files.items():
        target = sources / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8")
    (sources / "Makefile").write_text(own("Makefile"), encoding="utf-8")
    (folder / "model.h").write_text(own("model.h"), encoding="utf-8")
    write_weights(folder / "weights.safetensors", {a.name: a.example for a in weights})
    build(sources, folder / "model.so")
    given = LoadedModel(folder)(*(a.example for a in whole.inputs))
    manifest = _manifest(whole, weights, given, folder)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return Exported(folder, manifest)


def _executable(whole: WholeModel) -> Executable:
    """The plan of a captured inference in which kernels compute all that they can."""
    request = whole.captured.request
    options = replace(options_for("cpp"), standalone=True)
    choices = replace(request.facts.choices, compact=False, unseen_edits=False)
    facts = replace(request.facts, options=options, choices=choices)
    (half,) = compile(replace(request, facts=facts, promises=())).parts
    return Executable(half.plan(options), Contract(names=half.contract.names))


def _constants(whole: WholeModel) -> list[Argument]:
    """Tensors that are part of the captured graph."""
    found = []
    for ref, value in whole.captured.request.constants.items():
        node = whole.captured.request.program.nodes[ref]
        if isinstance(value, Tensor) and isinstance(node, Input):
            found.append(Argument(node.name, f"constant.{node.name}", value, tuple(value.shape)))
    return found


def _text(whole: WholeModel, executable: Executable, weights: Sequence[Argument]) -> Any:
    """The program of an executable as C++. Raises ExportError with everything in it that cannot leave."""
    plan = executable.plan
    told = [f"{reason}" for reason in (*plan.refused.values(), *(plan.prelude.refused.values() if plan.prelude else ()))]
    names = whole.captured.request.names
    given = _expressions(whole, plan, weights)
    try:
        return print_program(
            executable.tape, plan, executable.kernels, executable.steps.prelude, given, names,
            [at for _, _, at in whole.results],
        )
    except ExportError as error:
        more = f" Besides, no kernel computes: {'; '.join(told)}." if told else ""
        raise ExportError(f"{error}{more}") from None


def _expressions(whole: WholeModel, plan: Plan, weights: Sequence[Argument]) -> dict[Ref, str]:
    """What each input of a program is in C++: an input of the model, a weight, or a size."""
    inputs = {a.placeholder: f"in[{i}]" for i, a in enumerate(whole.inputs) if a.placeholder}
    inputs |= {a.placeholder: f"run.model.weights[{i}]" for i, a in enumerate(weights)}
    symbols = {symbol: f"sizes[{i}]" for i, symbol in enumerate(symbols_of(whole.inputs))}
    found: dict[Ref, str] = {}
    for ref, node in enumerate(plan.program.nodes):
        if not isinstance(node, Input):
            continue
        if node.name in inputs:
            found[ref] = inputs[node.name]
        elif is_number(plan.program, ref) and (size := plan.program.types[ref].size) in symbols:  # type: ignore[union-attr]
            found[ref] = symbols[size]
        elif any(ref in call_operands(plan.program, user) for user in range(ref, len(plan.program.nodes))):
            words = whole.captured.request.names.get(node.name, node.name)
            raise ExportError(f"{words} is neither a tensor among the inputs nor a size of one. Give it as a tensor.")
    return found


def _manifest(
    whole: WholeModel, weights: Sequence[Argument], given: Sequence[Tensor], folder: Path
) -> dict[str, Any]:
    tools = toolchain()
    symbols = symbols_of(whole.inputs)
    return {
        "graphweave_export": INTERFACE,
        "library": "model.so",
        "inputs": [_value(a.name, a.example, [_size(n) for n in a.sizes]) for a in whole.inputs],
        "outputs": [
            _value(name, value, output_sizes(whole, at)) | {"example": _summary(one)}
            for (name, value, at), one in zip(whole.results, given, strict=True)
        ],
        "sizes": {symbol.name: {"input": whole.inputs[i].name, "dim": d} for symbol, (i, d) in symbols.items()},
        "conditions": [str(guard) for guard in whole.guards],
        "weights": [_value(a.name, a.example, list(a.example.shape)) for a in weights],
        "machine": {"compiler": tools.version, "flags": list(tools.flags)},
        "torch": torch.__version__,
        "sha256": {
            name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
            for name in ("model.so", "weights.safetensors", "sources/model.cpp")
        },
    }  # fmt: skip


def _value(name: str, value: Tensor, sizes: Sequence[Any]) -> dict[str, Any]:
    return {"name": name, "dtype": dtype_names(value), "sizes": list(sizes)}


def _size(size: Any) -> int | str:
    return size if isinstance(size, int) else size.name if isinstance(size, Symbol) else show(size)


def _summary(value: Tensor) -> dict[str, Any]:
    """A few numbers by which a result for the example can be recognised."""
    flat = value.reshape(-1).double()
    return {"sizes": list(value.shape), "first": flat[:4].tolist(), "sum": float(flat.sum())}
