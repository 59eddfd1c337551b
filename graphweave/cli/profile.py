"""`graphweave profile SCRIPT`: as `graphweave explain`, with the measured times of a step."""

from __future__ import annotations

import argparse

from graphweave.cli import script


def add_arguments(sub: argparse.ArgumentParser) -> None:
    script.add_arguments(sub, "profiled", measured=True)
