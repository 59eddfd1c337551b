"""`graphweave compare`: trains one model by graphweave, eager PyTorch and torch.compile, and writes a page about it."""

from __future__ import annotations

import argparse
from pathlib import Path

from graphweave.cli.train import add_epochs, add_training, run

_PAGE = Path("comparison.html")


def add_arguments(sub: argparse.ArgumentParser) -> None:
    """Those of `graphweave train`, except for the ones that choose the ways."""
    add_training(sub)
    add_epochs(sub)
    sub.set_defaults(run=run, compare=True, no_compile=False, report=_PAGE)
