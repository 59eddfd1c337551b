"""`graphweave doctor`: which versions are installed, whether kernels work, where caches lie, and what runs on which
device."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from graphweave.cli import machine, trial
from graphweave.cli.trial import Trial
from graphweave.core.errors import DataError
from graphweave.runtime import machine_facts, triton_kernel

_RUNS = {
    "cpp": "generated C++ kernels", "triton": "generated Triton kernels", "eager": "eager PyTorch", "nothing": "nothing"
}  # fmt: skip
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def add_arguments(sub: argparse.ArgumentParser) -> None:
    sub.set_defaults(run=run)
    sub.add_argument("--json", metavar="FILE", help="write the report as JSON too; - prints it and nothing else")


def run(args: argparse.Namespace) -> int:
    """Print the report. Returns 0 if C++ kernels work, else 1; the report then ends with what to do."""
    found = report()
    if args.json == "-":
        sys.stdout.write(_json(found))
        if found["advice"] is not None:
            sys.stderr.write(f"{found['advice']}\n")
    else:
        if args.json is not None:
            _write(Path(args.json), _json(found))
        # Output to a file or pipe has no colours, and its lines are not broken.
        console = Console(width=None if sys.stdout.isatty() else 200)
        for part in shown(found):
            console.print(part, highlight=False)
            console.print()
    return 0 if found["checks"]["cpp"]["works"] else 1


def report() -> dict[str, Any]:
    """The whole report as JSON values. A small kernel is compiled and run for C++ and, if it is installed, for
    Triton."""
    cpp, triton = trial.on_cpu(), _triton()
    return {
        "versions": machine_facts.versions(),
        "compiler": machine_facts.compiler(),
        "checks": {"cpp": _checked(cpp), "triton": _checked(triton)},
        "cpu": machine_facts.cpu(),
        "cuda": machine_facts.cuda(),
        "caches": machine.caches(),
        "settings": machine.settings_in_force(os.environ),
        "unknown_variables": machine.unknown_variables(os.environ),
        "also_read": {name: os.environ[name] for name in machine.ALSO_READ if name in os.environ},
        "placement": machine.placement(cpp, triton),
        "advice": None if cpp.works else _advice(cpp),
    }


def _triton() -> Trial | None:
    """The trial of Triton; None if it is not installed."""
    if triton_kernel.triton_version() is None:
        return None
    return trial.through_triton("cuda" if torch.cuda.device_count() else "cpu")


def _checked(done: Trial | None) -> dict[str, Any]:
    if done is None:
        return {"works": False, "seconds": None, "why": machine_facts.NOT_INSTALLED}
    return {"works": done.works, "seconds": round(done.seconds, 3), "why": done.why}


def _advice(cpp: Trial) -> str:
    remedy = "" if "GRAPHWEAVE_CXX" in str(cpp.why) else " Install another compiler and set GRAPHWEAVE_CXX to it."
    return f"C++ kernels do not work, so models on the CPU run eagerly: {cpp.why}{remedy}"


def _json(found: Mapping[str, Any]) -> str:
    return json.dumps(found, indent=2) + "\n"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(
            f"--json must name a file that can be written (got {path}: {error.strerror}). Name another."
        ) from error


# ---------------------------------------------------------------- text for the reader


def shown(found: Mapping[str, Any]) -> list[Table | Text]:
    """The report as a list of sections, which ends with what runs on which device."""
    parts: list[Table | Text] = [
        _section("versions", found["versions"]),
        _section("C++ compiler", _compiler(found["compiler"])),
        _section("kernels", {name: _check(found["checks"][name]) for name in ("cpp", "triton")}),
        _section("devices", _devices(found["cpu"], found["cuda"])),
        _section("caches", {name: _cache(cache) for name, cache in found["caches"].items()}),
        _settings(found["settings"]),
    ]
    if found["also_read"]:
        parts.append(_section("other variables", found["also_read"]))
    if found["unknown_variables"]:
        parts.append(Text(f"no settings of graphweave: {', '.join(found['unknown_variables'])}"))
    parts.append(_section("what runs where", {f"{k} tensors": _place(v) for k, v in found["placement"].items()}))
    if found["advice"] is not None:
        parts.append(Text(found["advice"]))
    return parts


def _section(title: str, rows: Mapping[str, str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False)
    table.add_column(min_width=16)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(Text(name), Text(value))
    return table


def _compiler(found: Mapping[str, Any]) -> dict[str, str]:
    if "why" in found:
        return {"none": found["why"]}
    openmp = found["openmp"] or "none: kernels run on one thread"
    return {"command": found["command"], "version": found["version"], "flags": " ".join(found["flags"]),
            "OpenMP runtime": openmp}  # fmt: skip


def _check(check: Mapping[str, Any]) -> str:
    if check["works"]:
        return f"a small kernel compiles, runs and computes what it should ({check['seconds']:.1f} s)"
    return f"no: {check['why']}"


def _devices(cpu: Mapping[str, Any], cuda: Mapping[str, Any]) -> dict[str, str]:
    rows = {"cpu": f"{cpu['model']}, {cpu['cores']} cores ({cpu['usable']} usable), {cpu['threads']} threads"}
    for i, device in enumerate(cuda["devices"]):
        rows[f"cuda:{i}"] = f"{device['name']}, {_size(device['memory'])}, capability {device['capability']}"
    built = cuda["built_with"]
    rows["CUDA"] = "torch is built for the CPU only" if built is None else f"torch is built with CUDA {built}"
    return rows


def _cache(cache: Mapping[str, Any]) -> str:
    parts = [cache["directory"]] if "directory" in cache else []
    if cache.get("entries") is not None:
        parts.append(f"{cache['entries']} entries of {_size(cache['bytes'])}")
    if "bound" in cache:
        parts.append(f"at most {_size(cache['bound'])}")
    if cache.get("damaged"):
        parts.append(f"{len(cache['damaged'])} damaged, which will be built again")
    if cache.get("why") is not None:
        parts.append(f"{cache['why']}; a temporary directory takes its place. Set GRAPHWEAVE_CACHE_DIR")
    return ", ".join(parts)


def _settings(rows: list[dict[str, Any]]) -> Table:
    table = _section("settings", {})
    table.add_column()
    for row in rows:
        table.add_row(Text(row["name"]), Text(_value(row["value"])), Text(row["source"]))
    return table


def _value(value: Any) -> str:
    """A setting's value as it would be written in the environment."""
    if value in (None, "", []):
        return "-"
    if isinstance(value, bool):
        return str(int(value))
    return ",".join(value) if isinstance(value, list) else str(value)


def _place(place: Mapping[str, str]) -> str:
    return f"{_RUNS[place['runs']]}: {place['why']}"


def _size(count: int) -> str:
    size, unit = float(count), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{count} bytes" if unit == 0 else f"{size:.1f} {_UNITS[unit]}"
