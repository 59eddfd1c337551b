"""`graphweave partition`: writes the parts of a graph for training on several ranks, and predicts what a step costs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from graphweave.cli.arguments import count, positive, positive_int
from graphweave.cli.durations import duration
from graphweave.cli.notes import told_after
from graphweave.core.errors import DataError
from graphweave.core.json_values import JsonObject
from graphweave.data.machine_memory import in_words
from graphweave.distributed.cost import Cluster, Model
from graphweave.distributed.graph_file import GraphFile, graph_file
from graphweave.distributed.manifest import MANIFEST, Manifest, read_manifest
from graphweave.distributed.methods import METHODS
from graphweave.distributed.report import rank_loads, report
from graphweave.distributed.write import PIECE, write_partition

_HIDDEN, _CLASSES = 64, 16
"""Widths of the default model where the graph has no classes."""


def add_arguments(sub: argparse.ArgumentParser) -> None:
    sub.set_defaults(run=run)
    add = sub.add_argument
    add("file", type=Path, metavar="FILE", help="FILE.npz or a folder of arrays (docs/data.md); a partition, to report")
    add("--parts", type=positive_int, metavar="N", help="number of parts, one for each rank")
    add("--out", type=Path, metavar="DIR", help="folder for the parts: new, or a partition, which is replaced")
    add("--method", choices=tuple(METHODS), default="metis", help="who owns which node (default: %(default)s; random "
        "and ldg keep the edges on disk)")  # fmt: skip
    add("--seed", type=count, default=0, help="of the method and of a random split (default: %(default)s)")
    add("--symmetric", action="store_true", help="add the reverse of every edge of a graph without relations")
    add("--piece", type=positive_int, default=PIECE, help="edges read at a time, of about 100 bytes (default: "
        "%(default)s)")  # fmt: skip
    cost = sub.add_argument_group("report").add_argument
    cost("--report", action="store_true", help="predict the cost of a training step")
    cost("--bandwidth", type=positive, default=1.25, help="GB/s that a rank sends, and receives (default: %(default)s)")
    cost("--latency", type=positive, default=50.0, help="microseconds of a message (default: %(default)s)")
    cost("--widths", type=_widths, metavar="N,N,N", help="widths of the features, of each layer and of the result "
         f"(default: those of the file, {_HIDDEN}, classes)")  # fmt: skip
    cost("--value-bytes", type=positive_int, default=4, help="size of a value (default: %(default)s)")
    cost("--edge-time", type=positive, metavar="NS", help="nanoseconds that one rank takes for a step, divided by its "
         "edges (default: measured here on a step of these widths)")  # fmt: skip
    cost("--json", metavar="FILE", help="write the report as JSON too; - prints it and nothing else")


def run(args: argparse.Namespace) -> int:
    """Writes the partition, unless FILE is one, and prints its sizes or the report."""
    report_only = (args.file / MANIFEST).is_file() and args.out is None
    if args.json is not None and not args.report:
        raise DataError("--json writes the report, which --report makes. Pass --report too.")
    if report_only and not args.report:
        raise DataError(f"{args.file} is a partition already. Pass --report, or name a graph and --out.")
    if not report_only and (args.parts is None or args.out is None):
        raise DataError("--parts N and --out DIR must be given for a graph. Pass both.")
    console = Console(width=None if sys.stdout.isatty() else 120, quiet=args.json == "-")
    folder = args.file if report_only else args.out
    if report_only:
        manifest = read_manifest(folder)
    else:
        with told_after("partition"):
            graph = graph_file(args.file, symmetric=args.symmetric, seed=args.seed)
            _check_parts(args.parts, graph)
        begin = time.perf_counter()
        options = {"method": args.method, "seed": args.seed, "piece": args.piece}
        try:
            with console.status(f"partitioning {graph.name}"):
                manifest = write_partition(graph, args.parts, folder, **options)
        except OSError as error:
            raise DataError(
                f"parts cannot be written to {folder} ({error.strerror or error}). Name another folder, or free space."
            ) from error
        console.print(_described(manifest, folder, time.perf_counter() - begin), highlight=False)
    if args.report:
        _report(args, manifest, folder, console)
    return 0


def _check_parts(parts: int, graph: GraphFile) -> None:
    """DataError if there are fewer nodes than parts."""
    nodes = sum(graph.num_nodes.values())
    if parts > nodes:
        raise DataError(
            f"--parts must be {nodes} at most, the nodes of {graph.name} (got {parts})."
            " Choose fewer parts, so that each has a node."
        )


def _described(manifest: Manifest, folder: Path, seconds: float) -> str:
    edges = sum(manifest.num_edges)
    most = max(sum(part.num_edges) for part in manifest.parts) * manifest.num_parts / max(edges, 1)
    cut = sum(manifest.cut_edges) / max(edges, 1)
    return (
        f"{manifest.graph}: {sum(manifest.node_types.values())} nodes, {edges} edges, {manifest.num_parts} parts by"
        f" {manifest.method} in {duration(seconds)}; {100 * cut:.1f}% of edges are cut, the largest part has"
        f" {most:.2f} times the mean edges; {folder}"
    )


def _report(args: argparse.Namespace, manifest: Manifest, folder: Path, console: Console) -> None:
    model = Model(args.widths or _default_widths(manifest), args.value_bytes)
    seconds = _edge_seconds(manifest, model) if args.edge_time is None else 1e-9 * args.edge_time
    found = report(manifest, rank_loads(folder), model, Cluster(1e9 * args.bandwidth, 1e-6 * args.latency, seconds))
    text = json.dumps(found, indent=2) + "\n"
    if args.json == "-":
        sys.stdout.write(text)
        return
    if args.json is not None:
        try:
            Path(args.json).write_text(text, encoding="utf-8")
        except OSError as error:
            raise DataError(
                f"--json must name a file that can be written (got {args.json}: {error.strerror}). Name another."
            ) from error
    for table in shown(found):
        console.print(table)


def _edge_seconds(manifest: Manifest, model: Model) -> float:
    from graphweave.cli.edge_time import measured_edge_seconds

    return measured_edge_seconds(model.widths, sum(manifest.num_edges) / max(sum(manifest.node_types.values()), 1))


def _default_widths(manifest: Manifest) -> tuple[int, ...]:
    """Two layers: the widest features of a type, 64, and the classes."""
    wide = [
        manifest.parts[0].arrays[f"nodes{i}.data.feat"].shape[1]
        for i, fields in enumerate(manifest.node_data)
        if "feat" in fields and len(manifest.parts[0].arrays[f"nodes{i}.data.feat"].shape) == 2
    ]
    return (max(wide, default=_HIDDEN) or _HIDDEN, _HIDDEN, manifest.num_classes or _CLASSES)


def shown(found: JsonObject) -> list[Table]:
    """The report as two tables: the ranks, and a step."""
    ranks = Table("a rank", title=f"{found['graph']}, {found['parts']} parts by {found['method']}", title_style="bold")
    for name in ("min", "mean", "max"):
        ranks.add_column(name, justify="right")
    for name, values in found["ranks"].items():
        ranks.add_row(name, *(_shown(name, values[key]) for key in ("min", "mean", "max")))
    step = Table("a step", "", title=f"widths {', '.join(map(str, found['widths']))}", title_style="bold")
    step.add_row("edges cut", f"{100 * found['cut edges'] / max(found['edges'], 1):.1f}%")
    step.add_row("replication factor", f"{found['replication factor']:.2f}")
    step.add_row("widths exchanged in a step", ", ".join(map(str, found["exchanged widths"])) or "none")
    step.add_row("time an edge, one rank", f"{1e9 * found['seconds an edge']:.2f} ns")
    times = found["step"]
    step.add_row("one rank", duration(times["one rank"]))
    for name in ("in turn", "hidden"):
        step.add_row(f"communication {name}", f"{duration(times[name])} ({times[f'speed-up {name}']:.2f}x)")
    return [ranks, step]


def _shown(name: str, value: float) -> str:
    if name in ("compute", "communication"):
        return duration(value)
    return in_words(round(value)) if name.startswith("bytes") or name == "memory" else f"{value:,.0f}"


def _widths(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if len(found) < 2 or min(found) < 1:
        words = "two or more whole numbers above 0, as 64,64,16"
        raise argparse.ArgumentTypeError(f"must be {words} (got {text!r})")
    return found
