"""Hector's figures 8 to 11 and tables 4, 5 (Wu et al., ASPLOS 2024), by the cases of bench.relational.

Graphs are seeded synthetic ones of the sizes in its table 3, except fb15k, which is the real fb15k_237 with inverses.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import os
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import graphweave
from bench import relational as relational_bench
from bench import relational_graphs, relational_models
from bench.case import options_of
from bench.common import machine
from bench.papers import price
from bench.papers.cells import OURS, Panel
from bench.papers.headlines import Headline, highest, mean, over
from bench.papers.session import Gap, Paper, Session
from bench.relational_graphs import WIDTH
from bench.relational_reference import drop_references
from bench.relational_tables import BASE, FIXED, PEERS, best_peer
from bench.runner import Measuring
from bench.turns import MALLOC

GRAPHS = ("aifb", "am", "bgs", "biokg", "fb15k_237", "mag", "mutag", "wikikg2")
MODELS, MODES = ("rgcn", "rgat", "hgt"), ("infer", "train")
WIDTHS = (32, 64, 128)
FORMS = {name: f"graphweave {name.removeprefix('gw-')}" for name in FIXED}
"""Variant of graphweave -> its name here: U (neither), C (compaction), R (reordering), C+R."""

BEST = {
    "train": {"rgcn": (2.02, 2.76, 3.48), "rgat": (4.61, 11.3, 55.4), "hgt": (2.17, 8.02, 43.1)},
    "infer": {"rgcn": (1.51, 1.91, 3.20), "rgat": (5.29, 8.56, 15.5), "hgt": (1.40, 2.87, 7.42)},
}
UNOPTIMISED: dict[str, dict[str, tuple[float | str, ...]]] = {
    "train": {"rgcn": (2.02, 2.59, 3.47), "rgat": (1.72, 9.14, 43.7), "hgt": (1.53, 6.62, 28.3)},
    "infer": {"rgcn": ("illegible", 1.79, 2.19), "rgat": (1.41, 5.02, 9.89), "hgt": (1.20, 1.90, 4.31)},
}
"""Table 4: speed-up of its best optimised and its unoptimised code over the best other system: worst, mean, best.

