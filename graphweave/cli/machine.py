"""Caches, settings and what runs where, as plain values that can be written as JSON."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from graphweave.cli.trial import Trial
from graphweave.core.choices import Choices
from graphweave.core.json_values import JsonObject
from graphweave.core.own_folders import why_not_own
from graphweave.core.settings import from_environment, origins, settings
from graphweave.frontends.dynamo.targets import options_of
from graphweave.runtime import kernel_cache, triton_kernel
from graphweave.runtime.entries import COMPILATIONS, Contents

ALSO_READ = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "CUDA_VISIBLE_DEVICES", "TRITON_INTERPRET", "TRITON_CACHE_DIR")
"""Environment variables of PyTorch, OpenMP, CUDA and Triton on which kernels depend."""


def caches() -> JsonObject:
    """For each cache its folder, what the folder holds, its bound in bytes, and `why` the folder is unusable, or
    None."""
    now, kernels, texts = settings(), kernel_cache.directory(), triton_kernel.directory()
    return {
        "kernels": {
            "directory": str(kernels),
            "bound": now.cache_bytes,
            **_readable(kernels, lambda folder: _contents(kernel_cache.contents(folder))),
        },
        "compilations": {
            "directory": str(COMPILATIONS.folder),
            "bound": now.cache_bytes,
            **_readable(COMPILATIONS.folder, lambda _: _contents(COMPILATIONS.contents())),
        },
        "triton_texts": {"directory": str(texts), **_readable(texts, _texts)},
        "formats": {"bound": now.format_bytes},
        "memo": {"bound": now.format_bytes},
        "arena": {"bound": now.arena_bytes},
    }


def _readable(folder: Path, read: Callable[[Path], JsonObject]) -> JsonObject:
    try:
        return {**read(folder), "why": _unwritable(folder)}
    except OSError as error:
        return {"entries": None, "bytes": None, "why": f"cannot be read: {error.strerror or error}"}


def _contents(found: Contents) -> JsonObject:
    return {"entries": found.entries, "bytes": found.bytes, "damaged": [path.name for path in found.damaged]}


def _texts(folder: Path) -> JsonObject:
    sizes = [path.stat().st_size for path in folder.glob("k*.py")]
    return {"entries": len(sizes), "bytes": sum(sizes)}


def _unwritable(folder: Path) -> str | None:
    """Why no file can be made in `folder`, or in its nearest parent that exists, or why others could write to it; None
    if nothing stands in the way. Creates no folder."""
    at = folder
    while not at.exists() and at != at.parent:
        at = at.parent
    try:
        with tempfile.TemporaryFile(dir=at):
            return why_not_own(at) if at == folder else None
    except OSError as error:
        return f"cannot be written: {error.strerror or error}"


def settings_in_force(environ: Mapping[str, str]) -> list[JsonObject]:
    """Each setting with its value and its source: an environment variable, the default, or the running program."""
    asked, now = from_environment(environ), settings()
    rows = []
    for field, (name, given) in origins(environ).items():
        value = getattr(now, field)
        source = "default" if given is None else f"environment: {given}"
        if value != getattr(asked, field):
            source = "set by the program"
        rows.append({"name": name, "value": _plain(value), "source": source})
    return rows


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Environment variables whose names look like settings of graphweave, but are not."""
    known = {name for name, _ in origins({}).values()}
    return sorted(name for name in environ if name.startswith("GRAPHWEAVE_") and name not in known)


def placement(cpp: Trial, triton: Trial | None) -> dict[str, dict[str, str]]:
    """How compiled models run message passing on CPU and CUDA tensors, and why.

    `runs` is "cpp", "triton", "eager", or "nothing" if there is no such device.
    """
    cpu = _target("cpu", {"cpp": cpp, "triton": triton})
    if not torch.cuda.device_count():
        built = torch.version.cuda
        why = "torch is built for the CPU only" if built is None else f"torch (CUDA {built}) finds no device"
        return {"cpu": cpu, "cuda": {"runs": "nothing", "why": why}}
    return {"cpu": cpu, "cuda": _target("cuda", {"triton": triton})}


def _target(device: str, trials: Mapping[str, Trial | None]) -> dict[str, str]:
    """The entry of one kind of device, by the compiler's own decision for a program with a tensor on it."""
    graph = fx.Graph()
    with FakeTensorMode():
        graph.placeholder("x").meta["val"] = torch.empty(1, device=device)
    graph.output(())
    options = options_of(fx.GraphModule({}, graph), Choices())
    if isinstance(options, str):
        return {"runs": "eager", "why": options}
    trial = trials.get(options.target)
    if trial is not None and trial.why is not None:
        return {"runs": "eager", "why": f"a small kernel does not work: {trial.why}"}
    return {"runs": options.target, "why": "a small kernel compiles, runs, and computes what it should"}
