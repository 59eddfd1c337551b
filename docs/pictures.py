"""The pictures of README and of the pages: `python -m docs.pictures`. Charts are drawn from the results in
`bench/results`, schedules by themselves, and the book's drawings by `docs/drawings.py`.

Each is written twice, for light and for dark pages. All text is text, so that it can be searched and read aloud.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch_geometric.nn import GAT

import graphweave
from docs.drawings import drawn
from graphweave.core.break_even import BreakEven

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs/pictures"
RESULTS = ROOT / "bench/results"


@dataclass(frozen=True)
class Colours:
    """The colours of a page. `ours` is for graphweave and `ours_faint` for a second kind of its bars, `others` are for
    what it is compared with."""

    text: str
    faint: str
    box: str
    ours: str
    others: tuple[str, ...]
    ours_faint: str


LIGHT = Colours("#1f2328", "#8c959f", "#eef4f3", "#00796b", ("#b0b8bf", "#8793a0", "#5c6b7a"), "#80bdb5")
DARK = Colours("#e6edf3", "#7d8590", "#16302d", "#4db6ac", ("#4a535d", "#6b7682", "#95a1ae"), "#2b6f68")

MODELS = {
    "GCN": ("train_step_rmat", "gcn rmat"), "GraphSAGE": ("train_step_rmat", "sage rmat"),
    "GIN": ("train_step_rmat", "gin rmat"), "GAT": ("train_step_rmat", "gat rmat"),
    "GATv2": ("train_step_rmat", "gatv2 rmat"), "MoNet": ("train_step_rmat_monet", "monet rmat"),
    "EdgeConv": ("train_step_points", "edgeconv points"),
}  # fmt: skip
"""Label -> the file of results and the name in it."""
DGL = {"GAT": "gat rmat", "MoNet": "monet rmat", "EdgeConv": "edgeconv points"}
"""Models that were measured beside DGL, and their names in `peers.json`."""
FIRST_CALLS = {"GCN": "gcn-2", "GraphSAGE": "sage-2", "GAT": "gat-2", "GATv2": "gatv2-2"}
"""Models whose first calls were measured, and their names in `first_call.json`."""


def results(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())["results"]


def speeds() -> dict[str, dict[str, float]]:
    """Model -> system -> how many times as fast as eager mode a training step is.

    DGL runs beside another run of graphweave, whose ratio to it is applied to graphweave's ratio to eager mode.
    """
    peers = results("peers")
    found: dict[str, dict[str, float]] = {}
    for label, (file, name) in MODELS.items():
        seconds = {s: v["median"] for s, v in results(file)[name].items() if v["status"] == "ok"}
        eager, ours = seconds["eager"], seconds["graphweave"]
        of = {"torch.compile": eager / seconds["inductor"], "graphweave": eager / ours}
        if label in DGL:
            beside = peers[DGL[label]]
            of["DGL"] = of["graphweave"] * beside["graphweave"]["median"] / beside["dgl"]["median"]
        found[label] = of
    return found


def paid_after() -> dict[str, dict[tuple[str, str], int | None]]:
    """Model -> system and state of the disk -> steps after which compiling has paid. A first call is timed on a small
    graph, where nearly all of it is compiling; the steps that have to make up for it are those of `MODELS`."""
    firsts = {(one["case"], one["system"]): one["runs"] for one in results("first_call").values()}
    found: dict[str, dict[tuple[str, str], int | None]] = {}
    for label, case in FIRST_CALLS.items():
        file, name = MODELS[label]
        steps = {system: measured["median"] for system, measured in results(file)[name].items()}
        found[label] = {
            (system, disk): BreakEven(run["first"] + steps[system], steps["eager"], steps[system]).steps
            for system in ("inductor", "graphweave")
            for disk, run in firsts[case, system].items()
            if disk in ("cold", "second process")
        }
    return found


def speed(colours: Colours) -> Figure:
    """Training steps against eager mode, peak memory, and after how many steps compiling has paid."""
    figure = Figure(figsize=(8.2, 4.9))
    left, *rights = figure.subplot_mosaic("AAB;AAC", width_ratios=[1.3, 1.3, 1.3], height_ratios=[1, 3.2]).values()
    _draw_speeds(left, colours)
    _draw_memory(rights[0], colours)
    _draw_paid_after(rights[1], colours)
    for axes in (left, *rights):
        axes.set_xticks([])
        axes.minorticks_off()
        plain_axes(axes, colours)
    figure.tight_layout()
    return figure


def _draw_speeds(left: Any, colours: Colours) -> None:
    systems = {"torch.compile": colours.others[0], "DGL": colours.others[2], "graphweave": colours.ours}
    measured = speeds()
    for row, (label, of) in enumerate(measured.items()):
        shown = [system for system in systems if system in of]
        for place, system in enumerate(shown):
            at, colour = row + (place - (len(shown) - 1) / 2) * 0.27, systems[system]
            left.barh(at, of[system], 0.25, color=colour, label=system if label == "GAT" else None)
            left.text(of[system] + 0.3, at, f"{of[system]:.1f}", va="center", size=8.5, color=colours.text)
    left.axvline(1, color=colours.text, linewidth=0.8)
    left.set_yticks(range(len(measured)), list(measured))
    left.invert_yaxis()
    left.set_title("a step: times as fast as eager PyTorch (the line)", loc="left")
    left.legend(frameon=False, labelcolor=colours.text, loc="lower right", bbox_to_anchor=(1, 0.13))


def _draw_memory(right: Any, colours: Colours) -> None:
    (memory,) = results("memory").values()
    peaks = {"eager": memory["eager"], "graphweave": memory["graphweave"]}
    for row, (system, answer) in enumerate(peaks.items()):
        size = answer["peak_extra_bytes"] / 2**30
        right.barh(row, size, 0.6, color=colours.ours if system == "graphweave" else colours.others[0])
        right.text(size + 0.1, row, f"{size:.1f} GiB", va="center", size=9, color=colours.text)
    right.set_yticks(range(len(peaks)), list(peaks))
    right.set_ylim(1.6, -0.6)
    right.set_xlim(0, 9.5)
    right.set_title("GAT: memory of a step", loc="left")


def _draw_paid_after(right: Any, colours: Colours) -> None:
    looks = {
        ("inductor", "cold"): ("torch.compile, cold", colours.others[0], 1.0),
        ("inductor", "second process"): ("torch.compile, compiled before", colours.others[0], 0.6),
        ("graphweave", "cold"): ("graphweave, cold", colours.ours, 1.0),
        ("graphweave", "second process"): ("graphweave, compiled before", colours.ours, 0.6),
    }
    measured = paid_after()
    for row, of in enumerate(measured.values()):
        for place, (which, (name, colour, alpha)) in enumerate(looks.items()):
            at, steps = row + (place - 1.5) * 0.21, of[which]
            words = "never" if steps is None else f"{steps:,}"
            right.barh(at, steps or 0, 0.19, left=0.5, color=colour, alpha=alpha, label=name if row == 0 else None)
            right.text((steps or 0) + 0.65, at, words, va="center", size=8, color=colours.text)
    right.set_xscale("log")
    right.set_xlim(0.5, 4000)
    right.set_yticks(range(len(measured)), list(measured))
    right.invert_yaxis()
    right.set_title("steps to break even", loc="left")
    right.legend(frameon=False, labelcolor=colours.text, loc="upper center", bbox_to_anchor=(0.35, 0.02), fontsize=8)


def plain_axes(axes: Any, colours: Colours) -> None:
    axes.patch.set_alpha(0)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(colors=colours.text, length=0)
    axes.set_title(axes.get_title(loc="left"), loc="left", size=10, color=colours.text)


@cache
def work_of_gat() -> tuple[int, int, int, float]:
    """A training step of README's GAT: PyTorch's calls and bytes, and graphweave's kernels and bytes."""
    torch.manual_seed(0)
    model = GAT(64, 32, num_layers=2, out_channels=7, heads=4)
    x, edge_index, y = torch.randn(1000, 64), torch.randint(1000, (2, 8000)), torch.randint(7, (1000,))

    def loss(x: torch.Tensor, edge_index: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x, edge_index), y)

    report = graphweave.explain(loss, x, edge_index, y)
    (capture,) = report.captures
    assert capture.eager_moved is not None and capture.moved is not None
    return capture.eager_calls, capture.eager_moved, sum(len(g.kernels) for g in report.graphs), capture.moved