The text that we have of the table lacks most decimal points. They stand where worst <= mean <= best, and where the
optimisations gain what table 5 says; section 4.2 has the means of unoptimised code.
"""

AVERAGES = {
    ("hgt", "train"): (1.08, 1.16, 1.26), ("hgt", "infer"): (1.07, 1.31, 1.40),
    ("rgat", "train"): (1.13, 1.17, 1.18), ("rgat", "infer"): (1.36, 1.28, 1.49),
}  # fmt: skip
"""Table 5: average speed-up over unoptimised code of C, R, C+R."""

COMPACTION = {"am infer": 57, "fb15k_237 infer": 26}
"""Section 4.3: unique pairs of source and relation in percent of the edges."""

SHORT = "graphs of Hector's sizes, synthetic except fb15k_237 (real, with inverses)"


def relational(
    options: argparse.Namespace, model: str, graph: str, modes: Sequence[str], systems: Sequence[str], *,
    width: int = 64, memory: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """The measurements of bench.relational on one model and graph, with peaks if `memory`. Features and results are
    `width` wide.

    It is taken from --relational, a record of bench.relational, if that has measured this.
    """
    found = _recorded(options.relational, model, graph, modes, systems) if width == 64 and not memory else None
    if found is not None:
        return found
    argv = [*_argv(options, model, graph, modes, systems), "--memory-graphs", graph if memory else "none"]
    asked = options_of(relational_bench.BENCH, argv)
    results: dict[str, Any] = {f"graph {graph}": relational_bench.described(graph, options.data_dir)}
    before = os.environ.get(WIDTH, "64")
    os.environ[WIDTH] = str(width)  # for the processes of the peers
    try:
        for mode in modes:
            case = relational_bench.case_of(model, graph, mode, asked, tuple(systems))
            with tempfile.TemporaryDirectory() as folder:
                results[case.name] = Measuring(relational_bench.BENCH, case, asked, argv, Path(folder)).run()
    finally:
        os.environ[WIDTH] = before
        drop_references(model, graph)
    return {"machine": machine(), "results": results}


def peaks(
    options: argparse.Namespace, model: str, graph: str, mode: str, systems: Sequence[str]
) -> dict[str, int | str]:
    """System -> the peak bytes of a step, or why there are none. `relational` says whether its results are right."""
    argv = _argv(options, model, graph, (mode,), systems)
    asked = options_of(relational_bench.BENCH, argv)
    case = relational_bench.case_of(model, graph, mode, asked, tuple(systems))
    with tempfile.TemporaryDirectory() as folder:
        return Measuring(relational_bench.BENCH, case, asked, argv, Path(folder)).ask("peak", MALLOC)


def _argv(
    options: argparse.Namespace, model: str, graph: str, modes: Sequence[str], systems: Sequence[str]
) -> list[str]:
    argv = ["--repeats", str(options.repeats), "--threads", str(options.threads), "--data-dir", str(options.data_dir)]
    argv += ["--timeout", str(options.timeout), "--graphs", graph, "--models", model]
    argv += ["--modes", *modes, "--systems", *systems]
    return argv + (["--dgl-python", str(options.dgl_python)] if options.dgl_python is not None else [])


def _recorded(
    path: Path | None, model: str, graph: str, modes: Sequence[str], systems: Sequence[str]
) -> dict[str, Any] | None:
    """The part of a record of bench.relational that is about this, or None if it does not have all of it."""
    if path is None:
        return None
    record = json.loads(path.read_text())
    results = {name: record["results"].get(name, {}) for name in (f"{model} {graph} {mode}" for mode in modes)}
    wanted = [name for name in systems if model in relational_bench.SYSTEMS[name]]
    if not all(name in one for one in results.values() for name in wanted):
        return None
    return {"machine": record["machine"], "results": results}


def answers_of(record: Mapping[str, Any], mode: str) -> Mapping[str, Any]:
    """System -> its answer, of a record with one model and graph."""
    (answers,) = (one for name, one in record["results"].items() if name.endswith(f" {mode}"))
    return dict(answers)


def peaks_of(record: Mapping[str, Any], mode: str) -> dict[str, int | str]:
    """System -> the peak bytes of a step, or why there are none."""
    return {name: one.get("peak", str(one["status"])) for name, one in answers_of(record, mode).items()}


def graphs_of(options: argparse.Namespace, graphs: Sequence[str] = GRAPHS) -> Sequence[str]:
    return ("tiny",) if options.quick else graphs


def figure_8(session: Session) -> list[Panel]:
    """Figure 8 (times of all forms and peers), and what follows from it: tables 4 and 5, figure 9."""
    about = (
        f"One layer 64 -> 64, one head, {SHORT}. Each peer is the fastest of its public implementations. U: neither "
        "compaction nor reordering; C, R, C+R: forced; graphweave alone: as the cost model says. Cells of the machine "
        "named below come from bench/results/relational.json (--relational), where a peer had 10 s for an answer. "
        "A system that would need more memory by an estimate than there was for it was not run (12 GB; 85% of what was "
        "available since 2026-11-28). On wikikg2, 87% of whose edges have a source and relation of their own, training "
        "is 10% faster without compaction and reordering than as the cost model says, and HGT's training needs more "
        "than the 17 GB that a process could take, in all forms: two rows of 64 for each pair and their gradients are "
        "14 GB."
    )
    times = {
        mode: session.panel(f"Figure 8, {mode}", "graphweave and other systems", "ms", about, "bars", rows="model",
                            columns="graph")
        for mode in MODES
    }  # fmt: skip
    systems = (BASE, *FIXED, *(name for names in PEERS.values() for name in names))
    for graph in graphs_of(session.options):
        for model in MODELS:
            seconds = price.relational(graph, 64, 1 + len(FIXED), 5, MODES)
            if not session.wants(model, graph, *times.values(), seconds=seconds):
                continue
            record = relational(session.options, model, graph, MODES, systems)
            for mode, panel in times.items():
                _times(panel, model, graph, answers_of(record, mode))
            session.measured(*times.values(), machine=record["machine"])
    made = [*times.values()]
    for mode, panel in times.items():
        made += [table_4(session, mode, panel), table_5(session, mode, panel)]
    return [*made, figure_9(session, times["infer"])]


def _times(panel: Panel, model: str, graph: str, answers: Mapping[str, Any]) -> None:
    missing = {"status": "no answer was given"}
    for name, shown in ((BASE, OURS), *FORMS.items()):
        panel.measured(shown, model, graph, answers.get(name, missing), scale=1e3)
    for peer in PEERS:
        add_peer(panel, peer, model, graph, answers)


def add_peer(panel: Panel, peer: str, model: str, graph: str, answers: Mapping[str, Any]) -> None:
    """Adds the time of the fastest system of a peer in ms, or why the first has none."""
    fastest = best_peer(peer, model, answers)
    found = [answers[name] for name in PEERS[peer] if name in answers]
    if fastest is not None:
        panel.measured(peer, model, graph, answers[fastest[1]], scale=1e3)
    elif found:
        panel.measured(peer, model, graph, found[0], scale=1e3)
    else:
        panel.value(peer, model, graph, None, "has no such layer, or its Python was not given")


def _columns(panel: Panel) -> list[str]:
    return list(dict.fromkeys(cell.column for cell in panel.cells if not cell.paper))


def table_4(session: Session, mode: str, times: Panel) -> Panel:
    panel = session.panel(
        f"Table 4, {mode}", "speed-up over the best other system", "times",
        "Worst, geometric mean and best over the graphs of figure 8 that a peer ran. U: without optimisation.",
        rows="model", columns="over graphs", source=times,
    )  # fmt: skip
    for kind, printed, systems in (
        ("", BEST, (OURS, *FORMS.values())), (" U", UNOPTIMISED, (FORMS["gw-U"],))
    ):  # fmt: skip
        for model in MODELS:
            panel.printed(
                "Hector", model + kind, dict(zip(("worst", "mean", "best"), printed[mode][model], strict=True))
            )
            ratios = []
            for graph in _columns(times):
                own = [v for name in systems if (v := times.number(name, model, graph))]
                peers = [v for name in PEERS if (v := times.number(name, model, graph))]
                if own and peers:
                    ratios.append(min(peers) / min(own))
            if ratios:
                for name, value in (("worst", min(ratios)), ("mean", geometric_mean(ratios)), ("best", max(ratios))):
                    panel.value(OURS, model + kind, name, value)
    return panel


def table_5(session: Session, mode: str, times: Panel) -> Panel:
    panel = session.panel(
        f"Table 5, {mode}", "compaction and reordering", "times",
        f"Speed-up of C, R and C+R, forced, over U; {SHORT}. The paper's row is its average over graphs.", "bars",
        rows="model graph", columns="form", source=times,
    )  # fmt: skip
    for model in ("rgat", "hgt"):
        panel.printed("Hector", f"{model} average", dict(zip(("C", "R", "C+R"), AVERAGES[model, mode], strict=True)))
        gains: dict[str, list[float]] = {}
        for graph in _columns(times):
            base = times.number(FORMS["gw-U"], model, graph)
            for name in FIXED[1:]:
                own, form = times.number(FORMS[name], model, graph), name.removeprefix("gw-")
                if base and own:
                    panel.value(OURS, f"{model} {graph}", form, base / own)
                    gains.setdefault(form, []).append(base / own)
        for form, values in gains.items():
            panel.value(OURS, f"{model} average", form, sum(values) / len(values))
    return panel


def figure_9(session: Session, times: Panel) -> Panel:
    panel = session.panel(
        "Figure 9", "RGAT inference with and without C and R", "ms",
        f"RGAT inference in the four forms (U: neither); the paper splits it into GEMM and traversal kernels; {SHORT}.",
        "bars", rows="graph", columns="form", source=times,
    )  # fmt: skip
    for graph in graphs_of(session.options, ("am", "fb15k_237")):
        for name, shown in FORMS.items():
            cell = times.find("rgat", graph, shown, paper=False)
            if cell is not None:
                panel.value(OURS, graph, name.removeprefix("gw-"), cell.value, cell.status)
    return panel


def figure_10(session: Session) -> list[Panel]:
    about = f"Peak memory of HGT beyond inputs and weights, with (C) and without (U) compaction; {SHORT}."
    panel = session.panel("Figure 10", "memory of HGT", "MiB", about, "bars", rows="graph", columns="mode")
    pairs = session.panel("Figure 10, pairs", "unique pairs of source and relation over edges", "%", about,
                          rows="graph", columns="mode")  # fmt: skip
    for row, percent in COMPACTION.items():
        graph, mode = row.split()
        pairs.printed("Hector", graph, {mode: percent})
    for graph in graphs_of(session.options):
        for mode in MODES:
            seconds = 2 * price.relational(graph, 64, 2, 0, (mode,))
            if not session.wants(graph, mode, panel, pairs, what="memory", seconds=seconds):
                continue
            for name, peak in peaks(session.options, "hgt", graph, mode, ("gw-U", "gw-C")).items():
                panel.peak(FORMS[name], graph, mode, peak)
            compaction = relational_bench.described(graph, session.options.data_dir)["compaction"]
            pairs.value(OURS, graph, mode, 100 * compaction)
            session.measured(panel, pairs)
    ratio = session.panel("Figure 10, ratio", "memory with C over U", "%", about, rows="graph", columns="mode",
                          source=panel)  # fmt: skip
    for graph in dict.fromkeys(cell.row for cell in panel.cells):
        for mode in MODES:
            plain, compact = (panel.number(FORMS[name], graph, mode) for name in ("gw-U", "gw-C"))
            if plain and compact:
                ratio.value(OURS, graph, mode, 100 * compact / plain)
    return [panel, pairs, ratio]


def figure_11(session: Session) -> list[Panel]:
    about = f"Neither compaction nor reordering, widths 32, 64 and 128; {SHORT}. The paper drew bars without numbers."
    panels = {
        mode: session.panel(f"Figure 11, {mode}", "time over width", "ms", about, "lines", rows="model graph",
                            columns="width")
        for mode in MODES
    }  # fmt: skip
    for graph in graphs_of(session.options):
        for model in MODELS:
            for width in WIDTHS[: 2 if session.options.quick else None]:
                row, column = f"{model} {graph}", str(width)
                seconds = price.relational(graph, width, 1, 0, MODES)
                if session.wants(row, column, *panels.values(), seconds=seconds):
                    record = relational(session.options, model, graph, MODES, ("gw-U",), width=width)
                    for mode, panel in panels.items():
                        panel.measured(OURS, row, column, answers_of(record, mode)["gw-U"], scale=1e3)
                    session.measured(*panels.values(), machine=record["machine"])
    return list(panels.values())


def lines(session: Session) -> list[Panel]:
    about = (
        "Lines of a user's code, without comments, and lines that are generated from them, for a training step. The "
        "paper: 51 lines for the three models together; at least 3,000 lines of CUDA, 5,000 of other C++ and 2,000 of "
        "Python. Here a kernel is generated for the types and widths at hand, and what kernels share is a library, "
        "which is not counted."
    )
    panel = session.panel("Section 4.1, lines", "lines of code", "lines", about, rows="model", columns="lines")
    panel.printed("Hector", "all", {"in": 51, "C++ and CUDA": 8000, "Python": 2000})
    for model in MODELS:
        wanted = [
            session.wants(model, column, panel, what="memory", seconds=price.START, together="lines")
            for column in ("in", "C++ and CUDA", "Python")
        ]
        if not any(wanted):
            continue
        written, native, python = counted(model)
        for column, number in (("in", written), ("C++ and CUDA", native), ("Python", python)):
            panel.value(OURS, model, column, number)
        session.measured(panel)
    panel.cells = [cell for cell in panel.cells if cell.paper or cell.row != "all"]
    for column in ("in", "C++ and CUDA", "Python"):
        found = [panel.number(OURS, model, column) for model in MODELS]
        if all(number is not None for number in found):
            panel.value(OURS, "all", column, sum(number for number in found if number is not None))
    return [panel]


def counted(model: str) -> tuple[int, int, int]:
    """Lines of a model and of the functions that it calls; of its kernels' C++; of the Python around them."""
    case = relational_graphs.make("tiny", Path())
    given = relational_models.inputs(model, case)
    values = relational_models.weights(model, case.num_relations, case.num_node_types)
    loss = relational_models.WithLoss(relational_models.LAYERS[model](values))
    report = graphweave.explain(graphweave.compile(loss), case.y, *given)
    native = sum(len(kernel.text.splitlines()) for note in report.graphs for kernel in (*note.kernels, *note.once))
    return _written(model), native, sum(len(note.wrapper.splitlines()) for note in report.graphs)


