"""The tuner's findings, on disk next to the kernel cache: a small JSON file for each key.

A file holds its whole key and a digest of its text. One that is damaged, or whose key is not the one that is asked for
(another machine, another version), is as good as none. Files are written apart and moved into place, so that any number
of processes may tune into one folder; the last one to finish wins.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from graphweave.core.log import logger, warn_once
from graphweave.core.own_folders import make_own, read_own
from graphweave.core.settings import settings

_log = logger(__name__)

FORMAT = 1
"""Version of the files; it is raised when their meaning changes."""


def directory() -> Path:
    """The folder of what was found. It exists once something has been kept there."""
    return (settings().cache_dir or user_cache_path("graphweave")) / "tuning"


def load(key: Mapping[str, str]) -> dict[str, Any] | None:
    """The findings that were kept under `key`; None if there is nothing, or nothing that can be trusted."""
    path = _path(key)
    try:
        held = json.loads(read_own(path))
        body = held["body"]
        whole = held["digest"] == _digest(body)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("%s is ignored: %s", path, error)
        return None
    if not whole or body.get("format") != FORMAT or body.get("key") != dict(key):
        _log.warning("%s is ignored: it is damaged, or belongs to another key", path)
        return None
    found: dict[str, Any] = body["found"]
    return found


def save(key: Mapping[str, str], found: Mapping[str, object]) -> None:
    """Keep `found`, which JSON must be able to write, under `key`. A folder that cannot be written is told once."""
    body = {"format": FORMAT, "key": dict(key), "found": dict(found)}
    text = json.dumps({"digest": _digest(body), "body": body}, indent=1)
    path = _path(key)
    try:
        make_own(path.parent)
        handle, scratch = tempfile.mkstemp(dir=path.parent, prefix="write-", suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(scratch, path)
        except OSError:
            with suppress(OSError):
                os.unlink(scratch)
            raise
    except OSError as error:
        warn_once(
            f"cannot keep what tuning found in {path.parent} ({error.strerror or error}): it is sought again next "
            "time. Set GRAPHWEAVE_CACHE_DIR to a writable directory that is yours alone (chmod 700).",
            _log,
        )


def _path(key: Mapping[str, str]) -> Path:
    return directory() / f"{_digest(dict(key))}.json"


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