def calls(colours: Colours) -> Figure:
    """Calls and bytes of a training step, as PyTorch runs it and as graphweave does."""
    eager_calls, eager_bytes, kernels, moved = work_of_gat()
    figure = Figure(figsize=(9, 2.5))
    axes = figure.subplots()
    rows = (
        ("PyTorch", eager_calls, "calls", eager_bytes, colours.others[1]),
        ("graphweave", kernels, "kernels", moved, colours.ours),
    )
    for row, (system, count, what, size, colour) in enumerate(rows):
        ticks = [(100 * i / eager_calls, 0.72 * 100 / eager_calls) for i in range(count)]
        axes.broken_barh(ticks, (row * 2, 0.8), facecolors=colour)
        axes.barh(row * 2 + 1.05, 100 * size / eager_bytes, 0.35, color=colour, alpha=0.6)
        words = f"{count} {what}, {size / 1e6:.0f} MB read and written"
        at = 100 * max(count / eager_calls, size / eager_bytes) + 1.5
        axes.text(min(at, 101), row * 2 + 0.6, words, va="center", size=10, color=colours.text)
        axes.text(-1.5, row * 2 + 0.6, system, va="center", ha="right", size=11, color=colours.text)
    axes.set(xlim=(-14, 135), ylim=(3.5, -0.3), xticks=[], yticks=[])
    title = "a training step of a two-layer GAT: each bar above is a call, the bar below is its bytes"
    axes.set_title(title, loc="left")
    plain_axes(axes, colours)
    figure.tight_layout()
    return figure


