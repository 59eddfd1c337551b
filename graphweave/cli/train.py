"""`graphweave train`: a PyG model on real data, through the compiler, beside eager and torch.compile if asked."""

from __future__ import annotations

import argparse
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from graphweave.cli.memory import peak_extra_bytes
from graphweave.cli.models import MODELS
from graphweave.cli.plot import check_plot, draw
from graphweave.cli.report import progress, summary
from graphweave.cli.runner import Job, Runner
from graphweave.core.errors import DataError, GraphweaveError
from graphweave.data import NodeData, digits, karate, npz, planetoid


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    sub = commands.add_parser("train", help="train a two-layer PyG model for node classification", allow_abbrev=False)
    sub.set_defaults(run=run)
    add = sub.add_argument
    add("--model", choices=MODELS, default="gat", help="convolution of both layers (default: %(default)s)")
    add("--data", default="digits", help="digits, karate, FILE.npz or planetoid:NAME (default: %(default)s)")
    add("--epochs", type=_positive_int, default=100, help="training steps (default: %(default)s)")
    add("--hidden", type=_positive_int, default=64, help="hidden width, all heads together (default: %(default)s)")
    add("--heads", type=_positive_int, default=4, help="attention heads of the first layer (default: %(default)s)")
    add("--dropout", type=_share, default=0.5, help="share of hidden features dropped (default: %(default)s)")
    add("--lr", type=_positive, default=0.01, help="learning rate of Adam (default: %(default)s)")
    add("--weight-decay", type=_not_negative, default=5e-4, help="weight decay of Adam (default: %(default)s)")
    add("--seed", type=int, default=0, help="of weights, dropout and random splits (default: %(default)s)")
    add("--threads", type=_positive_int, help="threads of torch and of the kernels (default: torch's choice)")
    add("--symmetric", action="store_true", help="add the reverse of every edge of FILE.npz")
    add("--compare", action="store_true", help="also eager PyG and torch.compile's default backend, interleaved")
    add("--plot", type=Path, metavar="OUT.png", help="draw loss, accuracy and epoch times (needs matplotlib)")
    add("--no-compile", action="store_true", help="eager PyG only, without graphweave")


def run(args: argparse.Namespace) -> int:
    if args.compare and args.no_compile:
        raise DataError("--compare and --no-compile exclude each other.")
    if args.plot is not None:
        check_plot(args.plot)
    job = Job(
        args.model, args.hidden, args.heads, args.dropout, args.lr, args.weight_decay, args.epochs, args.seed,
        args.threads,
    )  # fmt: skip
    job.apply_threads()
    data = load(args.data, symmetric=args.symmetric, seed=args.seed)
    _check_trainable(data)

    # Not a terminal: no colours, no moving bar, lines wide enough for the table.
    console = Console(width=None if sys.stdout.isatty() else 120)
    ways = ["eager"] if args.no_compile else ["graphweave", "eager", "inductor"] if args.compare else ["graphweave"]
    runners = [Runner(way, job, data) for way in ways]
    console.print(
        f"{args.model} on {data.name}: {data.num_nodes} nodes, {data.num_edges} edges, "
        f"{data.x.size(1)} features, {data.num_classes} classes",
        highlight=False,
    )
    with progress(console, job.epochs) as shown:
        for _ in range(job.epochs):
            for runner in runners:
                runner.epoch()
            shown(runners[0].history)
    console.print(summary(runners, *_memory(console, ways, job, data)))
    if args.plot is not None:
        draw(args.plot, runners)
        console.print(f"plot: {args.plot}", highlight=False)
    return 0


def load(name: str, *, symmetric: bool, seed: int) -> NodeData:
    """The graph that `--data` names. DataError if there is none such."""
    kind, _, rest = name.partition(":")
    if kind == "planetoid":
        return planetoid(rest)
    if name == "digits":
        return digits(seed=seed)
    if name == "karate":
        return karate(seed=seed)
    if name.endswith(".npz"):
        return npz(name, symmetric=symmetric, seed=seed)
    raise DataError(f"--data must be digits, karate, FILE.npz or planetoid:NAME (got {name!r}).")


def _check_trainable(data: NodeData) -> None:
    if data.num_classes == 0:
        raise DataError(f"{data.name}: the file has no labels 'y', so there is nothing to train on.")
    if not bool(data.train_mask.any()):
        raise DataError(f"{data.name}: no node is in the train split.")


def _memory(console: Console, ways: list[str], job: Job, data: NodeData) -> tuple[str, list[int | None]]:
    """Heading and bytes for each way: the peak of this process, or, to compare, of one fresh process for each."""
    if len(ways) == 1:
        kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return "peak memory of the process", [kib if sys.platform == "darwin" else kib * 1024]
    peaks: list[int | None] = []
    for way in ways:
        try:
            peaks.append(peak_extra_bytes(way, job, data))
        except GraphweaveError as error:
            console.print(str(error), highlight=False, markup=False)
            peaks.append(None)
    return "peak extra memory of a step", peaks


def _number(text: str, kind: Callable[[str], float], allowed: Callable[[float], bool], words: str) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = float("nan")
    if not allowed(value):
        raise argparse.ArgumentTypeError(f"must be {words} (got {text!r})")
    return value


def _positive_int(text: str) -> int:
    return int(_number(text, int, lambda value: value >= 1, "a whole number above 0"))


def _positive(text: str) -> float:
    return _number(text, float, lambda value: 0 < value < float("inf"), "a number above 0")


def _not_negative(text: str) -> float:
    return _number(text, float, lambda value: 0 <= value < float("inf"), "a number, 0 or above")


def _share(text: str) -> float:
    return _number(text, float, lambda value: 0 <= value < 1, "a number from 0 to below 1")
