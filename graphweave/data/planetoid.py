"""Cora, CiteSeer and PubMed through PyG's own dataset class, which downloads them on first use."""

from __future__ import annotations

import asyncio
import contextlib
import io
from pathlib import Path

import platformdirs

from graphweave.core.errors import DataError
from graphweave.core.own_folders import make_own
from graphweave.core.settings import settings
from graphweave.data.node_data import NodeData

NAMES = ("cora", "citeseer", "pubmed")


def planetoid(name: str, root: str | Path | None = None) -> NodeData:
    """The citation graph `name` with its public split. Files are kept in `root` (by default in graphweave's cache)."""
    if name.lower() not in NAMES:
        raise DataError(f"planetoid: unknown graph {name!r} (expected one of {', '.join(NAMES)}). Name one of these.")
    try:
        # Imported here, since PyG is an optional dependency and takes seconds to load. It downloads with aiohttp.
        from aiohttp import ClientError
        from torch_geometric.datasets import Planetoid
    except ImportError as error:
        raise DataError("planetoid: torch_geometric is missing. Run: pip install 'graphweave[pyg]'") from error

    cache = settings().cache_dir or platformdirs.user_cache_path("graphweave")
    folder = Path(root) if root is not None else cache / "planetoid"
    try:
        if root is None:
            make_own(folder)  # PyG reads the files by pickle, which runs what they say
        # The dataset class reports its download on stderr, where a command may write only one line of error.
        with contextlib.redirect_stderr(io.StringIO()):
            graph = Planetoid(str(folder), name.lower())[0]
    except (OSError, asyncio.TimeoutError, ClientError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"planetoid: could not download {name} to {folder}: {reason}. Check the connection and the folder, or"
            " name a FILE.npz."
        ) from error
    classes = int(graph.y.max()) + 1
    return NodeData(
        graph.x, graph.edge_index, graph.y, graph.train_mask, graph.val_mask, graph.test_mask, classes, name.lower()
    )
