"""`graphweave train`: trains a model on real data through the compiler, beside eager and torch.compile if requested."""

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
from graphweave.cli.relational_models import DECODERS, RELATIONAL_MODELS
from graphweave.cli.report import progress, summary
from graphweave.cli.tasks import Data, check_trainable, described, load, load_relational, start
from graphweave.cli.training import Links, TrainingJob
from graphweave.core.errors import DataError, GraphweaveError
from graphweave.data import KnowledgeGraph

_DROPOUT, _LINK_DROPOUT = 0.5, 0.2
_WEIGHT_DECAY = 5e-4
_ROTATE_NEGATIVES = 256
"""Default of `--negatives` for RotatE, which needs differences [triples, entities, hidden] for the scores of all
entities."""


def add_parser(commands: argparse._SubParsersAction[Any]) -> None:
    sub = commands.add_parser("train", help="train a two-layer model to classify nodes or predict links",
                              allow_abbrev=False)  # fmt: skip
    sub.set_defaults(run=run)
    add = sub.add_argument
    add("--model", choices=(*MODELS, *RELATIONAL_MODELS), default="gat", help="layers (default: %(default)s); "
        f"{', '.join(RELATIONAL_MODELS)} are graphweave's, over relations, the others PyG's")  # fmt: skip
    add("--data", help="digits (default), karate, FILE.npz or planetoid:NAME; with relations families (default) or "
        "FILE.npz: links are predicted in knowledge graphs, nodes classified elsewhere")  # fmt: skip
    add("--epochs", type=_positive_int, default=100, help="times all training data are used (default: %(default)s)")
    add("--hidden", type=_positive_int, default=64, help="hidden width, all heads together (default: %(default)s)")
    add("--heads", type=_positive_int, default=4, help="attention heads of the first layer (default: %(default)s)")
    add("--dropout", type=_share, help=f"share of hidden features dropped (default: {_DROPOUT}, links {_LINK_DROPOUT})")
    add("--lr", type=_positive, default=0.01, help="learning rate of Adam (default: %(default)s)")
    add("--weight-decay", type=_not_negative, help=f"weight decay of Adam (default: {_WEIGHT_DECAY}, relations 0)")
    add("--seed", type=int, default=0, help="of weights, dropout and random splits (default: %(default)s)")
    add("--threads", type=_positive_int, help="threads of torch and of the kernels (default: torch's choice)")
    add("--symmetric", action="store_true", help="add the reverse of every edge of FILE.npz (PyG's models)")
    add("--compare", action="store_true", help="also eager PyTorch and torch.compile's default backend, interleaved")
    add("--plot", type=Path, metavar="OUT.png", help="draw loss, validation and epoch times (needs matplotlib)")
    add("--no-compile", action="store_true", help="eager PyTorch only, without graphweave")
    links = sub.add_argument_group("knowledge graphs").add_argument
    links("--decoder", choices=DECODERS, default="distmult", help="score of a triple (default: %(default)s)")
    links("--batch", type=_positive_int, default=1024, help="triples of a step (default: %(default)s)")
    links("--negatives", type=_count, help="entities drawn in a step as wrong tails, 0 for all (default: 0, "
          f"rotate {_ROTATE_NEGATIVES})")  # fmt: skip
    links("--edge-dropout", type=_share, default=0.5, help="share of the batch's triples that are left out of the "
          "graph (default: %(default)s)")  # fmt: skip
    links("--eval-every", type=_positive_int, default=5, help="epochs between validations (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    if args.compare and args.no_compile:
        raise DataError("--compare and --no-compile exclude each other. Leave out one.")
    if args.plot is not None:
        check_plot(args.plot)
    data = _data(args)
    job = _job(args, data)
    job.apply_threads()
    check_trainable(data)

    # Output to a file or pipe has no colours and no moving bar, and its lines are wide enough for the table.
    console = Console(width=None if sys.stdout.isatty() else 120)
    ways = ["eager"] if args.no_compile else ["graphweave", "eager", "inductor"] if args.compare else ["graphweave"]
    runners = [start(way, job, data) for way in ways]
    console.print(described(args.model, data), highlight=False)
    with progress(console, job.epochs) as (within, after):
        for _ in range(job.epochs):
            for i, runner in enumerate(runners):
                runner.epoch(lambda share, i=i: within((i + share) / len(runners)))  # type: ignore[misc]
            after(runners[0])
    console.print(summary(runners, *_memory(console, ways, job, data)))
    if args.plot is not None:
        draw(args.plot, runners)
        console.print(f"plot: {args.plot}", highlight=False)
    return 0


def _data(args: argparse.Namespace) -> Data:
    if args.model not in RELATIONAL_MODELS:
        return load(args.data or "digits", symmetric=args.symmetric, seed=args.seed)
    if args.symmetric:
        raise DataError(f"--symmetric is not for {args.model}: every relation has its inverse anyway. Leave it out.")
    return load_relational(args.data or "families", seed=args.seed)


def _job(args: argparse.Namespace, data: Data) -> TrainingJob:
    links = isinstance(data, KnowledgeGraph)
    negatives = _ROTATE_NEGATIVES if args.decoder == "rotate" else 0
    dropout = _LINK_DROPOUT if links else _DROPOUT
    decay = 0.0 if args.model in RELATIONAL_MODELS else _WEIGHT_DECAY
    return TrainingJob(
        args.model, args.hidden, args.heads, _or(args.dropout, dropout), args.lr, _or(args.weight_decay, decay),
        args.epochs, args.seed, args.threads,
        Links(args.decoder, args.batch, _or(args.negatives, negatives), args.edge_dropout, args.eval_every),
    )  # fmt: skip


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _memory(console: Console, ways: list[str], job: TrainingJob, data: Data) -> tuple[str, list[int | None]]:
    """A heading, and bytes for each way. A single way is measured by the peak of this process, several by that of a
    fresh process for each."""
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


def _count(text: str) -> int:
    return int(_number(text, int, lambda value: value >= 0, "a whole number, 0 or above"))


def _positive(text: str) -> float:
    return _number(text, float, lambda value: 0 < value < float("inf"), "a number above 0")


def _not_negative(text: str) -> float:
    return _number(text, float, lambda value: 0 <= value < float("inf"), "a number, 0 or above")


def _share(text: str) -> float:
    return _number(text, float, lambda value: 0 <= value < 1, "a number from 0 to below 1")
