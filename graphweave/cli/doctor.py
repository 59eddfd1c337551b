"""`graphweave doctor`: what is installed and what is not, whether kernels work, where caches lie, and what runs on
which device. It needs nothing but PyTorch."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from graphweave.cli import machine, trial
from graphweave.cli.missing import missing
from graphweave.cli.trial import Trial
from graphweave.core.errors import DataError
from graphweave.core.json_values import JsonObject
from graphweave.runtime import machine_facts, triton_kernel

_RUNS = {
    "cpp": "generated C++ kernels", "triton": "generated Triton kernels", "eager": "eager PyTorch", "nothing": "nothing"
}  # fmt: skip
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_FIRST_COLUMN = 16
"""Width in characters of a section's first column, at least."""
_MIN_LAST_COLUMN = 30
_BOLD = "\x1b[1m{}\x1b[0m"


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
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        sys.stdout.write("\n".join(shown(found, "{}" if width is None else _BOLD, width)))
    return 0 if found["checks"]["cpp"]["works"] else 1


def report() -> JsonObject:
    """The whole report as JSON values. A small kernel is compiled and run for C++ and, if it is installed, for
    Triton."""
    compiler, cpp, triton = machine_facts.compiler(), trial.on_cpu(), _triton()
    return {
        "versions": machine_facts.versions(),
        "missing": missing(compiler="why" not in compiler),
        "compiler": compiler,
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


def _checked(done: Trial | None) -> JsonObject:
    if done is None:
        return {"works": False, "seconds": None, "why": machine_facts.NOT_INSTALLED}
    return {"works": done.works, "seconds": round(done.seconds, 3), "why": done.why}


def _advice(cpp: Trial) -> str:
    remedy = "" if "GRAPHWEAVE_CXX" in str(cpp.why) else " Install another compiler and set GRAPHWEAVE_CXX to it."
    return f"C++ kernels do not work, so models on the CPU run eagerly: {cpp.why}{remedy}"


def _json(found: JsonObject) -> str:
    return json.dumps(found, indent=2) + "\n"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(
            f"--json must name a file that can be written (got {path}: {error.strerror}). Name another."
        ) from error


# ---------------------------------------------------------------- text for the reader


def shown(found: JsonObject, heading: str = "{}", width: int | None = None) -> list[str]:
    """The report as a list of sections, which ends with what runs on which device. Titles have the format `heading`;
    lines are broken to `width` characters if it is given."""
    sections: dict[str, Sequence[tuple[str, ...]]] = {
        "versions": _pairs(found["versions"]),
        "not installed": [(part["what"], part["uses"], part["install"]) for part in found["missing"]],
        "C++ compiler": _pairs(_compiler(found["compiler"])),
        "kernels": _pairs({name: _check(found["checks"][name]) for name in ("cpp", "triton")}),
        "devices": _pairs(_devices(found["cpu"], found["cuda"])),
        "caches": _pairs({name: _cache(cache) for name, cache in found["caches"].items()}),
        "settings": [(row["name"], _value(row["value"]), row["source"]) for row in found["settings"]],
        "other variables": _pairs(found["also_read"]),
        "no settings of graphweave": [(name,) for name in found["unknown_variables"]],
        "what runs where": _pairs({f"{k} tensors": _place(v) for k, v in found["placement"].items()}),
    }
    parts = [
        "\n".join([heading.format(title), *_lines(rows, width)]) + "\n" for title, rows in sections.items() if rows
    ]
    if found["advice"] is not None:
        parts.append("\n".join(textwrap.wrap(found["advice"], width or len(found["advice"]))) + "\n")
    return parts


def _pairs(values: Mapping[str, str]) -> list[tuple[str, ...]]:
    return list(values.items())


def _lines(rows: Sequence[tuple[str, ...]], width: int | None) -> Iterator[str]:
    """Rows of equally many cells as lines, whose columns begin at the same place. The last cell goes on in the next
    line where it is longer than `width` leaves room for."""
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    if widths:
        widths[0] = max(widths[0], _FIRST_COLUMN)
    before = sum(widths) + 2 * len(widths)
    for row in rows:
        cells = "".join(f"{cell:<{size}}  " for cell, size in zip(row, widths, strict=False))
        room = len(row[-1]) + 1 if width is None else max(width - before, _MIN_LAST_COLUMN)
        last, *more = textwrap.wrap(row[-1], room) or [""]
        yield f"{cells}{last}".rstrip()
        yield from (" " * before + line for line in more)


def _compiler(found: JsonObject) -> dict[str, str]:
    if "why" in found:
        return {"none": found["why"]}
    openmp = found["openmp"] or "none: kernels run on one thread"
    return {"command": found["command"], "version": found["version"], "flags": " ".join(found["flags"]),
            "OpenMP runtime": openmp}  # fmt: skip


def _check(check: JsonObject) -> str:
    if check["works"]:
        return f"a small kernel compiles, runs and computes what it should ({check['seconds']:.1f} s)"
    return f"no: {check['why']}"


def _devices(cpu: JsonObject, cuda: JsonObject) -> dict[str, str]:
    rows = {"cpu": f"{cpu['model']}, {cpu['cores']} cores ({cpu['usable']} usable), {cpu['threads']} threads"}
    for i, device in enumerate(cuda["devices"]):
        rows[f"cuda:{i}"] = f"{device['name']}, {_size(device['memory'])}, capability {device['capability']}"
    built = cuda["built_with"]
    rows["CUDA"] = "torch is built for the CPU only" if built is None else f"torch is built with CUDA {built}"
    return rows


def _cache(cache: JsonObject) -> str:
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


def _value(value: object) -> str:
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
