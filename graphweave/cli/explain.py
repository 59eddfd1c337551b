"""`graphweave explain SCRIPT`: run a program, and write what became of what it compiles."""

from __future__ import annotations

import argparse

from graphweave.cli import script


def add_arguments(sub: argparse.ArgumentParser) -> None:
    script.add_arguments(sub, "explained", measured=False)
