"""`graphweave train`: trains a model on real data, compiled, and in eager mode and by torch.compile if requested."""

from __future__ import annotations

import argparse
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from graphweave.cli.arguments import count, fanout, not_negative, parts, positive, positive_int, share
from graphweave.cli.memory import peak_extra_bytes
from graphweave.cli.named_data import check_trainable, described, load, load_for, load_relational, load_tables
from graphweave.cli.notes import told_after
from graphweave.cli.plot import check_page, check_picture, save_picture
from graphweave.cli.report import Tick, measure, pays, progress, summary
from graphweave.cli.training_page import FinishedTraining, all_charts, training_page
from graphweave.core.errors import DataError, GraphweaveError
from graphweave.data import KnowledgeGraph, NodeData, TypedNodeData
from graphweave.distributed.environment import restarts
from graphweave.distributed.ranks import TIMEOUT, Ranks, started
from graphweave.examples.checkpoint import kept, resume, save
from graphweave.examples.relational_models import DECODERS, RELATIONAL_MODELS
from graphweave.examples.sampled_nodes import FANOUT
from graphweave.examples.tables import FANOUT as TABLE_FANOUT
from graphweave.examples.tasks import TASKS, Data, start
from graphweave.examples.training import Links, TrainingJob

_TRIPLES = 1024
"""Default of `--batch` for knowledge graphs."""
_ROTATE_NEGATIVES = 256
"""Default of `--negatives` for RotatE, which needs differences [triples, entities, hidden] for the scores of all
entities."""


def add_arguments(sub: argparse.ArgumentParser) -> None:
    sub.set_defaults(run=run)
    add_training(sub)
    add_epochs(sub)
    add = sub.add_argument
    add("--compare", action="store_true", help="also eager PyTorch and torch.compile's default backend, interleaved")
    add("--no-compile", action="store_true", help="eager PyTorch only, without graphweave")


def add_epochs(sub: argparse.ArgumentParser) -> None:
    """The options that say how long is trained, and what is kept and written of it."""
    add = sub.add_argument
    add("--epochs", type=positive_int, help="times all training data are used (default: "
        f"{TASKS['node'].epochs}, tables {TASKS['table'].epochs}, forces {TASKS['forces'].epochs})")  # fmt: skip
    add_outputs(sub)
    add("--checkpoint", type=Path, metavar="DIR", help="keep there what continues the training after each epoch")
    add("--checkpoint-every", type=positive_int, metavar="STEPS", help="keep it within epochs, too, every STEPS steps "
        "of a training by batches")  # fmt: skip
    add("--resume", type=Path, metavar="DIR", help="go on from a checkpoint, up to --epochs, and keep it up to date")
    add("--timeout", type=positive, default=TIMEOUT, metavar="SECONDS", help="time that ranks wait for each other, if "
        "several processes train together (default: %(default).0f)")  # fmt: skip


def add_outputs(sub: argparse.ArgumentParser) -> None:
    """The options that name what is drawn and written. Both need matplotlib."""
    add = sub.add_argument
    add("--plot", type=Path, metavar="OUT.png", help="write the charts of the report as one picture: PNG, SVG or PDF "
        "(needs matplotlib)")  # fmt: skip
    add("--report", type=Path, metavar="OUT.html", help="write results, charts, machine and versions as one page "
        "(needs matplotlib)")  # fmt: skip


