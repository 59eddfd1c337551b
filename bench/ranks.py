"""Training on several ranks: `python -m bench.ranks COMMAND --help`. Each command is a module of its own.

- `data-parallel` times training on two ranks against one process (bench/ranks_data_parallel.py).
- `full-graph` times training over parts against one process, and its memory (bench/ranks_full_graph.py).
- `halo` counts the rows that parts of real graphs read of each other (bench/ranks_halo.py).
- `halves` trains with halo rows in half the bytes, and with those of the last step (bench/ranks_halves.py).
- `partition` times `graphweave partition` against METIS's own time (bench/ranks_partition.py).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bench import ranks_data_parallel, ranks_full_graph, ranks_halo, ranks_halves, ranks_partition
from bench.runner import run

COMMANDS = {
    "data-parallel": ranks_data_parallel.BENCH,
    "full-graph": ranks_full_graph.BENCH,
    "halo": ranks_halo.BENCH,
    "halves": ranks_halves.BENCH,
    "partition": ranks_partition.BENCH,
}
"""Benchmarks by the name of their command."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.ranks", description=__doc__.splitlines()[0], add_help=False)
    parser.add_argument("command", choices=tuple(COMMANDS))
    options, rest = parser.parse_known_args(argv)
    return run(COMMANDS[options.command], rest)


if __name__ == "__main__":
    sys.exit(main())
