"""What several ranks bring: `python -m bench.ranks SUBCOMMAND`, each in a module of its own.

python -m bench.ranks data-parallel --out bench/results
"""

from __future__ import annotations

import importlib
import sys

SUBCOMMANDS = {"data-parallel": "bench.ranks_data_parallel"}
"""Name -> the module whose `main` takes the arguments that follow."""

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in SUBCOMMANDS:
        sys.exit(f"usage: python -m bench.ranks {{{','.join(SUBCOMMANDS)}}} ...")
    importlib.import_module(SUBCOMMANDS[sys.argv[1]]).main(sys.argv[2:])
