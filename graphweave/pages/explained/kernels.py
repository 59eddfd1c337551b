"""The kernels of an explanation: what each costs, and its code next to the lines that it comes from."""

from __future__ import annotations

from graphweave.pages.elements import Content, Html, code, fold, join, table, tag
from graphweave.pages.explained.data import ExplainedData, ShownKernel, ShownPiece
from graphweave.pages.explained.links import kernel_class, kernel_key, kernel_link, place_link


def run_table(data: ExplainedData) -> Html:
    """The kernels in the order in which they run, with bytes, operations and times."""
    measured = any(k.cost is not None and k.cost.seconds is not None for k in data.kernels)
    rows = [[kernel_link(k), k.half, k.does, *_costs(k, measured=measured)] for k in data.kernels]
    header = ["kernel", "when", "what it computes", "MB", "MB gathered", "Mflop", "bound, us"]
    header += ["time, us", "of its bound"] if measured else []
    return table(header, rows, "Kernels in the order in which they run. MB counts each tensor once; MB gathered counts "
                 "a gathered row for every edge, as if nothing were cached.")  # fmt: skip


def _costs(kernel: ShownKernel, *, measured: bool) -> list[Content]:
    cost = kernel.cost
    if cost is None:
        return [None] * (6 if measured else 4)
    bound = None if cost.bound_seconds is None else 1e6 * cost.bound_seconds
    found: list[Content] = [cost.compulsory / 1e6, cost.gather / 1e6, cost.flops / 1e6, bound]
    if measured:
        share = (
            None
            if not cost.seconds or cost.bound_seconds is None
            else f"{100 * cost.bound_seconds / cost.seconds:.0f} %"
        )
        found += [None if cost.seconds is None else 1e6 * cost.seconds, share]
    return found


def kernels(data: ExplainedData) -> Html:
    """Each kernel, folded: what it computes, its lines, its code in pieces, its loop IR."""
    return join(_kernel(k) for k in data.kernels)


def _kernel(kernel: ShownKernel) -> Html:
    title = tag("span", kernel.name, class_=kernel_class(kernel), data_kernel=kernel.key)
    summary = join([title, Html(" "), f"{kernel.half}: {kernel.does}"])
    rows = [
        tag("tr", tag("td", place_link(piece.place), _text(piece)), tag("td", tag("pre", tag("code", piece.code))))
        for piece in kernel.pieces
    ]
    head = tag("tr", tag("th", "line", scope="col"), tag("th", "code", scope="col"))
    pieces = tag("table", tag("thead", head), tag("tbody", *rows), class_="pieces")
    ignored = [tag("p", f"The schedule's {name} does not apply: {why}") for name, why in kernel.ignored]
    scrolling = tag("div", pieces, class_="wide tall", tabindex="0", role="region", aria_label=f"code of {kernel.name}")
    body = join([*ignored, scrolling, fold("Loop IR", code(kernel.loops))])
    return fold(summary, body, key=kernel_key(kernel.key))


def _text(piece: ShownPiece) -> Html:
    return tag("div", tag("code", piece.text)) if piece.text else Html("")