def _written(model: str) -> int:
    """Lines of a layer's `forward` and of the functions of its file that it calls, directly or not; no docstrings."""
    tree = ast.parse(inspect.getsource(relational_models))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    layer = inspect.getsource(relational_models.LAYERS[model].forward)
    todo: list[ast.AST] = [*ast.parse(textwrap.dedent(layer)).body]
    seen: dict[str, ast.AST] = {}
    while todo:
        node = todo.pop()
        seen[getattr(node, "name", "")] = node
        called = {one.func.id for one in ast.walk(node) if isinstance(one, ast.Call) and isinstance(one.func, ast.Name)}
        todo += [functions[name] for name in called if name in functions and name not in seen]
    return sum(len(ast.unparse(_bare(node)).splitlines()) for node in seen.values())


def _bare(node: ast.AST) -> ast.AST:
    """A function without its docstring."""
    assert isinstance(node, ast.FunctionDef)
    node.body = node.body[1:] if ast.get_docstring(node) else node.body
    return node


def _best(mode: str, model: str, own: str = OURS) -> Headline:
    means = {key: values[1] for key, values in (BEST if own == OURS else UNOPTIMISED)[mode].items()}
    verb = "in training" if mode == "train" else "in inference"
    asked = over(f"Figure 8, {mode}", *PEERS, rows=[model], own=own)
    return Headline(f"faster than the best other system {verb}, {model} on average", float(means[model]), mean(asked))