def add_training(sub: argparse.ArgumentParser) -> None:
    """The options that say what is trained, on what, and how."""
    add = sub.add_argument
    models = dict.fromkeys(model for task in TASKS.values() for model in task.models)
    add("--task", choices=tuple(TASKS), help="default: link for knowledge graphs, table with --target, else "
        "node")  # fmt: skip
    add("--model", choices=tuple(models), help="layers (default: that of the task: "
        f"{', '.join(f'{name} {task.models[0]}' for name, task in TASKS.items())}); "
        f"{', '.join(RELATIONAL_MODELS)} are graphweave's, over relations")  # fmt: skip
    add("--data", help="digits (default), karate, FILE.npz, FILE.graphml, FILE.pt, FILE.bin, a folder of PyG, DGL or "
        "OGB, or planetoid:NAME; with relations families (default), FILE.npz or such a file or folder; FILE.npz for "
        "points and recommend; lennard-jones (default) or morse for forces; with --target a folder of .csv or .parquet "
        "files, or the URL of a database")  # fmt: skip
    batches = {name: task.batch for name, task in TASKS.items() if task.batch is not None}
    add("--batch", type=positive_int, help="nodes, edges, triples, graphs, clouds, systems, pairs or rows of a step "
        f"(default: all nodes, {batches['link']} edges, {_TRIPLES} triples, {batches['graph']} graphs, "
        f"{batches['points']} clouds, {batches['forces']} systems, {batches['recommend']} pairs, {batches['table']} "
        "rows)")  # fmt: skip
    add("--fanout", type=fanout, metavar="N,N", help="neighbours that each hop draws for a batch of nodes "
        f"(default: {','.join(map(str, FANOUT))}) or, by each relation, of rows (default: "
        f"{','.join(map(str, TABLE_FANOUT))})")  # fmt: skip
    add("--hidden", type=positive_int, default=64, help="hidden width, all heads together (default: %(default)s)")
    add("--heads", type=positive_int, default=4, help="attention heads of the first layer (default: %(default)s)")
    add("--dropout", type=share, help="share of hidden features dropped (default: 0.5, links 0.2)")
    add("--lr", type=positive, help=f"learning rate of Adam (default: {TASKS['node'].lr}, forces "
        f"{TASKS['forces'].lr})")  # fmt: skip
    add("--weight-decay", type=not_negative, help="weight decay of Adam (default: 0.0005 for nodes without relations, "
        "else 0)")  # fmt: skip
    add("--seed", type=count, default=0, help="of weights, dropout and random splits (default: %(default)s)")
    add("--threads", type=positive_int, help="threads of torch and of the kernels (default: torch's choice)")
    add("--symmetric", action="store_true", help="add the reverse of every edge of FILE.npz (PyG's models)")
    tables = sub.add_argument_group("tables").add_argument
    tables("--target", metavar="TABLE.COLUMN", help="the column to predict, by the rows around it that were known "
           "then")  # fmt: skip
    tables("--target-kind", choices=("classes", "number"), help="default: text, flags and two numbers are classes")
    tables("--time", action="append", default=[], metavar="TABLE.COLUMN", help="when rows of the table became known "
           "(default: its column with dates)")  # fmt: skip
    tables("--exclude", action="append", default=[], metavar="TABLE.COLUMN", help="leave out a column, such as one "
           "that was not known then")  # fmt: skip
    tables("--split", type=parts, metavar="A,B", help="the last times of training and of validation, or the shares "
           "of training, validation and test rows (default: 0.6,0.2,0.2)")  # fmt: skip
    links = sub.add_argument_group("links").add_argument
    links("--decoder", choices=(*DECODERS, *TASKS["link"].decoders), help="score of a triple (default: distmult) or "
          "of a pair (default: dot)")  # fmt: skip
    links("--negatives", type=count, help="entities drawn in a step as wrong tails, 0 for all (default: 0, "
          f"rotate {_ROTATE_NEGATIVES}); other pairs for each joined pair (default: 1)")  # fmt: skip
    links("--edge-dropout", type=share, default=0.5, help="share of the batch's triples that are left out of the "
          "graph (default: %(default)s)")  # fmt: skip
    links("--eval-every", type=positive_int, default=5, help="epochs between validations in knowledge graphs "
          "(default: %(default)s)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    with started(args.timeout) as ranks:
        return _train(args, ranks)


def _train(args: argparse.Namespace, ranks: Ranks) -> int:
    # Output to a file or pipe has no colours and no moving bar, and its lines are wide enough for the table.
    console = Console(width=None if sys.stdout.isatty() else 120, quiet=not ranks.first)
    ways = ["eager"] if args.no_compile else ["graphweave", "eager", "inductor"] if args.compare else ["graphweave"]
    folder, done = args.checkpoint or args.resume, 0
    with ranks.together():
        if args.compare and args.no_compile:
            raise DataError("--compare and --no-compile exclude each other. Leave out one.")
        if ranks.first:
            check_outputs(args)
        if ranks.size > 1 and args.compare:
            raise DataError(
                f"--compare times ways within one process (got {ranks.size} ranks). Leave it out, or start one process."
            )
        with told_after("train", tell=ranks.first):
            model, job, data = asked(args)
        runners = [start(way, job, data, ranks) for way in ways]
        # torchrun starts ranks again with the arguments that they had, so these go on from what they kept.
        if args.resume is not None or (folder is not None and restarts() and kept(folder)):
            done = resume(folder if args.resume is None else args.resume, job, data.name, runners, ranks)
    console.print(described(model, data) + (f"; {ranks.size} ranks" if ranks.size > 1 else ""), highlight=False)

    def keep() -> None:
        if folder is not None:
            save(folder, job, data.name, runners, ranks)

    with progress(console, job.epochs, done) as (within, after):
        for epoch in range(done, job.epochs):
            for i, runner in enumerate(runners):
                if len(runner.history.loss) == epoch:  # else it was ahead of the others when a checkpoint was written
                    runner.epoch(_ticks(within, keep, i, len(runners), args.checkpoint_every))
            after(runners[0])
            keep()
    measured = measure(runners, *_memory(console, ways, job, data))
    console.print(summary(measured))
    if done == 0:
        for line in pays(runners):
            console.print(line, highlight=False)
    if args.plot is not None or args.report is not None:
        predictions = [runner.predictions() for runner in runners]
        if ranks.first:
            _write(args, FinishedTraining(model, job, data, runners, measured, predictions), console)
    return 0


def check_outputs(args: argparse.Namespace) -> None:
    """Raise if what is to be drawn or written cannot be, so that this shows before the training and not after it."""
    if args.plot is not None:
        check_picture(args.plot)
    if args.report is not None:
        check_page(args.report)


def _write(args: argparse.Namespace, done: FinishedTraining, console: Console) -> None:
    if args.plot is not None:
        save_picture(args.plot, [chart for drawn in all_charts(done).values() for chart in drawn])
        console.print(f"plot: {args.plot}", highlight=False)
    if args.report is not None:
        args.report.write_text(training_page(done), encoding="utf-8")
        console.print(f"report: {args.report}", highlight=False)


def _ticks(within: Tick, keep: Callable[[], None], number: int, count: int, every: int | None) -> Tick:
    """The function that is called after each step of runner `number` of `count`: it shows the share of the epoch that
    is done, and keeps a checkpoint after `every` steps."""
    steps = 0

    def tick(share: float) -> None:
        nonlocal steps
        steps += 1
        within((number + share) / count)
        if every is not None and steps % every == 0 and share < 1:
            keep()

    return tick


def asked(args: argparse.Namespace) -> tuple[str, TrainingJob, Data]:
    """The model, the job and the data that the options of `add_training` name. DataError if they do not go together."""
    task, model = _chosen(args)
    data = _data(args, task, model)
    job = _job(args, task, model, data)
    job.apply_threads()
    check_trainable(data, task)
    return model, job, data


def _chosen(args: argparse.Namespace) -> tuple[str, str]:
    """The task and the model. DataError if they do not go together."""
    if args.task is None and args.target is not None:
        args.task = "table"
    if args.task is None:
        model = args.model or TASKS["node"].models[0]
        if model in RELATIONAL_MODELS:
            return "", model  # the data tell
        return next(name for name, task in TASKS.items() if model in task.models), model
    task = TASKS[args.task]
    model = args.model or task.models[0]
    if model not in task.models:
        raise DataError(
            f"--task {args.task} has the models {', '.join(task.models)} (got {model}). Choose one of them."
        )
    return args.task, model


def _data(args: argparse.Namespace, task: str, model: str) -> Data:
    if task == "table":
        return _tables(args)
    given = [name for name in ("target", "target_kind", "time", "exclude", "split") if getattr(args, name)]
    if given:
        raise DataError(f"--{given[0].replace('_', '-')} is for tables. Give --target, or leave it out.")
    if task and TASKS[task].file is not None:
        name = args.data or TASKS[task].made
        if not name or args.symmetric:
            which = TASKS[task].made or "FILE.npz"
            raise DataError(f"--task {task} needs --data {which} and no --symmetric. Give the data alone.")
        return load_for(task, name, seed=args.seed)
    if model not in RELATIONAL_MODELS:
        return load(args.data or "digits", symmetric=args.symmetric, seed=args.seed)
    if args.symmetric:
        raise DataError(f"--symmetric is not for {model}: every relation has its inverse anyway. Leave it out.")
    return load_relational(args.data or "families", seed=args.seed)


def _tables(args: argparse.Namespace) -> Data:
    if args.target is None or args.data is None or args.symmetric:
        raise DataError(
            "--task table needs --data, a folder of tables or the URL of a database, --target TABLE.COLUMN, and no"
            " --symmetric. Give these."
        )
    times: dict[str, str] = {}
    for one in args.time:
        table, dot, column = one.rpartition(".")
        if not dot or not table:
            raise DataError(f"--time must be TABLE.COLUMN (got {one!r}). Write it as orders.placed_at.")
        times[table] = column
    return load_tables(
        args.data, args.target, times=times, exclude=args.exclude, target_kind=args.target_kind, seed=args.seed,
        **({} if args.split is None else {"split": args.split}),
    )  # fmt: skip


def _job(args: argparse.Namespace, task: str, model: str, data: Data) -> TrainingJob:
    triples = isinstance(data, KnowledgeGraph)
    task = task or ("link" if triples else "node")
    decoders = DECODERS if triples else TASKS[task].decoders
    if args.decoder is not None and args.decoder not in decoders:
        raise DataError(
            f"--decoder must be one of {', '.join(decoders) or 'none'} for {data.name} (got {args.decoder})."
            " Choose one of them."
        )
    batched = args.batch is not None and isinstance(data, NodeData) and task == "node"
    if args.fanout is not None and not batched and task != "table":
        raise DataError(
            "--fanout is for --task node with --batch and one of PyG's models, and for --task table. Give these, or"
            " leave it out."
        )
    if args.batch is not None and isinstance(data, TypedNodeData):
        raise DataError(f"--batch is not for {model}, which classifies all nodes at once. Leave it out.")
    decoder = args.decoder or (decoders[0] if decoders else DECODERS[0])
    negatives = _ROTATE_NEGATIVES if decoder == "rotate" else 0
    decay = 0.0 if model in RELATIONAL_MODELS else TASKS[task].weight_decay
    return TrainingJob(
        model, args.hidden, args.heads, _or(args.dropout, TASKS[task].dropout), _or(args.lr, TASKS[task].lr),
        _or(args.weight_decay, decay), _or(args.epochs, TASKS[task].epochs), args.seed, args.threads,
        Links(decoder, args.batch or _TRIPLES, _or(args.negatives, negatives), args.edge_dropout, args.eval_every),
        task, args.batch, args.fanout or (),
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
