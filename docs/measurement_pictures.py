"""The pictures of docs/measurements.md, drawn from `bench/results`: `python -m docs.measurement_pictures`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.figure import Figure

from docs.pictures import Colours, plain_axes, results, write

FIRST_CALLS = {
    "gcn-2": "GCN", "sage-2": "GraphSAGE", "gat-2": "GAT", "gatv2-2": "GATv2", "transformer-2": "Transformer",
    "pna-2": "PNA", "edge-conv-2": "EdgeConv", "rgcn-2": "RGCN", "to-hetero": "to_hetero", "gin-5": "GIN, 5 layers",
    "gcn-20": "GCN, 20 layers", "gps-2": "GraphGPS",
}  # fmt: skip
"""Case of `first_call.json` -> its label."""
GROWTH = {"gat": "GAT", "gcn": "GCN", "edgeconv": "EdgeConv", "sage": "GraphSAGE"}
"""Model of `memory_growth.json` -> its label."""
GRAPHS = ("aifb", "mutag", "bgs", "biokg", "wn18rr", "fb15k_237")
"""Graphs of `relational.json` that are drawn."""


def first_calls(colours: Colours) -> Figure:
    """Seconds of a first call, in a first and in a second process."""
    measured = {(row["case"], row["system"]): row["runs"] for row in results("first_call").values()}
    kinds = {
        ("inductor", "cold"): ("torch.compile, cold", colours.others[0]),
        ("inductor", "second process"): ("torch.compile, second process", colours.others[2]),
        ("graphweave", "cold"): ("graphweave, cold", colours.ours_faint),
        ("graphweave", "second process"): ("graphweave, second process", colours.ours),
    }
    figure = Figure(figsize=(9, 6.4))
    axes = figure.subplots()
    for row, case in enumerate(FIRST_CALLS):
        for place, ((system, kind), (label, colour)) in enumerate(kinds.items()):
            run = measured[case, system][kind]
            seconds, at = run["load"] + run["first"] - run["warm"], row + (place - 1.5) * 0.2
            axes.barh(at, seconds, 0.18, color=colour, label=label if row == 0 else None)
            axes.text(seconds + 0.3, at, f"{seconds:.1f}", va="center", size=7, color=colours.text)
    return _rows(figure, axes, list(FIRST_CALLS.values()), "seconds of a first training step", colours)


def memory_growth(colours: Colours) -> Figure:
    """Peak memory of training steps against the number of edges."""
    measured = results("memory_growth")
    figure = Figure(figsize=(9, 3.6))
    axes = figure.subplots()
    shades = (colours.ours, colours.text, *colours.others[1:])
    for (model, label), colour in zip(GROWTH.items(), shades, strict=True):
        points = measured[f"{model} graphweave"]["points"]
        edges = [int(count) / 1e6 for count in points]
        peaks = [point["peak_extra_bytes"] / 1e6 for point in points.values()]
        axes.plot(edges, peaks, marker="o", markersize=4, color=colour)
        axes.text(edges[-1] + 0.07, peaks[-1], label, va="center", size=8.5, color=colours.text)
    wide = [edge * 256 for edge in (0, 0.5)]
    axes.plot((0, 0.5), wide, color=colours.faint, linestyle=":")
    axes.text(0.52, wide[1], "one tensor of 64 float32 for each edge", va="center", size=8.5, color=colours.text)
    axes.set(xlim=(0, 4.8), ylim=(0, 145), xlabel="million edges", xticks=range(5))
    axes.xaxis.label.set_color(colours.text)
    axes.set_title("peak memory of two training steps on 20,000 nodes, MB", loc="left")
    plain_axes(axes, colours)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    return figure


def relational(colours: Colours) -> Figure:
    """How many times as fast as the best layer of PyG and DGL a training step of a relational layer is."""
    measured = results("relational")
    figure = Figure(figsize=(9, 3.4))
    for axes, model in zip(figure.subplots(1, 3, sharey=True), ("rgcn", "rgat", "hgt"), strict=True):
        for row, graph in enumerate(GRAPHS):
            seconds = {s: v["median"] for s, v in measured[f"{model} {graph} train"].items()
                       if v["status"] == "ok"}  # fmt: skip
            for place, (library, colour) in enumerate((("pyg-", colours.others[0]), ("dgl", colours.others[2]))):
                peers = [value for system, value in seconds.items() if system.startswith(library)]
                at = row + (place - 0.5) * 0.36
                ratio = min(peers) / seconds["graphweave"] if peers else 0.0
                axes.barh(
                    at, ratio, 0.32, color=colour, label={"pyg-": "PyG", "dgl": "DGL"}[library] if row == 0 else None
                )
                said = f"{ratio:.1f}" if peers else "too much memory or time"
                axes.text(ratio * 1.06 if peers else 1.1, at, said, va="center", size=7, color=colours.text)
        axes.set(xscale="log", xlim=(1, 400))
        _rows(figure, axes, [name.upper() for name in GRAPHS], model.upper(), colours, legend=model == "hgt")
        axes.tick_params(which="both", bottom=False)
    figure.suptitle("a training step: times as fast as the best layer of", x=0.01, ha="left", size=10,
                    color=colours.text)  # fmt: skip
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    return figure


def kernels(colours: Colours) -> Figure:
    """Milliseconds of each fused kernel, and the least that its bytes or its arithmetic allow."""
    figure = Figure(figsize=(9, 3.6))
    for axes, model in zip(figure.subplots(1, 2), ("gat", "sage"), strict=True):
        measured = results("bounds")[f"{model} rmat"]
        runs = [run for run in measured["runs"] if run["kernel"]]
        for row, run in enumerate(runs):
            moved = (run["gather_bytes"], run["compulsory_bytes"])
            flops = run["flops"] / measured["gemm_flops_per_second"]
            most, least = (1e3 * max(size / measured["triad_bytes_per_second"], flops) for size in moved)
            axes.barh(row, 1e3 * run["seconds"], 0.6, color=colours.ours, label="measured" if row == 0 else None)
            axes.plot(
                least, row, "|", color=colours.text, markersize=13, label="each tensor read once" if row == 0 else None
            )
            axes.plot(
                most,
                row,
                "x",
                color=colours.text,
                markersize=6,
                label="each row read for each edge" if row == 0 else None,
            )
        title = f"{'GAT' if model == 'gat' else 'GraphSAGE'}: ms of each kernel, and its bounds"
        _rows(figure, axes, [run["name"].replace("_", " ") for run in runs], title, colours, legend=model == "sage")
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    return figure


def _rows(figure: Figure, axes: Any, labels: list[str], title: str, colours: Colours, legend: bool = True) -> Figure:
    """The figure with a name for each row of bars, the first on top."""
    axes.set_yticks(range(len(labels)), labels)
    if axes.get_ylim()[0] < axes.get_ylim()[1]:
        axes.invert_yaxis()
    axes.set_xticks([])
    axes.set_title(title, loc="left")
    plain_axes(axes, colours)
    if legend:
        figure.legend(
            *axes.get_legend_handles_labels(),
            frameon=False,
            labelcolor=colours.text,
            loc="lower center",
            fontsize=8,
            ncols=4,
        )
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    return figure


PICTURES: dict[str, Callable[[Colours], Figure]] = {
    "first_calls": first_calls, "memory_growth": memory_growth, "relational": relational, "kernels": kernels,
}  # fmt: skip

if __name__ == "__main__":
    write(PICTURES)
