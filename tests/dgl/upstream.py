"""DGL's own tests through `graphweave.dgl`: how many cases of each group pass.

    python -m tests.dgl.upstream /path/to/dgl [--only test_heterograph] [-k expression] [--kernels] [--json FILE]

`/path/to/dgl` is a checkout of DGL's public repository. Its tests and their helpers are copied to a temporary folder
and run there; nothing of them is kept. Without `--kernels`, functions of messages run as PyTorch's calls, because
compiling each test's functions takes long and computes the same.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.dgl.upstream_cases import GROUPS

_ROOT = Path(__file__).parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("dgl", type=Path, help="a checkout of DGL")
    parser.add_argument("--only", default="", help="run the files whose path contains this text, or a group")
    parser.add_argument("-k", default="", help="run the tests that match this expression of pytest")
    parser.add_argument("--kernels", action="store_true", help="compile message passing outside of compiled models")
    parser.add_argument("--json", type=Path, help="write the outcome of every case to this file")
    parser.add_argument("--verbose", action="store_true", help="let pytest print tracebacks")
    args = parser.parse_args()
    files = [
        file for group, files in GROUPS.items() for file in files
        if (args.dgl / "tests/python" / file).exists()
        and (args.only == group if args.only in GROUPS else args.only in file)
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        results = _run(args, files, Path(folder))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    print(_table(results))
    print(_reasons(results))


def _run(args: argparse.Namespace, files: list[str], folder: Path) -> dict[str, dict[str, str]]:
    for name in ("python", "backend", "utils"):
        shutil.copytree(args.dgl / "tests" / name, folder / name)
    out = folder / "results.json"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(_ROOT), str(folder)]),
        "DGL_SUITE_RESULTS": str(out),
        "GRAPHWEAVE_EAGER_KERNELS": "1" if args.kernels else "0",
        "DGLBACKEND": "pytorch",
    }
    command = [sys.executable, "-m", "pytest", "-p", "tests.dgl.upstream_plugin", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "no:randomly", "--rootdir", str(folder), "-c", os.devnull, "--import-mode=importlib"]
    command += [f"--tb={'short' if args.verbose else 'no'}", *(["-k", args.k] if args.k else []), "-r", "N"]
    command += ["-W", "ignore", "--continue-on-collection-errors", *[str(folder / "python" / file) for file in files]]
    shown = None if args.verbose else subprocess.DEVNULL
    code = subprocess.run(command, cwd=folder, env=environment, stdout=shown, check=False).returncode
    if not out.exists():
        raise SystemExit(f"pytest ended with {code} and wrote no results. Run with --verbose.")
    results: dict[str, dict[str, str]] = json.loads(out.read_text())
    return results


def _table(results: Mapping[str, Mapping[str, str]]) -> str:
    lines = ["| group | passed | failed | excluded | passed of those that count |", "|---|---|---|---|---|"]
    for group in [*GROUPS, "other"]:
        found = Counter(result["outcome"] for result in results.values() if result["group"] == group)
        if found:
            counted = found["passed"] + found["failed"]
            share = f"{100 * found['passed'] / counted:.1f} %" if counted else "-"
            lines.append(f"| {group} | {found['passed']} | {found['failed']} | {found['excluded']} | {share} |")
    return "\n".join(lines)


def _reasons(results: Mapping[str, Mapping[str, str]]) -> str:
    excluded = Counter(result["why"] for result in results.values() if result["outcome"] == "excluded")
    lines = ["", "Excluded:", *[f"- {count} cases: {why}" for why, count in excluded.most_common()], "", "Failed:"]
    lines += [f"- {name}: {result['why']}" for name, result in results.items() if result["outcome"] == "failed"]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
