"""The record of a run: machine, versions, options and results, written after each case, which a later run continues."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.common import machine, save


class Record:
    """Results by the name of their case. If `resume`, those that the file at `path` has are kept.

    A record has one machine: SystemExit if the file is of another processor, other versions or other options.
    """

    def __init__(self, path: Path | None, about: Mapping[str, Any], *, resume: bool = False) -> None:
        self.path, self.about = path, json.loads(json.dumps(about, default=str))
        self.results: dict[str, Any] = {}
        if path is not None and path.is_dir():
            self.path = path / f"{about['benchmark']}.json"
        if resume and self.path is not None and self.path.exists():
            found = json.loads(self.path.read_text())
            here = {**self.about, **{key: machine()[key] for key in ("cpu", "versions")}}
            there = {**found, **found["machine"]}
            if other := [key for key in here if there.get(key, here[key]) != here[key]]:
                raise SystemExit(
                    f"{self.path} was measured with other {', '.join(other)}. Write another file by --out."
                )
            self.results = found["results"]

    def __contains__(self, name: str) -> bool:
        return name in self.results

    def __setitem__(self, name: str, answer: Any) -> None:
        self.results[name] = answer
        save(self.path, {**self.about, "results": self.results})