HEADLINES = (
    Headline("faster than the best other system in training, at most", 43.7, highest(over("Figure 8, train", *PEERS))),
    Headline("faster than the best other system in inference, at most", 9.9, highest(over("Figure 8, infer", *PEERS))),
    *(_best(mode, model) for mode in ("infer", "train") for model in MODELS),
    Headline("faster by compaction and reordering in inference, at most", 3.8,
             highest(over("Figure 8, infer", FORMS["gw-U"], own=FORMS["gw-C+R"]))),
    Headline("faster by compaction and reordering in training, at most", 2.7,
             highest(over("Figure 8, train", FORMS["gw-U"], own=FORMS["gw-C+R"]))),
)  # fmt: skip

PAPER = Paper(
    "hector",
    "Hector: An Efficient Programming and Compilation Framework for Implementing Relational Graph Neural Networks in "
    "GPU Architectures (ASPLOS 2024)",
    "one NVIDIA RTX 3090 of 24 GB, Intel Core i9-9900K, 128 GB",
    {"8": figure_8, "10": figure_10, "11": figure_11, "lines": lines},
    (
        Gap("Figure 12", "a GPU", "It shows instructions per cycle and throughputs of GPU kernels."),
        Gap("Figure 9, split by kind of kernel", "another kind of kernel",
            "A kernel here holds products and traversal at once."),
        Gap("Seastar, Graphiler and HGL", "a GPU", "These systems have no kernels for a CPU."),
    ),
    HEADLINES,
)  # fmt: skip
