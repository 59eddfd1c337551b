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

from graphweave.core.sizes import Size, Symbol, show
from graphweave.exporting.capture import Argument, WholeModel
from graphweave.exporting.conditions import in_names, symbols_of
from graphweave.exporting.forms import capture_forms, constants_of, printed_forms
from graphweave.exporting.library import LoadedModel
from graphweave.exporting.machines import Library, Machines, build, machines_of
from graphweave.exporting.source import chooser_source, dtype_names, makefile, model_sources, output_sizes, own
from graphweave.exporting.weights import write_weights

INTERFACE = "1.0"
"""The version of the C interface: GW_MODEL_MAJOR and GW_MODEL_MINOR of model.h."""


@dataclass(frozen=True, slots=True)
class Exported:
    """The model that was exported to `folder`, with its `manifest`. `load` opens it in this process."""

    folder: Path
    manifest: Mapping[str, Any]

    def load(self, threads: int = 1) -> LoadedModel:
        return LoadedModel(self.folder, threads)


def export(
    model: Callable[..., object],
    example_inputs: Sequence[object] | Mapping[str, object],
    path: str | os.PathLike[str],
    *,
    target: str | None = None,
    instruction_set: str | Sequence[str] | None = None,
) -> Exported:
    """Write the inference of `model` as a shared library that needs neither Python nor PyTorch.

    `example_inputs` are the arguments of one call, in order or by name: tensors on the CPU, or lists and dicts of
    them. Their feature widths are compiled in; numbers of nodes, edges and graphs vary freely. `path` becomes a folder
    with

    - `model.so`, the library, and `model.h`, its interface in C (docs/export.md);
    - `weights.safetensors`, which may be replaced by other weights of the same shapes;
    - `manifest.json`: inputs, outputs, sizes, weights, machine, versions, and numbers of the results for the example:
      the library's, or the model's where this machine cannot run the library;
    - `sources/`, from which `make` builds the library with any C++17 compiler.

    The library is for processors with all that this one has. `instruction_set` names another ("x86-64-v3"). With a
    list of names, there is a library for each, and model.so opens the first that the processor can run, or says that
    it can run none. `target` compiles for other machines ("x86_64-linux", "aarch64-linux", with "-musl" for musl in
    place of glibc), for the smallest instruction set unless one is named. It needs the compiler of
    `pip install "graphweave[toolchain]"`.

    A model that draws random numbers has a `seed`, one int64, as its last input. A call that only PyTorch computes
    cannot leave: ExportError with the call, its line and what to do. Nothing is left out in silence. A module in
    training mode is exported as it computes there; call `eval()` first. Results are those of the compiled model but
    for the rounding of products, whose order of sums is the library's own.
    """
    args, kwargs = ((), example_inputs) if isinstance(example_inputs, Mapping) else (tuple(example_inputs), {})
    machines = machines_of(target, instruction_set)
    captured = capture_forms(model, args, kwargs)
    weights, numbers = _all_weights(captured)
    forms = printed_forms(captured, numbers)
    whole, folder = captured[0], Path(path)
    sources = folder / "sources"
    written = {**model_sources(forms, weights).files}
    written["Makefile"] = makefile(machines.instruction_sets, machines.chooses)
    if machines.chooses:
        written["chooser.cpp"] = chooser_source(machines.instruction_sets)
    for name, content in written.items():
        file = sources / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    (folder / "model.h").write_text(own("model.h"), encoding="utf-8")
    write_weights(folder / "weights.safetensors", {a.name: a.example for a in weights})
    libraries = build(sources, machines)
    for old in {*folder.glob("model-*.so")} - {folder / library.file for library in libraries}:
        old.unlink()  # of an earlier export, for a processor that this one does not name
    results = [value for _, value, _ in whole.results]
    if machines.can_run_here:
        results = LoadedModel(folder)(*(a.example for a in whole.inputs))
    manifest = _manifest([form.model for form in forms], weights, results)
    manifest |= _of_machines(machines, libraries, folder)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return Exported(folder, manifest)


def _all_weights(forms: Sequence[WholeModel]) -> tuple[list[Argument], list[dict[str, int]]]:
    """The weights of all forms, each once, and for each form the number of each by its placeholder."""
    weights: list[Argument] = []
    at: dict[Any, int] = {}
    numbers: list[dict[str, int]] = []
    for form in forms:
        numbers.append({})
        for one in (*form.weights, *constants_of(form)):
            value = one.example
            key = value.data_ptr(), tuple(value.shape), value.stride(), value.dtype
            if key not in at:
                at[key] = len(weights)
                taken = one.name in {other.name for other in weights}  # forms name constants each by itself
                weights.append(replace(one, name=f"{one.name}.{len(weights)}") if taken else one)
            numbers[-1][one.placeholder] = at[key]
    return weights, numbers


def _manifest(forms: Sequence[WholeModel], weights: Sequence[Argument], results: Sequence[Tensor]) -> dict[str, object]:
    whole = forms[0]
    symbols = symbols_of(whole.inputs)
    return {
        "graphweave_export": INTERFACE,
        "library": "model.so",
        "inputs": [_value(a.name, a.example, [_size(n) for n in a.sizes]) for a in whole.inputs],
        "outputs": [
            _value(name, value, output_sizes(whole, at)) | {"example": _summary(one)}
            for (name, value, at), one in zip(whole.results, results, strict=True)
        ],
        "sizes": {symbol.name: {"input": whole.inputs[i].name, "dim": d} for symbol, (i, d) in symbols.items()},
        "conditions": [[in_names(guard, form.inputs) for guard in form.guards] for form in forms],
        "weights": [_value(a.name, a.example, list(a.example.shape)) for a in weights],
        "torch": torch.__version__,
    }  # fmt: skip


def _of_machines(machines: Machines, libraries: Sequence[Library], folder: Path) -> dict[str, object]:
    """The part of the manifest on the machines that the libraries are for, and the digests of the files."""
    names = (*(library.file for library in libraries), "weights.safetensors", "sources/model.cpp")
    return {
        "machine": {
            "target": machines.shown,
            "compiler": libraries[0].tools.version,
            "libraries": [
                {"file": one.file, "instruction_set": one.instruction_set, "flags": list(one.tools.flags)}
                for one in libraries
            ],
            "example_computed_by": "library" if machines.can_run_here else "model",
        },
        "sha256": {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names},
    }


def _value(name: str, value: Tensor, sizes: Sequence[object]) -> dict[str, object]:
    return {"name": name, "dtype": dtype_names(value), "sizes": list(sizes)}


def _size(size: Size) -> int | str:
    return size if isinstance(size, int) else size.name if isinstance(size, Symbol) else show(size)


def _summary(value: Tensor) -> dict[str, list[float] | float]:
    """A few numbers by which a result for the example can be recognised."""
    flat = value.reshape(-1).double()
    return {"sizes": list(value.shape), "first": flat[:4].tolist(), "sum": float(flat.sum())}