STAGES = (
    ("model in plain PyTorch", "capture"), ("ATen graph, forward and backward together", "import"),
    ("message program: spaces, maps, pull, push", "merge relations, rewrite"), ("the same, cheaper", "partition"),
    ("forward program, backward program", "hoist"),
    ("prelude, once a graph | what runs at each call", "schedule"), ("regions, each of them one kernel", "lower"),
    ("loops over rows, edges and lanes", "print"), ("C++ or Triton", "build"),
    ("kernels behind PyTorch's autograd", ""),
)  # fmt: skip
"""What a program is at each stage, and the step that leads to the next."""
OURS = range(2, 8)
"""The stages at which the program is in an IR of ours."""


def road(colours: Colours) -> Figure:
    """The way from a model to kernels."""
    figure = Figure(figsize=(6.4, 7.4))
    axes = figure.subplots()
    axes.set(xlim=(0, 10), ylim=(len(STAGES), -0.1))
    axes.axis("off")
    for row, (what, step) in enumerate(STAGES):
        filled = colours.box if row in OURS else "none"
        box = {"boxstyle": "round,pad=0.45", "facecolor": filled, "edgecolor": colours.faint}
        axes.text(5, row + 0.25, what, ha="center", va="center", size=11, color=colours.text, bbox=box)
        if step:
            arrow = {"arrowstyle": "-|>", "color": colours.ours}
            axes.annotate("", xy=(5, row + 0.98), xytext=(5, row + 0.52), arrowprops=arrow)
            axes.text(5.25, row + 0.73, step, va="center", size=9, color=colours.ours, style="italic")
    figure.tight_layout()
    return figure


PICTURES: dict[str, Callable[[Colours], Figure]] = {"calls": calls, "speed": speed, "road": road}


def write(pictures: Mapping[str, Callable[[Colours], Figure]]) -> None:
    """Write each picture into `docs/pictures`, for light and for dark pages."""
    settings = {"svg.fonttype": "none", "svg.hashsalt": "graphweave", "font.family": "sans-serif"}
    for name, draw in pictures.items():
        for ending, colours in {"": LIGHT, "_dark": DARK}.items():
            with mpl.rc_context(settings):
                figure = draw(colours)
                figure.savefig(FOLDER / f"{name}{ending}.svg", transparent=True, metadata={"Date": None})


def main() -> int:
    for name, text in drawn().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    write(PICTURES)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
